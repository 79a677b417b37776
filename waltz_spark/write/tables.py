"""Rows of files, read here with pyarrow: the columns that all files together have, and their batches.

Every file is looked at before the first row is written. A file may lack what a row may lack, a header and locks; all
say in the same way where their rows go. Types are not guessed where a row has only one: what looks like a number or a
date in CSV or JSON is text all the same, if it is data or a key.
"""

from __future__ import annotations

import io
import json as json_text
from collections.abc import Iterator, Sequence
from typing import Any

from waltz_core.base.record import record
from waltz_spark.base.errors import OptionError

BATCH_ROWS = 8192
_BLOCK = 1 << 22  # bytes of lines of JSON that are parsed together
_WHOLE = ("partition", "key", "data", "client_high_water_mark")  # columns that all files have, or none
_LOCKS = ("write_locks", "read_locks", "append_locks")


@record
class Table:
    """Files of one kind, and the columns of all of them."""

    paths: tuple[str, ...]
    kind: str
    schema: Any  # of pyarrow


def open_table(paths: Sequence[str], kind: str) -> Table:
    """Look at every file.

    Args:
        paths: files, or one directory.
        kind: parquet, json or csv.

    Raises:
        OptionError: a file cannot be read, or their columns do not go together.
    """
    import pyarrow as pa

    place = tuple(paths)
    try:
        schemas = list(_json_schemas(place) if kind == "json" else _schemas(place, kind))
    except (OSError, pa.ArrowException) as error:
        raise OptionError(f"{', '.join(paths)}: cannot be read as {kind}: {error}") from error
    check_alike([(path, schema.names) for path, schema in schemas])
    try:
        schema = pa.unify_schemas([pa.schema([]), *(schema for _, schema in schemas)], promote_options="permissive")
    except pa.ArrowException as error:
        raise OptionError(f"{', '.join(paths)}: a column is of different types in different files: {error}") from error
    return Table(place, kind, schema)


def batches_of(table: Table) -> Iterator[Any]:
    """All rows; errors as those of `open_table`."""
    import pyarrow as pa

    try:
        if table.kind == "json":
            yield from _json_batches(table)
        else:
            yield from _dataset(table.paths, table.kind, table.schema).to_batches(batch_size=BATCH_ROWS)
    except (OSError, pa.ArrowException) as error:
        raise OptionError(f"{', '.join(table.paths)}: {error}") from error


def row_count(table: Table) -> int:
    """How many rows there are, 0 where only reading would tell."""
    if table.kind != "parquet":
        return 0
    return int(_dataset(table.paths, table.kind, table.schema).count_rows())


def check_alike(named: Sequence[tuple[str, Sequence[str]]]) -> None:
    """See that files, given with the names of their columns, say in the same way where their rows go.

    Raises:
        OptionError: one lacks a column that no row may lack where another has it.
    """
    for column in _WHOLE:
        having = [path for path, names in named if column in names]
        lacking = [path for path, names in named if column not in names]
        if having and lacking:
            raise OptionError(
                f"{lacking[0]} lacks the column {column}, which {having[0]} has: write files with other columns by a "
                "call of their own"
            )


def _types() -> dict[str, Any]:
    import pyarrow as pa

    locks = pa.list_(pa.struct([("name", pa.string()), ("id", pa.int64())]))
    numbers = {name: pa.int64() for name in ("partition", "header", "client_high_water_mark")}
    return {**numbers, "key": pa.string(), "data": pa.string(), **dict.fromkeys(_LOCKS, locks)}


# ---- Parquet and CSV -------------------------------------------------------------------------


def _dataset(paths: Sequence[str], kind: str, schema: Any = None) -> Any:
    from pyarrow import csv, dataset

    form: Any = kind
    if kind == "csv":
        types = {name: kind for name, kind in _types().items() if name not in _LOCKS}  # CSV has none
        form = dataset.CsvFileFormat(
            parse_options=csv.ParseOptions(newlines_in_values=True),
            convert_options=csv.ConvertOptions(column_types=types),
        )
    return dataset.dataset(paths[0] if len(paths) == 1 else list(paths), format=form, schema=schema)


def _schemas(paths: Sequence[str], kind: str) -> Iterator[tuple[str, Any]]:
    for fragment in _dataset(paths, kind).get_fragments():
        yield fragment.path, fragment.physical_schema.remove_metadata()


# ---- lines of JSON ---------------------------------------------------------------------------


def _json_schemas(paths: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Of each file with rows, the columns of which a row has a value; those that no row of a log has, too."""
    import pyarrow as pa

    types = _types()
    for path, blocks in _json_files(paths):
        columns: dict[str, Any] = {}
        for at, (line, block) in enumerate(blocks):
            if at == 0:
                types["key"] = pa.int64() if _is_number(block, "key") else pa.string()
            table = _parsed(path, line, block, pa.schema(types), "infer")
            for name, column in zip(table.column_names, table.columns, strict=True):
                if name not in types or column.null_count < len(column):
                    columns.setdefault(name, column.type)
        if columns:
            yield path, pa.schema(columns)


def _is_number(block: bytes, name: str) -> bool:
    """Whether the first row has a number there."""
    try:
        value = json_text.loads(block.lstrip().partition(b"\n")[0])[name]
    except (ValueError, KeyError, TypeError):
        return False  # the parser says what is wrong, if anything
    return isinstance(value, int) and not isinstance(value, bool)


def _json_batches(table: Table) -> Iterator[Any]:
    for path, blocks in _json_files(table.paths):
        for line, block in blocks:
            parsed = _parsed(path, line, block, table.schema, "ignore")
            yield from parsed.select(table.schema.names).to_batches(max_chunksize=BATCH_ROWS)


def _json_files(paths: Sequence[str]) -> Iterator[tuple[str, Iterator[tuple[int, bytes]]]]:
    """Each file with its blocks of whole lines, and the number of the first line of each."""
    import pyarrow as pa
    from pyarrow import dataset

    source = paths[0] if len(paths) == 1 else list(paths)
    files = dataset.dataset(source, format="json", schema=pa.schema([]))  # with a schema it reads nothing yet
    for path in files.files:
        yield path, _blocks(files.filesystem, path)


def _blocks(filesystem: Any, path: str) -> Iterator[tuple[int, bytes]]:
    line, parts = 1, list[bytes]()
    with filesystem.open_input_stream(path) as file:
        while chunk := file.read(_BLOCK):
            head, end, tail = chunk.rpartition(b"\n")
            if not end:
                parts.append(chunk)
                continue
            block = b"".join((*parts, head, end))
            if block.strip():
                yield line, block
            line, parts = line + block.count(b"\n"), [tail]
    block = b"".join(parts)
    if block.strip():
        yield line, block + b"\n"


def _parsed(path: str, line: int, block: bytes, schema: Any, unexpected: str) -> Any:
    import pyarrow as pa
    from pyarrow import json

    try:
        return json.read_json(
            io.BytesIO(block),
            read_options=json.ReadOptions(use_threads=False, block_size=len(block) + 1),
            parse_options=json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected),
        )
    except pa.ArrowException as error:
        raise OptionError(f"{path}, in the lines from {line} on: {error}") from error
