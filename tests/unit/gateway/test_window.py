"""The window that readers share: nobody is skipped, held up or told anything twice, and what is held is bounded."""

from __future__ import annotations

from random import Random

import pytest

from waltz_core.gateway.replies import Record
from waltz_core.gateway.window import SLICE_BYTES, Window

_OVERHEAD = 100


def records(first: int, count: int, size: int = 0) -> list[Record]:
    return [Record(first + at, 0, bytes(size)) for at in range(count)]


def ids(window: Window, mark: int) -> list[int]:
    taken = window.take(mark)
    assert taken is not None
    return [each.transaction_id for each in taken.records]


def test_each_takes_what_comes_behind_its_mark() -> None:
    window = Window(9, 10_000)
    assert ids(window, 9) == []
    window.arrived(records(10, 3), 12)
    assert ids(window, 9) == [10, 11, 12]
    assert ids(window, 11) == [12]
    assert ids(window, 12) == []
    assert window.take(8) is None


def test_who_is_ahead_of_the_feed_gets_nothing_before_his_mark() -> None:
    """He has read for himself; the feed of the others comes after him."""
    window = Window(9, 10_000)
    assert ids(window, 11) == []
    window.arrived(records(10, 2), 11)
    assert ids(window, 11) == []
    window.arrived(records(12, 1), 12)
    assert ids(window, 11) == [12]


def test_transactions_that_are_not_told_move_the_mark_all_the_same() -> None:
    window = Window(-1, 10_000)
    window.arrived([Record(1, 0, b"")], 4)
    taken = window.take(-1)
    assert taken is not None
    assert ([each.transaction_id for each in taken.records], taken.mark) == ([1], 4)
    window.arrived([], 7)
    taken = window.take(4)
    assert taken is not None
    assert (taken.records, taken.mark) == ([], 7)


def test_what_nobody_has_taken_falls_out_and_its_reader_is_behind() -> None:
    window = Window(-1, 5 * _OVERHEAD)
    window.arrived(records(0, 4), 3)
    assert ids(window, -1) == [0, 1, 2, 3]
    window.arrived(records(4, 4), 7)
    assert (window.begin, window.end, window.size) == (2, 7, 5 * _OVERHEAD)
    assert window.take(1) is None
    assert not window.holds(1)
    assert ids(window, 2) == [3, 4, 5, 6, 7]


def test_the_newest_batch_stays_however_large_it_is() -> None:
    """Whoever waits for it must find it, or he would fall behind at each batch."""
    window = Window(-1, 50)
    window.arrived(records(0, 4, 1_000), 3)
    assert len(ids(window, -1)) == 4
    window.arrived(records(4, 1), 4)
    assert window.take(-1) is None
    assert ids(window, 3) == [4]
    assert window.size == _OVERHEAD


def test_a_slice_is_bounded_and_holds_one_record_at_least() -> None:
    window = Window(-1, 1 << 30)
    window.arrived(records(0, 3, SLICE_BYTES), 2)
    for mark in (-1, 0, 1):
        taken = window.take(mark)
        assert taken is not None
        assert ([each.transaction_id for each in taken.records], taken.mark) == ([mark + 1], mark + 1)


def test_more_is_wanted_only_while_somebody_waits_at_the_end() -> None:
    window = Window(-1, 1_000)
    window.join()
    window.join()
    assert not window.wanted
    window.wait()
    window.wait()
    window.waited()
    assert window.wanted
    window.waited()
    window.leave()
    assert (window.wanted, window.readers) == (False, 1)


class Reader:
    """Takes from the window while it can, and reads the log for itself while it is behind."""

    def __init__(self, rng: Random, mark: int) -> None:
        self.mark = self.begin = mark
        self.told: list[int] = []
        self.speed = rng.choice((0.02, 0.3, 1.0))
        self.joined = self.waits = False
        self.fell = 0

    def act(self, window: Window, log: list[Record]) -> None:
        if self.waits:
            window.waited()
            self.waits = False
        if not window.holds(self.mark):
            if self.joined:
                self.joined, self.fell = False, self.fell + 1
                window.leave()
            self.told += [each.transaction_id for each in log if self.mark < each.transaction_id <= self.mark + 8]
            self.mark += 8
            return
        if not self.joined:
            window.join()
            self.joined = True
        taken = window.take(self.mark)
        assert taken is not None
        self.told += [each.transaction_id for each in taken.records]
        if taken.mark == self.mark:
            window.wait()
            self.waits = True
        self.mark = taken.mark


@pytest.mark.parametrize("seed", range(40))
def test_whatever_their_pace_readers_get_everything_once_and_the_fastest_sets_the_pace(seed: int) -> None:
    rng = Random(seed)
    log = [Record(number, 0, bytes(rng.choice((0, 10, 900)))) for number in range(600) if rng.random() < 0.9]
    room, most = rng.choice((300, 3_000, 30_000)), 0
    window = Window(-1, room)
    readers = [Reader(rng, -1) for _ in range(rng.randrange(1, 6))]
    end = -1
    for step in range(8_000):
        if step == 200:
            readers.append(Reader(rng, end))  # at the end of the log, ahead of the window perhaps
        for reader in readers:
            if rng.random() < reader.speed:
                reader.act(window, log)
        if window.wanted and window.end < 599:
            end = min(599, window.end + rng.randrange(1, 9))
            batch = [each for each in log if window.end < each.transaction_id <= end]
            most = max(most, sum(len(each.data) + _OVERHEAD for each in batch))
            window.arrived(batch, end)
            assert window.size <= room + most
    for reader in readers:
        for _ in range(2_000):
            reader.act(window, log)
            if window.wanted and window.end < 599:
                window.arrived([each for each in log if each.transaction_id > window.end], 599)
        assert reader.told == [each.transaction_id for each in log if each.transaction_id > reader.begin]
    assert window.readers == len(readers)
