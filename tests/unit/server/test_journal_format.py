"""The bytes of a decision journal: what docs/formats.md says, and what is made of damage."""

from __future__ import annotations

import re
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from tests.lock_names import pack_names
from waltz_core.base.errors import CorruptionError
from waltz_core.base.ids import ReqId, make_req_id
from waltz_core.server.journal_format import (
    VERSION,
    CommittedRange,
    Decision,
    Entry,
    Gap,
    Mode,
    SessionOpened,
    Started,
    Synced,
    decode_entries,
    encode_entry,
    entry_end,
    sound_size,
)

PAGE = (Path(__file__).parents[3] / "docs" / "formats.md").read_text()
EXAMPLES = [(name, bytes.fromhex(data)) for name, data in re.findall(r"^(\w+) +([0-9a-f]{18,})$", PAGE, re.MULTILINE)]

i8, i32, i64 = (st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (8, 32, 64))
texts = st.text(st.characters(codec="utf-8"), max_size=8)
locks = st.lists(i32, max_size=5).map(tuple)


@st.composite
def decisions(draw: st.DrawFn) -> Decision:
    write, read, append = draw(locks), draw(locks), draw(locks)
    count = len(write) + len(read) + len(append)
    names = pack_names(draw(st.lists(st.none() | st.tuples(texts, i64), min_size=count, max_size=count)))
    req_id = ReqId(draw(st.binary(min_size=16, max_size=16)))
    return Decision(
        session_id=draw(i64),
        transaction_id=draw(i64),
        req_id=req_id,
        header=draw(i32),
        client_mark=draw(i64),
        lock_mark=draw(i64),
        verdict=draw(i8),
        conflict=draw(i8),
        blocking_id=draw(i64),
        lock_kind=draw(i8),
        lock_index=draw(i32),
        received_us=draw(i64),
        decided_us=draw(i64),
        size=draw(i32),
        write_locks=write,
        read_locks=read,
        append_locks=append,
        names=names,
    )


entries = st.one_of(
    decisions(),
    st.builds(Started, st.binary(min_size=16, max_size=16), i32, i64, i64, i64, i8, texts),
    st.builds(SessionOpened, i64, i32, i64, i64),
    st.builds(CommittedRange, i64, i64, i64, i64),
    st.builds(Gap, i64, i64, i64, texts),
    st.just(Synced()),
)
groups = st.lists(
    st.lists(entries.filter(lambda entry: entry != Synced()), min_size=1, max_size=3), min_size=1, max_size=3
)


def decoded(data: bytes) -> list[Entry]:
    return [entry for _, entry in decode_entries(data, "here")]


@given(st.lists(entries, max_size=5))
def test_what_is_encoded_is_decoded_again(sent: list[Entry]) -> None:
    data = b"".join(map(encode_entry, sent))
    assert decoded(data) == sent
    assert sound_size(data) == (len(data), True)


def file_of(sent: list[list[Entry]], version: int = VERSION, mode: Mode = Mode.SYNC) -> tuple[bytes, int]:
    """A file as the driver writes it, and where its last group begins."""
    begun = Started(bytes(16), 0, 0, -1, 0, mode, "a:1", version)
    mark = [Synced()] if mode is Mode.SYNC and version == VERSION else []
    data, last = encode_entry(begun), 0
    for group in sent:
        last = len(data)
        data += b"".join(map(encode_entry, [*mark, *group]))
    return data, last


def flipped(whole: bytes, at: int, bit: int) -> bytes:
    damaged = bytearray(whole)
    damaged[at] ^= 1 << bit
    return bytes(damaged)


@given(groups, st.data())
def test_damage_of_what_was_synced_is_told_from_a_write_that_was_cut_short(
    sent: list[list[Entry]], data: st.DataObject
) -> None:
    whole, last = file_of(sent)
    cut = data.draw(st.integers(last, len(whole)))
    size, torn = sound_size(whole[:cut])
    assert (last <= size <= cut, torn) == (True, True)
    at = data.draw(st.integers(0, last - 1))
    size, torn = sound_size(flipped(whole, at, data.draw(st.integers(0, 7))))
    assert (size <= at, torn) == (True, False)


@given(groups, st.data())
def test_a_power_failure_may_take_any_part_of_the_group_under_way(sent: list[list[Entry]], data: st.DataObject) -> None:
    whole, last = file_of(sent)
    start = data.draw(st.integers(last + len(encode_entry(Synced())), len(whole) - 1))
    end = data.draw(st.integers(start, len(whole)))
    size, torn = sound_size(whole[:start] + bytes(end - start) + whole[end:])
    assert (last < size, torn) == (True, True)


@given(groups, st.data())
def test_without_syncs_nothing_is_told_from_a_write_that_was_cut_short(
    sent: list[list[Entry]], data: st.DataObject
) -> None:
    whole, _ = file_of(sent, mode=Mode.ASYNC)
    at = data.draw(st.integers(len(file_of([])[0]), len(whole) - 1))
    size, torn = sound_size(flipped(whole, at, data.draw(st.integers(0, 7))))
    assert (size <= at, torn) == (True, True)


@given(groups, st.data())
def test_in_files_of_version_1_a_hole_is_damage(sent: list[list[Entry]], data: st.DataObject) -> None:
    whole, _ = file_of([*sent, [SessionOpened(1, 1, 1, 1)]], version=1)
    at = data.draw(st.integers(0, len(whole) - len(encode_entry(SessionOpened(1, 1, 1, 1))) - 1))
    damaged = flipped(whole, at, data.draw(st.integers(0, 7)))
    size, torn = sound_size(damaged)
    assert (size <= at, torn) == (True, False)
    with pytest.raises(CorruptionError, match=f"here: the entry at offset {size} "):
        decoded(damaged)


@given(st.binary(max_size=200))
def test_garbage_is_damage_and_nothing_else(data: bytes) -> None:
    assert entry_end(data, 0) == -1
    assert sound_size(data)[0] == 0
    if data:
        with pytest.raises(CorruptionError):
            decoded(data)


def test_an_entry_of_a_later_version_is_passed_over() -> None:
    from zlib import crc32

    body = b"WJ\x63\x00\x00\x00\x00\x02??"
    later = body + crc32(body).to_bytes(4, "big")
    session = SessionOpened(3, 1, 9, 5)
    assert decoded(later + encode_entry(session)) == [session]


PAGE_ENTRIES: dict[str, Entry] = {
    "STARTED": Started(bytes(range(16)), 3, 7, 4096, 1_700_000_000_000_000, 2, "a:55180"),
    "SESSION": SessionOpened(12, 1, 99, 1_700_000_000_000_001),
    "DECISION": Decision(
        12,
        100,
        make_req_id(7, 1, 3, 42),
        5,
        98,
        97,
        0,
        0,
        -1,
        -1,
        -1,
        1_700_000_000_000_002,
        1_700_000_000_000_003,
        4,
        (96,),
        (-5,),
        (),
        pack_names([("a", 1), None]),
    ),
    "COMMITTED": CommittedRange(12, 100, 100, 1_700_000_000_000_004),
    "GAP": Gap(17, 1_700_000_000_000_005, 1_700_000_000_000_006, "No space left on device"),
    "SYNCED": Synced(),
}


@pytest.mark.parametrize(("name", "data"), EXAMPLES, ids=[name for name, _ in EXAMPLES])
def test_the_entry_on_the_page_is_that_of_the_codec(name: str, data: bytes) -> None:
    assert encode_entry(PAGE_ENTRIES[name]) == data
    assert decoded(data) == [PAGE_ENTRIES[name]]


def test_the_page_shows_every_kind() -> None:
    assert [name for name, _ in EXAMPLES] == list(PAGE_ENTRIES)
