"""Which safety rules a vector touches, told from its content alone."""

from __future__ import annotations

from typing import Any

from waltz_core.errors import ProtocolError
from waltz_core.wire.frame import HEADER, HEADER_SIZE, HELLO_MAGIC
from waltz_core.wire.hello import decode_hello
from waltz_core.wire.table import WireProtocol


def has_surplus(protocol: WireProtocol[Any], codec: str, stream: bytes) -> bool:
    """Whether a body holds more bytes than its message needs, all before it being sound (`surplus_refused`)."""
    magic, version = (HELLO_MAGIC, 0) if codec == "hello" else (protocol.magic, int(codec))
    at = 0
    while len(stream) - at >= HEADER_SIZE:
        head = HEADER.unpack_from(stream, at)
        start = at + HEADER_SIZE
        at = start + head[2]
        if head[:2] != (magic, version) or not start <= at <= len(stream):
            return False
        if start == at:
            continue
        decode = decode_hello if codec == "hello" else protocol.tables[version].decoders[stream[start]]
        try:
            _, stop = decode(stream, start, at)
        except ProtocolError:
            return False
        if stop != at:
            return True
    return False
