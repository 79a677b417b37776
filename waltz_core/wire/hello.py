"""The greeting: each side offers its versions; the largest one in common is spoken."""

from __future__ import annotations

from collections.abc import Collection

from waltz_core.base.errors import NoCommonVersionError
from waltz_core.base.record import record
from waltz_core.wire.frame import HELLO_MAGIC, HELLO_VERSION, frame
from waltz_core.wire.primitives import INT16, STRING, Negative, list_of

_VERSIONS = list_of(INT16, Negative.EMPTY)


@record
class Hello:
    """The first frame in each direction; it has neither type byte nor request id."""

    versions: tuple[int, ...]  # in the order of the wire, each once
    message: str | None  # for people


def decode_hello(buffer: bytes, start: int, end: int) -> tuple[Hello, int]:
    """Read the body of a greeting and return the place behind it.

    Raises:
        ProtocolError: the body ends too early.
    """
    versions, at = _VERSIONS.read(buffer, start, end)
    message, at = STRING.read(buffer, at, end)
    return Hello(tuple(dict.fromkeys(versions)), message), at


def encode_hello(hello: Hello) -> bytes:
    """The whole frame of a greeting."""
    body = bytearray()
    _VERSIONS.write(body, hello.versions)
    STRING.write(body, hello.message)
    return frame(HELLO_MAGIC, HELLO_VERSION, bytes(body))


def negotiate(ours: Collection[int], theirs: Collection[int]) -> int:
    """The largest version of both sides; both sides find the same one, so nothing is acknowledged.

    Raises:
        HandshakeError: none in common.
    """
    common = set(ours) & set(theirs)
    if not common:
        raise NoCommonVersionError(f"no version in common: we speak {sorted(ours)}, the peer {sorted(theirs)}")
    return max(common)
