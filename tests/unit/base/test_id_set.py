"""Sets of ids as ranges do what sets do."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from waltz_core.base.id_set import IdSet

RANGES = st.tuples(st.integers(-5, 30), st.integers(0, 8)).map(lambda drawn: range(drawn[0], drawn[0] + drawn[1]))


class Compared(RuleBasedStateMachine):
    """Both kinds of set, side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.ids, self.plain = IdSet(), set[int]()

    @rule(ids=RANGES)
    def update(self, ids: range) -> None:
        self.ids.update(ids)
        self.plain.update(ids)

    @rule(ids=RANGES)
    def difference_update(self, ids: range) -> None:
        self.ids.difference_update(ids)
        self.plain.difference_update(ids)

    @rule(one=st.integers(-6, 39))
    def discard(self, one: int) -> None:
        self.ids.discard(one)
        self.plain.discard(one)

    @rule()
    def clear(self) -> None:
        self.ids.clear()
        self.plain.clear()

    @rule(ids=RANGES)
    def ask(self, ids: range) -> None:
        assert self.ids.issuperset(ids) == self.plain.issuperset(ids)
        assert self.ids.isdisjoint(ids) == self.plain.isdisjoint(ids)

    @invariant()
    def equal(self) -> None:
        ranges = list(self.ids.ranges())
        assert [each for ids in ranges for each in ids] == sorted(self.plain)
        assert all(before.stop < behind.start for before, behind in pairwise(ranges))
        assert (len(self.ids), bool(self.ids)) == (len(self.plain), bool(self.plain))
        assert [each for each in range(-7, 41) if each in self.ids] == sorted(self.plain)


TestCompared = Compared.TestCase
