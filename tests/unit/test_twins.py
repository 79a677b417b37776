"""A compiled twin and its reference: the same result, exception, message and changes, for every input."""

from __future__ import annotations

import copy
import gc
import importlib
import os
import subprocess
import sys
from array import array
from collections import deque
from collections.abc import Callable
from pathlib import Path
from struct import Struct
from types import ModuleType
from typing import Any
from zlib import crc32

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.twins import ROOT, NoCompilerError, built, compiled
from waltz_core.base.errors import ProtocolError
from waltz_core.base.ids import ReqId, make_req_id
from waltz_core.base.log import Record, RecordHeader
from waltz_core.base.twins import REFERENCES
from waltz_core.client.calls import Submit
from waltz_core.client.columns import Columns, RowLocks, signed_crc
from waltz_core.storage.record_codec import decode_run, encode_record
from waltz_core.wire import runs
from waltz_core.wire.client_messages import AppendRequest, FeedData, NamedAppendRequest
from waltz_core.wire.connection import CLIENT_PROTOCOL, Connection
from waltz_core.wire.lock_names import UNNAMED, pack_text
from waltz_core.wire.primitives import checksum_of
from waltz_core.wire.records import RecordRun
from waltz_trio.client.codecs import Raw, Utf8
from waltz_trio.client.values import Append, Transaction

for module in ("waltz_core.client.node", "waltz_core.server.node", "waltz_core.storage.node"):
    importlib.import_module(module)  # for the references in them

INT32, INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
REQ_IDS = st.builds(make_req_id, INT32, INT32, st.integers(0, 2), INT32)
LOCKS = st.lists(INT32, max_size=4).map(tuple)
FEW_LOCKS = st.lists(st.integers(0, 5), max_size=3).map(tuple)
DATA = st.binary(max_size=40)


@pytest.fixture(scope="module")
def twins() -> ModuleType:
    try:
        return compiled()
    except NoCompilerError:
        pytest.skip("no C compiler here: pure Python is all there is")


def outcome(function: Callable[..., Any], arguments: list[Any]) -> tuple[Any, ...]:
    """What a call returns or raises, and what becomes of its arguments."""
    mine = copy.deepcopy(arguments)
    if function.__name__ == "judge_run":  # attempts are known by their identity
        mine[4] = deque(mine[3][attempt[1]] if mine[3].get(attempt[1]) == attempt else attempt for attempt in mine[4])
    try:
        result = function(*mine)
    except Exception as error:
        return type(error), str(error), mine
    return result, mine


def same(twins: ModuleType, name: str, *arguments: Any) -> None:
    expected = outcome(REFERENCES[name], list(arguments))
    assert outcome(getattr(twins, name), list(arguments)) == expected


def plain(req_id: ReqId, mark: int, locks: tuple[Any, ...], header: int, data: bytes, checksum: int) -> AppendRequest:
    write, read, append = locks
    return AppendRequest(req_id, mark, write, read, append, header, data, checksum)


@st.composite
def names_of(draw: st.DrawFn, count: int) -> bytes:
    if draw(st.booleans()):
        return b""
    one = st.one_of(st.just(UNNAMED), st.builds(lambda text: pack_text(text) + bytes(8), st.text(max_size=3)))
    return b"".join(draw(st.lists(one, min_size=count, max_size=count)))


@st.composite
def messages(draw: st.DrawFn) -> AppendRequest | NamedAppendRequest:
    data = draw(DATA)
    locks = draw(LOCKS), draw(LOCKS), draw(LOCKS)
    checksum = checksum_of(data) + draw(st.sampled_from([0] * 9 + [1]))
    fields = draw(REQ_IDS), draw(INT64), *locks, draw(INT32), data, max(min(checksum, 2**31 - 1), -(2**31))
    if draw(st.booleans()):
        return AppendRequest(*fields)
    names = draw(names_of(sum(map(len, locks))))
    return NamedAppendRequest(*fields, names if names.replace(UNNAMED, b"") else b"")


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Frames of appends and feeds, some of them cut, damaged, or of another version."""
    link = Connection[Any](CLIENT_PROTOCOL, "", {5})
    link.receive(Connection[Any](CLIENT_PROTOCOL, "", {5}).hello(), [])
    out = bytearray()
    feed = st.builds(FeedData, REQ_IDS, INT64, INT32)
    for message in draw(st.lists(st.one_of(messages(), messages(), feed), max_size=6)):
        link.encode(message, out)
    for _ in range(draw(st.integers(0, 2))):
        if out:
            out[draw(st.integers(0, len(out) - 1))] = draw(st.sampled_from([0, 1, 2, 4, 34, 127, 128, 255]))
    return bytes(out[: draw(st.integers(0, len(out)))]) if draw(st.booleans()) else bytes(out)


def decoded(stream: bytes, limit: int) -> tuple[list[Any], str]:
    link = Connection[Any](CLIENT_PROTOCOL, "", {5}, limit)
    out: list[Any] = []
    try:
        link.receive(Connection[Any](CLIENT_PROTOCOL, "", {5}).hello() + stream, out)
    except ProtocolError as error:
        return out, str(error)
    return out, ""


@given(stream=streams(), limit=st.sampled_from([40, 90, 1 << 20]))
def test_frames_of_clients(twins: ModuleType, stream: bytes, limit: int) -> None:
    starts = [at for at in range(len(stream)) if stream[at] == 0x4C] or [0]
    for at in starts:
        for cls, named in ((AppendRequest, False), (NamedAppendRequest, True)):
            decode = runs.whole(CLIENT_PROTOCOL.tables[5].codecs[34 if named else 2].decode)
            same(twins, "cut_appends", stream, at, limit, [], cls, decode, named)
        same(twins, "cut_feed", stream, at, [], FeedData)
        fed: list[Any] = []
        REFERENCES["cut_feed"](stream, at, fed, FeedData)
        for place in range(len(fed)):
            same(twins, "end_of_run", [*fed, AppendRequest], place, FeedData)
    patch = pytest.MonkeyPatch()
    patched = []
    for functions in (REFERENCES, vars(twins)):
        with patch.context() as patches:
            for name in ("cut_appends", "cut_feed"):
                patches.setattr(runs, name, functions[name])
            patched.append(decoded(stream, limit))
    assert patched[0] == patched[1]


def test_a_run_of_appends_is_taken_at_once(twins: ModuleType) -> None:
    """The comparisons above would hold as well if a twin did nothing by itself."""
    data, out = bytes(200), bytearray()
    link = Connection[Any](CLIENT_PROTOCOL, "", {5})
    link.receive(link.hello(), [])
    for number in range(10):
        names = pack_text("row") + bytes(8)
        request_id = make_req_id(1, 2, 3, number)
        link.encode(NamedAppendRequest(request_id, 7, (5,), (), (), 9, data, checksum_of(data), names), out)
    taken: list[Any] = []
    never = pytest.fail
    assert twins.cut_appends(bytes(out), 0, 1 << 20, taken, NamedAppendRequest, never, True) == len(out)
    assert [message.req_id for message in taken] == [make_req_id(1, 2, 3, number) for number in range(10)]


class Handed:
    """Not a class whose objects are made by their slots."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handed) and self.arguments == other.arguments

    __hash__ = None  # type: ignore[assignment]


FED_IDS = [
    make_req_id(1, 2, 0, 0),
    make_req_id(1, 2, 1, 0),
    make_req_id(1, 2, 0, 0) + b"?",
    b"",
    make_req_id(1, 2, 0, 7),
]
FED = st.lists(st.builds(FeedData, st.sampled_from(FED_IDS), INT64, INT32), max_size=8)


@given(
    records=FED,
    payloads=st.lists(st.one_of(st.none(), DATA), max_size=8),
    last=st.one_of(st.none(), INT32),
    kinds=st.tuples(st.sampled_from([list, tuple]), st.sampled_from([list, tuple])),
)
def test_the_feed_of_one_partition_and_what_readers_get(
    twins: ModuleType, records: list[FeedData], payloads: list[bytes | None], last: int | None, kinds: tuple[Any, Any]
) -> None:
    for seen in (-1, 0, 2**63 - 1, 2**63, *(record.transaction_id - 1 for record in records)):
        same(twins, "mark_after", records, seen)
        same(twins, "mark_after", [attrs.evolve(record, transaction_id=at) for at, record in enumerate(records)], seen)
    for place in range(len(records)):
        same(twins, "end_of_run", records, place, FeedData)
        same(twins, "end_of_run", [*records[:place], AppendRequest, *records[place:]], 0, FeedData)
    for end in {last, *(record.header for record in records)}:
        arguments = (3, kinds[0](records), kinds[1](payloads), None, end)
        same(twins, "hand_out", [], Handed, *arguments)
        made = []
        for function in (REFERENCES["hand_out"], twins.hand_out):
            handed: list[Transaction] = []
            count = function(handed, Transaction, *arguments)
            made.append((count, [attrs.astuple(each) for each in handed]))
        assert made[0] == made[1]


RECORDS = st.lists(
    st.one_of(
        st.builds(Record, st.integers(0, 9), REQ_IDS, INT32, DATA, INT32),
        st.builds(plain, REQ_IDS, INT64, st.tuples(LOCKS, LOCKS, LOCKS), INT32, DATA, INT32),
        st.builds(Record, st.integers(0, 9), st.binary(max_size=17), INT64, DATA, INT64),
    ),
    max_size=4,
)


@given(first=st.one_of(st.integers(0, 99), INT64, st.just(2**63)), records=RECORDS, tuples=st.booleans())
def test_records_and_feeds_on_the_wire(twins: ModuleType, first: int, records: list[Any], tuples: bool) -> None:
    for name in ("encode_records", "encode_frames"):
        same(twins, name, first, tuple(records) if tuples else records)
    headers = [RecordHeader(0, one.req_id, one.header) for one in records]
    same(twins, "encode_frames", first, headers)


_START = Struct(">q16sii")


@given(
    first=st.one_of(st.integers(0, 9), st.just(2**63 - 2)),
    records=st.lists(st.tuples(DATA, st.sampled_from([1] * 9 + [2])), max_size=4),
    cut=st.integers(0, 60),
    flips=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=1),
    before=st.integers(0, 3),
)
def test_records_from_the_wire_to_the_disk(
    twins: ModuleType, first: int, records: list[Any], cut: int, flips: list[Any], before: int
) -> None:
    out, transaction_id = bytearray(before), first
    for data, step in records:
        out += _START.pack(transaction_id, bytes(range(16)), 7, len(data)) + data + crc32(data).to_bytes(4, "big")
        transaction_id = (transaction_id + step) % 2**63
    for place, value in flips:
        if place < len(out):
            out[place] = value
    buffer = bytes(out)
    for end in (len(buffer), max(before, len(buffer) - cut)):
        for count in (len(records), len(records) + 1, 0):
            same(twins, "transcode_records", buffer, before, end, count)


@given(
    first=st.one_of(st.integers(0, 9), st.just(2**63 - 2)),
    records=st.lists(st.tuples(DATA, st.sampled_from([1] * 9 + [2])), max_size=4),
    cut=st.integers(0, 60),
    flips=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=1),
    before=st.integers(0, 3),
)
def test_runs_of_records_that_are_passed_on(
    twins: ModuleType, first: int, records: list[Any], cut: int, flips: list[Any], before: int
) -> None:
    out, transaction_id = bytearray(before), first
    for data, step in records:
        out += _START.pack(transaction_id, bytes(range(16)), 7, len(data)) + data + crc32(data).to_bytes(4, "big")
        transaction_id = (transaction_id + step) % 2**63
    sound = bytes(out)
    starts = REFERENCES["cut_records"](sound, before, len(sound), len(records))
    for place, value in flips:
        if place < len(out):
            out[place] = value
    for buffer in (sound, bytes(out)):
        for end in (len(buffer), max(before, len(buffer) - cut), len(buffer) + 1):
            for count in (len(records), len(records) + 1, 0):
                same(twins, "cut_records", buffer, before, end, count)
        same(twins, "sound_count", buffer[before:], starts, first)
        same(twins, "sound_count", buffer[before:], starts[:1], first)
        for places in (starts, starts[:1], [], [*starts, 2**70], [-3, *starts], [*starts, len(buffer) - 27, 0]):
            same(twins, "cut_headers", buffer[before:], places)
        for count in range(len(records) + 2):
            same(twins, "data_of", buffer[before:], starts, count)
            same(twins, "data_of", bytes(buffer[before:])[:-1], starts, count)


@given(
    first=st.one_of(st.integers(-1, 9), st.just(2**63 - 2)),
    records=st.lists(st.tuples(DATA, st.sampled_from([1] * 9 + [2])), max_size=4),
    cut=st.integers(0, 60),
    flips=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=1),
)
def test_runs_of_records_from_the_disk(
    twins: ModuleType, first: int, records: list[Any], cut: int, flips: list[Any]
) -> None:
    out, transaction_id = bytearray(), first
    for data, step in records:
        record = Record(transaction_id, ReqId(bytes(range(16))), 7, data, checksum_of(data))
        out += encode_record(record)
        transaction_id = min(transaction_id + step, 2**63 - 1)
    for place, value in flips:
        if place < len(out):
            out[place] = value
    for buffer in (bytes(out), bytes(out)[: max(0, len(out) - cut)], out):
        for count in (len(records), len(records) + 1, 0, -1):
            same(twins, "transcode_disk", buffer, first, count)
            read = REFERENCES["transcode_disk"](buffer, first, count)
            assert RecordRun(*read) == decode_run(bytes(buffer), first, count)[0]


@pytest.mark.parametrize("size", [0, 2047, 2048, 2049, 100_000])
def test_data_of_any_size_has_the_same_checksum(twins: ModuleType, size: int) -> None:
    record = Record(0, ReqId(bytes(16)), 7, bytes(size), checksum_of(bytes(size)))
    on_disk = encode_record(record)
    same(twins, "transcode_disk", on_disk, 0, 1)
    encoded, starts = REFERENCES["transcode_disk"](on_disk, 0, 1)
    assert starts == [0, size + 36]
    for damaged in (encoded, encoded[:-1] + bytes([encoded[-1] ^ 1])):
        same(twins, "sound_count", damaged, starts, 0)


@given(
    headers=st.lists(st.tuples(st.sampled_from([0] * 9 + [1]), REQ_IDS, INT32), max_size=5),
    first=st.one_of(st.integers(-2, 9), st.just(2**63 - 2), st.just(2**63)),
    cut=st.sampled_from([0] * 5 + [1, 28]),
    place=st.sampled_from([bytes, bytearray]),
)
def test_headers_that_are_passed_on(twins: ModuleType, headers: list[Any], first: int, cut: int, place: Any) -> None:
    layout = Struct(">q16si")
    rows = [((first + at + step) % 2**63, *rest) for at, (step, *rest) in enumerate(headers)]
    encoded = place(b"".join([layout.pack(*row) for row in rows])[cut:])
    same(twins, "dense_ids", encoded, first)
    same(twins, "frames_of_headers", encoded)


@given(
    steps=st.lists(st.sampled_from([40, 40, 50, 39, 0, -1, 2**62, 2**63 - 200]), max_size=5),
    begin=st.sampled_from([128, 128, 127, 0]),
    beyond=st.sampled_from([40, 40, 39, 0, -(2**63), 2**63]),
    kind=st.sampled_from("QQQq"),
)
def test_places_of_records(twins: ModuleType, steps: list[int], begin: int, beyond: int, kind: str) -> None:
    places = [max(0, sum(steps[:at], begin)) % 2 ** (64 if kind == "Q" else 63) for at in range(len(steps))]
    same(twins, "plausible", array(kind, places), (places[-1] if places else begin) + beyond)


REQUESTS = st.lists(
    st.builds(
        plain,
        st.builds(make_req_id, st.just(1), st.sampled_from([2, 2, 2, 3]), st.just(0), INT32),
        st.integers(-3, 12),
        st.tuples(*[st.one_of(FEW_LOCKS, FEW_LOCKS, FEW_LOCKS, st.none())] * 3),
        INT32,
        DATA,
        INT32,
    ),
    max_size=6,
)


@given(requests=REQUESTS, begin=st.sampled_from([0, 4]), size_max=st.integers(0, 50), cut=st.integers(0, 1))
def test_what_may_be_queued(twins: ModuleType, requests: list[Any], begin: int, size_max: int, cut: int) -> None:
    expected = make_req_id(1, 2, 0, 0)[begin : 8 - cut]
    same(twins, "all_acceptable", requests, expected, begin, size_max)
    same(twins, "all_acceptable", tuple(requests), expected, begin, size_max)
    for first in range(len(requests) + 1):
        same(twins, "payload_bytes", requests, first, len(requests))


@given(
    requests=REQUESTS,
    size=st.integers(1, 7),
    marks=st.lists(st.integers(-1, 12), min_size=7, max_size=7),
    taken=st.dictionaries(st.integers(0, 5), st.integers(0, 12), max_size=4),
    known=st.sampled_from([3, 20]),
    room=st.integers(-1, 300),
    first=st.integers(8, 14),
)
def test_locks_of_a_run(
    twins: ModuleType,
    requests: list[Any],
    size: int,
    marks: list[int],
    taken: dict[int, int],
    known: int,
    room: int,
    first: int,
) -> None:
    table = array("q", marks[:size])
    for at in range(len(requests) + 1):
        same(twins, "take_run", table, taken, requests, at, len(requests), known, room, first)
    same(twins, "release_run", table, taken, requests, first, [], [])


class Wanted:
    """What an application wants to append, as far as loops look at it."""

    def __init__(self, value: Any, codec: Any, header: Any, locks: Any, result: Any) -> None:
        self.value, self.codec, self.header, self.result = value, codec, header, result
        self.write, self.read, self.append = locks

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Wanted) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


class Other(Wanted):
    """Another class of them."""


NOTHING = ((), (), ())
WANTED = st.one_of(
    DATA,
    st.builds(Append, DATA, st.just(Raw()), INT32),
    st.builds(Append, DATA, st.just(Raw()), INT32),
    st.builds(Wanted, DATA, st.just(Raw()), INT32, st.just(NOTHING), st.none()),
    st.builds(
        Append,
        st.one_of(DATA, DATA, st.text(max_size=3)),
        st.sampled_from([Raw(), Raw(), Utf8()]),
        st.one_of(INT32, INT64, st.booleans()),
        st.sampled_from([(), (), (), [], [("a", 1)]]),
        st.sampled_from([(), (), (), [], [("a", 1)]]),
        st.sampled_from([(), (), (), [], [("a", 1)]]),
        st.sampled_from([None, None, 7]),
    ),
)


@given(
    appends=st.lists(WANTED, max_size=5),
    at=st.integers(0, 5),
    size_max=st.integers(0, 50),
    room=st.integers(-1, 90),
    tuples=st.booleans(),
)
def test_plain_appends_go_into_columns(
    twins: ModuleType, appends: list[Any], at: int, size_max: int, room: int, tuples: bool
) -> None:
    rows = tuple(appends) if tuples else appends
    for cls in (Append, Wanted):
        same(twins, "take_plain", rows, min(at, len(rows)), cls, Raw, size_max, room, [1], [b"x"], [2])


def test_a_run_of_plain_appends_is_taken_at_once(twins: ModuleType) -> None:
    headers: list[int] = []
    payloads: list[bytes] = []
    rows = [Append(b"%d" % number, header=number) for number in range(10)]
    assert twins.take_plain(rows, 2, Append, Raw, 100, 1000, headers, payloads, []) == (10, 8)
    assert headers == list(range(2, 10))
    assert payloads == [b"%d" % number for number in range(2, 10)]


def test_bytes_are_a_payload_with_header_0(twins: ModuleType) -> None:
    for function in (REFERENCES["take_plain"], twins.take_plain):
        headers: list[int] = []
        payloads: list[bytes] = []
        checksums: list[int] = []
        rows = [b"one", Append(b"two", header=2), b"", bytearray(b"no"), b"three"]
        assert function(rows, 0, Append, Raw, 100, 1000, headers, payloads, checksums) == (3, 6)
        assert (headers, payloads) == ([0, 2, 0], [b"one", b"two", b""])
        assert checksums == [signed_crc(payload) for payload in payloads]
        assert function([b"large"], 0, Append, Raw, 4, 1000, [], [], []) == (0, 0)
    for function in (REFERENCES["take_alike"], twins.take_alike):
        assert function([b"one"], 0, Append(b""), Append, Raw, 100, 1000, [], [], []) == (0, 0)


_SHARED = ((), (("a", 1),), (("a", 1), ("b", 2)))


@given(
    rows=st.lists(st.tuples(DATA, *[st.sampled_from([*_SHARED, (), [("a", 1)]])] * 3) | DATA, max_size=5),
    like=st.tuples(*[st.sampled_from(_SHARED)] * 3),
    at=st.integers(0, 5),
)
def test_appends_with_the_very_locks_of_another_go_into_columns(
    twins: ModuleType, rows: list[Any], like: tuple[Any, ...], at: int
) -> None:
    appends = [row if type(row) is bytes else Append(row[0], write=row[1], read=row[2], append=row[3]) for row in rows]
    model = Append(b"", write=like[0], read=like[1], append=like[2])
    same(twins, "take_alike", appends, min(at, len(appends)), model, Append, Raw, 50, 90, [], [], [])


def test_equal_locks_are_not_those_of_another(twins: ModuleType) -> None:
    locks = (("a", 1),)
    rows = [Append(b"x", read=locks), Append(b"y", read=locks), Append(b"z", read=(*locks,))]
    for function in (REFERENCES["take_alike"], twins.take_alike):
        assert function(rows, 0, Append(b"", read=locks), Append, Raw, 100, 1000, [], [], []) == (2, 2)


def columns_of(rows: list[tuple[Any, bytes, int, RowLocks | None]]) -> Columns:
    columns = Columns()
    for header, data, checksum, locks in rows:
        if locks is not None:
            columns.locks[len(columns)] = locks
        columns.headers.append(header)
        columns.payloads.append(data)
        columns.checksums.append(checksum)
    return columns


@st.composite
def row_locks(draw: st.DrawFn) -> RowLocks:
    locks = draw(LOCKS), draw(LOCKS), draw(LOCKS)
    return RowLocks(draw(st.one_of(st.none(), st.integers(-2, 9))), *locks, draw(names_of(sum(map(len, locks)))))


@given(
    rows=st.lists(st.tuples(INT32, DATA, INT32, st.one_of(st.none(), st.none(), row_locks())), max_size=4),
    at=st.integers(0, 1),
    sequence=st.sampled_from([0, 5, 2**31 - 2, 2**31 - 1, -(2**31)]),
    mark=st.one_of(st.integers(-2, 9), INT64),
    told=st.booleans(),
    before=st.binary(max_size=3),
)
def test_columns_on_their_way_out(
    twins: ModuleType, rows: list[Any], at: int, sequence: int, mark: int, told: bool, before: bytes
) -> None:
    head, prefix = b"\x4c\x00\x05\x00\x00\x00\x00", make_req_id(1, 2, 3, 0)[:12]
    first, end = min(at, len(rows)), len(rows)
    made = []
    for function in (REFERENCES["encode_columns"], twins.encode_columns):
        out = bytearray(before)
        made.append((function(out, head, columns_of(rows), first, end, prefix, sequence, mark, told), out))
    assert made[0] == made[1]
    # The same bytes as those of single submits.
    submits = [
        Submit(
            3,
            None,
            mark if own is None or own.client_mark is None else own.client_mark,
            write,
            read,
            append,
            header,
            data,
            crc,
            names,
        )
        for header, data, crc, own in rows
        for write, read, append, names in [
            (*NOTHING, b"") if own is None else (own.write, own.read, own.append, own.names)
        ]
    ]
    out = bytearray(before)
    assert REFERENCES["encode_appends"](out, head, submits, first, end, prefix, sequence, -1, told) == made[0][0]
    assert out == made[0][1]


@given(
    outcomes=st.lists(
        st.tuples(st.one_of(st.integers(0, 9), st.integers(0, 9), st.booleans(), st.none()), st.integers()), max_size=8
    ),
    at=st.integers(0, 3),
    first=st.integers(0, 5),
    count=st.integers(0, 5),
    place=st.integers(0, 2),
)
def test_outcomes_of_rows(twins: ModuleType, outcomes: list[Any], at: int, first: int, count: int, place: int) -> None:
    same(twins, "take_rows", outcomes, at, first, first + count, [None] * (place + count), place)


@given(
    feed=st.lists(st.tuples(st.integers(0, 5), st.integers(-1, 6)), max_size=8),
    attempts=st.lists(st.integers(0, 5), unique=True, max_size=6),
    settled=st.sets(st.integers(0, 5), max_size=2),
    seen=st.integers(-1, 3),
    at=st.integers(0, 2),
)
@example(feed=[(0, 0), (1, 1)], attempts=[0, 1], settled=set(), seen=-1, at=0)
def test_outcomes_from_the_feed(
    twins: ModuleType, feed: list[Any], attempts: list[int], settled: set[int], seen: int, at: int
) -> None:
    run = [FeedData(make_req_id(1, 1, 1, number), transaction_id, 0) for number, transaction_id in feed]
    order = [(number, make_req_id(1, 1, 1, number), f"token {number}", 0) for number in attempts]
    sent = {attempt[1]: attempt for attempt in order if attempt[0] not in settled}
    same(twins, "judge_run", run, min(at, len(run)), seen, sent, deque(order), [])


SUBMITS = st.lists(
    st.builds(
        Submit,
        st.just(3),
        st.just("token"),
        st.one_of(st.none(), st.integers(-2, 99), INT64),
        LOCKS,
        LOCKS,
        LOCKS,
        st.one_of(INT32, INT32, INT64),
        DATA,
        INT32,
    ).flatmap(
        lambda submit: st.builds(
            lambda names: attrs.evolve(submit, names=names),
            names_of(len(submit.write_locks) + len(submit.read_locks) + len(submit.append_locks)),
        )
    ),
    max_size=4,
)


@given(
    submits=SUBMITS,
    at=st.integers(0, 1),
    sequence=st.sampled_from([0, 5, 2**31 - 2, 2**31 - 1, -(2**31)]),
    seen=st.integers(-1, 9),
    told=st.booleans(),
    before=st.binary(max_size=3),
)
def test_appends_on_their_way_out(
    twins: ModuleType, submits: list[Any], at: int, sequence: int, seen: int, told: bool, before: bytes
) -> None:
    head, prefix = b"\x4c\x00\x05\x00\x00\x00\x00", make_req_id(1, 2, 3, 0)[:12]
    first = min(at, len(submits))
    expected = outcome(
        REFERENCES["encode_appends"],
        [bytearray(before), head, submits, first, len(submits), prefix, sequence, seen, told],
    )
    found = outcome(
        twins.encode_appends, [bytearray(before), head, submits, first, len(submits), prefix, sequence, seen, told]
    )
    if len(expected) == 3:  # an error: a machine that raises is dead, so what is in the buffer does not matter
        assert found[:2] == expected[:2]
    else:
        assert found == expected


def test_every_twin_is_compared(twins: ModuleType) -> None:
    text = Path(__file__).read_text()
    assert set(REFERENCES) == set(twins.REFERENCES)
    for name in REFERENCES:
        assert f'"{name}"' in text, name
        assert callable(getattr(twins, name))


def run(program: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *program.split()],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_simulated_clusters_take_the_same_way_with_and_without(twins: ModuleType, tmp_path: Path) -> None:
    place = os.pathsep.join([str(built()), str(ROOT)])
    digests = []
    for speedups in ("0", "1"):
        path = tmp_path / speedups
        run(f"-m tests.model.fuzz --seeds 1..2 --digests {path}", WALTZ_SPEEDUPS=speedups, PYTHONPATH=place)
        digests.append(path.read_text())
    assert digests[0] == digests[1]


def test_what_a_feed_consists_of_is_not_looked_through_by_the_collector(twins: ModuleType) -> None:
    frames = b"".join(
        b"\x4d\x00\x05\x00\x00\x00\x1d\x04" + Struct(">16sqi").pack(bytes(16), number, 7) for number in range(4)
    )
    messages: list[Any] = []
    assert twins.cut_feed(frames, 0, messages, FeedData) == len(frames)
    assert [gc.is_tracked(each) for each in messages] == [False] * 4
    handed: list[Any] = []
    assert twins.hand_out(handed, Transaction, 0, messages, [b"a", b"", None, b"b"], handed.append, None) == 4
    assert [gc.is_tracked(each) for each in handed] == [False, False, True, False]  # one that can reach its client
    assert [each._fetch is None for each in handed] == [True, True, False, True]


def test_a_switch_and_a_missing_build_say_so(twins: ModuleType, tmp_path: Path) -> None:
    program = "import waltz_speedups; print(waltz_speedups.in_use())"

    def says(*options: str, **environment: str) -> str:
        command = [sys.executable, *options, "-c", program]
        found = subprocess.run(
            command, env={**os.environ, **environment}, cwd=tmp_path, capture_output=True, text=True, check=True
        )
        return found.stdout.strip()

    place = str(built())
    assert says(PYTHONPATH=place, WALTZ_SPEEDUPS="1") == "compiled"
    assert says(PYTHONPATH=place, WALTZ_SPEEDUPS="0") == "pure Python (switched off by WALTZ_SPEEDUPS=0)"
    bare = tmp_path / "bare" / "waltz_speedups"
    bare.mkdir(parents=True)
    (bare / "__init__.py").write_text((ROOT / "waltz_speedups" / "__init__.py").read_text())
    # Without site: an editable installation would find the compiled part of the real package.
    assert says("-S", PYTHONPATH=str(bare.parent), WALTZ_SPEEDUPS="1").startswith("pure Python (not built here")
