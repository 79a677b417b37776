"""What all parts of a client share: its machine, its life, and what an error means.

    made ──Joined──► open ──the block is left──► closing
      └── ClusterLost, or a task fails ──► closing, with the failure as the reason

`num_partitions` is 0 until the cluster has answered. A partition that is mounted or never will be is known by its phase
(`ready`); everything else that waits is with the part that is asked: appends (`appends.py`), feeds, payloads and marks
(`reads.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from threading import get_ident
from typing import Any

import trio
from trio_util import RepeatedEvent

from waltz_core.base.errors import (
    BeforeStartError,
    ClientAheadError,
    ClientClosedError,
    ClientError,
    ClientFailedError,
    LockConflictError,
    NotCommittedError,
    PartitionNotFoundError,
    WrongProcessError,
    WrongThreadError,
)
from waltz_core.base.lock import Conflict, Lock, LockKind
from waltz_core.client.calls import ClusterLost, Failed, Joined, Open, PartitionStatus, Phase, Reason, StatusChanged
from waltz_core.client.columns import RowLocks
from waltz_core.client.node import ClientNode
from waltz_core.wire.lock_names import name_at
from waltz_trio.base.background import Background
from waltz_trio.base.log import reporter
from waltz_trio.base.pump import now_ms
from waltz_trio.client.arguments import whole
from waltz_trio.client.shown import shown


class Life:
    """The life of one client, from its making to its end."""

    def __init__(self, node: ClientNode) -> None:
        self.node = node
        self.post: Callable[[Any], None] = lambda event: None  # to the machine, once it runs
        self.post_now: Callable[[Any], None] = self._post_later  # and have it step before this returns, where it can
        self.report = reporter("client")
        self.num_partitions = 0
        self.joined = trio.Event()
        self.halt: Callable[[], None] = lambda: None  # ends the machine and what it runs on, without a word
        self.look_closer: Callable[[], Awaitable[str]] | None = None  # why the cluster does not answer
        self.tasks: Background | None = None
        self.closing = False
        self.thread = get_ident()
        self.forked = False  # this is a child of the client's process
        self._phases: dict[int, Phase] = {}
        self._begins: dict[int, str] = {}  # what servers say of logs that do not go back far enough
        self._phase_changed = RepeatedEvent()

    def _post_later(self, event: Any) -> None:
        self.post(event)

    def on_joined(self, effect: Joined) -> None:
        """The cluster has answered."""
        self.num_partitions = effect.partition_count
        self.joined.set()

    def on_cluster_lost(self, effect: ClusterLost) -> None:
        """The cluster does not answer, or is another one than expected."""
        if self.tasks is not None:
            self.tasks.start_soon(self._lose, effect.reason)

    async def _lose(self, reason: str) -> None:
        """End, with what else can be found out where the cluster never answered."""
        if self.look_closer is not None and not self.joined.is_set():
            reason += await self.look_closer()
        raise ClientFailedError(reason)

    def end(self) -> None:
        """Let everybody who waits for a partition go."""
        self._phase_changed.set()

    # ---- whether it can be used ----------------------------------------------------------------------

    def check_partition(self, partition: int) -> int:
        """A partition of this cluster."""
        self.check_thread()
        number = whole(partition, "a partition")
        if not 0 <= number < self.num_partitions:
            raise PartitionNotFoundError(f"partition {number}: this cluster has 0 to {self.num_partitions - 1}")
        return number

    def check_thread(self) -> None:
        """See that this is the thread of the client's run: another one's tasks would wait for ever, or break it."""
        if get_ident() != self.thread or self.forked:
            raise WrongProcessError if self.forked else WrongThreadError

    def check_open(self, partition: int) -> int:
        """A partition of this cluster, while the client can be used."""
        self.raise_if_ended()
        return self.check_partition(partition)

    def wanted(self, partitions: Iterable[int] | None) -> tuple[int, ...]:
        """Partitions that a caller names, all by default."""
        if partitions is None:
            return tuple(range(self.num_partitions))
        if isinstance(partitions, str) or not isinstance(partitions, Iterable):
            raise TypeError(f"expected a list of partitions, such as [0, 3], found {shown(partitions)}")
        return tuple(map(self.check_partition, partitions))

    def raise_if_ended(self, *, unless: bool = False) -> None:
        """See that the client can be used."""
        if self.closing and not unless:
            self.check_thread()
            raise self.ended() or ClientClosedError("the client was closed")

    def ended(self) -> ClientError | None:
        """Why the client failed, if it did."""
        failure = self.tasks.failure if self.tasks is not None else None
        if failure is None:
            return None
        if isinstance(failure, ClientFailedError | WrongProcessError):
            return failure
        error = ClientFailedError(f"the client failed: {failure!r}")
        error.__cause__ = failure
        return error

    # ---- partitions ----------------------------------------------------------------------------------

    def status(self, partition: int) -> PartitionStatus:
        """See `Client.status`."""
        return self.node.status(self.check_partition(partition), now_ms())

    async def ready(self, partitions: Iterable[int] | None) -> None:
        """See `Client.ready`."""
        wanted = self.wanted(partitions)
        self.raise_if_ended()
        for partition in wanted:
            self.post(Open(partition, None, False))
        for partition in wanted:
            while (phase := self._phases.get(partition)) is not Phase.MOUNTED:
                self.raise_if_ended()
                error = self.settled_error(partition, phase)
                if error is not None:
                    raise error
                if phase is Phase.CLOSED:  # with the feed of somebody else, who has left it
                    self.post(Open(partition, None, False))
                await self._phase_changed.wait()
        await trio.lowlevel.checkpoint_if_cancelled()

    def on_status_changed(self, effect: StatusChanged) -> ClientError | None:
        """A partition is in another phase; returns what keeps it from being mounted for good."""
        self._phases[effect.partition] = effect.phase
        if effect.text:
            self._begins[effect.partition] = effect.text
        self._phase_changed.set()
        return self.settled_error(effect.partition, effect.phase)

    # ---- what an error means -------------------------------------------------------------------------

    def error_of(self, failed: Failed, locks: RowLocks) -> ClientError:
        """What the outcome of an append with these locks is for the application."""
        match failed.reason:
            case Reason.LOCK:
                return _conflict_of(failed, locks)
            case Reason.CLIENT_AHEAD:
                return self._ahead(failed.partition)
            case Reason.BEFORE_START:
                return BeforeStartError(failed.partition, self._begins.get(failed.partition, failed.reason.value))
            case Reason.CLOSED:
                return self.ended() or ClientClosedError("the client was closed: the outcome is unknown")
            case _:
                refused = failed.reason is Reason.REFUSED
                return NotCommittedError(failed.partition, failed.text or failed.reason.value, refused=refused)

    def settled_error(self, partition: int, phase: Phase | None) -> ClientError | None:
        """What keeps a partition from being mounted for good."""
        if phase is Phase.CLIENT_AHEAD:
            return self._ahead(partition)
        if phase is Phase.BEFORE_START:
            return BeforeStartError(partition, self._begins.get(partition, phase.value))
        return None

    def _ahead(self, partition: int) -> ClientAheadError:
        status = self.node.status(partition, now_ms())
        return ClientAheadError(partition, max(status.seen_mark, status.delivered_mark), None)


def _conflict_of(failed: Failed, locks: RowLocks) -> LockConflictError:
    """What the server says about a lock, in the words of the application."""
    why = failed.refusal
    if why is None or why.lock_kind not in (LockKind.WRITE, LockKind.READ):
        return LockConflictError(failed.partition, failed.blocking_id)
    before = 0 if why.lock_kind == LockKind.WRITE else len(locks.write)  # the names of write locks come first
    named = name_at(locks.names, before + why.lock_index)
    true = why.conflict == Conflict.TRUE
    return LockConflictError(
        failed.partition,
        failed.blocking_id,
        kind=LockKind(why.lock_kind).name.lower(),
        lock=Lock(*named) if named is not None else None,
        conflict=True if true else False if why.conflict == Conflict.FALSE else None,
        taken_by=why.blocking_id if true else None,
    )
