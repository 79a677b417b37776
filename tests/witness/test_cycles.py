"""The search for a serial order finds each kind of anomaly, and none where there is none."""

from __future__ import annotations

import random

import pytest

from tests.witness.cycles import ListTransaction, check_lists


def ran(
    name: str, times: tuple[int, int | None], appended: str = "", failed: bool = False, **read: str
) -> ListTransaction[str]:
    """A transaction; lists and transactions have names of one letter."""
    return ListTransaction(name, *times, failed, appended, {key: tuple(seen) for key, seen in read.items()})


def test_a_serial_history_is_accepted() -> None:
    history = [
        ran("a", (0, 5), "x"),
        ran("b", (1, 9), "xy", x="a"),
        ran("c", (10, None), "y", y="b", x="ab"),
        ran("d", (10, 12), "y", failed=True),
        ran("e", (11, None), "x"),
    ]
    assert check_lists(history, {"x": "ab", "y": "bc"}) == 3


def test_any_serial_execution_is_accepted() -> None:
    rng = random.Random(1)
    for _ in range(50):
        final: dict[str, list[str]] = {"x": [], "y": [], "z": []}
        history = []
        for number in range(40):
            read = {key: tuple(final[key]) for key in rng.sample("xyz", rng.randrange(3))}
            keys = rng.sample("xyz", rng.randint(1, 2))
            for key in keys:
                final[key].append(f"t{number}")
            begin = number * 10 - rng.randrange(30)
            returned = max(begin, number * 10) + rng.randrange(9)
            history.append(ListTransaction(f"t{number}", begin, returned, False, keys, read))
        rng.shuffle(history)
        assert check_lists(history, final) == 40


@pytest.mark.parametrize(
    ("history", "final", "complaint"),
    [
        ([ran("a", (0, 1), "x"), ran("b", (0, 1), "x")], {"x": "a"}, "b was acknowledged"),
        ([ran("a", (0, 1), "x", failed=True)], {"x": "a"}, "told to have failed"),
        ([ran("a", (0, 1), "x")], {"x": "aa"}, "twice"),
        ([ran("a", (0, 1), "x")], {"x": "ab"}, "nobody appended"),
        ([ran("a", (0, None), "xy")], {"x": "a"}, "in part"),
        ([ran("a", (0, 1), "x"), ran("b", (0, 1), "x"), ran("c", (2, 3), "y", x="b")], {"x": "ab", "y": "c"}, "read"),
        # ww: two lists in opposite orders
        ([ran("a", (0, 9), "xy"), ran("b", (0, 9), "xy")], {"x": "ab", "y": "ba"}, "no serial order"),
        # wr: each read the other's write
        ([ran("a", (0, 9), "x", y="b"), ran("b", (0, 9), "y", x="a")], {"x": "a", "y": "b"}, "no serial order"),
        # rw: write skew
        ([ran("a", (0, 9), "x", y=""), ran("b", (0, 9), "y", x="")], {"x": "a", "y": "b"}, "read y before"),
        # lost update
        ([ran("a", (0, 9), "x", x=""), ran("b", (0, 9), "x", x="")], {"x": "ab"}, "no serial order"),
        # real time: b was invoked after a had returned, and stands before it
        ([ran("a", (0, 1), "x"), ran("b", (2, 3), "x")], {"x": "ba"}, "was invoked"),
        # a stale read: c did not see what had returned before it began
        ([ran("a", (0, 1), "x"), ran("c", (2, 3), "y", x="")], {"x": "a", "y": "c"}, "no serial order"),
    ],
)
def test_an_anomaly_is_found(history: list[ListTransaction[str]], final: dict[str, str], complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check_lists(history, final)
