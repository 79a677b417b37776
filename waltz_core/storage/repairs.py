"""The repairs that run on a node, at most one for each partition, and the connections they opened.

    RepairRequest ──▶ may not, not here, or under repair already ──▶ refused
        └──▶ Repair, with a link to each source ──▶ answers, notes of the replica, time ──▶ … ──▶ result ──▶ answered

It owns whose connection is whose, and who gets the result; what a repair has learned is its own (`repair.py`), and the
files are the replica's. None of this is durable. A repair that dies with its process leaves what it mended, and the
damage that is left is found and asked for again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from waltz_core.base.edge import Closed, Level
from waltz_core.base.record import record
from waltz_core.storage.admin_changes import AdminChanges
from waltz_core.storage.context import NodeContext
from waltz_core.storage.notes import RepairNote
from waltz_core.storage.peers import Caller
from waltz_core.storage.refusals import SE, Refusal
from waltz_core.storage.repair import Repair, RepairResult
from waltz_core.storage.replica import State, StorageReplica
from waltz_core.wire import admin_messages as admin
from waltz_core.wire.admin_link import AdminLink
from waltz_core.wire.shared import FailureCode

SOURCES_MAX = 16  # of one repair


@record
class _UnderWay:
    repair: Repair
    caller: Caller
    seq_num: int
    what: str  # for the audit


class Repairs:
    """All of a node. `run` is called until it has nothing more to do in a step."""

    def __init__(self, context: NodeContext, replicas: Sequence[StorageReplica], changes: AdminChanges) -> None:
        self._context = context
        self._replicas = replicas
        self._changes = changes
        self.under_way: dict[int, _UnderWay] = {}  # by partition
        self._by_conn: dict[int, Repair] = {}  # by connection dialed
        self._last_dialed = 0

    def awaited(self) -> Iterator[tuple[int, str]]:
        """Partitions whose repair has not ended."""
        return ((partition_id, "repair from other storage nodes") for partition_id in self.under_way)

    def begin(self, caller: Caller, message: admin.RepairRequest) -> None:
        """Somebody asks for a repair; answered when it has ended."""
        context, partition_id = self._context, message.partition_id
        what = f"repair partition {partition_id}"
        replica = self._changes.replica_for(caller, message.seq_num, partition_id, what)
        if replica is None:
            return
        if partition_id in self.under_way:
            text = f"{SE}partition {partition_id} is being repaired already"
            self._changes.refuse(caller, message.seq_num, what, Refusal(text, FailureCode.OVERLOADED))
            return
        key, count = context.config.key, context.config.partition_count
        sources = dict.fromkeys(message.sources[:SOURCES_MAX])
        links = [AdminLink(endpoint, key, count, context.effects, self._new_conn) for endpoint in sources]
        repair = Repair(partition_id, replica, links, message.ranges, context.alarms, context.now)
        self.under_way[partition_id] = _UnderWay(repair, caller, message.seq_num, what)
        self._by_conn.update(dict.fromkeys(repair.conns(), repair))

    # ---- connections -----------------------------------------------------------------------------

    def _new_conn(self) -> int:
        self._last_dialed -= 1
        return self._last_dialed

    def dialed(self, conn: int) -> None:
        """A source is reached."""
        if conn in self._by_conn:
            self._by_conn[conn].dialed(self._context.now, conn)

    def received(self, conn: int, data: bytes) -> bool:
        """Bytes arrived; False if not on a connection of a repair."""
        repair = self._by_conn.get(conn)
        if repair is None:
            return False
        repair.received(conn, data)
        return True

    def closed(self, event: Closed) -> None:
        """A connection has ended."""
        if event.conn in self._by_conn:
            self._by_conn.pop(event.conn).closed(self._context.now, event)

    def answers_due(self, partition_id: int) -> None:
        """The sources of a repair have had their time."""
        self.under_way[partition_id].repair.overdue()

    # ---- once per step ---------------------------------------------------------------------------

    def on_note(self, note: RepairNote) -> None:
        """A replica has done what its repair asked for."""
        self.under_way[note.partition_id].repair.on_note(note)

    def run(self) -> None:
        """Go on as far as possible."""
        for partition_id, under_way in list(self.under_way.items()):
            under_way.repair.run(self._context.now)
            if under_way.repair.result is not None:
                del self.under_way[partition_id]
                self._answer(partition_id, under_way, under_way.repair.result)

    def _answer(self, partition_id: int, under_way: _UnderWay, result: RepairResult) -> None:
        ranges, problem = result.ranges, result.problem
        good = sum(outcome.outcome == admin.RepairOutcome.REPAIRED for outcome in ranges)
        self._changes.audit(under_way.caller, under_way.what, f"{good} of {len(ranges)} ranges repaired")
        if problem:
            text = f"partition {partition_id}: not all could be repaired: {problem}"
            self._context.report(Level.WARNING, text)
        replica = self._replicas[partition_id]
        if not problem and replica.state in (State.STOPPED, State.LIMBO):
            # Nothing was found that could be mended, which is no success: the disk still fails, and was reported.
            problem = f"it is still out of service: {replica.reason}"
        answer = admin.RepairResponse(under_way.seq_num, partition_id, ranges, problem or None)
        self._context.reply(under_way.caller.conn, answer)
