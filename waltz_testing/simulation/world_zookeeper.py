"""ZooKeeper in a simulated world: sessions, watches, answers that come late or never, a follower that is behind."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from waltz_core.base.edge import (
    ZkChanged,
    ZkChildren,
    ZkDone,
    ZkError,
    ZkFailed,
    ZkGet,
    ZkMulti,
    ZkRequest,
    ZkState,
    ZkStateChanged,
)
from waltz_core.zookeeper.znode_tree import ZnodeTree
from waltz_testing.simulation.timeline import Timeline


class Caller(Protocol):
    """A process as ZooKeeper sees it."""

    name: str
    frozen: bool
    epoch: int
    zk_session_ms: int

    def post(self, event: Any) -> None:
        """Deliver an event."""

    def post_later(self, delay: int, event: Any) -> None:
        """Deliver an event after a while."""


class ZooKeeper:
    """Two servers, a session per process, answers after a delay, in order for each process.

    The leader takes all writes. The follower, if there is one (`with_follower`), applies them later. A process
    connected to it reads the past and gets its watches late; as ZooKeeper promises, it sees its own writes, and
    nobody who moves from one server to the other sees an older state than before.

    Attributes:
        on_write: called with every write that succeeded.
        lag: how much later the follower applies a write, in ms.
        losing: processes whose next write is applied, and whose connection breaks before they hear of it.
        stale_reads: requests answered by a follower that was behind.
    """

    def __init__(self, time: Timeline, nodes: Mapping[str, Caller]) -> None:
        self._time = time
        self._nodes = nodes
        self.tree = ZnodeTree()
        self.sessions: dict[str, int] = {}
        self.latency = (0, 3)
        self.down: set[str] = set()  # processes that do not reach it
        self.lag = 0
        self.losing: set[str] = set()
        self.stale_reads = 0
        self._follower: ZnodeTree | None = None
        self._entries: deque[Callable[[ZnodeTree], Any]] = deque()  # written, and not applied by the follower
        self._written = 0
        self._ready_at = 0
        self._behind: set[str] = set()  # processes connected to the follower
        self._held: dict[str, list[Callable[[], None]]] = {}  # requests behind a write that the follower lacks
        self._answers: deque[tuple[int, str, list[Callable[[], None]], Callable[[], None]]] = deque()
        self.on_write: Callable[[ZkRequest], None] | None = None
        self.on_answer: Callable[[Caller, ZkRequest, Any, bool], None] | None = None  # True: it arrives
        self.losing_at: dict[str, tuple[str, ...]] = {}  # as `losing`, of the next write of one of these paths
        self._apply_at: dict[str, int] = {}
        self._reply_at: dict[str, int] = {}
        self._pending: dict[str, dict[int, None]] = {}  # tickets without an answer

    # ---- leader and follower ---------------------------------------------------------------------

    def with_follower(self) -> None:
        """Have a second server, from the beginning."""
        assert not self._written
        self._follower = ZnodeTree()

    def follow(self, node: Caller) -> None:
        """A process loses its connection and finds the follower, which is up to date at this moment."""
        if self._follower is not None and not self._entries and node.name in self.sessions:
            self.suspend(node, 50)
            self._behind.add(node.name)

    def _write(self, operation: Callable[[ZnodeTree], Any]) -> Any:
        answer = operation(self.tree)
        self._written += 1
        if self._follower is not None:
            self._entries.append(operation)
            self._ready_at = max(self._ready_at, self._time.now + self.lag)
            self._time.at(self._ready_at, self._catch_up)
        return answer

    def _catch_up(self) -> None:
        assert self._follower is not None
        self._entries.popleft()(self._follower)
        self._fire()
        applied = self._written - len(self._entries)
        while self._answers and self._answers[0][0] <= applied:
            _, name, held, answer = self._answers.popleft()
            if self._held.get(name) is held:
                del self._held[name]
            answer()
            for action in held:
                action()

    # ---- sessions --------------------------------------------------------------------------------

    def connect(self, node: Caller) -> None:
        """Open a session for a process."""
        epoch = node.epoch

        def connected() -> None:
            if epoch != node.epoch or node.name in self.sessions:
                return
            if node.name in self.down or node.frozen:
                self._time.after(500, connected)
                return
            self._behind.discard(node.name)
            self.sessions[node.name] = self._write(ZnodeTree.open_session)
            self._pending[node.name] = {}
            self._reply(node, ZkStateChanged(ZkState.CONNECTED, self.sessions[node.name]))

        self._time.after(self._delay(), connected)

    def abandon(self, node: Caller) -> None:
        """The process died; its session ends after its time-out."""
        session = self.sessions.pop(node.name, None)
        if session is not None:
            self._forget_watches(session)
            self._time.after(node.zk_session_ms, lambda: self._close(session))

    def silent(self, node: Caller) -> None:
        """The process sends no heartbeat while it is frozen; it finds out when it wakes up."""
        session = self.sessions.get(node.name)
        if session is None:
            return

        def expired() -> None:
            if node.frozen and self.sessions.get(node.name) == session:
                self._close(session)
                self._notice_lost(node, session)

        self._time.after(node.zk_session_ms, expired)

    def expire(self, node: Caller, notice_ms: int = 0) -> None:
        """ZooKeeper gives up the session of a living process, which notices after a while."""
        session = self.sessions.get(node.name)
        if session is None:
            return
        self._close(session)
        self._time.after(notice_ms, lambda: self._notice_lost(node, session))

    def _notice_lost(self, node: Caller, session: int) -> None:
        if self.sessions.get(node.name) != session:
            return
        del self.sessions[node.name]
        self._lose_requests(node)
        self._reply(node, ZkStateChanged(ZkState.EXPIRED))
        self.connect(node)

    def suspend(self, node: Caller, for_ms: int) -> None:
        """The connection breaks and comes back; the session expires if that takes too long."""
        session = self.sessions.get(node.name)
        if session is None or node.name in self.down:
            return
        self.down.add(node.name)
        self._forget_watches(session)
        self._reply(node, ZkStateChanged(ZkState.SUSPENDED))
        self._lose_requests(node)

        def lost() -> None:
            if self.sessions.get(node.name) == session and node.name in self.down:
                self._reply(node, ZkStateChanged(ZkState.PRESUMED_LOST))
                self._close(session)

        def back() -> None:
            self.down.discard(node.name)
            if self.sessions.get(node.name) != session:
                return
            if self.tree.has_session(session):
                self._reply(node, ZkStateChanged(ZkState.CONNECTED, session))
            else:
                self._notice_lost(node, session)

        self._time.after(node.zk_session_ms, lost)
        self._time.after(for_ms, back)

    def _lose_requests(self, node: Caller) -> None:
        """Nobody will learn what became of the requests on their way."""
        pending, self._pending[node.name] = self._pending.get(node.name, {}), {}
        self._held.pop(node.name, None)
        self._behind.discard(node.name)
        for ticket in pending:
            self._reply(node, ZkFailed(ticket, ZkError.OUTCOME_UNKNOWN))

    def request(self, node: Caller, request: ZkRequest) -> None:
        """Apply a request after a while, answer after another; in order for each process."""
        session = self.sessions.get(node.name)
        if session is None or node.name in self.down:
            node.post_later(0, ZkFailed(request.ticket, ZkError.UNAVAILABLE))
            return
        epoch = node.epoch
        due = max(self._apply_at.get(node.name, 0), self._time.now + self._delay())
        self._apply_at[node.name] = due
        pending = self._pending.setdefault(node.name, {})
        pending[request.ticket] = None

        def apply() -> None:
            known = epoch == node.epoch and self._pending.get(node.name) is pending
            if not known and self._time.zk_rng.random() < 0.5:
                return  # lost with the connection
            behind = known and node.name in self._behind
            if behind and node.name in self._held:
                self._held[node.name].append(apply)
            elif isinstance(request, (ZkGet, ZkChildren)):
                tree = self._follower if behind and self._follower is not None else self.tree
                self.stale_reads += behind and bool(self._entries)
                answer = tree.apply(session, request)
                if known:
                    self._reply(node, answer, pending)
            else:
                self._apply_write(node, session, request, pending if known else None)

        self._time.at(due, apply)

    def _apply_write(self, node: Caller, session: int, request: ZkRequest, pending: dict[int, None] | None) -> None:
        answer = self._write(lambda tree: tree.apply(session, request))
        if self.on_write is not None and isinstance(answer, ZkDone):
            self.on_write(request)
        self._fire()
        path = "" if isinstance(request, ZkMulti) else request.path
        loses = node.name in self.losing or path in self.losing_at.get(node.name, ())
        if self.on_answer is not None:
            self.on_answer(node, request, answer, pending is not None and not loses)
        if pending is None:
            return
        if loses:
            self.losing.discard(node.name)
            self.losing_at.pop(node.name, None)
            self.suspend(node, 100)
        elif node.name in self._behind:
            held = self._held[node.name] = []
            self._answers.append((self._written, node.name, held, lambda: self._reply(node, answer, pending)))
        else:
            self._reply(node, answer, pending)

    def _reply(self, node: Caller, event: Any, pending: dict[int, None] | None = None) -> None:
        """Deliver an event to a process, after all earlier ones."""
        epoch = node.epoch
        due = max(self._reply_at.get(node.name, 0), self._time.now + self._delay() // 2)
        self._reply_at[node.name] = due

        def tell() -> None:
            if epoch != node.epoch:
                return
            if pending is not None:
                if event.ticket not in pending:
                    return  # its loss was reported already
                del pending[event.ticket]
            node.post(event)

        self._time.at(due, tell)

    def write(self, requests: list[ZkRequest]) -> None:
        """Apply requests of an operator at once."""
        session = self._write(ZnodeTree.open_session)
        for request in requests:
            answer = self._write(partial(ZnodeTree.apply, session_id=session, request=request))
            assert not isinstance(answer, ZkFailed), (request, answer)
        self._write(lambda tree: tree.close_session(session))
        self._fire()

    def read(self, path: str) -> bytes | None:
        """Data of a node as it stands, None if there is no such node."""
        session = self._write(ZnodeTree.open_session)
        answer = self.tree.apply(session, ZkGet(0, path))
        self._write(lambda tree: tree.close_session(session))
        return answer.data if isinstance(answer, ZkDone) else None

    def _close(self, session: int) -> None:
        self._write(lambda tree: tree.close_session(session))
        self._fire()

    def _forget_watches(self, session: int) -> None:
        for tree in (self.tree, self._follower):
            if tree is not None:
                tree.forget_watches(session)

    def _fire(self) -> None:
        fired = self.tree.fired() + (self._follower.fired() if self._follower is not None else [])
        for session, path in fired:
            for name, owner in self.sessions.items():
                if owner == session and name not in self.down:
                    self._reply(self._nodes[name], ZkChanged(path))

    def _delay(self) -> int:
        return self._time.zk_rng.randint(*self.latency)
