"""Coverage marks: what happened in a run that a run may never see, however many seeds pass.

A limit that is never reached is not tested, and neither is a path that nobody takes. Marks are observed from outside:
frames that processes send, effects, reports, what ZooKeeper was asked, what lies on disks; never by counters inside the
machines. `python -m tests.model.fuzz` counts them, and fails over many seeds when one is not reached.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tests.model.cluster import ROOT, SimStorage
from waltz_core.base.edge import CloseConn, Reading, Report, ZkDone, ZkRequest, ZkSet
from waltz_core.base.ids import ReqId, req_partition
from waltz_core.server.ownership import OwnershipPhase
from waltz_core.server.partition import PartitionServer
from waltz_core.wire.client_codec import MAGIC as CLIENT
from waltz_core.wire.client_messages import ErrorCode, Refusal
from waltz_core.wire.frame import HEADER, HEADER_SIZE, HELLO_MAGIC
from waltz_core.zookeeper.paths import cluster_paths

if TYPE_CHECKING:
    from tests.model.observer import Observer
    from waltz_testing.simulation.world import SimNode
    from waltz_testing.simulation.world_zookeeper import Caller

PREFIX = "mark "
PROXY = "proxy"  # the name of the process
HOSTILE = "hostile"  # how the names of hostile peers begin
_LAG = 20  # transactions

_MOUNT_ANSWER, _FEED_REQUEST, _FEED_DATA, _FEED_END = 1, 3, 4, 5
_REFUSED, _ERROR, _WINDOW_REQUEST = 35, 46, 49
_DATA_REQUEST, _RANGE_REQUEST = 6, 36
_ASKED_MAX = 1024  # payloads in one request of a client

_REFUSALS = {
    Refusal.GENERATION: "an append came for another generation",
    Refusal.NOT_MOUNTED: "an append came over a connection that was superseded",
    Refusal.NOT_SERVED: "an append was dropped with its partition",
    Refusal.NOT_READY: "an append was refused because the journal could not be written",
}
_TEXTS = {
    "or more wait for their turns": "a connection asked for more than its part",
    "so many appends that those of others": "appends waited that had too much in flight beside those of a light client",
    "under request ids of client": "an append under a request id of another client was refused",
    "server.locksMax": "an append had too many locks",
    "server.payloadSizeMax": "an append was too large",
    "it has asked for nothing": "a connection ended that asked for nothing",
    "not a byte from it": "a connection ended that was silent for too long",
    "unfinished": "a connection ended for its unfinished frames",
    "owes an answer and is silent": "a client gave up a server that was silent",
    "ended: checkpoint": "a checkpoint ended a session",
    "IOException: No space left on device": "a session ended because a disk was full",
    "has answered session": "a session was fenced",
    "took over from session": "a session lost the race for the metadata",
    "recovery waits": "recovery waited",
    "decisions are dropped": "decisions were dropped because the journal could not be written",
    "no append is accepted": "appends waited because the journal could not be written",
    "transactions repaired": "a replica was repaired",
    "is in limbo": "a replica was in limbo",
    "accepted that its log ends": "a limbo was accepted",
    "ahead of the log": "a client was ahead of the log",
    "the log begins at": "a log start was raised",
    "another replica is asked": "a source could not give out a record",
    "upstream connection that carried its appends": "a proxy lost the connection that carried a client's appends",
    "the cache on the disk is given up": "a proxy gave its disk up",
    "up: it has answered nothing for": "a proxy gave up a disk that hung",
    "is damaged on this storage node": "a damaged record was read",
    "nobody listens there": "a server was seen to have ended",
    "a write that was never acknowledged": "a torn write was cut",
}

PER_THOUSAND = {
    "ZooKeeper answered with the past": 47,
    "a checkpoint ended a session": 116,
    "a client gave up a server that was silent": 10,
    "a client was ahead of the log": 19,
    "a client wrote a keep-alive": 50,
    "a connection asked for more than its part": 25,
    "a connection ended that asked for nothing": 51,
    "a connection ended that was silent for too long": 10,
    "a damaged record was read": 14,
    "a feed of codec 5 was used up, or replaced": 159,
    "a feed was read from a replica": 140,
    "a feed window of codec 5 was used up": 142,
    "a hand-over happened with appends in flight": 58,
    "a hostile connection was ended by the other side": 30,
    "a hostile peer was answered": 30,
    "a limbo was accepted": 1,
    "a lone batch was written and synced in place": 83,
    "a log start was raised": 25,
    "a mount was cut short": 53,
    "a payload of its own came from the memory of a client": 60,
    "a proxy answered a mount without upstream": 4,
    "a proxy died with appends under way": 15,
    "a proxy ended because another one was started in its root": 8,
    "a proxy gave up a disk that hung": 2,
    "a proxy lost the connection that carried a client's appends": 20,
    "a proxy read from its disk": 2,
    "an append went through two proxies": 8,
    "a question could not be answered yet": 152,
    "a quorum went on without a replica": 21,
    "a reader of a gateway's feed fell out of its window": 8,
    "a reader of a gateway's feed went on by his mark": 15,
    "a replica lagged behind the commits of its session": 32,
    "a replica was added while another lagged": 18,
    "a replica was in limbo": 6,
    "a replica was repaired": 45,
    "a server died with appends in flight": 64,
    "a server read no more from a connection for a while": 114,
    "a server was seen to have ended": 120,
    "a session ended because a disk was full": 33,
    "a session ended with appends in flight": 171,
    "a session lost the race for the metadata": 11,
    "a session was fenced": 31,
    "a source could not give out a record": 2,
    "a storage node read no more from a connection for a while": 2,
    "a torn write was cut": 3,
    "an append came for another generation": 14,
    "an append came over a connection that was superseded": 1,
    "an append had too many locks": 53,
    "an append under a request id of another client was refused": 25,
    "an append was dropped with its partition": 14,
    "an append was refused because the journal could not be written": 22,
    "an append was too large": 32,
    "an id write was lost and somebody else took it": 4,
    "appends of a hostile flood were committed": 19,
    "appends waited because the journal could not be written": 32,
    "appends waited for a window that was full": 60,
    "conflict FALSE": 17,
    "conflict TRUE": 182,
    "conflict UNKNOWN": 121,
    "decisions were dropped because the journal could not be written": 16,
    "false refusals": 123,
    "payloads were read from a replica": 176,
    "recovery waited": 108,
    "segments were full": 132,
    "the journal dropped decisions": 22,
    "true refusals": 190,
    "two servers had a session open at once": 42,
}
"""How many of a thousand seeds must reach each mark: a fifth of what was seen, so that chance alone does not fail."""

SEEDS_MIN = 100
"""Fewer seeds than this say nothing of marks."""


def missed_marks(counts: Mapping[str, int], seeds: int) -> list[str]:
    """Marks that too few of so many seeds reached, for people."""
    if seeds < SEEDS_MIN:
        return []
    needed = {name: floor * seeds // 1000 for name, floor in PER_THOUSAND.items()}
    return [
        f"'{name}' happened in {counts.get(PREFIX + name, 0)} of {seeds} seeds, not in {least}"
        for name, least in needed.items()
        if counts.get(PREFIX + name, 0) < least
    ]


class Marks:
    """Watches one run."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self.world = observer.world
        self.reached: dict[str, None] = {}
        paths = cluster_paths(ROOT)
        self._id_paths = (paths.client_ids, paths.server_ids)
        self._lost_ids: dict[str, str] = {}  # path → whose write was applied and never answered
        self._feeds: dict[bytes, None] = {}
        self._windows: dict[bytes, int] = {}  # request of a feed window → the last id it is good for
        self._asked: dict[tuple[str, int, int], None] = {}  # client, partition, id whose payload was asked for
        self._owed: dict[tuple[str, int, int], int] = {}  # connection → bytes of a frame that are still to come
        self._fed: dict[tuple[str, int], int] = {}  # highest id sent on a connection
        self._pending: dict[tuple[str, int, int], tuple[int, Any]] = {}  # → appends without a verdict, session
        self._held: frozenset[tuple[str, int]] = frozenset()  # (storage node, partition) as assigned
        self.world.on_send = self._on_send
        self.world.on_rare = self._on_effect
        self.world.zookeeper.on_answer = self._on_zk_answer

    def reach(self, name: str) -> None:
        """Something happened."""
        self.reached[name] = None

    # ---- bytes and effects -----------------------------------------------------------------------

    def _on_send(self, node: SimNode, conn: int, data: bytes) -> None:
        if node.name.startswith(HOSTILE):
            return  # its frames need not be frames
        end, before, key = len(data), -1, (node.name, node.epoch, conn)
        at = self._owed.pop(key, 0)  # a large frame comes in pieces
        while end - at > HEADER_SIZE:
            magic, version, length = HEADER.unpack_from(data, at)
            body = at + HEADER_SIZE
            at = body + length
            if magic == CLIENT and length:
                kind = data[body]
                if kind == _FEED_DATA:
                    self._fed[node.name, conn] = int.from_bytes(data[body + 17 : body + 25], "big")
                elif kind in (_DATA_REQUEST, _RANGE_REQUEST):
                    self._on_read(node, bytes(data[body:at]))
                elif kind in (_MOUNT_ANSWER, _FEED_REQUEST, _FEED_END, _REFUSED, _ERROR, _WINDOW_REQUEST):
                    self._on_message(node, conn, kind, version, bytes(data[body:at]), before)
                before = kind
            elif magic == HELLO_MAGIC:
                before = -1
        if at > end:
            self._owed[key] = at - end
        if end - at == HEADER_SIZE and data[at] == CLIENT and node.name not in self.observer.servers:
            self.reach("a client wrote a keep-alive")

    def _on_read(self, node: SimNode, body: bytes) -> None:
        partition, first = req_partition(ReqId(body[1:17])), int.from_bytes(body[17:25], "big")
        last = first if body[0] == _DATA_REQUEST else int.from_bytes(body[25:33], "big")
        last = min(last, first + _ASKED_MAX - 1)  # who copies a log asks for all of it
        self._asked.update(dict.fromkeys((node.name, partition, each) for each in range(first, last + 1)))

    def fetched(self, node: SimNode, partition: int, transaction_id: int) -> None:
        """A client has got a payload."""
        if (node.name, partition, transaction_id) not in self._asked:
            self.reach("a payload of its own came from the memory of a client")

    def _on_message(self, node: SimNode, conn: int, kind: int, version: int, body: bytes, before: int) -> None:
        req_id = body[1:17]
        if kind == _WINDOW_REQUEST:
            mark, count = int.from_bytes(body[17:25], "big", signed=True), int.from_bytes(body[25:29], "big")
            self._windows[req_id] = mark + count
        elif kind == _FEED_REQUEST and version >= 5:
            self._feeds[req_id] = None
        elif kind == _FEED_END:
            if self._windows.get(req_id) == self._fed.get((node.name, conn)):
                self.reach("a feed window of codec 5 was used up")
            elif req_id in self._feeds:
                self.reach("a feed of codec 5 was used up, or replaced")
        elif kind == _MOUNT_ANSWER:
            if node.name == PROXY and node.machine.partitions[req_partition(ReqId(req_id))].trouble():
                self.reach("a proxy answered a mount without upstream")
            if before == _FEED_END:
                self.reach("a mount was cut short")
        elif kind == _REFUSED:
            if body[17] in _REFUSALS:
                self.reach(_REFUSALS[Refusal(body[17])])
            self._on_text(body.decode("utf-8", "replace"))
        elif int.from_bytes(body[17:21], "big") == ErrorCode.NOT_READY:
            self.reach("a question could not be answered yet")

    def _on_effect(self, node: SimNode, effect: Any) -> None:
        if isinstance(effect, CloseConn):
            self._on_text(effect.reason)
        elif isinstance(effect, Report):
            self._on_text(effect.text)
        elif isinstance(effect, Reading) and not effect.wanted:
            who = "a server" if node.name in self.observer.servers else "a storage node"
            self.reach(f"{who} read no more from a connection for a while")

    def _on_text(self, text: str) -> None:
        for part, name in _TEXTS.items():
            if part in text:
                self.reach(name)

    def _on_zk_answer(self, node: Caller, request: ZkRequest, answer: Any, arrives: bool) -> None:
        if not isinstance(request, ZkSet) or request.path not in self._id_paths or not isinstance(answer, ZkDone):
            return
        if self._lost_ids.pop(request.path, node.name) != node.name:
            self.reach("an id write was lost and somebody else took it")
        if not arrives:
            self._lost_ids[request.path] = node.name

    # ---- processes -------------------------------------------------------------------------------

    def look_at_server(self, node: SimNode, partitions: Mapping[int, PartitionServer]) -> None:
        """A server was stepped."""
        name, epoch, known = node.name, node.epoch, self._pending
        for partition_id, partition in partitions.items():
            session, pending = partition.session, partition.commits.pending
            key = (name, epoch, partition_id)
            before = known.get(key)
            if before is not None and before[0] and before[1] is not session and before[1] is not None:
                self.reach("a session ended with appends in flight")
            known[key] = pending, session
            if pending and pending > partition.commits.queued > 0 and partition.phase is OwnershipPhase.OPEN:
                self.reach("appends waited for a window that was full")
        if len(known) > len(partitions):
            for key in [one for one in known if one[0] == name and (one[1] != epoch or one[2] not in partitions)]:
                if known.pop(key)[0]:
                    handed = key[1] == epoch
                    self.reach(
                        "a hand-over happened with appends in flight"
                        if handed
                        else "a server died with appends in flight"
                    )

    def committed(self, partition_id: int, mark: int, node: SimNode, session: Any) -> None:
        """A server's commit mark rose."""
        if session is not None:
            states = [(state, acked) for _, state, _, acked in session.links()]
            if any(state == "following" and acked < mark - _LAG for state, acked in states):
                self.reach("a replica lagged behind the commits of its session")
            if any(state == "lost" for state, _ in states):
                self.reach("a quorum went on without a replica")
        served = [
            server
            for server in self.observer.cluster.servers
            if server.alive
            and (partition := server.machine.partitions.get(partition_id)) is not None
            and partition.phase is OwnershipPhase.OPEN
        ]
        if len(served) > 1:
            self.reach("two servers had a session open at once")

    def second(self) -> None:
        """A second has passed."""
        cluster = self.observer.cluster
        held = frozenset((one.node.name, partition) for one in cluster.storages for partition in one.holds)
        if held != self._held:
            added = {partition for _, partition in held - self._held}
            others = [one for one in cluster.storages for p in added if (one.node.name, p) in held & self._held]
            if self._held and any(self._lags(one, added) for one in others):
                self.reach("a replica was added while another lagged")
            self._held = held
        for server in cluster.servers:
            if server.alive and not server.frozen:
                snapshot = server.machine.snapshot(server.clock)
                if snapshot.data_cache_misses:
                    self.reach("payloads were read from a replica")
                if snapshot.feed_cache_misses:
                    self.reach("a feed was read from a replica")
                if any(name == "journal-dropped" and count for name, count in _counters(snapshot)):
                    self.reach("the journal dropped decisions")

    def _lags(self, storage: SimStorage, partitions: Iterable[int]) -> bool:
        durable, logs = self.observer.durable[storage.node.name], self.observer.logs
        return any(logs[one] and len(logs[one]) - 1 not in durable.records[one] for one in partitions)

    def end(self) -> None:
        """The run is over."""
        for storage in self.observer.cluster.storages:
            if storage.disk.done_in_place:
                self.reach("a lone batch was written and synced in place")
            segments = [name for name in storage.disk.disk.durable_names() if name.endswith(".seg")]
            if len(segments) > 2 * self.observer.cluster.partitions:
                self.reach("segments were full")
        counts = self.observer.counts
        for name in ("conflict TRUE", "conflict FALSE", "conflict UNKNOWN", "true refusals", "false refusals"):
            if counts[name]:
                self.reach(name)
        if self.world.zookeeper.stale_reads:
            self.reach("ZooKeeper answered with the past")
        for name in self.reached:
            counts[PREFIX + name] = 1


def _counters(snapshot: Any) -> list[tuple[str, int]]:
    return [counter for partition in snapshot.partitions for counter in partition.counters]
