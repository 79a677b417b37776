"""An independent reading of a storage directory: what is in the files, told without the code under test.

`judge` states what our node must make of a directory, from its bytes alone.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from typing import NamedTuple

HEADER = 128


class Struct36(NamedTuple):
    """A partition's control struct."""

    session_id: int
    low_water_mark: int
    local_low_water_mark: int
    flags: int
    sequence: int
    valid: bool


def control_structs(body: bytes, partition_id: int) -> list[Struct36]:
    """Both structs of a partition; the body begins behind the header of the control file."""
    found = []
    for slot in (0, 1):
        raw = body[76 * partition_id + 4 + 36 * slot :][:36].ljust(36, b"\0")
        session_id, low, local_low, flags, sequence = struct.unpack(">qqqii", raw[:32])
        valid = zlib.crc32(raw[:32]) == int.from_bytes(raw[32:])
        found.append(Struct36(session_id, low, local_low, flags, sequence, valid))
    return found


def record_at(data: bytes, at: int, transaction_id: int) -> int:
    """Size of the intact record with this id at a place, 0 if there is none."""
    if at < HEADER or len(data) - at < 40:
        return 0
    found, length = struct.unpack_from(">q16x4xi", data, at)
    if found != transaction_id or not 0 <= length <= len(data) - at - 40:
        return 0
    end = at + 36 + length
    return 40 + length if zlib.crc32(data[at:end]) == int.from_bytes(data[end : end + 4]) else 0


def walk(data: bytes, first: int) -> list[int]:
    """Places of the intact records from the start of a data file."""
    places: list[int] = []
    at = HEADER
    while size := record_at(data, at, first + len(places)):
        places.append(at)
        at += size
    return places


def intact(data: bytes) -> dict[tuple[int, int], bytes]:
    """Every intact record anywhere in a data file, by (id, place), as raw bytes without the last checksum."""
    found = {}
    for at in range(HEADER, len(data) - 39):
        length = int.from_bytes(data[at + 28 : at + 32], signed=True)
        if 0 <= length <= len(data) - at - 40:
            end = at + 36 + length
            if zlib.crc32(data[at:end]) == int.from_bytes(data[end : end + 4]):
                found[int.from_bytes(data[at : at + 8], signed=True), at] = data[at:end]
    return found


def header_of(data: bytes) -> tuple[bytes, int, int] | None:
    """Cluster key, partition id and first id of a data or index file."""
    return None if len(data) < HEADER else struct.unpack_from(">4x8x16siq", data)


class Partition(NamedTuple):
    """What must become of one partition."""

    assigned: bool
    control: Struct36 | None  # what counts
    sound: bool  # nothing but caches or an unacknowledged tail is wrong: must be in service
    rules: frozenset[str]
    highest: int | None  # highest id, where it is sound
    records: Mapping[int, set[bytes]]  # intact records by id, anywhere in the data files


class Verdict(NamedTuple):
    """What must become of a directory."""

    refused: str | None  # a word that the message must hold
    rules: frozenset[str]
    partitions: Mapping[int, Partition]


def judge(files: Mapping[str, bytes], directories: set[str], key: bytes, count: int) -> Verdict:
    """What our node must make of a directory without side files."""
    control = files.get("waltz-storage.ctl", b"")
    kept = frozenset({"control_file_kept"})
    if not any(control):
        return Verdict("missing", kept, {}) if any(map(str.isdecimal, directories)) else Verdict(None, frozenset(), {})
    if len(control) < HEADER:
        return Verdict("lost its end", kept, {})
    found_key, found_count = control[12:28], int.from_bytes(control[28:32], signed=True)
    if found_key != key:
        return Verdict("cluster key", frozenset(), {})
    if found_count != count:
        return Verdict("number of partitions", frozenset(), {})
    if len(control) < HEADER + 76 * count:
        return Verdict("lost its end", kept, {})
    partitions = {one: _partition(files, control[HEADER:], key, one) for one in range(count)}
    return Verdict(None, frozenset().union(*(one.rules for one in partitions.values())), partitions)


def _partition(files: Mapping[str, bytes], body: bytes, key: bytes, partition_id: int) -> Partition:
    structs = [one for one in control_structs(body, partition_id) if one.valid]
    rules: set[str] = set()
    if not structs or (len(structs) == 2 and structs[0].sequence == structs[1].sequence):
        return Partition(True, None, False, frozenset({"partitions_isolated"}), None, {})
    current = max(structs, key=lambda one: one.sequence)
    if len(structs) == 2 and abs(structs[0].sequence - structs[1].sequence) > 1 << 31:
        rules.add("sequence_wraps")
        current = min(structs, key=lambda one: one.sequence)
    if not current.flags & 4:
        return Partition(False, current, True, frozenset(rules), None, {})
    prefix = f"{partition_id}/"
    data = {name: files[prefix + name] for name in sorted(_names(files, prefix)) if name.endswith(".seg")}
    index = {name: files[prefix + name] for name in sorted(_names(files, prefix)) if name.endswith(".idx")}
    records: dict[int, set[bytes]] = {}
    for content in data.values():
        for (transaction_id, _), raw in intact(content).items():
            records.setdefault(transaction_id, set()).add(raw)
    sound, highest = _judge_segments(data, index, (key, partition_id), current, rules)
    return Partition(True, current, sound, frozenset(rules), highest, records)


def _names(files: Mapping[str, bytes], prefix: str) -> list[str]:
    return [name.removeprefix(prefix) for name in files if name.startswith(prefix)]


def _judge_segments(
    data: dict[str, bytes],
    index: dict[str, bytes],
    owner: tuple[bytes, int],
    control: Struct36,
    rules: set[str],
) -> tuple[bool, int | None]:
    names = list(data)
    firsts = [int(name[:19]) for name in names]
    expected, sound = 0, bool(names)
    if not names:
        rules.add("headers_checked")
    for at, name in enumerate(names):
        content, first, following = data[name], firsts[at], firsts[at + 1] if at + 1 < len(names) else None
        entries = index.get(name.replace(".seg", ".idx"), b"")
        if not following and at and len(content) < HEADER and first == expected and len(entries) <= HEADER:
            rules.add("partitions_isolated")  # begun and not finished: removed
            break
        if first != expected or header_of(content) != (*owner, first):
            rules |= {"headers_checked", "partitions_isolated"}
            sound = False
        places = walk(content, first)
        right = b"".join(place.to_bytes(8) for place in places)
        if header_of(entries) != (*owner, first) or entries[HEADER:] != right:
            rules |= {"index_rebuilt"}
        expected = first + len(places)
        end = places[-1] + record_at(content, places[-1], expected - 1) if places else HEADER
        torn = end < len(content) and following is None and expected > control.local_low_water_mark
        torn = torn and not any(one >= expected and place > end for one, place in intact(content))
        lost = following is None and expected <= control.local_low_water_mark and len(entries) - HEADER > len(right)
        if (end < len(content) and not torn) or lost or following not in (None, expected):
            rules |= {"torn_not_corrupt", "reads_verified", "partitions_isolated"}
            sound = False
        expected = following if following is not None else expected
    return _judge_orphans(data, index, expected, rules) and sound, expected - 1 if sound else None


def _judge_orphans(data: dict[str, bytes], index: dict[str, bytes], expected: int, rules: set[str]) -> bool:
    """Indexes without a data file: in the way of 0.13.2; one with entries that goes on from the end tells a loss."""
    sound = True
    for name, entries in index.items():
        if name.replace(".idx", ".seg") not in data:
            rules |= {"index_rebuilt", "headers_checked"}
            sound = sound and not (len(entries) > HEADER and int(name[:19]) == expected)
    return sound
