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
    CommittedRange,
    Decision,
    Entry,
    Gap,
    SessionOpened,
    Started,
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
    head = [draw(one) for one in (i32, i64, i64, i8, i8, i64, i8, i32, i64, i64, i32)]
    return Decision(draw(i64), draw(i64), req_id, *head, write, read, append, names)


entries = st.one_of(
    decisions(),
    st.builds(Started, st.binary(min_size=16, max_size=16), i32, i64, i64, i64, i8, texts),
    st.builds(SessionOpened, i64, i32, i64, i64),
    st.builds(CommittedRange, i64, i64, i64, i64),
    st.builds(Gap, i64, i64, i64, texts),
)


def decoded(data: bytes) -> list[Entry]:
    return [entry for _, entry in decode_entries(data, "here")]


@given(st.lists(entries, max_size=5))
def test_what_is_encoded_is_decoded_again(sent: list[Entry]) -> None:
    data = b"".join(map(encode_entry, sent))
    assert decoded(data) == sent
    assert sound_size(data) == (len(data), True)


@given(st.lists(entries, min_size=1, max_size=4), st.data())
def test_a_torn_end_is_told_from_damage(sent: list[Entry], data: st.DataObject) -> None:
    whole = b"".join(map(encode_entry, sent))
    last = len(whole) - len(encode_entry(sent[-1]))
    cut = data.draw(st.integers(last, len(whole) - 1))
    assert sound_size(whole[:cut]) == (last, True)
    if len(sent) > 1:
        at = data.draw(st.integers(0, last - 1))
        damaged = bytearray(whole)
        damaged[at] ^= 1 << data.draw(st.integers(0, 7))
        size, torn = sound_size(bytes(damaged))
        assert (size <= at, torn) == (True, False)
        with pytest.raises(CorruptionError, match=f"here: the entry at offset {size} "):
            decoded(bytes(damaged))


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
}


@pytest.mark.parametrize(("name", "data"), EXAMPLES, ids=[name for name, _ in EXAMPLES])
def test_the_entry_on_the_page_is_that_of_the_codec(name: str, data: bytes) -> None:
    assert encode_entry(PAGE_ENTRIES[name]) == data
    assert decoded(data) == [PAGE_ENTRIES[name]]


def test_the_page_shows_every_kind() -> None:
    assert [name for name, _ in EXAMPLES] == list(PAGE_ENTRIES)
