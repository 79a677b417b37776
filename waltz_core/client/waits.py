"""Who waits in a submitter, where that is written down, and how many would have waited in vain."""

from __future__ import annotations

import bisect
import enum

from waltz_core.client.gate import NO_MODES
from waltz_core.client.retry import NEVER, Retry
from waltz_core.client.submit_calls import SubmitBegun

_NEVER_AGAIN = Retry(attempts=1)
_VAIN_MAX = 16  # how far submits are counted that would have been decided in vain, against the others
_HOLD_FROM = 8  # in vain from which submits are held


class Stage(enum.Enum):
    """What a submit is at: see `submitter.py`."""

    HELD = enum.auto()
    SLOT = enum.auto()
    DECIDING = enum.auto()
    SENT = enum.auto()
    GATE = enum.auto()
    BLOCKED = enum.auto()
    PAUSE = enum.auto()
    ASKING = enum.auto()
    BEHIND = enum.auto()
    APPLYING = enum.auto()
    LEFT = enum.auto()  # the caller is gone; the append keeps its slot


class Wait:
    """One who waits: a submit, or somebody who waits for a mark of the view."""

    __slots__ = (
        "attempts",
        "began_at",
        "begun",
        "confirmed",
        "conflicts",
        "declined_at",
        "entries",
        "expects",
        "failures",
        "gives_up_at",
        "mark",
        "modes",
        "stage",
        "token",
        "transaction_id",
        "tries",
    )

    def __init__(self, token: object, begun: SubmitBegun | None) -> None:
        self.token, self.begun = token, begun
        self.stage = Stage.SLOT
        self.began_at: int | None = None  # the mark of the view, until it has decided for the first time
        self.attempts = self.conflicts = self.tries = self.failures = 0
        self.gives_up_at: int | None = None  # set by the first try
        self.modes = NO_MODES  # of the locks of its last append, or of those that it expects
        self.expects = False  # it has not decided yet, and stands at the gate for what it was said to want
        self.mark = -1  # of the view, that it waits for
        self.declined_at = -1  # mark of the state that `decide` declined on
        self.confirmed: int | None = None  # committed at some moment of the call
        self.transaction_id: int | None = None
        self.entries: list[tuple[Timetable, tuple[int, int, Wait]]] | None = None  # where it is written down

    @property
    def retry(self) -> Retry:
        return _NEVER_AGAIN if self.begun is None else self.begun.retry

    def set_limit(self, now: int) -> None:
        """Give up so long after now, the begin of the first try, as its retry says."""
        limit = self.retry.give_up_after
        if limit < NEVER:
            self.gives_up_at = now + int(limit * 1000)


class Timetable:
    """Who waits for which number, sorted; entries are taken out at once when their owner waits no more."""

    __slots__ = ("_entries", "_order")

    def __init__(self) -> None:
        self._entries: list[tuple[int, int, Wait]] = []
        self._order = 0

    def add(self, at: int, wait: Wait) -> None:
        self._order += 1
        entry = (at, self._order, wait)  # the order is unique, so waits are never compared
        bisect.insort(self._entries, entry)
        if wait.entries is None:
            wait.entries = []
        wait.entries.append((self, entry))

    def remove(self, entry: tuple[int, int, Wait]) -> None:
        del self._entries[bisect.bisect_left(self._entries, entry)]

    def first(self) -> int | None:
        return self._entries[0][0] if self._entries else None

    def up_to(self, at: int) -> list[Wait]:
        return [wait for _, _, wait in self._entries[: bisect.bisect_right(self._entries, at, key=lambda e: e[0])]]


class VainDecisions:
    """Whether most submits would be decided in vain if they were decided at once."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0  # of those that would have been, against the others

    @property
    def mostly(self) -> bool:
        """More than half of the last ones."""
        return self.count >= _HOLD_FROM

    def heard(self, *, in_vain: bool) -> None:
        """A submit has decided, and would have done so in vain when it began."""
        if in_vain:
            self.count = min(self.count + 1, _VAIN_MAX)
        elif self.count:
            self.count -= 1
