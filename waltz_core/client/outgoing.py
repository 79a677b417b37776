"""Appends on their way out: from what the application asks for to the frames that a server gets."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

from waltz_core.base.ids import ReqId
from waltz_core.base.twins import twin
from waltz_core.client.calls import Submit
from waltz_core.wire.client_messages import NamedAppendRequest
from waltz_core.wire.frame import HEADER_SIZE, LENGTH, LENGTH_AT
from waltz_core.wire.lock_names import NO_NAMES
from waltz_core.wire.named_append import encode_named_append

_SEQUENCE = Struct(">i")
_SEQUENCE_MAX = (1 << 31) - 1


@twin
def encode_appends(
    out: bytearray,
    head: bytes,
    submits: Sequence[Submit],
    at: int,
    end: int,
    prefix: bytes,
    sequence: int,
    seen: int,
    names_sent: bool,
) -> list[ReqId]:
    """Append the frames of `submits[at:end]` to `out`, as NamedAppendRequest; their request ids.

    Args:
        head: of a frame, of which only the length is missing.
        prefix: of the request ids: client id, generation, partition.
        sequence: of the append before the first.
        seen: the client mark where a submit has none.
        names_sent: whether locks are sent with their names.
    """
    req_ids: list[ReqId] = []
    for submit in submits[at:end]:
        sequence = sequence + 1 if sequence < _SEQUENCE_MAX else -_SEQUENCE_MAX - 1
        req_id = ReqId(prefix + _SEQUENCE.pack(sequence))
        request = NamedAppendRequest(
            req_id,
            seen if submit.client_mark is None else submit.client_mark,
            submit.write_locks,
            submit.read_locks,
            submit.append_locks,
            submit.header,
            submit.data,
            submit.checksum,
            submit.names if names_sent else NO_NAMES,
        )
        begin = len(out)
        out += head
        encode_named_append(request, out)
        LENGTH.pack_into(out, begin + LENGTH_AT, len(out) - begin - HEADER_SIZE)
        req_ids.append(req_id)
    return req_ids
