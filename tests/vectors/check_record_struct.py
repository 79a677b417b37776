"""Records and record headers as plain structures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.vectors.messages import fields_of, record_from
from tests.vectors.reading import Fields, Unit, lines
from waltz_core.base.log import Record
from waltz_core.wire.connection import CLIENT_PROTOCOL
from waltz_core.wire.primitives import RECORD, RECORD_HEADER
from waltz_core.wire.storage_codec import encode_records


def units(path: Path) -> Iterator[Unit]:
    for name, line in lines(path):
        yield Unit(name, [line], lambda line=line: _check(line))  # type: ignore[misc]


def _check(line: Fields) -> frozenset[str]:
    fields, data = line["fields"].all(), bytes.fromhex(line["hex"])
    value = record_from(fields)
    assert type(value).__name__ == line["struct"]
    out = bytearray()
    if isinstance(value, Record):
        RECORD.write(out, value)
        assert encode_records(value.transaction_id, [value]) == data
        decoded, at = RECORD.read(data, 0, len(data))
        assert fields_of(CLIENT_PROTOCOL, decoded) == fields
    else:
        RECORD_HEADER.write(out, value)
        header, at = RECORD_HEADER.read(data, 0, len(data))
        assert fields_of(CLIENT_PROTOCOL, header) == fields
    assert out == data
    assert at == len(data)
    return frozenset()
