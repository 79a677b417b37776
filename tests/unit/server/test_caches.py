"""The caches against dictionaries that never forget: an answer is right, or it is a miss."""

from __future__ import annotations

import attrs
from hypothesis import example, given
from hypothesis import strategies as st

from waltz_core.base.ids import ReqId
from waltz_core.base.log import RECORD_OVERHEAD, Record
from waltz_core.server.data_cache import DataCache
from waltz_core.server.feed_cache import FRAME_SIZE, FeedCache, encode_frames


def transaction(number: int, size: int = 0) -> Record:
    """A record that differs from all others."""
    return Record(number, ReqId(number.to_bytes(16, "big")), number, bytes(size), number)


RUNS = st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 1500)), max_size=12)
LOOKS = st.lists(st.tuples(st.integers(0, 6000), st.integers(1, 400)), max_size=20)


@given(RUNS, LOOKS, st.sampled_from([1, 200_000, 1 << 30]))
def test_frames_are_those_that_were_added(
    runs: list[tuple[int, int]], looks: list[tuple[int, int]], bytes_max: int
) -> None:
    cache, added = FeedCache(bytes_max), set[int]()
    for first, count in runs:
        cache.add(first, encode_frames(first, [transaction(number) for number in range(first, first + count)]))
        added.update(range(first, first + count))
        assert cache.get(first + count - 1, 1) == encode_frames(first + count - 1, [transaction(first + count - 1)])
    for first, count in looks:
        found = cache.get(first, count)
        numbers = range(first, first + len(found) // FRAME_SIZE)
        assert len(numbers) <= count
        assert added.issuperset(numbers)
        assert found == encode_frames(first, [transaction(number) for number in numbers])
    cache.clear()
    assert all(cache.get(first, count) == b"" for first, count in looks)


def test_frames_that_overlap_what_is_there_are_joined_to_it_on_either_side() -> None:
    """They replaced it: a feed that lagged behind appends read the same again and again, and never became live."""

    def frames(first: int, last: int) -> bytes:
        return encode_frames(first, [transaction(number) for number in range(first, last + 1)])

    cache = FeedCache(1 << 20)
    for first, last in ((700, 720), (100, 710), (721, 721), (300, 400), (80, 99), (715, 730)):
        cache.add(first, frames(first, last))
    assert cache.get(80, 1_000) == frames(80, 730)
    cache.add(50, frames(50, 800))
    assert cache.get(50, 1_000) == frames(50, 800)
    cache.add(10, frames(10, 48))
    assert cache.get(10, 1_000) == frames(10, 48)
    assert cache.get(50, 1_000) == b"", "a gap"
    assert cache.misses == 1


@example([(0, 0, [300]), (1, 0, [300] * 4), (3, 0, []), (1, 4, [300])], 3_000)
@example([(0, 15, [0, 0]), (0, 0, [0, 0, 0, 0, 512]), (0, 5, [0, 0, 201, 650]), (0, 16, [0, 0, 0, 0, 138])], 3_000)
@example([(0, 15, [0]), (0, 0, [0, 0, 0, 0, 512]), (0, 5, [0, 0, 201, 650]), (0, 16, [0, 0, 0, 0, 138])], 3_000)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40), st.lists(st.integers(0, 900), max_size=5)), max_size=30),
    st.sampled_from([0, 3_000, 20_000]),
)
def test_payloads_are_those_that_were_added(runs: list[tuple[int, int, list[int]]], bytes_max: int) -> None:
    cache, known = DataCache(bytes_max), dict[tuple[int, int], Record]()
    for partition, first, sizes in runs:
        batch = []
        if partition == 3:
            cache.forget(first % 3)
            continue
        for number, size in enumerate(sizes, start=first):
            # A transaction never changes; what was added once is added again as it was.
            record = known.setdefault((partition, number), attrs.evolve(transaction(number, size), header=partition))
            batch.append(record)
        # What was there already keeps its age, and may go with its run.
        new = [record for record in batch if cache.peek(partition, record.transaction_id) is None]
        cache.add(partition, first, batch)
        if sum(len(record.data) + 100 for record in batch) <= bytes_max // 4:  # whatever else had to go
            assert all(cache.peek(partition, record.transaction_id) is not None for record in new)
    held = 0
    for (partition, number), record in known.items():
        found = cache.get(partition, number)
        assert found in (None, (record.data, record.checksum))
        held += len(record.data) if found is not None else 0
        read = cache.run(partition, number, 7, 1_500)
        assert list(read) == [known[partition, at] for at in range(number, number + len(read))]
        assert len(read) <= 7
        assert len(read) <= 1 or sum(len(one.data) + RECORD_OVERHEAD for one in read) <= 1_500
        behind = number + len(read)
        if read and len(read) < 7 and cache.peek(partition, behind) is not None:
            sizes = [len(known[partition, at].data) + RECORD_OVERHEAD for at in range(number, behind + 1)]
            assert sum(sizes) > 1_500  # it ends there for want of room alone
        assert bool(read) == (found is not None)
    assert held <= bytes_max
    cache.forget(1)
    assert all(cache.get(partition, number) is None for partition, number in known if partition == 1)
