"""The control file: header and, per partition, two alternating structs with checksums. Layout and choice, no I/O."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from struct import Struct

import attrs

from waltz_core.base.checksum import crc32
from waltz_core.base.record import record

NAME = "waltz-storage.ctl"
HEADER_SIZE = 128
ENTRY_SIZE = 76
AVAILABLE = 1
ASSIGNED = 4

_HEADER = Struct(">iq16si")
_STRUCT = Struct(">qqqii")
_INT = Struct(">i")
_CHECKSUM = Struct(">I")
_STRUCT_SIZE = 36


@record
class ControlHeader:
    """First 32 bytes of the control file; 96 zero bytes follow."""

    created_ms: int  # since 1970
    key: bytes  # cluster key, 16 bytes
    partition_count: int
    version: int = 0


@record
class ControlStruct:
    """State of one partition as of one update."""

    session_id: int
    low_water_mark: int
    local_low_water_mark: int
    flags: int
    sequence: int

    @property
    def assigned(self) -> bool:
        """The partition belongs to this node."""
        return bool(self.flags & ASSIGNED)

    @property
    def available(self) -> bool:
        """Reads and writes are allowed."""
        return bool(self.flags & AVAILABLE)


def file_size(partition_count: int) -> int:
    """Size of a whole control file."""
    return HEADER_SIZE + ENTRY_SIZE * partition_count


def encode_header(header: ControlHeader) -> bytes:
    """The 128 bytes at the start of the file."""
    return _HEADER.pack(header.version, header.created_ms, header.key, header.partition_count).ljust(HEADER_SIZE, b"\0")


def decode_header(data: bytes) -> ControlHeader | None:
    """None if there are fewer than 128 bytes."""
    if len(data) < HEADER_SIZE:
        return None
    version, created_ms, key, partition_count = _HEADER.unpack_from(data)
    return ControlHeader(created_ms, key, partition_count, version)


def encode_struct(struct: ControlStruct) -> bytes:
    """36 bytes, the last four a checksum of the others."""
    body = _STRUCT.pack(
        struct.session_id, struct.low_water_mark, struct.local_low_water_mark, struct.flags, struct.sequence
    )
    return body + _CHECKSUM.pack(crc32(body))


def decode_struct(data: bytes) -> ControlStruct | None:
    """None if the checksum is wrong."""
    if len(data) != _STRUCT_SIZE or crc32(data[:32]) != _CHECKSUM.unpack_from(data, 32)[0]:
        return None
    return ControlStruct(*_STRUCT.unpack_from(data))


def struct_place(partition_id: int, slot: int) -> int:
    """Where a struct (slot 0 or 1) of a partition stands in the file."""
    return HEADER_SIZE + ENTRY_SIZE * partition_id + 4 + _STRUCT_SIZE * slot


def fresh_struct(sequence: int) -> ControlStruct:
    """The state after formatting and unassigning."""
    return ControlStruct(-1, -1, -1, AVAILABLE, sequence)


def fresh_body(partition_count: int) -> bytes:
    """Everything behind the header of a new file."""
    structs = encode_struct(fresh_struct(-1)) + encode_struct(fresh_struct(0))
    return b"".join(_INT.pack(partition_id) + structs for partition_id in range(partition_count))


class ControlDamage(enum.Enum):
    """Why no struct of a partition counts; the texts of 0.13.2."""

    BOTH_INVALID = "partition info corrupted"
    SAME_SEQUENCE = "Cannot determine max PartitionInfoStruct: same sequence number found"


def newer(a: int, b: int) -> bool:
    """Whether sequence number `a` comes after `b`, allowing for the wrap at 2^31."""
    return 0 < (a - b) & 0xFFFFFFFF < 0x80000000


def _wrapped(sequence: int) -> int:
    return ((sequence + 0x80000000) & 0xFFFFFFFF) - 0x80000000


class ControlEntry:
    """The two structs of one partition and which of them counts.

    Updates are planned here and adopted once they are durable: `plan` gives place and bytes, `adopt` makes
    them the state.
    """

    __slots__ = ("_counter", "_slot", "current", "partition_id", "uncertain")

    def __init__(self, partition_id: int, slot: int, current: ControlStruct, counter: int) -> None:
        self.partition_id = partition_id
        self.current = current
        self._slot = slot  # where `current` stands
        self._counter = counter  # last sequence number given out
        self.uncertain = False  # a write failed: the file may hold a struct that was never adopted, or come to hold it

    def plan(self, session_id: int, low_water_mark: int, local_low_water_mark: int, flags: int) -> ControlStruct:
        """The next struct, not yet state."""
        return ControlStruct(session_id, low_water_mark, local_low_water_mark, flags, _wrapped(self._counter + 1))

    def place(self) -> int:
        """Where the next struct goes."""
        return struct_place(self.partition_id, 1 - self._slot)

    def adopt(self, struct: ControlStruct) -> None:
        """`struct` stands at `place()`, durably."""
        self._slot = 1 - self._slot
        self.current = struct
        self._counter = struct.sequence

    def reset_writes(self) -> tuple[tuple[int, bytes], tuple[int, bytes]]:
        """Places and bytes that make the entry fresh, in an order in which every prefix is a valid state.

        First the struct that does not count (its lower sequence number keeps it from counting), then the other.
        """
        return (
            (self.place(), encode_struct(fresh_struct(0))),
            (struct_place(self.partition_id, self._slot), encode_struct(fresh_struct(-1))),
        )

    def present_writes(self) -> tuple[tuple[int, bytes], tuple[int, bytes]]:
        """Places and bytes that make the present state count whatever a failed write left, in the order as above.

        The number of the present struct stays, as the side files name it.
        """
        sequence = _wrapped(self.current.sequence - 1)
        return (
            (self.place(), encode_struct(attrs.evolve(self.current, sequence=sequence))),
            (struct_place(self.partition_id, self._slot), encode_struct(self.current)),
        )

    def adopt_reset(self) -> None:
        """Both writes of `reset_writes` are durable."""
        # Java: PartitionInfo.reset keeps the struct with sequence number -1 as the current one and counts on from 0.
        self.current = fresh_struct(-1)
        self._counter = 0


def choose(partition_id: int, structs: Sequence[ControlStruct | None]) -> ControlEntry | ControlDamage:
    """Which of the two structs counts; sequence numbers are compared modulo 2^32."""
    first, second = structs
    if first is None and second is None:
        return ControlDamage.BOTH_INVALID
    if first is None or second is None:
        slot = 0 if second is None else 1
    elif first.sequence == second.sequence:
        return ControlDamage.SAME_SEQUENCE
    else:
        slot = 0 if newer(first.sequence, second.sequence) else 1
    current = structs[slot]
    assert current is not None
    return ControlEntry(partition_id, slot, current, current.sequence)


def decode_structs(body: bytes, partition_id: int) -> list[ControlStruct | None]:
    """Both structs of a partition, from everything behind the header; None for one that is damaged."""
    at = struct_place(partition_id, 0) - HEADER_SIZE
    return [decode_struct(body[at + slot * _STRUCT_SIZE : at + (slot + 1) * _STRUCT_SIZE]) for slot in (0, 1)]


def decode_entry(body: bytes, partition_id: int) -> ControlEntry | ControlDamage:
    """Read one partition's entry from everything behind the header."""
    return choose(partition_id, decode_structs(body, partition_id))
