"""What a proxy keeps on its disk: found again, bounded, and never believed when it is damaged."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.proxy.desk import Desk, FakeUpstream, peer
from waltz_core.base.ids import Endpoint, make_req_id
from waltz_core.base.log import Record
from waltz_core.client.calls import RecordsCarried
from waltz_core.proxy.cache import (
    FILES,
    UNWRITTEN_MAX,
    CacheData,
    CacheDrop,
    CacheEffect,
    CacheIndex,
    CacheRead,
    CacheWrite,
    Place,
    decode_entry,
    encode_entry,
)
from waltz_core.proxy.partitions import ProxyPartitions
from waltz_core.proxy.source import FetchWanted
from waltz_core.server.config import ServerConfig
from waltz_core.server.context import NodeContext
from waltz_core.wire import client_messages as messages
from waltz_core.wire.primitives import checksum_of


def records(first: int, count: int, size: int = 10) -> list[Record]:
    data = bytes(size)
    return [Record(first + at, make_req_id(3, 1, 0, at), at, data, checksum_of(data)) for at in range(count)]


class Disk:
    """Files in memory."""

    def __init__(self) -> None:
        self.files: dict[int, bytearray] = {}

    def do(self, effects: list[CacheEffect]) -> None:
        for effect in effects:
            if isinstance(effect, CacheWrite):
                self.files.setdefault(effect.file, bytearray()).extend(effect.data)
            elif isinstance(effect, CacheDrop):
                del self.files[effect.file]

    def at(self, place: Place) -> bytes:
        return bytes(self.files[place.file][place.offset : place.offset + place.size])


@given(st.integers(0, 2**32), st.integers(1, 40))
def test_what_is_found_is_what_was_added(seed: int, count: int) -> None:
    rng = random.Random(seed)
    index, disk = CacheIndex(20_000), Disk()
    for _ in range(count):
        partition, first = rng.randrange(2), rng.randrange(100)
        disk.do(index.add(partition, first, records(first, rng.randint(0, 8))))
        assert index.size == sum(map(len, disk.files.values())) <= 20_000
        assert len(disk.files) <= FILES
    for partition in range(2):
        for wanted in range(110):
            place = index.find(partition, wanted)
            if place is not None:
                run = decode_entry(disk.at(place), partition, place)
                assert run is not None
                assert run[wanted - place.first].transaction_id == wanted


def test_the_oldest_goes_first() -> None:
    index, disk = CacheIndex(FILES * 500), Disk()
    for first in range(0, 400, 4):
        disk.do(index.add(0, first, records(first, 4)))
        assert index.size <= FILES * 500
        assert len(disk.files) <= FILES
    assert index.find(0, 0) is None
    assert index.find(0, 399) is not None
    assert 0 not in disk.files


def test_what_is_larger_than_a_file_is_not_kept_and_a_closed_index_keeps_nothing() -> None:
    index = CacheIndex(FILES * 500)
    assert index.add(0, 0, records(0, 1, size=1_000)) == []
    assert CacheIndex(0).add(0, 0, records(0, 1)) == []
    assert index.add(0, 0, records(0, 1))
    index.close()
    assert index.find(0, 0) is None
    assert index.add(0, 0, records(0, 1)) == []


def test_what_waits_for_a_slow_disk_is_bounded() -> None:
    index = CacheIndex(64 * UNWRITTEN_MAX)
    size = UNWRITTEN_MAX // 4
    taken = [len(index.add(0, at, records(at, 1, size))) for at in range(10)]
    assert taken == [1, 1, 1, 0, 0, 0, 0, 0, 0, 0], "an entry is a little more than its payload"
    assert index.find(0, 9) is None
    index.was_written(len(encode_entry(0, 0, records(0, 1, size))))
    assert len(index.add(0, 10, records(10, 1, size))) == 1
    assert index.owed


def test_a_file_is_filled_to_its_last_byte() -> None:
    size = len(encode_entry(0, 0, records(0, 1)))
    index = CacheIndex(FILES * size * 2)
    assert [index.add(0, first, records(first, 1)) for first in range(4)] == [
        [CacheWrite(file, encode_entry(0, first, records(first, 1)))] for first, file in enumerate((0, 0, 1, 1))
    ]
    assert len(CacheIndex(FILES * size).add(0, 0, records(0, 1))) == 1
    assert CacheIndex(FILES * size - 1).add(0, 0, records(0, 1)) == []


@pytest.mark.parametrize("at", range(len(encode_entry(4, 7, records(7, 2)))))
def test_a_damaged_byte_anywhere_is_noticed(at: int) -> None:
    entry = bytearray(encode_entry(4, 7, records(7, 2)))
    place = Place(0, 0, len(entry), 7, 2)
    assert decode_entry(bytes(entry), 4, place) == records(7, 2)
    entry[at] ^= 0x40
    assert decode_entry(bytes(entry), 4, place) is None


def test_an_entry_of_another_place_is_not_taken() -> None:
    entry = encode_entry(4, 7, records(7, 2))
    place = Place(0, 0, len(entry), 7, 2)
    assert decode_entry(entry, 5, place) is None
    assert decode_entry(entry[:-1], 4, place) is None
    assert decode_entry(b"", 4, place) is None
    assert decode_entry(entry, 4, Place(0, 0, len(entry), 8, 2)) is None


def cached_desk() -> Desk:
    """One record was read, and is on the disk; memory holds nothing."""
    desk = Desk(cache_bytes=1 << 20, data_cache_bytes=0)
    ask(desk, 1)
    desk.answer_read()
    assert [type(effect) for effect in desk.disk.take()] == [CacheWrite]
    return desk


def ask(desk: Desk, conn: int) -> None:
    desk.says(peer(conn, 200 + conn), messages.TransactionDataRequest(make_req_id(200 + conn, -1, 0, 1), 5))


def test_what_is_on_the_disk_is_not_read_upstream() -> None:
    desk = cached_desk()
    ask(desk, 2)
    ask(desk, 3)
    (read,) = desk.disk.take()
    assert isinstance(read, CacheRead)
    desk.partition.source.cached(CacheData(0, read.token, encode_entry(0, 5, desk.records(5, 1))))
    desk.work()
    assert len(desk.of(messages.TransactionDataResponse)) == 3
    assert len(desk.upstream.reads) == 1
    desk.partition.source.cached(CacheData(0, read.token, b""))  # nobody waits for it


def test_entries_of_several_partitions_are_written_in_the_order_in_which_the_index_has_them() -> None:
    """Each stood at the other's place, as the disk was asked partition by partition: all were read upstream again."""
    context = NodeContext(ServerConfig("/own", Endpoint("proxy", 1)), random.Random(1))
    partitions = ProxyPartitions(context, 1 << 20)
    partitions.open(2)
    wanted = {}
    for number, partition in partitions.served.items():
        partition.source.read_records(0, number, 0, 1)
        (fetch,) = partition._wanted.take()
        assert isinstance(fetch, FetchWanted)
        wanted[number] = fetch.token
        partitions.touch(number)
    for number in (1, 0):  # as upstream answers
        run = records(0, 1, size=10 * (1 + number))
        partitions.served[number].source.fetched(RecordsCarried(number, wanted[number], run, 0))
    for partition in partitions.take():
        partition.flush(0, FakeUpstream())
    effects = partitions.disk.take()
    assert [type(effect) for effect in effects] == [CacheWrite, CacheWrite]
    file = b"".join(effect.data for effect in effects if isinstance(effect, CacheWrite))
    for number in (0, 1):
        place = partitions.kept.find(number, 0)
        assert place is not None
        assert decode_entry(file[place.offset :][: place.size], number, place) is not None


@pytest.mark.parametrize("data", [None, b"", encode_entry(0, 6, records(6, 1))])
def test_what_the_disk_has_lost_is_read_upstream_again(data: bytes | None) -> None:
    desk = cached_desk()
    ask(desk, 2)
    (read,) = desk.disk.take()
    assert isinstance(read, CacheRead)
    desk.partition.source.cached(CacheData(0, read.token, data))
    desk.work()
    assert len(desk.of(messages.TransactionDataResponse)) == 1
    assert len(desk.upstream.reads) == 2
    desk.answer_read()
    assert len(desk.of(messages.TransactionDataResponse)) == 2
