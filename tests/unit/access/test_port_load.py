"""What callers of a port get beside each other, in virtual time: a process, its event loop, a cluster behind it.

A request takes `REQUEST` of the process's time, then a cluster has it for 3 ms, and its answer takes six rounds of the
event loop, each of which does what is to be done for others, too. A flood is refused as it comes: nothing of it is
under way.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush

import pytest

from waltz_core.access.port_turns import REQUEST, PortTurns

_SECONDS = 5.0
_CLUSTER = 0.003
_ROUNDS = 6
_ROUND = 50e-6  # of an answer
_IDLE = 20e-6  # until a process has noticed that it has nothing to do


class Process:
    """One port, whose callers ask again as soon as they are answered, over several connections each."""

    def __init__(self, callers: dict[str, int], floods: dict[str, int], *, gives_back: bool) -> None:
        self._turns = PortTurns(1e9, 1_000_000)
        self._gives_back = gives_back
        self._floods = floods
        self._now = 0.0
        self._cluster: list[tuple[float, int]] = []  # heap of when it answers whom
        self._answers: dict[int, int] = {}  # connection → rounds that its answer still takes
        self.done: dict[str, int] = dict.fromkeys([*callers, *floods], 0)
        owners = [owner for owner, count in {**callers, **floods}.items() for _ in range(count)]
        self._owners = dict(enumerate(owners))
        for conn in self._owners:
            self._ask(conn)

    def _ask(self, conn: int) -> None:
        self._turns.ask(conn, self._owners[conn], REQUEST, request=True)

    def _given(self, turns: list[tuple[int, bool]]) -> None:
        for conn, _ in turns:
            owner = self._owners[conn]
            self._now += REQUEST / 1e6
            if owner in self._floods:
                self.done[owner] += 1
                self._ask(conn)
            else:
                self._turns.begin(owner)
                heappush(self._cluster, (self._now + _CLUSTER, conn))

    def _answer(self) -> None:
        while self._cluster and self._cluster[0][0] <= self._now:
            self._answers[heappop(self._cluster)[1]] = _ROUNDS
        for conn, rounds in list(self._answers.items()):
            self._now += _ROUND
            self._answers[conn] = rounds - 1
            if rounds == 1:
                del self._answers[conn]
                self.done[self._owners[conn]] += 1
                self._turns.end(self._owners[conn])
                self._ask(conn)

    def run(self) -> dict[str, int]:
        """What each had done in a while."""
        while self._now < _SECONDS:
            self._given(self._turns.round(self._now))
            self._answer()
            due = self._turns.due(self._now)
            if self._answers or (due is not None and due <= self._now):
                continue
            answered = self._cluster[0][0] if self._cluster else math.inf
            if self._gives_back and self._turns.resting and answered > self._now + _IDLE:
                self._now += _IDLE
                self._given(self._turns.idle(self._now))
            else:
                self._now = max(self._now, min(answered, math.inf if due is None else due))
        return self.done


def rate(callers: dict[str, int], floods: dict[str, int] | None = None, *, gives_back: bool = True) -> dict[str, float]:
    """Requests a second of each caller."""
    done = Process(callers, floods or {}, gives_back=gives_back).run()
    return {owner: count / _SECONDS for owner, count in done.items()}


def test_two_busy_callers_have_together_what_one_has_alone() -> None:
    """Were nothing given back, they would leave a fifth of it to nobody."""
    alone = rate({"a": 16})["a"]
    together = rate({"a": 8, "b": 8})
    assert sum(together.values()) > 0.95 * alone
    assert together["a"] == pytest.approx(together["b"], rel=0.2)
    assert sum(rate({"a": 8, "b": 8}, gives_back=False).values()) < 0.85 * alone


@pytest.mark.parametrize("connections", [1, 4])
def test_who_waits_for_answers_keeps_most_of_his_rate_beside_who_sends_on(connections: int) -> None:
    alone = rate({"honest": connections})["honest"]
    assert rate({"honest": connections}, {"flood": 4})["honest"] > 0.8 * alone


def test_who_sends_on_has_what_is_idle() -> None:
    """Where one honest caller leaves most of the time, that is twice of the quarter and more."""
    beside = rate({"honest": 1}, {"flood": 4})
    assert beside["flood"] * REQUEST / 1e6 > 0.7
