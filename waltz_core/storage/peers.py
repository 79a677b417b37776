"""Connections of a storage node's two ports: admission, input, the order of service, answers.

    accepted ──hello, cluster key──► opened ──► … ──► closing (what is still to be sent is sent)

Three things hold a peer back, so that none can fill this process's memory or starve the others:

* it must show the cluster key in time, and until then may not send a long frame;
* unfinished frames of all peers together are bounded; the peer that holds most of them is dropped first;
* while its answers are not taken, or a change that it asked for is under way, what it sends is *parked*; with too
  much parked, nothing more is read from it.

What a message means is decided by the machine of its port (`storage_port.py`, `admin_port.py`). Answers are gathered
and encoded once per step: one `Send` for each connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Generic, Protocol, TypeAlias, TypeVar

import attrs

from waltz_core.access.admission import Admission, Eviction, owner_of
from waltz_core.access.roles import Access, Roles
from waltz_core.base.edge import Accepted, CloseConn, Level, Port, Reading, Send
from waltz_core.base.errors import ProtocolError
from waltz_core.storage.context import NodeContext
from waltz_core.storage.notes import GreetingDue
from waltz_core.storage.refusals import SE
from waltz_core.storage.transcode import STORING_PROTOCOL, Incoming
from waltz_core.wire import storage_messages as wire
from waltz_core.wire.admin_messages import AdminMessage
from waltz_core.wire.connection import ADMIN_PROTOCOL, UNLIMITED, Connection
from waltz_core.wire.shared import Condition

STORAGE_HELLO = "Waltz Storage Server"
ADMIN_HELLO = "Waltz Storage Admin Server"
UNOPENED_MAX = 65536  # bytes of an unfinished frame of a peer that has not shown the cluster key
_UNOPENED_REQUESTS = 100  # of such a peer; each is refused, and it costs as much as an append

M = TypeVar("M")
M_contra = TypeVar("M_contra", contravariant=True)


class Caller:
    """The sender of a message, as the machine of a port sees it."""

    def __init__(self, conn: int, name: str, access: Access, names: tuple[str, ...] = ()) -> None:
        self.conn = conn
        self.name = name  # host:port
        self.names = names  # in its certificate
        self.owner = names[0] if names else owner_of(name)
        self.access = access
        self.opened = False  # the cluster key was checked
        self.busy = False  # a change that it asked for is under way: nothing else of it is served
        self.wrong_key = False  # it showed the key of another cluster, or another number of partitions


class PortMachine(Protocol[M_contra]):
    """What serves the messages of a port."""

    def serve(self, caller: Caller, message: M_contra, /) -> str | None:
        """Do it, or begin to; returns why the connection must end, if it must."""


class Peer(Caller, Generic[M]):
    """One connection of a server or a tool."""

    def __init__(self, event: Accepted, access: Access, connection: Connection[M], port: PortMachine[M]) -> None:
        super().__init__(event.conn, event.peer, access, event.names)
        self.connection = connection
        self.of_server = event.port is not Port.ADMIN
        self.gathered = 0  # bytes of its unfinished frame
        self.writable = True
        self.closing = False
        self.held = False  # no bytes are taken from it for the time being
        self.parked: deque[M] = deque()
        self.parked_bytes = 0  # that came with them, at most; counted anew once there are none
        self.refused = 0  # requests before it showed the cluster key
        self.key_reported = False
        self._port = port

    def receive(self, data: bytes) -> str | None:
        """Serve or park what came in; why the connection must end, if it must.

        Before the cluster key was shown the first message says whether the others are worth decoding.
        """
        if self.opened:
            return self._receive(data)
        problem = self._receive(data)
        while problem is None and self.connection.undecoded:
            problem = self._receive(b"")
        return problem

    def _receive(self, data: bytes) -> str | None:
        messages: list[M] = []
        failure: str | None = None
        try:
            self.connection.receive(data, messages, UNLIMITED if self.opened else 1)
        except ProtocolError as error:
            failure = str(error)
        if not self.opened:
            self.refused += len(messages)
            if self.refused > _UNOPENED_REQUESTS:
                return f"the cluster key was not shown within {_UNOPENED_REQUESTS} requests"
        if self.parked or not self.writable or self.busy:
            self.parked.extend(messages)
            return failure
        return self._serve(messages) or failure

    def resume(self) -> str | None:
        """Serve what was parked, if it can be served now."""
        if not self.parked or not self.writable or self.busy:
            return None
        messages, self.parked = list(self.parked), deque()
        return self._serve(messages)

    def _serve(self, messages: Sequence[M]) -> str | None:
        for at, message in enumerate(messages):
            if self.busy:
                self.parked.extend(messages[at:])
                return None
            problem = self._port.serve(self, message)
            if problem is not None:
                return problem
        return None


AnyPeer: TypeAlias = Peer[Incoming] | Peer[wire.StorageMessage] | Peer[AdminMessage]


class Peers:
    """All connections that others opened to this node."""

    def __init__(
        self, context: NodeContext, storage_port: PortMachine[Incoming], admin_port: PortMachine[AdminMessage]
    ) -> None:
        self._context = context
        self._storage_port = storage_port
        self._admin_port = admin_port
        self._peers: dict[int, AnyPeer] = {}
        self._roles = context.config.roles
        # Servers may be silent for days: a peer that has shown the cluster key is never idle too long.
        places = context.config.places.for_members(context.config.roles.rules is not None)
        self._admission = Admission(context.alarms, attrs.evolve(places, idle_ms=0))
        self._gathered = 0  # bytes of unfinished frames
        self._stopping = False

    def stop(self) -> None:
        """The node is to end: nothing that servers ask from now on is begun, or it would never be idle.

        What they have asked before is done and answered. They learn of the rest that their connections end.
        """
        self._stopping = True
        for peer in self._peers.values():
            if peer.of_server:
                peer.parked.clear()

    # ---- coming and going ------------------------------------------------------------------------

    def accepted(self, event: Accepted) -> None:
        """A peer connected."""
        context = self._context
        peer = self._peer(event)
        self._peers[event.conn] = peer
        if context.config.greeting_ms:
            context.alarms.set(GreetingDue(event.conn), context.now + context.config.greeting_ms)
        context.effects.put(Send(event.conn, peer.connection.hello()))
        address, member = owner_of(event.peer), peer.access.member
        self._evict(self._admission.accepted(context.now, event.conn, address, member=member))

    def _peer(self, event: Accepted) -> AnyPeer:
        config = self._context.config
        codecs, size_max, access = config.codecs, config.frame_size_max, self._roles.access(event.names, event.peer)
        if event.port is Port.ADMIN:
            admin = Connection(ADMIN_PROTOCOL, ADMIN_HELLO, codecs, size_max)
            return Peer(event, access, admin, self._admin_port)
        storing = Connection(STORING_PROTOCOL, STORAGE_HELLO, codecs, size_max)
        return Peer(event, access, storing, self._storage_port)

    def closed(self, conn: int) -> None:
        """A connection has ended."""
        gone = self._peers.pop(conn, None)
        self._admission.gone(conn)
        if gone is not None:
            if gone.connection.gathered:
                left = f"of which {gone.connection.gathered} bytes came"
                self._report(gone, f"it ended in the middle of a frame, {left}")
            self._gathered -= gone.gathered
            self._context.alarms.set(GreetingDue(conn), None)

    def roles_changed(self, roles: Roles) -> None:
        """Other rules hold: whoever may now do more or less has to connect again."""
        self._roles = roles
        for peer in list(self._peers.values()):
            access = roles.access(peer.names, peer.name)
            if not access.allows_as(peer.access):
                self._drop(peer, f"the roles have changed: {peer.access.who} is {access.who} now")

    def greeting_due(self, conn: int) -> None:
        """A peer that knows the cluster key shows it at once; others may not keep their connections."""
        greeting_s = self._context.config.greeting_ms / 1000
        self._drop(self._peers[conn], f"the cluster key was not shown within {greeting_s:g} s")

    def silence_due(self, conn: int) -> None:
        """End a connection that has been silent for too long."""
        eviction = self._admission.due(self._context.now, conn)
        if eviction is not None:
            self._evict([eviction])

    def _evict(self, evictions: Iterable[Eviction]) -> None:
        for eviction in evictions:
            self._drop(self._peers[eviction.conn], eviction.reason)

    def _drop(self, peer: AnyPeer, reason: str) -> None:
        if peer.closing:
            return
        self.flush()
        peer.closing = True
        self._admission.gone(peer.conn)
        self._context.alarms.set(GreetingDue(peer.conn), None)
        peer.connection.forget()
        peer.parked.clear()
        peer.parked_bytes = 0
        self._gathered -= peer.gathered
        peer.gathered = 0
        self._context.effects.put(CloseConn(peer.conn, reason))
        self._context.report(Level.WARNING, peer.access.closed_line(peer.name, reason), peer.name, peer.owner)

    def _report(self, peer: AnyPeer, text: str) -> None:
        self._context.report(Level.WARNING, f"connection of {peer.access.who}: {text}", peer.name, peer.owner)

    # ---- taking in -------------------------------------------------------------------------------

    def received(self, conn: int, data: bytes) -> None:
        """Bytes arrived."""
        peer = self._peers.get(conn)
        if peer is None or peer.closing or (self._stopping and peer.of_server):
            return
        was_opened, before = peer.opened, peer.gathered
        problem = peer.receive(data)
        if peer.opened and not was_opened:
            self._proven(peer)
        if peer.wrong_key and not peer.key_reported:
            peer.key_reported = True
            self._report(peer, "it showed a key, or a number of partitions, that is not of this cluster")
        if peer.parked:
            self._hold(peer, before + len(data) - peer.connection.gathered)
        if problem is not None:
            self._drop(peer, problem)
        self._count_gathered(peer)

    def writable(self, conn: int, writable: bool) -> None:
        """A connection takes no more answers, or does again."""
        peer = self._peers.get(conn)
        if peer is not None:
            peer.writable = writable
            self._resume(peer)

    def freed(self, conn: int) -> None:
        """A change that this connection asked for has ended."""
        peer = self._peers.get(conn)
        if peer is not None:
            self._resume(peer)

    def _resume(self, peer: AnyPeer) -> None:
        was_opened = peer.opened
        problem = peer.resume()
        if peer.opened and not was_opened:
            self._proven(peer)
        if problem is not None:
            self._drop(peer, problem)
        if not peer.parked:
            peer.parked_bytes = 0
        if peer.held and not peer.parked and not peer.closing:
            peer.held = False
            self._context.effects.put(Reading(peer.conn, True))

    def _proven(self, peer: AnyPeer) -> None:
        self._admission.proven(self._context.now, peer.conn)
        self._context.alarms.set(GreetingDue(peer.conn), None)

    def _hold(self, peer: AnyPeer, size: int) -> None:
        """Requests that took `size` bytes were parked, or some of them: read no more where that is too much."""
        config = self._context.config
        peer.parked_bytes += size
        much = len(peer.parked) > config.parked_count_max or peer.parked_bytes > config.parked_bytes_max
        if much and not peer.held:
            peer.held = True
            self._context.effects.put(Reading(peer.conn, False))

    def _count_gathered(self, peer: AnyPeer) -> None:
        """Bound what unfinished frames hold: of strangers each, of all together."""
        config = self._context.config
        gathered = 0 if peer.closing else peer.connection.gathered
        if gathered == peer.gathered:
            return  # which was within bounds before
        self._gathered += gathered - peer.gathered
        peer.gathered = gathered
        if gathered > UNOPENED_MAX and not peer.opened:
            self._drop(peer, f"a frame of more than {UNOPENED_MAX} bytes before the cluster key was shown")
        while self._gathered > max(config.gathered_max, config.frame_size_max):
            most = max(self._peers.values(), key=lambda peer: peer.gathered)
            self._drop(most, f"unfinished frames hold {self._gathered} bytes, and this connection most of them")

    # ---- answers ---------------------------------------------------------------------------------

    def flush(self) -> None:
        """Encode what was answered, one `Send` per connection."""
        replies = self._context.replies
        buffers: dict[int, bytearray] = {}
        for conn, message in replies.take():
            peer = self._peers.get(conn)
            if peer is None or peer.closing:
                continue
            buffer = buffers.get(conn)
            if buffer is None:
                buffer = buffers[conn] = bytearray()
            if type(message) is wire.LastSessionInfoResponse and not peer.connection.version:
                message = _for_codec_0(message)
            elif type(message) is wire.SuspectReport and not peer.connection.version:
                continue  # 0.13.2 does not know this message
            peer.connection.encode(message, buffer)  # type: ignore[arg-type]  # answers go where the request came from
        for conn, buffer in buffers.items():
            self._context.effects.put(Send(conn, buffer))


def _for_codec_0(answer: wire.LastSessionInfoResponse) -> wire.StorageMessage:
    """A server of 0.13.2 does not know limbo: it gets a refusal, and so counts this replica as absent."""
    if answer.condition not in (Condition.LIMBO, Condition.STOPPED):
        return answer
    text = f"{SE}partition {answer.partition_id} is out of service: {answer.reason}"
    return wire.FailureResponse(answer.session_id, answer.seq_num, answer.partition_id, text)
