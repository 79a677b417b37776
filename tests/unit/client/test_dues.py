"""Which of many is due first: they are asked only when touched, or when their turn seems to have come."""

from __future__ import annotations

from waltz_core.client.dues import Dues


class Times:
    """What each machine says when it is asked, and who was asked."""

    def __init__(self, **times: int | None) -> None:
        self.times: dict[str, int | None] = {**times}
        self.asked: list[str] = []
        self.dues = Dues(self._of)
        for name in times:
            self.dues.touch(name)

    def _of(self, name: str) -> int | None:
        self.asked.append(name)
        return self.times[name]


def test_the_first_is_exact_although_times_have_moved_later_unseen() -> None:
    times = Times(a=10, b=20, c=None)
    assert times.dues.next() == 10
    times.times["a"] = 30
    assert times.dues.next() == 20
    times.times["b"] = None
    assert times.dues.next() == 30


def test_one_that_is_earlier_now_must_be_touched() -> None:
    times = Times(a=10, c=None)
    assert times.dues.next() == 10
    times.times["c"] = 5
    times.dues.touch("c")
    assert times.dues.next() == 5


def test_those_that_are_due_are_asked_again_afterwards() -> None:
    times = Times(a=10, b=10, c=20)
    times.times["b"] = 11
    assert times.dues.due(10) == ["a"]
    times.times["a"] = 40
    assert times.dues.next() == 11
    assert times.dues.due(30) == ["b", "c"]
    times.times["b"] = times.times["c"] = None
    assert times.dues.next() == 40


def test_nobody_is_asked_whom_nothing_happened_to() -> None:
    times = Times(**{f"m{number}": 1000 + number for number in range(100)})
    assert times.dues.next() == 1000
    times.asked.clear()
    for _ in range(10):
        times.dues.touch("m50")
        assert times.dues.next() == 1000
    assert set(times.asked) == {"m50", "m0"}
