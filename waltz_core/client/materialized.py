"""One partition of a materialized view: its submits, and how it takes what the log brings.

                 SubmitBegun, MarkWanted, AppendJudged, …      BatchArrived; Applied, ViewDown, ApplyFailed
                                │                                           │
                            Submitter ◄────────── ViewApplied ────────── Applier
                                │                                           │
                   Decide, AskMark, SubmitDone, …              Commit, TakeNext, Poisoned

The two meet in the mark: what the view holds is what submits wait for. An answer of the view is heard before anything
else of its step, so that a submit that begins beside it sees the newest mark. There is one deadline for both.

A transaction that cannot be applied ends the application, or pauses its partition alone, as the application wants it.
Then whoever waits for the view hears of it in the step in which the view has everything before that transaction.

Drivers read the view and commit to it; they may run `decide` for several tokens in one snapshot. A view that was found
further than this process has taken it (`load_mark` at the start, another member) is a ViewApplied of the driver's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, cast

from waltz_core.base.contract import earliest
from waltz_core.client import applier as applying
from waltz_core.client import submit_calls as submitting
from waltz_core.client.applier import Advanced, Applier, Poisoned
from waltz_core.client.retry import VIEW_RETRY, Chance, Retry
from waltz_core.client.submit_calls import ViewApplied, ViewPaused
from waltz_core.client.submitter import Submitter

Event: TypeAlias = submitting.Event | applying.Event
Effect: TypeAlias = submitting.Effect | applying.Commit | applying.TakeNext | Poisoned

APPLY_ATTEMPTS = 3
"""How often `apply` is tried with a transaction that it cannot take."""

_OF_THE_VIEW = frozenset({applying.BatchArrived, applying.Applied, applying.ViewDown, applying.ApplyFailed})


class MaterializedPartition:
    """Steps a submitter and an applier, and lets the first know what the second has done."""

    __slots__ = ("applier", "pauses", "submitter")

    def __init__(
        self,
        applied_mark: int,
        in_flight_max: int,
        rng: Chance,
        view_retry: Retry = VIEW_RETRY,
        *,
        pauses: bool = False,
    ) -> None:
        """`pauses`: a transaction that cannot be applied pauses the partition, and does not end the application."""
        self.pauses = pauses
        self.submitter = Submitter(applied_mark, in_flight_max, rng)
        self.applier = Applier(view_retry, APPLY_ATTEMPTS, rng)

    def step(self, now: int, events: Sequence[Event], out: list[Effect]) -> None:
        """See `waltz_core.base.contract.Machine`."""
        heard: list[submitting.Event] = []
        answers: list[applying.Event] = []
        for event in events:
            if type(event) in _OF_THE_VIEW:
                answers.append(cast(applying.Event, event))
            else:
                heard.append(cast(submitting.Event, event))
        wakes_at = self.applier.deadline()
        if answers or (wakes_at is not None and now >= wakes_at):
            self._apply(now, answers, heard, out)
        said: list[submitting.Effect] = []
        self.submitter.step(now, heard, said)
        out += said

    def deadline(self) -> int | None:
        """When a pause or a limit of either ends."""
        return earliest(self.submitter.deadline(), self.applier.deadline())

    def _apply(self, now: int, answers: list[applying.Event], heard: list[submitting.Event], out: list[Effect]) -> None:
        said: list[applying.Effect] = []
        self.applier.step(now, answers, said)
        of_the_view: list[submitting.Event] = []
        for effect in said:
            if isinstance(effect, Advanced):
                of_the_view.append(ViewApplied(effect.mark))
                continue
            out.append(effect)
            if isinstance(effect, Poisoned) and self.pauses:
                of_the_view.append(ViewPaused())
        heard[:0] = of_the_view
