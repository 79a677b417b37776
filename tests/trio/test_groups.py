"""What a writing thread takes from its queue at a time."""

from __future__ import annotations

from queue import SimpleQueue

from waltz_trio.base.groups import groups


def queue_of(*items: int | None) -> SimpleQueue[int | None]:
    queue: SimpleQueue[int | None] = SimpleQueue()
    for item in items:
        queue.put(item)
    return queue


def test_everything_that_is_queued_makes_one_group_and_what_comes_meanwhile_the_next() -> None:
    queue = queue_of(1, 2, 3)
    taken = groups(queue)
    assert next(taken) == [1, 2, 3]
    for item in (4, 5, None):
        queue.put(item)
    assert list(taken) == [[4, 5]]


def test_nothing_is_taken_behind_the_end() -> None:
    queue = queue_of(1, None, 2)
    assert list(groups(queue)) == [[1]]
    assert queue.get() == 2


def test_an_end_without_anything_before_it_makes_no_group() -> None:
    assert list(groups(queue_of(None))) == []
