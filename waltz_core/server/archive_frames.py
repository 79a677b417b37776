"""Questions to the process that keeps an archive, and its answers, as bytes on its standard input and output.

A frame is two lengths, a JSON object that says what it is, and records as they travel between servers and clients.
Both ends are one release of this package, started by one another: there are no versions to agree on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Any, TypeAlias, get_args

import attrs

from waltz_core.base.errors import ProtocolError
from waltz_core.base.log import Record
from waltz_core.server import archive_calls as calls
from waltz_core.wire.primitives import write_record
from waltz_core.wire.records import RecordRun, cut_records

_HEAD = Struct(">II")
_SIZE_MAX = 1 << 30

ArchiveMessage: TypeAlias = calls.ArchiveAsk | calls.ArchiveEvent

_KINDS: dict[str, type[ArchiveMessage]] = {
    kind.__name__: kind for kind in (*get_args(calls.ArchiveAsk), *get_args(calls.ArchiveEvent))
}


def encode_message(message: ArchiveMessage) -> bytes:
    """A question or an answer as one frame."""
    fields: dict[str, Any] = {field.name: getattr(message, field.name) for field in attrs.fields(type(message))}
    body = b""
    if "records" in fields:
        records: Sequence[Record] = fields.pop("records")
        fields["count"] = len(records)
        body = encoded_records(records)
    if isinstance(message, calls.ArchiveLook):
        fields["cluster_key"] = message.cluster_key.hex()
    head = json.dumps([type(message).__name__, fields]).encode()
    return _HEAD.pack(len(head), len(body)) + head + body


def encoded_records(records: Sequence[Record]) -> bytes:
    """Records one behind the other."""
    if isinstance(records, RecordRun):
        return records.encoded
    out = bytearray()
    for each in records:
        write_record(out, each)
    return bytes(out)


class FrameReader:
    """Frames out of a stream."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def receive(self, data: bytes) -> Iterator[ArchiveMessage]:
        """The messages that `data` completes.

        Raises:
            ProtocolError: it is no frame.
        """
        self._buffer += data
        while len(self._buffer) >= _HEAD.size:
            head_size, body_size = _HEAD.unpack_from(self._buffer)
            end = _HEAD.size + head_size + body_size
            if end > _SIZE_MAX:
                raise ProtocolError(f"a frame of {end} bytes between a server and its archive, expected {_SIZE_MAX}")
            if len(self._buffer) < end:
                return
            at = _HEAD.size + head_size
            head, body = bytes(self._buffer[_HEAD.size : at]), bytes(self._buffer[at:end])
            del self._buffer[:end]
            yield _decode(head, body)


def _decode(head: bytes, body: bytes) -> ArchiveMessage:
    try:
        name, fields = json.loads(head)
        kind = _KINDS[name]
        if "count" in fields and kind in (calls.ArchiveTake, calls.ArchiveCompare, calls.ArchiveData):
            count = fields.pop("count")
            fields["records"] = RecordRun(body, cut_records(body, 0, len(body), count))
        if kind is calls.ArchiveLook:
            fields["cluster_key"] = bytes.fromhex(fields["cluster_key"])
        return kind(**fields)
    except (ProtocolError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProtocolError(f"no frame between a server and its archive: {head[:200]!r}: {error!r}") from error
