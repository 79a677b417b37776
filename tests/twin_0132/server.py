"""The server of 0.13.2.

Defects: a lock is held until the append that takes it commits, and the whole queue waits for it
(`conflicts_in_flight_refused`); client marks above the log pass (`marks_ahead_refused`); after another server owned a
partition, what was left in flight counts as committed by its position (`leftovers_by_req_id`), and the lock table
knows nothing of what was committed meanwhile (`locks_reset_on_gap`); anybody appends and mounts under any client id
(`own_request_ids`, `client_ids_claimed`); the mark is answered from memory (`marks_confirmed`), and so is who
mounts from ahead of it (`ahead_confirmed`); a payload that could not be read once cannot be read ever
(`failed_fetch_forgotten`); mounts that wait when a partition is let go get no answer (`waiting_mounts_answered`);
preferred partitions are not kept (`preferences_kept`), and lists of them not checked (`preferences_checked`);
metadata that was set back is believed (`rewound_metadata_stops`). And those of its codecs, its membership and its
store sessions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tests.twin_0132.cluster import Coordinator0132
from tests.twin_0132.locks import HeldLockTable
from tests.twin_0132.store import StoreSession0132
from tests.twin_0132.wire import Connection0132
from waltz_core.base.edge import Accepted
from waltz_core.base.ids import ReqId
from waltz_core.base.log import RECORD_OVERHEAD
from waltz_core.server.append_queue import Append, Run
from waltz_core.server.appender import Appender, Flight, Refused, Verdict
from waltz_core.server.client_port import ClientConn, ClientPort
from waltz_core.server.cluster_port import ClusterPort
from waltz_core.server.commits import Commits
from waltz_core.server.context import Reply
from waltz_core.server.feeds import Feeds, Mount
from waltz_core.server.fetches import Answer, DataFetches
from waltz_core.server.node import ServerNode
from waltz_core.server.ownership import Ownership
from waltz_core.server.partition import PartitionServer
from waltz_core.server.partitions import Partitions
from waltz_core.server.peer import Peer
from waltz_core.server.preferences import Preferences
from waltz_core.server.reads import Reads
from waltz_core.server.server_requests import ServerRequests
from waltz_core.wire import client_messages as messages
from waltz_core.wire.connection import Connection
from waltz_core.zookeeper.znodes import PartitionMetadata


class Appender0132(Appender):
    """Locks are slots of a table, held from the check until the commit."""

    __slots__ = ()
    _locks: HeldLockTable

    def _take(self, run: Run, flight: Flight, out: list[Verdict]) -> bool:
        appends, size = flight.appends, 0
        first, before = run.at, len(appends)
        end = min(len(run.appends), first + self._batch_count_max - before)
        for at in range(first, end):
            request = run.appends[at]
            mark = self._hold_slots(request)
            if mark is None:
                end = at
                break
            if mark > request.client_mark:
                out.append(Refused(run.sender.conn, request, mark, received=run.received))
                continue
            flight.locked = True
            appends.append(request)
            size += len(request.data) + RECORD_OVERHEAD
            if flight.size + size >= self._batch_bytes_max:
                end = at + 1
                break
        self._taken_into(flight, run, len(appends) - before, size)
        self.queue.used(run, end)
        return end == len(run.appends)

    def _hold_slots(self, request: Append) -> int | None:
        """The last transaction that took one of its locks; None: what takes one of its slots is in flight."""
        write, read, append = request.write_locks or (), request.read_locks or (), request.append_locks or ()
        if not write and not read and not append:
            return -1
        if not self._locks.begin(write, read, append):
            return None
        mark = self._locks.estimate(write, read)
        if mark > request.client_mark:
            self._locks.end(write, append)
        return mark

    def _release(self, flight: Flight, *, committed: bool = True) -> None:
        for at, request in enumerate(flight.appends, start=flight.first):
            write, read, append = request.write_locks or (), request.read_locks or (), request.append_locks or ()
            if write or read or append:
                if committed:
                    self._locks.commit(write, append, at)
                self._locks.end(write, append)

    def skip_to(self, mark: int) -> None:
        """Go on at `mark` with the lock table as it is (server-D3)."""
        self.commit_mark = mark
        self.next_id = mark + 1


class Commits0132(Commits):
    """Believes what it had in flight."""

    make_appender = Appender0132
    make_locks = HeldLockTable
    appender: Appender0132

    def gap(self, now: int, mark: int) -> None:
        self.appender.resolved(min(mark, self.appender.next_id - 1), self._verdicts)
        self._settle(now)
        self.appender.skip_to(mark)
        self._feeds.restart(mark)


class DataFetches0132(DataFetches):
    """The failed future stays in its map (server-D13)."""

    __slots__ = ("_poisoned",)

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._poisoned: dict[int, str] = {}

    def ask(self, conn: int, owner: str, req_id: ReqId, transaction_id: int) -> messages.TransactionDataResponse | None:
        if transaction_id in self._poisoned:
            error = self._poisoned[transaction_id]
            return messages.TransactionDataResponse(req_id, transaction_id, False, error=error)
        return super().ask(conn, owner, req_id, transaction_id)

    def _refuse(self, transaction_id: int, text: str) -> list[Answer]:
        self._poisoned[transaction_id] = text
        return super()._refuse(transaction_id, text)


class Reads0132(Reads):
    """Answers marks from memory."""

    make_fetches = DataFetches0132

    def mark_asked(self, now: int, peer: Peer, req_id: ReqId, mark: int) -> None:
        self._clients.put(Reply(peer.conn, messages.HighWaterMarkResponse(req_id, mark)))


class Feeds0132(Feeds):
    """Lets mounts go without a word, and asks nobody whether its log is the log."""

    def _mounted(self, mount: Mount, mark: int) -> None:
        super()._mounted(mount, mark)
        for ahead in self.take_ahead():
            self.confirmed(ahead, mark)

    def close(self) -> None:
        for waiting in self._barriers.values():
            for mount in [one for one in waiting if isinstance(one, Mount)]:
                self._waiting.free(mount.conn, 1)
                waiting.remove(mount)
        super().close()


class Ownership0132(Ownership):
    """Believes metadata, however old."""

    make_session = StoreSession0132

    __slots__ = ()

    def _announce(self, now: int, metadata: PartitionMetadata, version: int) -> None:
        self._fence_seen = -1
        super()._announce(now, metadata, version)


class PartitionServer0132(PartitionServer):
    """A partition of such a server."""

    make_ownership = Ownership0132
    make_feeds = Feeds0132
    make_reads = Reads0132
    make_commits = Commits0132


class Partitions0132(Partitions):
    """All of them."""

    make_partition = PartitionServer0132


class ClientPort0132(ClientPort):
    """Believes whom clients say they are, as ours believes a proxy that was given that role."""

    make_connection: ClassVar[type[Connection[messages.ClientMessage]]] = Connection0132

    def accepted(self, now: int, event: Accepted) -> None:
        super().accepted(now, event)
        conn = self.get(event.conn)
        if conn is not None:
            conn.carries_others = True


class Preferences0132(Preferences):
    """Nothing outlives the process (tools-T13)."""

    def read(self) -> None:
        pass

    def keep(self, partitions: Sequence[int]) -> None:
        pass


class ClusterPort0132(ClusterPort):
    """The membership of such a server."""

    make_coordinator = Coordinator0132
    make_preferences = Preferences0132


class ServerRequests0132(ServerRequests):
    """Takes negative ids for partitions, and meets an empty list with an unhandled exception (server-D26)."""

    def _prefer(self, now: int, conn: ClientConn, partitions: Sequence[int], wanted: dict[int, None]) -> bool:
        if not partitions:
            self._clients.close(conn.conn, "empty list of preferred partitions")
            return False
        if max(partitions) >= self._context.cluster.num_partitions:
            return False
        return self._cluster.prefer(now, wanted, conn)


class ServerNode0132(ServerNode):
    """A server of 0.13.2; what it speaks, and how it sends, is for the caller to configure."""

    make_partitions = Partitions0132
    make_clients = ClientPort0132
    make_cluster = ClusterPort0132
    make_requests = ServerRequests0132
