"""Options of the sink: names, defaults, meaning; and the columns of what is written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from waltz_core.base.record import record
from waltz_spark.base.errors import OptionError
from waltz_spark.read.options import (
    CONNECTION,
    Known,
    check_connection,
    flag_option,
    hint,
    number_in,
    number_option,
    one_of,
    read_values,
    text_option,
)

MODES = ("append", "conditional", "at-least-once")

COLUMNS = {
    "partition": "int",
    "key": "string or bigint",
    "data": "binary or string",
    "header": "int",
    "write_locks": "array<struct<name string, id bigint>>",
    "read_locks": "array<struct<name string, id bigint>>",
    "append_locks": "array<struct<name string, id bigint>>",
    "client_high_water_mark": "bigint",
}
"""What rows may consist of; `data` and one of `partition` and `key` are needed."""

_INTEGERS = ("partition", "header", "client_high_water_mark")

CHECKED = ("write_locks", "read_locks", "client_high_water_mark")  # columns that only rows of mode `conditional` have


def _batch(name: str, value: str) -> int:
    number = number_in(value)
    if number is None:
        raise OptionError(f"{name}: expected a whole number from 0 on, found {value!r}")
    return number


def _cut(name: str, value: str) -> dict[int, int]:
    """Next ids by partition, as in `cut` of the source."""
    try:
        next_ids = {int(partition): int(next_id) for partition, next_id in json.loads(value).items()}
    except (ValueError, AttributeError, TypeError):
        raise OptionError(f'{name}: expected next ids such as {{"0": 15, "1": 7}}, found {value!r}') from None
    if any(next_id < 0 for next_id in next_ids.values()):
        raise OptionError(f"{name}: next ids are at least 0, found {value!r}")
    return next_ids


_KNOWN: Known = {
    **CONNECTION,
    "mode": (one_of(*MODES), "append"),
    "cut": (_cut, None),
    "rejects": (text_option, None),
    "checkpointLocation": (text_option, None),
    "batchId": (_batch, None),
    "maxInFlight": (number_option, 4096),
    "arranged": (flag_option, False),
}


@record
class SinkOptions:
    """The options of one writer. docs/pipeline.md explains them."""

    url: str | None
    zookeeper: str | None
    cluster_root: str | None
    zookeeper_config: str | None
    request_timeout_ms: int
    retries: int
    ssl_ca: str | None
    ssl_certificate: str | None
    ssl_key: str | None
    ssl_verify: bool | None
    mode: str
    cut: dict[int, int] | None
    rejects: str | None
    checkpoint_location: str | None
    batch_id: int | None
    max_in_flight: int
    arranged: bool

    @property
    def patience(self) -> float:
        """Seconds without any progress before a task gives up."""
        return self.request_timeout_ms / 1000 * self.retries


def parse_sink_options(values: Mapping[str, str]) -> SinkOptions:
    """Read what the user gave.

    Raises:
        OptionError: an option is unknown (the nearest known one is named), or a value cannot be used.
    """
    found, given = read_values(values, _KNOWN, {"queryname", "path"})
    options = SinkOptions(**found)
    check_connection(options.url, options.zookeeper, options.cluster_root)
    if not (options.url or options.zookeeper):
        raise OptionError("say where to write to: url, or zookeeper and clusterRoot")
    if options.mode == "conditional" and options.rejects is None:
        raise OptionError("mode=conditional needs rejects, a directory or URI for the rows that are refused")
    if options.mode != "conditional" and (options.cut is not None or options.rejects is not None):
        raise OptionError("cut and rejects are for mode=conditional")
    if "batchId" in given and options.checkpoint_location is None:
        raise OptionError("batchId needs checkpointLocation, where the ids of finished batches are kept")
    return options


def check_columns(names: Iterable[str], options: SinkOptions) -> None:
    """Raises OptionError: rows with these columns cannot be written in this mode."""
    given = set(names)
    for name in sorted(given - set(COLUMNS)):
        raise OptionError(f"there is no column {name} in a row of a log{hint(name, COLUMNS)}")
    if "data" not in given:
        raise OptionError("rows need the column data (binary or string)")
    if ("partition" in given) == ("key" in given):
        raise OptionError("rows need one of the columns partition (int) and key (string or bigint)")
    checked = sorted(given.intersection(CHECKED))
    if checked and options.mode != "conditional":
        raise OptionError(f"column {checked[0]}: locks are checked with mode=conditional only")
    if options.mode == "conditional" and options.cut is None and "client_high_water_mark" not in given:
        raise OptionError(
            "mode=conditional needs the mark of the state that rows were computed from: the option cut, "
            "or the column client_high_water_mark"
        )


def rows_of_batch(batch: Any) -> dict[str, list[Any]]:
    """The columns of an Arrow batch as lists, those that may be left out filled up.

    Raises:
        OptionError: a value is missing or of a type that cannot be used.
    """
    count = batch.num_rows
    columns: dict[str, list[Any]] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if column.null_count and name in ("partition", "key", "data", "client_high_water_mark"):
            raise OptionError(f"column {name} has no value in {column.null_count} rows")
        columns[name] = _converted(name, column).to_pylist()
    for name, default in (("header", 0), ("write_locks", None), ("read_locks", None), ("append_locks", None)):
        columns[name] = columns.get(name) or [default] * count
    return columns


def _converted(name: str, column: Any) -> Any:
    """A column in the type that is written; raises OptionError."""
    import pyarrow as pa

    kind, types = column.type, pa.types
    if name == "data":
        fits = types.is_string(kind) or types.is_large_string(kind) or _is_binary(kind) or types.is_dictionary(kind)
    elif name == "key":
        fits = types.is_string(kind) or types.is_large_string(kind) or types.is_integer(kind)
    elif name in _INTEGERS:
        fits = types.is_integer(kind) or types.is_null(kind)
    else:
        fits = types.is_null(kind) or _is_locks(kind)
    if not fits:
        raise OptionError(f"column {name}: expected {COLUMNS[name]}, found {kind}")
    try:
        if name == "data":
            return column.cast(pa.binary())
        if name in _INTEGERS:
            return column.cast(pa.int32() if COLUMNS[name] == "int" else pa.int64())
    except pa.ArrowException as error:
        raise OptionError(f"column {name}: expected {COLUMNS[name]}, found {kind}: {error}") from error
    if _is_locks(kind):
        locks = column.flatten()
        if locks.null_count or any(locks.field(part).null_count for part in ("name", "id")):
            raise OptionError(f"column {name}: a lock has no name or no id")
    return column


def _is_binary(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind))


def _is_locks(kind: Any) -> bool:
    """A list of structs with the fields name and id, in whatever order."""
    from pyarrow import types

    if not (types.is_list(kind) or types.is_large_list(kind)) or not types.is_struct(kind.value_type):
        return False
    parts = {kind.value_type.field(at).name: kind.value_type.field(at).type for at in range(kind.value_type.num_fields)}
    name, number = parts.get("name"), parts.get("id")
    return name is not None and number is not None and types.is_string(name) and types.is_integer(number)
