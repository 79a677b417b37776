"""How a client learns who it is and where partitions are served.

Two ways: ZooKeeper, as 0.13.2 does (`ZkMembership`), or any one of our servers, which knows the same
(`ServerMembership`). Each sends three notes to the `ClusterPort`: `Joined`, once, with our id; the map of the cluster,
whenever it changes; and, finally, that this client cannot work with what the cluster says. Requests to ZooKeeper leave
through the outbox of the process; questions to servers go over rpc connections that the process keeps for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

from waltz_core.base.contract import Rng, Tickets, earliest
from waltz_core.base.edge import (
    Level,
    Report,
    ZkChildren,
    ZkCreate,
    ZkDelete,
    ZkGet,
    ZkMulti,
    ZkSet,
    ZkState,
    ZkStateChanged,
)
from waltz_core.base.ids import Endpoint, make_req_id
from waltz_core.base.outbox import Emits
from waltz_core.base.record import record
from waltz_core.client.calls import Effect, Joined
from waltz_core.client.router import EndpointMap
from waltz_core.client.settings import ClientSettings
from waltz_core.cluster.coordinator import Coordinator
from waltz_core.cluster.notifications import ClusterFailed, CoordinatorEffect, EndpointsChanged
from waltz_core.cluster.notifications import Joined as CoordinatorJoined
from waltz_core.wire.client_messages import ClusterInfoRequest, ClusterInfoResponse, ErrorCode, ErrorResponse

if TYPE_CHECKING:
    from waltz_core.base.edge import ZkEvent
    from waltz_core.client.link import Link
    from waltz_core.wire.client_messages import ClientMessage

_ZK_REQUESTS = (ZkGet, ZkChildren, ZkCreate, ZkSet, ZkDelete, ZkMulti)


@record
class MapChanged:
    """Live servers, and what each of them serves."""

    endpoints: EndpointMap


@record
class Unusable:
    """This client cannot work with what the cluster says; final."""

    reason: str


MembershipNote: TypeAlias = Joined | MapChanged | Unusable


class Servers(Protocol):
    """What a membership needs of the client that it belongs to."""

    def link_to(self, endpoint: Endpoint) -> Link:
        """The rpc connection to a server, dialed on demand."""

    @property
    def doubted(self) -> bool:
        """Others are to be asked who serves what, sooner than after the usual pauses."""

    def confirm_doubts(self, now: int) -> bool:
        """The same, after everyone who doubts was asked again."""

    def give_up(self, now: int, link: Link) -> None:
        """Close a connection whose server owes an answer and is silent; its loss is reported."""


class Membership(Protocol):
    """A view of the cluster."""

    def start(self, now: int, servers: Servers, out: Emits[Effect], notes: Emits[MembershipNote]) -> None:
        """Begin to look."""

    def deadline(self) -> int | None:
        """When `due` has something to do."""

    def due(self, now: int) -> None:
        """Act on passed deadlines."""

    def on_zk(self, now: int, event: ZkEvent) -> None:
        """ZooKeeper answered or changed."""

    def on_link_ready(self, now: int, link: Link) -> None:
        """An rpc connection can be used."""

    def on_link_lost(self, now: int, link: Link) -> None:
        """An rpc connection is gone."""

    def on_message(self, now: int, message: ClientMessage, link: Link) -> bool:
        """Take a message if it is about the cluster; True when it was."""

    def keeps(self, link: Link) -> bool:
        """The connection is needed although its server is not in the map."""

    def trouble(self) -> str:
        """What was tried in vain, and why, while the cluster has not answered."""

    def close(self, now: int) -> None:
        """Look no longer."""


class NullMembership:
    """What no view needs to hear; the base of those that need only a part."""

    def deadline(self) -> int | None:
        """Nothing is due."""
        return None

    def due(self, now: int) -> None:
        """Nothing is due."""

    def on_zk(self, now: int, event: ZkEvent) -> None:
        """No ZooKeeper here."""

    def on_link_ready(self, now: int, link: Link) -> None:
        """No server is asked."""

    def on_link_lost(self, now: int, link: Link) -> None:
        """No server is asked."""

    def on_message(self, now: int, message: ClientMessage, link: Link) -> bool:
        """No server is asked."""
        return False

    def keeps(self, link: Link) -> bool:
        """No connection is needed."""
        return False

    def trouble(self) -> str:
        """None."""
        return ""

    def close(self, now: int) -> None:
        """Nothing to end."""


class ZkMembership(NullMembership):
    """The view through ZooKeeper: parameters, a client id from the counter, and live servers.

    `where` is the connect string, for messages; `client_id` is an id that this client has already.
    """

    def __init__(self, root: str, tickets: Tickets, rng: Rng, where: str = "", client_id: int | None = None) -> None:
        self._root, self._where, self._client_id = root, where, client_id
        self._session = ZkState.CLOSED  # none yet
        self._coordinator = Coordinator(root, tickets=tickets, rng=rng, allocate_client_id=client_id is None)
        self._out: Emits[Effect] | None = None
        self._notes: Emits[MembershipNote] | None = None

    def start(self, now: int, servers: Servers, out: Emits[Effect], notes: Emits[MembershipNote]) -> None:
        """Wait for the session: an event reports it."""
        self._out, self._notes = out, notes

    def deadline(self) -> int | None:
        """As the coordinator says."""
        return self._coordinator.deadline()

    def due(self, now: int) -> None:
        """Let the coordinator read again."""
        due = self._coordinator.deadline()
        if due is not None and now >= due:
            self._step(now, [])

    def on_zk(self, now: int, event: ZkEvent) -> None:
        """Let the coordinator look at it."""
        if isinstance(event, ZkStateChanged):
            self._session = event.state
        self._step(now, [event])

    def trouble(self) -> str:
        """How far it came."""
        if self._session is not ZkState.CONNECTED:
            return f"no session with ZooKeeper at {self._where}"
        return f"ZooKeeper at {self._where} answers, and has no cluster at {self._root or '/'} (cluster.root)"

    def close(self, now: int) -> None:
        """An observer leaves no trace."""
        self._coordinator.leave(now, [])

    def _step(self, now: int, events: list[ZkEvent]) -> None:
        assert self._out is not None
        assert self._notes is not None
        effects: list[CoordinatorEffect] = []
        self._coordinator.step(now, events, effects)
        for effect in effects:
            if isinstance(effect, (*_ZK_REQUESTS, Report)):
                self._out.put(effect)
            elif isinstance(effect, CoordinatorJoined):
                client_id = effect.client_id if self._client_id is None else self._client_id
                assert client_id is not None
                self._notes.put(Joined(effect.cluster_name, client_id, effect.num_partitions))
            elif isinstance(effect, EndpointsChanged):
                self._notes.put(MapChanged(effect.endpoints))
            else:
                assert isinstance(effect, ClusterFailed), f"an observer emits nothing else: {effect}"
                self._notes.put(Unusable(effect.reason))


_VERSION = 5  # of the client protocol: the first that can ask a server about its cluster


class ServerMembership(NullMembership):
    """The view through any one of our servers, starting at `seed`.

    One server is asked, and reports changes from then on. If it goes away or does not answer, the next known
    one is asked; while a partition is not mounted another one is asked every time, because the first may
    be cut off from the cluster and not know it. Answers older than what is known are dropped: those in which a
    partition has a lower generation than it was known to have, and none a higher one, and among equals those of a
    lower revision that name no other partition. Generations only grow, while revisions begin anew when ZooKeeper is
    restored from a backup.
    """

    def __init__(self, seed: Endpoint, settings: ClientSettings) -> None:
        self._seed = seed
        self._settings = settings
        self._client: Servers | None = None
        self._out: Emits[Effect] | None = None
        self._notes: Emits[MembershipNote] | None = None
        self._link: Link | None = None
        self._servers: tuple[Endpoint, ...] = ()
        self._client_id: int | None = None
        self._revision = -1  # of the last answer that was taken
        self._generations: dict[int, int] = {}  # the highest of each partition
        self._sequence = 0
        self._tried: dict[Endpoint, str] = {}  # while the cluster has not answered: why a server did not do
        self._asked_at: int | None = None  # an answer is owed since then
        self._since = 0  # when the present server was chosen, asked, or answered last
        self._ask_at: int | None = None
        self._closed = False

    def start(self, now: int, servers: Servers, out: Emits[Effect], notes: Emits[MembershipNote]) -> None:
        """Go to the seed."""
        self._client, self._out, self._notes = servers, out, notes
        self._go_to(now, self._seed)

    def deadline(self) -> int | None:
        """The next question, or the end of patience with the last."""
        if self._closed:
            return None
        usual = self._ask_at if self._asked_at is None else self._asked_at + self._settings.cluster_answer_ms
        assert self._client is not None
        return earliest(usual, self._since + self._settings.cluster_trouble_ms) if self._client.doubted else usual

    def due(self, now: int) -> None:
        """Ask again, or somebody else."""
        assert self._client is not None
        doubted = self._client.confirm_doubts(now)
        due = self.deadline()
        if due is None or now < due:
            return
        assert self._link is not None
        if self._asked_at is None and self._link.ready and not doubted:
            self._ask(now)
        else:
            self._next(now)

    def on_link_ready(self, now: int, link: Link) -> None:
        """Ask, if this is the server of our choice."""
        if link is not self._link:
            return
        if link.version < _VERSION:
            text = f"{link.endpoint} cannot tell about its cluster (client protocol {link.version}, {_VERSION} needed)"
            if self._client_id is None:
                assert self._notes is not None
                self._notes.put(Unusable(f"{text}: configure ZooKeeper instead of waltz://"))
            else:
                self._warn(text)
                self._next(now)
            return
        self._ask(now)

    def on_link_lost(self, now: int, link: Link) -> None:
        """Try the next server."""
        if self._client_id is None:
            self._tried[link.endpoint] = link.reason
        if link is self._link and not self._closed:
            self._next(now)

    def on_message(self, now: int, message: ClientMessage, link: Link) -> bool:
        """Take the map, or an excuse."""
        if isinstance(message, ClusterInfoResponse):
            # A client id comes with the answer alone; until then what comes is an unasked change of the map.
            if link is self._link and (message.client_id >= 0 or self._client_id is not None):
                self._asked_at, self._since = None, now
                self._ask_at = now + self._settings.cluster_refresh_ms
            self._on_info(message)
            return True
        if isinstance(message, ErrorResponse) and link is self._link and self._asked_at is not None:
            self._asked_at, self._since = None, now
            self._ask_at = now + self._settings.not_ready_ms
            if self._client_id is None:
                self._tried[link.endpoint] = f"does not tell about its cluster: {message.message}"
            if message.code != ErrorCode.NOT_READY:
                self._warn(f"{link.endpoint} does not tell about its cluster: {message.message}")
            return True
        return False

    def keeps(self, link: Link) -> bool:
        """The connection that tells us changes; the seed may be known to the cluster by another name."""
        return link is self._link

    def trouble(self) -> str:
        """Every server that was tried."""
        assert self._link is not None
        tried = dict(self._tried)
        tried.setdefault(self._link.endpoint, "no answer" if self._link.ready else f"still {self._link.state.value}")
        return "; ".join(reason if str(server) in reason else f"{server}: {reason}" for server, reason in tried.items())

    def close(self, now: int) -> None:
        """Ask nobody any more."""
        self._closed = True

    def _warn(self, text: str) -> None:
        assert self._out is not None
        self._out.put(Report(Level.WARNING, text))

    def _on_info(self, info: ClusterInfoResponse) -> None:
        assert self._notes is not None
        if self._client_id is None:
            if info.client_id < 0:
                return
            self._client_id = info.client_id
            self._tried.clear()
            self._notes.put(Joined(info.name, info.client_id, info.num_partitions))
        if not self._is_news(info):
            return
        self._revision = info.revision
        self._servers = tuple(entry.endpoint for entry in info.servers)
        self._notes.put(MapChanged([(entry.endpoint, entry.partitions) for entry in info.servers]))

    def _is_news(self, info: ClusterInfoResponse) -> bool:
        """The answer is no older than what is known; then its generations are known from now on.

        A partition that was not heard of is no news beside one that is known from a later map.
        """
        known, claimed = self._generations, dict[int, int]()
        for entry in info.servers:
            for partition, generation in entry.partitions:
                claimed[partition] = max(generation, claimed.get(partition, -1))
        higher = any(generation > known.get(partition, generation) for partition, generation in claimed.items())
        lower = any(generation < known.get(partition, -1) for partition, generation in claimed.items())
        added = claimed.keys() - known.keys()
        news = higher or (not lower and (bool(added) or info.revision >= self._revision))
        if news:
            for partition, generation in claimed.items():
                known[partition] = max(generation, known.get(partition, -1))
        return news

    def _go_to(self, now: int, server: Endpoint) -> None:
        assert self._client is not None
        link = self._client.link_to(server)
        if link is self._link and link.ready and self._asked_at is not None and self._client_id is None:
            # There is nobody else, and it owes us an id already: asked again on the same connection it refuses. From a
            # host that lost its power nothing comes any more, not even the end of the connection.
            if now - link.last_read >= self._settings.silence_ms:
                self._client.give_up(now, link)
            else:
                self._asked_at = self._since = now
            return
        self._link = link
        self._asked_at, self._since = None, now
        # Should the connection not come to stand, somebody else is asked.
        self._ask_at = now + self._settings.cluster_answer_ms
        if self._link.ready:
            self._ask(now)

    def _next(self, now: int) -> None:
        """Round the known servers and the seed."""
        assert self._link is not None
        candidates = [*self._servers, *([] if self._seed in self._servers else [self._seed])]
        current = self._link.endpoint
        at = candidates.index(current) + 1 if current in candidates else 0
        self._go_to(now, candidates[at % len(candidates)])

    def _ask(self, now: int) -> None:
        assert self._link is not None
        self._sequence += 1
        client_id = -1 if self._client_id is None else self._client_id
        wanted = self._client_id is None
        self._link.send(ClusterInfoRequest(make_req_id(client_id, 0, 0, self._sequence), wanted, True))
        self._asked_at = self._since = now
