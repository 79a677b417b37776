"""The heap of due times, against a dictionary that is searched from end to end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from waltz_core.base.alarms import Alarms

KEYS = st.sampled_from("abcdef")
TIMES = st.integers(0, 30)


@given(st.lists(st.one_of(st.tuples(KEYS, st.none() | TIMES), TIMES), max_size=200))
def test_what_is_due_is_what_a_search_through_all_alarms_says(steps: list[tuple[str, int | None] | int]) -> None:
    """A step sets, moves or cancels an alarm, or, as a number, hands out what is due by then."""
    alarms: Alarms[str] = Alarms()
    expected: dict[str, tuple[int, int]] = {}  # key → when it is due, which setting it was
    for count, step in enumerate(steps):
        if isinstance(step, int):
            due = sorted((key for key in expected if expected[key][0] <= step), key=expected.__getitem__)
            assert alarms.due(step) == due
            for key in due:
                del expected[key]
        else:
            key, at = step
            alarms.set(key, at)
            if at is None:
                expected.pop(key, None)
            elif key not in expected or expected[key][0] != at:
                expected[key] = at, count
        assert alarms.next() == min((at for at, _ in expected.values()), default=None)
        assert {key: alarms.at(key) for key in "abcdef" if alarms.at(key) is not None} == {
            key: at for key, (at, _) in expected.items()
        }
        assert len(alarms) == len(expected)


def test_alarms_that_are_moved_and_cancelled_for_ever_take_no_more_room() -> None:
    alarms: Alarms[int] = Alarms()
    for at in range(10_000):
        alarms.set(at % 5, at)
        alarms.set(5 + at % 5, at)
        alarms.set(5 + at % 5, None)
    assert len(alarms) == 5
    assert len(alarms._heap) < 100


def test_an_alarm_that_is_set_again_to_the_same_time_keeps_its_place() -> None:
    alarms: Alarms[str] = Alarms()
    for key in ("a", "b", "a"):
        alarms.set(key, 7)
    assert alarms.due(7) == ["a", "b"]
    assert alarms.due(7) == []
