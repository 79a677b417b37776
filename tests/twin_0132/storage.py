"""The storage node of 0.13.2.

Defects: sessions are known from memory and the last mark only (`fence_persisted`), however far they leap
(`sessions_plausible`); requests are served before an opening (`open_required`); a batch out of order leaves its
beginning (`append_atomic`); truncation knows no floor (`truncation_floor`); changes of a partition that is not there
reset its control struct (`unassigned_refused`); records are read without their checksums (`reads_verified`); one
damaged partition stops the node (`partitions_isolated`); whatever is behind damage is cut (`torn_not_corrupt`); the
index is believed (`index_rebuilt`), and so are segment headers (`headers_checked`); a short control file is made anew
(`control_file_kept`), and its sequence numbers do not wrap (`sequence_wraps`). And those of its codecs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Generic, TypeVar, cast

from tests.twin_0132 import disk
from tests.twin_0132.disk import JavaError
from tests.twin_0132.wire import Connection0132
from waltz_core.base.edge import Accepted, Port
from waltz_core.base.record import record
from waltz_core.storage import control as ctl
from waltz_core.storage.admin_changes import AdminChanges, AwaitedChange
from waltz_core.storage.answers import succeed
from waltz_core.storage.control import ASSIGNED
from waltz_core.storage.effects import StorageFailed, SyncFile, Unlink, WriteAt
from waltz_core.storage.lane import Assign, Change, Job, Unassign
from waltz_core.storage.node import StorageNode
from waltz_core.storage.notes import ChangeEnded
from waltz_core.storage.peers import ADMIN_HELLO, STORAGE_HELLO, AnyPeer, Caller, Peer, Peers, PortMachine
from waltz_core.storage.permission import enter
from waltz_core.storage.procedure import DiskError, Procedure
from waltz_core.storage.refusals import io_text
from waltz_core.storage.replica import StorageReplica
from waltz_core.storage.replica_files import ReplicaFiles, State
from waltz_core.storage.serving import Serving
from waltz_core.storage.verified_reads import VerifiedReads
from waltz_core.wire import admin_messages as admin
from waltz_core.wire import storage_messages as wire
from waltz_core.wire.connection import ADMIN_PROTOCOL, STORAGE_PROTOCOL
from waltz_core.wire.primitives import Negative
from waltz_core.wire.records import RecordRun, record_list
from waltz_core.wire.table import WireProtocol

M = TypeVar("M")

_RECORDS: Final = record_list(Negative.EMPTY)
_DROP = "the connection is dropped"  # in place of an answer to an administrative request


class _AnybodysPort(Generic[M]):
    """Serves before an opening as well."""

    def __init__(self, port: PortMachine[M]) -> None:
        self._port = port

    def serve(self, caller: Caller, message: M) -> str | None:
        if isinstance(message, wire.OpenRequest | admin.AdminOpenRequest):
            return self._port.serve(caller, message)
        opened, caller.opened = caller.opened, True
        problem = self._port.serve(caller, message)
        caller.opened = opened
        return problem


class Peers0132(Peers):
    """Its connections."""

    def _peer(self, event: Accepted) -> AnyPeer:
        if event.port is Port.ADMIN:
            return self._anybody(event, ADMIN_PROTOCOL, ADMIN_HELLO, self._admin_port)
        return self._anybody(event, STORAGE_PROTOCOL, STORAGE_HELLO, self._storage_port)

    def _anybody(self, event: Accepted, protocol: WireProtocol[M], hello: str, port: PortMachine[M]) -> Peer[M]:
        config = self._context.config
        access = config.roles.access(event.names, event.peer)
        return Peer(event, access, Connection0132(protocol, hello, (0,), config.frame_size_max), _AnybodysPort(port))

    def drop_all(self, conns: Iterable[int]) -> None:
        """End connections whose administrative requests cannot be carried out."""
        for conn in conns:
            peer = self._peers.get(conn)
            if peer is not None:
                self._drop(peer, "an administrative request that cannot be carried out")


class AdminChanges0132(AdminChanges):
    """Changes of partitions, not looked at before they are begun."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.dropped: list[int] = []  # connections

    def set_available(self, caller: Caller, message: admin.PartitionAvailableRequest) -> None:
        # Here all ids are looked at before anything is changed.
        if self._outside(message.partition_ids or ()) is not None:
            self.dropped.append(caller.conn)
        else:
            super().set_available(caller, message)

    def _ask(
        self, caller: Caller, seq_num: int, what: str, change: Change, partition_ids: tuple[int, ...] | None
    ) -> None:
        if partition_ids is None:
            self.dropped.append(caller.conn)
        else:
            self._next(AwaitedChange(caller, seq_num, what, change, partition_ids))

    def _next(self, awaited: AwaitedChange) -> None:
        if awaited.left and self._outside(awaited.left[:1]) is not None:
            awaited.caller.busy = True
            self.dropped.append(awaited.caller.conn)
        else:
            super()._next(awaited)

    def on_ended(self, note: ChangeEnded) -> None:
        if note.refusal is not _DROP:
            super().on_ended(note)
        else:
            awaited = self._pending.take(note.ticket)
            assert awaited is not None
            self.dropped.append(awaited.caller.conn)


class ReplicaFiles0132(ReplicaFiles):
    """No side files: a session counts from its arrival, and is forgotten with the process."""

    __slots__ = ("seen",)

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.seen = self.entry.current.session_id

    @property
    def fence(self) -> int:
        return self.seen

    def refresh_sides(self) -> Procedure[None]:
        yield from ()

    def open(self) -> Procedure[None]:
        """Open the files.

        Raises:
            JavaError: 0.13.2 would not start.
            DiskError: a file cannot be read or written.
        """
        self.log = yield from disk.open_partition(self.where, self.entry, self.context.wall_ms)
        self.seen = self.entry.current.session_id
        self.state = State.OPEN

    def assign(self) -> Procedure[None]:
        """Take the partition on."""
        if self.state is not State.OPEN:
            yield from self.open()
        now = self.entry.current
        yield from self.update_control(
            now.session_id, now.low_water_mark, now.local_low_water_mark, now.flags | ASSIGNED
        )

    def unassign(self, delete: bool) -> Procedure[str | None]:
        """Give the partition up; one that is not there is given up all the same, and nobody hears of it."""
        (place, data), (place2, data2) = self.entry.reset_writes()
        yield from self.write(WriteAt(ctl.NAME, place, data), WriteAt(ctl.NAME, place2, data2), SyncFile(ctl.NAME))
        self.entry.adopt_reset()
        if self.state is State.UNASSIGNED:
            return _DROP
        segments = [] if self.log is None else self.log.segments
        self.state, self.reason, self.log, self.seen = State.UNASSIGNED, "", None, -1
        if delete:
            paths = [path for segment in segments for path in (segment.data_path, segment.index_path)]
            yield from self.write(*map(Unlink, paths))
        return None


class Reads0132(VerifiedReads):
    """Unverified."""

    __slots__ = ()

    def read(self, first: int, count: int, size_max: int = 0) -> Procedure[RecordRun]:
        out = bytearray()
        _RECORDS.write(out, (yield from disk.read_unverified(self._files.opened_log, first, count)))
        return cast(RecordRun, _RECORDS.read(bytes(out), 0, len(out))[0])


class Serving0132(Serving):
    """One request after the other."""

    __slots__ = ()

    def at_once(self, message: Any) -> bool:
        return False

    def _serve(self, conn: int, message: Any) -> Procedure[None]:
        files = self._files
        match message:
            case wire.AppendRequest():
                yield from enter(files, message, message.used_by_offline_recovery)
                self._appends.count += 1
                yield from disk.append(files.where, files.opened_log, message.records, self._context.wall_ms)
                succeed(self._context, conn, message)
            case wire.TruncateRequest():
                yield from self._enter(message)
                log, last_kept = files.opened_log, message.transaction_id
                highest = log.max_id
                if last_kept < highest:
                    yield from disk.truncate(files.where, log, last_kept)
                self._answer_id(conn, message, min(last_kept, highest))
            case _:
                yield from super()._serve(conn, message)

    def _report_session(self, conn: int, message: wire.LastSessionInfoRequest) -> None:
        ids = message.session_id, message.seq_num, self._files.partition_id
        self._context.reply(conn, wire.LastSessionInfoResponse(*ids, self._files.session_info()))


class StorageReplica0132(StorageReplica):
    """A partition of such a node."""

    make_files = ReplicaFiles0132
    make_reads = Reads0132
    make_serving = Serving0132
    files: ReplicaFiles0132

    @property
    def can_scrub(self) -> bool:
        return False

    def submit(self, conn: int, message: Any) -> None:
        if self.state is not State.UNASSIGNED:
            self.files.seen = max(self.files.seen, message.session_id)
        super().submit(conn, message)

    def _batches(self, job: Job) -> bool:
        return False

    def _change(self, change: Change) -> Procedure[str | None]:
        match change:
            case Assign():
                yield from self.files.assign()
                return None
            case Unassign(delete):
                return (yield from self.files.unassign(delete))
            case _:
                return (yield from super()._change(change))


@record
class StorageFailed0132(StorageFailed):
    """0.13.2 does not start: its exceptions as `class: message`, outermost first."""

    chain: tuple[str, ...]


class StorageNode0132(StorageNode):
    """A storage node of 0.13.2."""

    make_peers = Peers0132
    make_changes = AdminChanges0132
    make_replica = StorageReplica0132
    _changes: AdminChanges0132
    _peers: Peers0132

    def _settle(self) -> None:
        super()._settle()
        dropped, self._changes.dropped = self._changes.dropped, []
        self._peers.drop_all(dropped)

    def _start(self) -> Procedure[None]:
        try:
            body = yield from disk.open_control(self.config, self._context.wall_ms)
            self._make_replicas(body)
            for replica in self.replicas:
                assert isinstance(replica, StorageReplica0132)
                if replica.entry.current.assigned:
                    yield from replica.files.open()
        except JavaError as error:
            self._ending = StorageFailed0132(str(error), error.chain)
        except DiskError as fault:
            self._ending = StorageFailed0132(f"the data directory cannot be read: {fault}", (io_text(fault),))
        self._started_all = self._ending is None

    def _make_replicas(self, body: bytes) -> None:
        for partition_id in range(self.config.partition_count):
            entry = disk.decode_entry(body, partition_id)
            self.replicas.append(self.make_replica(partition_id, entry, self._context))
