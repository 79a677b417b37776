"""Side files: what 0.13.2 has no place for. It ignores them; its own files stay as it would write them.

Per partition three files of two alternating slots each, so that a torn write leaves the older slot:

* `waltz.fence`: the highest session answered, and a third copy of the control struct;
* `waltz.mark`: the durable mark, the highest id known to be on disk (written lazily, lowered durably);
* `waltz.faults`: ids whose records were found damaged.

A fourth one, `waltz.start`, exists where the log start was raised: it holds the smallest id that is kept.

Every slot names the control struct (sequence number, session) and the last segment it was written
beside. If they differ at opening, 0.13.2 ran here in between: the mark is ignored, the fence kept if higher.
"""

from __future__ import annotations

from heapq import nlargest
from itertools import pairwise
from struct import Struct

from waltz_core.base.checksum import crc32
from waltz_core.base.record import record
from waltz_core.storage.control import ControlStruct, newer

FENCE = "waltz.fence"
MARK = "waltz.mark"
FAULTS = "waltz.faults"
START = "waltz.start"
SLOT_SIZE = 4096  # a slot each in its own block: one bad sector does not lose both
RANGES_MAX = 200  # of faults, beyond which the ranges are merged

_MAGIC = b"WZS1"
_HEAD = Struct(">4sQiqqI")
_CHECKSUM = Struct(">I")
_FENCE = Struct(">q?qqi")
_MARK = Struct(">q")
_RANGE = Struct(">qq")
_START = Struct(">q?")


@record
class Belongs:
    """What a slot was written beside."""

    sequence: int  # of the control struct
    session_id: int  # of the control struct
    last_segment: int  # first id of the last segment


@record
class Slot:
    """The newest valid slot of a side file."""

    counter: int
    belongs: Belongs
    payload: bytes


def encode_slot(slot: Slot) -> bytes:
    """Bytes of a slot, checksum included."""
    belongs = slot.belongs
    body = (
        _HEAD.pack(_MAGIC, slot.counter, belongs.sequence, belongs.session_id, belongs.last_segment, len(slot.payload))
        + slot.payload
    )
    assert len(body) + 4 <= SLOT_SIZE
    return body + _CHECKSUM.pack(crc32(body))


def slot_place(counter: int) -> int:
    """Where the slot with this counter goes."""
    return SLOT_SIZE * (counter % 2)


def _decode_slot(data: bytes) -> Slot | None:
    if len(data) < _HEAD.size + 4:
        return None
    magic, counter, sequence, session_id, last_segment, length = _HEAD.unpack_from(data)
    end = _HEAD.size + length
    if magic != _MAGIC or end + 4 > len(data) or crc32(data[:end]) != _CHECKSUM.unpack_from(data, end)[0]:
        return None
    return Slot(counter, Belongs(sequence, session_id, last_segment), data[_HEAD.size : end])


def newest_slot(data: bytes) -> Slot | None:
    """The slot with the higher counter, None if none is valid."""
    slots = [slot for at in (0, SLOT_SIZE) if (slot := _decode_slot(data[at : at + SLOT_SIZE])) is not None]
    return max(slots, key=lambda slot: slot.counter, default=None)


@record
class Fence:
    """Payload of `waltz.fence`."""

    session_id: int  # highest session answered
    struct: ControlStruct | None  # copy of the control struct; None while the partition is being unassigned


def encode_fence(fence: Fence, belongs: Belongs, counter: int) -> bytes:
    """A slot of `waltz.fence`."""
    copy = fence.struct
    payload = (
        _FENCE.pack(fence.session_id, False, 0, 0, 0)
        if copy is None
        else _FENCE.pack(fence.session_id, True, copy.low_water_mark, copy.local_low_water_mark, copy.flags)
    )
    return encode_slot(Slot(counter, belongs, payload))


def decode_fence(slot: Slot | None) -> Fence | None:
    """Read the payload of `waltz.fence`."""
    if slot is None or len(slot.payload) != _FENCE.size:
        return None
    session_id, copied, low_water_mark, local_low_water_mark, flags = _FENCE.unpack(slot.payload)
    struct = ControlStruct(slot.belongs.session_id, low_water_mark, local_low_water_mark, flags, slot.belongs.sequence)
    return Fence(session_id, struct if copied else None)


def newer_copy(current: ControlStruct | None, fence: Fence | None) -> ControlStruct | None:
    """The third copy of the control struct, if the control file has lost the newest state or all of it."""
    copy = None if fence is None else fence.struct
    if copy is None or (current is not None and not newer(copy.sequence, current.sequence)):
        return None
    return copy


def encode_mark(mark: int, belongs: Belongs, counter: int) -> bytes:
    """A slot of `waltz.mark`."""
    return encode_slot(Slot(counter, belongs, _MARK.pack(mark)))


def decode_mark(slot: Slot | None, belongs: Belongs) -> int | None:
    """The durable mark, None if there is none or it was written beside other files."""
    if slot is None or slot.belongs != belongs or len(slot.payload) != _MARK.size:
        return None
    return int(_MARK.unpack(slot.payload)[0])


def encode_faults(faults: set[int], belongs: Belongs, counter: int) -> bytes:
    """A slot of `waltz.faults`: the ids as ranges, merged across the smallest gaps if there are too many."""
    ranges = ranges_of(faults)
    if len(ranges) > RANGES_MAX:
        kept = sorted(nlargest(RANGES_MAX - 1, range(1, len(ranges)), key=lambda at: ranges[at][0] - ranges[at - 1][1]))
        cuts = pairwise([0, *kept, len(ranges)])
        ranges = [(ranges[begin][0], ranges[end - 1][1]) for begin, end in cuts]
    return encode_slot(Slot(counter, belongs, b"".join(_RANGE.pack(*one) for one in ranges)))


def decode_faults(slot: Slot | None) -> list[tuple[int, int]]:
    """Ranges (first, last) of damaged ids; none from a slot that belongs to another kind of file."""
    if slot is None or len(slot.payload) % _RANGE.size:
        return []
    return [(a, b) for a, b in _RANGE.iter_unpack(slot.payload) if a <= b]


@record
class LogStart:
    """Payload of `waltz.start`."""

    first_id: int  # the smallest id that is kept
    anew: bool  # the log ended before it: no record is kept, the log begins anew at `first_id`


FROM_ZERO = LogStart(0, False)


def encode_start(start: LogStart, belongs: Belongs, counter: int) -> bytes:
    """A slot of `waltz.start`."""
    return encode_slot(Slot(counter, belongs, _START.pack(start.first_id, start.anew)))


def decode_start(slot: Slot | None) -> LogStart:
    """Read the payload of `waltz.start`, which counts beside any files."""
    if slot is None or len(slot.payload) != _START.size:
        return FROM_ZERO
    return LogStart(*_START.unpack(slot.payload))


def ranges_of(ids: set[int]) -> list[tuple[int, int]]:
    """Inclusive ranges that cover exactly these ids."""
    ranges: list[tuple[int, int]] = []
    for number in sorted(ids):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ranges
