"""The columns of a log as a table, and which of them a reader wants."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, Protocol

import pyarrow as pa

from waltz_core.base.record import record
from waltz_spark.base.errors import OptionError

TYPES: dict[str, Any] = {
    "partition": pa.int32(),
    "transaction_id": pa.int64(),
    "client_id": pa.int32(),
    "generation": pa.int32(),
    "seq": pa.int32(),
    "header": pa.int32(),
    "checksum": pa.int32(),
    "length": pa.int32(),
    "data": pa.binary(),
    "_origin": pa.string(),
    "_verified": pa.bool_(),
}
NAMES = tuple(name for name in TYPES if not name.startswith("_"))
VERIFY = ("none", "payload", "record", "quorum")

_DDL = {pa.int32(): "int", pa.int64(): "bigint", pa.binary(): "binary", pa.string(): "string", pa.bool_(): "boolean"}


class PayloadCodec(Protocol):
    """Turns payloads into typed columns inside the reader, a batch at a time.

    `schema` is an Arrow schema; `decode(data, header)` gets a binary and an int32 array and returns one
    array per field. Its columns take the place of `data`.
    """

    schema: Any

    def decode(self, data: Any, header: Any) -> Sequence[Any]:
        """Arrays in the order of `schema`."""
        ...


@record
class Condition:
    """`column` is one of `values` (`in`) or compares with the only one (`<`, `<=`, `>`, `>=`)."""

    column: str
    operator: str
    values: tuple[int, ...]


@record
class Shape:
    """The contents of batches, and how they are cut."""

    columns: tuple[str, ...] = NAMES
    verify: str = "record"
    rows_max: int = 16_384
    size_max: int = 4 << 20  # bytes of records; a larger record is a batch of its own
    codec: str | None = None  # `module:name`
    conditions: tuple[Condition, ...] = ()  # rows that do not meet all of them are left out


def load_codec(name: str) -> PayloadCodec:
    """The object that `module:name` names.

    Raises:
        OptionError: there is none, or it is no codec.
    """
    module, colon, attribute = name.partition(":")
    if not colon:
        raise OptionError(f"codec: expected module:name, found {name!r}")
    try:
        named = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise OptionError(f"codec {name}: {error}") from error
    if isinstance(named, type):
        named = named()
    if not hasattr(named, "schema") or not hasattr(named, "decode"):
        raise OptionError(f"codec {name} has no `schema` and `decode`")
    codec: PayloadCodec = named
    return codec


def arrow_schema(shape: Shape) -> Any:
    """The schema of every batch."""
    fields: list[Any] = []
    for name in shape.columns:
        if name == "data" and shape.codec is not None:
            fields.extend(load_codec(shape.codec).schema)
        else:
            fields.append(pa.field(name, TYPES[name]))
    return pa.schema(fields)


def spark_ddl(shape: Shape) -> str:
    """The schema as Spark's DDL text.

    Raises:
        OptionError: the codec has a column of a type that has no short name here.
    """
    texts = []
    for field in arrow_schema(shape):
        name = _DDL.get(field.type) or _more_types().get(field.type)
        if name is None:
            raise OptionError(f"codec {shape.codec}: column {field.name} has a type without a Spark name: {field.type}")
        texts.append(f"`{field.name}` {name}")
    return ", ".join(texts)


def _more_types() -> dict[Any, str]:
    return {
        pa.float64(): "double",
        pa.float32(): "float",
        pa.int16(): "smallint",
        pa.int8(): "tinyint",
        pa.date32(): "date",
        pa.timestamp("us", tz="UTC"): "timestamp",
    }
