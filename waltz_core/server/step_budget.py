"""How much of what clients ask one step of a server handles.

Requests are paid for by what they cost, not by their number, and a step handles so much and no more:

    at_once  small batches, as they arrive            ── up to _STEP_COST a step, together with
    turns    what waits, a run of each connection     ── what is left of it
    end      a request that cost more than was left   ── the next steps owe the difference

Appends are not counted: `AppendQueue` gives them their turns. But while appends wait for their verdict, and shortly
after, the time that passes bounds the other requests as well, turns more tightly than small batches. What is pipelined
must not take the time that appends need, neither in the server nor, between two appends of a client that waits for
each, from the other processes of its machine.
"""

from __future__ import annotations

from collections.abc import Sequence

from waltz_core.base.turns import Allowance
from waltz_core.server.source import ServedPartitions
from waltz_core.wire import client_messages as messages

APPENDS = frozenset({messages.AppendRequest, messages.NamedAppendRequest})
# Costs are in units of 0.7 microseconds, which an append of a run takes that is refused at once.
_REQUEST_COST = 5
_COSTS: dict[type, int] = dict.fromkeys(APPENDS, 1) | {
    # each begins a feed
    messages.MountRequest: 20,
    messages.FeedRequest: 20,
    messages.FeedWindowRequest: 20,
    messages.RecordRangeRequest: 10,
    messages.ClusterInfoRequest: 10,
    messages.CheckStorageConnectivityRequest: 15,
}
_COSTS_PER_PARTITION: dict[type, int] = {  # on top, for each partition that a request is about
    messages.StatisticsRequest: 80,  # some 45 figures, which are made and encoded for each answer
    messages.PartitionStatusRequest: 6,
    messages.ServerPartitionsHealthStatRequest: 2,
    messages.ServerPartitionsAssignmentRequest: 1,
    messages.ClusterInfoRequest: 1,
    messages.AddPreferredPartitionRequest: 1,
    messages.RemovePreferredPartitionRequest: 1,
}
TURN_COST = 100  # of what one connection has handled before the next one has its turn
_AT_ONCE_COST = 500  # of a batch that does not wait for its turn
_STEP_COST = 1_000  # of requests in one step, appends apart: everybody else waits this millisecond or two
_BUSY_MS = 50  # after appends were last seen to wait: their client's next ones are on their way
_BUSY_AT_ONCE = 250  # in such times: cost a millisecond of what is handled at once, a sixth of the time
_BUSY_TURNS = 50  # and of turns
_BUSY_TURNS_COST = 200  # of turns in one step then; otherwise each step has some, and one follows another
_BUSY_TURNS_OWED = 5_000  # a tenth of a second of turns: who asks for much, rarely, holds others up no longer


class StepBudget:
    """What a step may still handle, what was handled too much, and what the time allows while appends wait."""

    __slots__ = ("_at_once", "_busy_until", "_debt", "_measure", "_partitions", "_spent", "_turns")

    def __init__(self, partitions: ServedPartitions) -> None:
        self._partitions = partitions
        self._busy_until = 0  # appends wait for their verdict, or did until shortly before
        self._at_once = Allowance(_BUSY_AT_ONCE, _STEP_COST)
        self._turns = Allowance(_BUSY_TURNS, _BUSY_TURNS_COST)
        self._spent = 0  # cost of what was handled at once in this step, appends apart
        self._measure = 0  # cost of the turns that this step may handle
        self._debt = 0  # cost of what was handled above the measure of its step

    def cost(self, message: messages.ClientMessage) -> int:
        """What a request costs to handle."""
        kind = type(message)
        cost = _COSTS.get(kind, _REQUEST_COST)
        each = _COSTS_PER_PARTITION.get(kind)
        return cost if each is None else cost + each * self._count(message)

    def _count(self, message: messages.ClientMessage) -> int:
        """The partitions that a request is about: those that it names, or all that are served."""
        match message:
            case messages.AddPreferredPartitionRequest() | messages.RemovePreferredPartitionRequest():
                return len(message.partitions)
            case messages.StatisticsRequest(partition_id=named) if named >= 0:
                return 1
            case _:
                return len(self._partitions.served)

    def at_once(self, now: int, batch: Sequence[messages.ClientMessage]) -> bool:
        """Whether a batch is so small that nobody minds if it is handled before its turn."""
        for message in batch:
            if type(message) not in APPENDS:
                break
        else:
            return True
        cost = sum([self.cost(message) for message in batch])
        if cost > _AT_ONCE_COST or self._debt + self._spent + cost > _STEP_COST:
            return False
        if self._busy(now):
            self._at_once.refill(now)
            if cost > self._at_once.left:
                return False
            self._at_once.left -= cost
        self._spent += cost
        return True

    def turns(self, now: int) -> int:
        """The cost of the turns that this step may handle."""
        self._measure = max(0, _STEP_COST - self._debt - self._spent)
        if self._busy(now):
            self._turns.refill(now)
            self._measure = min(self._measure, self._turns.left)
        return self._measure

    def no_turns(self, now: int) -> None:
        """Nothing waits for its turn in this step; the allowance for turns grows by the time alone."""
        if self._partitions.undecided:
            self._busy_until = now + _BUSY_MS
        if self._spent or self._debt:
            self._debt = max(0, self._debt + self._spent - _STEP_COST)
            self._spent = 0

    def end(self, left: int) -> None:
        """The turns of this step are over, and left so much of what they might have cost; below 0: they cost more."""
        used = self._measure - left
        self._turns.left = max(self._turns.left - used, -_BUSY_TURNS_OWED)
        self._debt = max(0, self._debt + self._spent + used - _STEP_COST)
        self._spent = 0

    def next_turns(self, now: int) -> int:
        """When a step may handle turns again."""
        return min(self._busy_until, self._turns.full(now)) if self._busy(now) else now

    def _busy(self, now: int) -> bool:
        """Whether the server is there for appends now."""
        if self._partitions.undecided:
            self._busy_until = now + _BUSY_MS
        return now < self._busy_until
