"""Changes by operators, one partition after the other, each with its line in the audit.

    asked ──refused as a whole──► answered
      └──► the first partition's replica changes ──`ChangeEnded`──► the next one … ──► answered
                                                        └── refused ──► answered; what was done before stays done

While a change is under way nothing else of its connection is served: a tool that sends two changes means them in
this order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from waltz_core.base.edge import Level
from waltz_core.base.pending import Pending
from waltz_core.base.record import record
from waltz_core.storage.context import NodeContext
from waltz_core.storage.lane import AcceptLoss, Assign, Change, RaiseStart, SetAvailable, Unassign
from waltz_core.storage.notes import ChangeEnded
from waltz_core.storage.peers import Caller
from waltz_core.storage.refusals import SE, Refusal, not_assigned
from waltz_core.storage.replica import State, StorageReplica
from waltz_core.wire import admin_messages as admin
from waltz_core.wire.shared import FailureCode


@record
class AwaitedChange:
    """A change that a replica is carrying out, and the partitions that come after it."""

    caller: Caller
    seq_num: int
    what: str  # for the audit
    change: Change
    left: tuple[int, ...]


class AdminChanges:
    """All of a node."""

    def __init__(self, context: NodeContext, replicas: Sequence[StorageReplica]) -> None:
        self.freed: list[int] = []  # connections whose change has ended
        self._context = context
        self._replicas = replicas
        self._pending: Pending[AwaitedChange] = Pending(context.tickets)

    def awaited(self) -> Iterator[tuple[int, str]]:
        """Partitions that wait for a change to those before them in its request, and what it is."""
        return ((number, f"its turn to {change.what}") for change in self._pending for number in change.left)

    def set_available(self, caller: Caller, message: admin.PartitionAvailableRequest) -> None:
        """Allow or forbid reads and writes."""
        what = f"{'allow' if message.toggled else 'forbid'} reads and writes of {_shown(message.partition_ids)}"
        self._ask(caller, message.seq_num, what, SetAvailable(message.toggled), message.partition_ids)

    def set_assigned(self, caller: Caller, message: admin.PartitionAssignmentRequest) -> None:
        """Assign partitions to this node, or remove them."""
        what = f"{'assign' if message.toggled else 'unassign'} {_shown(message.partition_ids)}"
        if message.delete_storage_files and not message.toggled:
            what += " and delete the files"
        change = Assign() if message.toggled else Unassign(message.delete_storage_files)
        self._ask(caller, message.seq_num, what, change, message.partition_ids)

    def accept_limbo(self, caller: Caller, message: admin.AcceptLimboRequest) -> None:
        """An operator's word that a log counts as complete."""
        what = f"accept the limbo of partition {message.partition_id} up to {message.max_transaction_id}"
        change = AcceptLoss(message.max_transaction_id)
        self._ask_one(caller, message.seq_num, what, change, message.partition_id)

    def set_log_start(self, caller: Caller, message: admin.SetLogStartRequest) -> None:
        """Give up everything below an id."""
        what = f"raise the log start of partition {message.partition_id} to {message.log_start}"
        self._ask_one(caller, message.seq_num, what, RaiseStart(message.log_start), message.partition_id)

    def audit(self, caller: Caller, what: str, outcome: str) -> None:
        """One line for every change that was begun."""
        self._context.report(Level.INFO, f"audit: {caller.access.who}: {what}: {outcome}")

    def replica_for(self, caller: Caller, seq_num: int, partition_id: int, what: str) -> StorageReplica | None:
        """The replica to change; if it is not ours, the change is refused and audited."""
        replica = self._replicas[partition_id] if 0 <= partition_id < len(self._replicas) else None
        if replica is not None and replica.state is not State.UNASSIGNED:
            return replica
        self.refuse(caller, seq_num, what, not_assigned(partition_id))
        return None

    def refuse(self, caller: Caller, seq_num: int, what: str, why: Refusal) -> None:
        """Nothing is changed. Who asks again and again has its lines counted, or it could fill the log with them."""
        text = f"audit: {caller.access.who}: {what}: refused: {why}"
        self._context.report(Level.INFO, text, caller.name, caller.owner)
        refuse(self._context, caller, seq_num, why)

    # ---- carrying out ----------------------------------------------------------------------------

    def _ask_one(self, caller: Caller, seq_num: int, what: str, change: Change, partition_id: int) -> None:
        if self.replica_for(caller, seq_num, partition_id, what) is not None:
            self._next(AwaitedChange(caller, seq_num, what, change, (partition_id,)))

    def _ask(
        self, caller: Caller, seq_num: int, what: str, change: Change, partition_ids: tuple[int, ...] | None
    ) -> None:
        """Apply a change to partitions one after the other; one answer for all."""
        if partition_ids is None:
            self.refuse(caller, seq_num, what, Refusal(f"{SE}the list of partitions is null"))
            return
        refusal = self._refusal(partition_ids, change)
        if refusal is not None:
            self.refuse(caller, seq_num, what, refusal)
            return
        # A partition that is named twice cannot be given up twice; half of the change would be done, and refused.
        self._next(AwaitedChange(caller, seq_num, what, change, tuple(dict.fromkeys(partition_ids))))

    def _refusal(self, partition_ids: tuple[int, ...], change: Change) -> Refusal | None:
        """Why the whole change is refused."""
        outside = self._outside(partition_ids)
        if outside is not None:
            text = f"{SE}partition {outside} does not exist: the cluster has {len(self._replicas)} partitions, from 0"
            return Refusal(text, FailureCode.NOT_ASSIGNED)
        for partition_id in partition_ids:
            if type(change) is Unassign and self._replicas[partition_id].state is State.UNASSIGNED:
                return not_assigned(partition_id)
        return None

    def _outside(self, partition_ids: Sequence[int]) -> int | None:
        count = len(self._replicas)
        return next((partition_id for partition_id in partition_ids if not 0 <= partition_id < count), None)

    def _next(self, awaited: AwaitedChange) -> None:
        """The next partition, if there is one."""
        if not awaited.left:
            self._answer(awaited, admin.AdminSuccessResponse(awaited.seq_num))
            return
        awaited.caller.busy = True
        partition_id, left = awaited.left[0], awaited.left[1:]
        ticket = self._pending.ask(attrs.evolve(awaited, left=left))
        self._replicas[partition_id].change(ticket, awaited.change)

    def on_ended(self, note: ChangeEnded) -> None:
        """A replica has carried a change out, or refused it."""
        awaited = self._pending.take(note.ticket)
        assert awaited is not None
        if note.refusal is None:
            self._next(awaited)
        else:
            self._answer(awaited, admin.AdminFailureResponse(awaited.seq_num, note.refusal))

    def _answer(self, awaited: AwaitedChange, answer: admin.AdminSuccessResponse | admin.AdminFailureResponse) -> None:
        failed = f"failed: {answer.message}" if isinstance(answer, admin.AdminFailureResponse) else "done"
        self.audit(awaited.caller, awaited.what, failed)
        self._context.reply(awaited.caller.conn, answer)
        awaited.caller.busy = False
        self.freed.append(awaited.caller.conn)


def refuse(context: NodeContext, caller: Caller, seq_num: int, why: Refusal) -> None:
    """Answer a request of the admin port that is not carried out."""
    context.reply(caller.conn, admin.AdminFailureResponse(seq_num, str(why), code=why.code, detail=why.detail))


def _shown(partition_ids: tuple[int, ...] | None) -> str:
    """Partitions for people, not too many."""
    ids = partition_ids or ()
    return f"partitions {', '.join(map(str, ids[:20]))}" + (f" and {len(ids) - 20} more" if len(ids) > 20 else "")
