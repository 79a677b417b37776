"""The real ZooKeeper, through kazoo: its connection thread talks, everything else runs in the Trio thread.

kazoo's two callback queues are replaced by the Trio run loop, so completions, watches and state changes
arrive in the order of the wire. Nothing is handed to kazoo unless it is connected and few requests are
under way: its wake-up pipe is a blocking socket, and a full one would freeze the whole process.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import trio
from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    ConnectionLoss,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OperationTimeoutError,
    RequestTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
    SessionMovedError,
)
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.serialization import Create, Delete, SetData
from kazoo.protocol.states import EventType, KeeperState
from kazoo.retry import KazooRetry

from waltz_core.base.edge import (
    ZkChanged,
    ZkChildren,
    ZkCreate,
    ZkDelete,
    ZkDone,
    ZkError,
    ZkEvent,
    ZkFailed,
    ZkGet,
    ZkMulti,
    ZkRequest,
    ZkSet,
    ZkStat,
    ZkState,
    ZkStateChanged,
)
from waltz_core.base.errors import ConfigError
from waltz_trio.base.background import background_nursery
from waltz_trio.zk.security import NO_ZK_SECURITY, ZkSecurity

log = logging.getLogger("waltz.zookeeper")

IN_FLIGHT_MAX = 200
"""kazoo's wake-up pipe holds 278 one-byte messages with default socket buffers; the next one blocks."""

WAITING_MAX = 10_000
STOP_TIMEOUT = 10.0
_TRIES_IN_SESSION = 3  # connections tried, at least, before a session that none answers is lost

_ERRORS: dict[type[Exception], ZkError] = {
    NoNodeError: ZkError.NO_NODE,
    NodeExistsError: ZkError.NODE_EXISTS,
    BadVersionError: ZkError.BAD_VERSION,
    NotEmptyError: ZkError.NOT_EMPTY,
    ConnectionLoss: ZkError.OUTCOME_UNKNOWN,
    OperationTimeoutError: ZkError.OUTCOME_UNKNOWN,
    RequestTimeoutError: ZkError.OUTCOME_UNKNOWN,
    SessionMovedError: ZkError.OUTCOME_UNKNOWN,
    # Also what kazoo says to requests that were under way when the session was found expired.
    SessionExpiredError: ZkError.OUTCOME_UNKNOWN,
}


class _Changes(logging.Filter):
    """Passes what kazoo logs once until it is connected again: it repeats itself with every attempt."""

    def __init__(self) -> None:
        super().__init__()
        self._passed: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if record.levelno < logging.WARNING or text not in self._passed:
            self._passed.add(text)
            return True
        return False

    def connected(self) -> None:
        """What comes from now on is new."""
        self._passed.clear()


_changes = _Changes()
_kazoo_log = logging.getLogger("waltz.zookeeper.kazoo")
_kazoo_log.addFilter(_changes)


def _error(problem: BaseException) -> ZkError:
    for kind, error in _ERRORS.items():
        if isinstance(problem, kind):
            return error
    return ZkError.REFUSED


class _LoopQueue:
    """Stands in for both of kazoo's callback queues: runs what is put in it in the Trio thread, in order."""

    def __init__(self, token: trio.lowlevel.TrioToken) -> None:
        self._token = token

    def put(self, action: Callable[[], object]) -> None:
        with suppress(trio.RunFinishedError):  # the loop is gone, and with it all receivers
            self._token.run_sync_soon(self._run, action)

    @staticmethod
    def _run(action: Callable[[], object]) -> None:
        try:
            action()
        except Exception:
            # An exception here would end the Trio run from outside of every task.
            log.exception("a callback of the ZooKeeper client failed")


class _LoopHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """kazoo's handler without its two worker threads."""

    name = "waltz_trio_handler"

    def __init__(self, token: trio.lowlevel.TrioToken) -> None:
        super().__init__()
        self.completion_queue = self.callback_queue = _LoopQueue(token)

    def start(self) -> None:
        self._running = True

    def stop(self) -> None:
        self._running = False


class ZooKeeperBridge:
    """One kazoo client as a znode store."""

    def __init__(
        self, hosts: str, deliver: Callable[[Sequence[ZkEvent]], None], session_timeout_ms: int, security: ZkSecurity
    ) -> None:
        self._deliver = deliver
        self._timeout = session_timeout_ms / 1000
        self._token = trio.lowlevel.current_trio_token()
        self._handler = _LoopHandler(self._token)
        self._acl = security.acls()
        retry = KazooRetry(max_tries=-1, delay=0.1, backoff=1.5, max_delay=2, sleep_func=self._handler.sleep_func)
        try:
            self._client = KazooClient(
                hosts=hosts,
                timeout=self._timeout,
                handler=self._handler,
                connection_retry=retry,
                logger=_kazoo_log,
                **security.options(),
            )
        except ValueError as problem:
            raise ConfigError(f"zookeeper.connectString {hosts!r}: {problem}") from None
        # kazoo waits for the answer to its greeting as long as a session lasts, divided by the number of addresses.
        # A ZooKeeper that is just starting can accept a connection and never answer on it: with one address that
        # alone would cost the session, so each is tried more than once in that time.
        self._client.hosts *= -(-_TRIES_IN_SESSION // len(self._client.hosts))
        self._usable = False
        self._pid = os.getpid()
        self._closing = False
        self._epoch = 0  # counts changes of the connection's state
        self._suspended_at: float | None = None
        self._presumed = False  # lost, since then
        self._in_flight: dict[int, tuple[ZkRequest, float]] = {}  # in order of their deadlines
        self._last_call = 0
        self._waiting: deque[ZkRequest] = deque()
        self._outbox: list[ZkEvent] = []
        self._timer = trio.Event()

    # ---- life --------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to connect; never blocks."""
        self._client.add_listener(self._listen)
        self._client.start_async()

    async def stop(self) -> None:
        """End the session in order. kazoo joins its thread, so this runs in another one."""
        self._closing = True
        if os.getpid() != self._pid:
            return  # a forked child: the thread and the session are the parent's
        with trio.CancelScope(shield=True), trio.move_on_after(STOP_TIMEOUT):
            in_thread: Callable[..., Awaitable[None]] = trio.to_thread.run_sync
            await in_thread(self._stop_kazoo, abandon_on_cancel=True)

    def _stop_kazoo(self) -> None:
        try:
            self._client.stop()
            self._client.close()
        except Exception as problem:  # an error of kazoo while it ends does not keep the process from ending
            log.warning("the ZooKeeper client did not stop cleanly: %s", problem)

    # ---- events out --------------------------------------------------------------------------

    def _emit(self, event: ZkEvent) -> None:
        """Deliver soon, several events at once, and never from within `submit`."""
        if not self._outbox:
            self._token.run_sync_soon(self._flush)
        self._outbox.append(event)

    def _flush(self) -> None:
        events, self._outbox = self._outbox, []
        if not self._closing:
            self._deliver(events)

    # ---- state -------------------------------------------------------------------------------

    def _listen(self, state: str) -> None:
        # In kazoo's thread. The low-level state distinguishes an expired session from a closed client.
        self._handler.completion_queue.put(partial(self._on_state, state, self._client.client_state))

    def _on_state(self, state: str, detail: str) -> None:
        self._epoch += 1
        self._usable = False
        if self._closing:
            return
        if state == KazooState.CONNECTED:
            self._probe(self._epoch)
            return
        # kazoo has failed what it knew of; what slipped in since would be carried out who knows when.
        for request, _ in self._in_flight.values():
            self._emit(ZkFailed(request.ticket, ZkError.OUTCOME_UNKNOWN))
        self._in_flight.clear()
        self._refuse_waiting()
        if state == KazooState.SUSPENDED:
            if self._suspended_at is None:
                self._suspended_at, self._presumed = trio.current_time(), False
                self._timer.set()
            self._emit(ZkStateChanged(ZkState.SUSPENDED))
        elif detail in (KeeperState.AUTH_FAILED, KeeperState.CLOSED):
            log.error("ZooKeeper ended the session for good: %s", detail)
            self._suspended_at = None
            self._emit(ZkStateChanged(ZkState.CLOSED))
        else:
            self._suspended_at = None
            self._emit(ZkStateChanged(ZkState.EXPIRED))

    def _probe(self, epoch: int) -> None:
        """kazoo is connected before it is authenticated: one answered request proves the session."""
        self._client.exists_async("/").rawlink(partial(self._on_probe, epoch))

    def _on_probe(self, epoch: int, result: Any) -> None:
        if epoch != self._epoch or self._closing:
            return  # another change of state has come since
        try:
            result.get_nowait()
        except AuthFailedError:
            self._emit(ZkStateChanged(ZkState.CLOSED))
            return
        except Exception as problem:
            log.info("ZooKeeper accepted a connection and did not answer: %s", problem)
            return
        client_id = self._client.client_id
        if client_id is None:
            return
        self._usable = True
        self._suspended_at = None
        _changes.connected()
        self._emit(ZkStateChanged(ZkState.CONNECTED, client_id[0]))
        self._fill()

    async def run_timers(self) -> None:
        """Deadlines of requests, and the moment from which a silent session must be presumed lost."""
        while True:
            now = trio.current_time()
            for call, (request, due) in list(self._in_flight.items()):
                if due > now:
                    break
                del self._in_flight[call]
                # kazoo cannot take it back: it may still be carried out.
                self._emit(ZkFailed(request.ticket, ZkError.OUTCOME_UNKNOWN))
            self._fill()
            dues = [due for _, due in self._in_flight.values()][:1]
            if self._suspended_at is not None and not self._presumed:
                lost_at = self._suspended_at + self._timeout
                if now >= lost_at:
                    self._presumed = True
                    self._emit(ZkStateChanged(ZkState.PRESUMED_LOST))
                else:
                    dues.append(lost_at)
            with trio.move_on_at(min(dues, default=now + 3600)):
                await self._timer.wait()
            self._timer = trio.Event()

    # ---- requests in -------------------------------------------------------------------------

    def submit(self, requests: Iterable[ZkRequest]) -> None:
        """Take requests, in order; each is answered by exactly one event with its ticket."""
        self._waiting.extend(requests)
        if not self._usable:
            self._refuse_waiting()
            return
        self._fill()
        while len(self._waiting) > WAITING_MAX:
            self._emit(ZkFailed(self._waiting.pop().ticket, ZkError.UNAVAILABLE))

    def _refuse_waiting(self) -> None:
        while self._waiting:
            self._emit(ZkFailed(self._waiting.popleft().ticket, ZkError.UNAVAILABLE))

    def _fill(self) -> None:
        while self._waiting and self._usable and len(self._in_flight) < IN_FLIGHT_MAX:
            if self._client.client_state != KeeperState.CONNECTED:
                return  # the news is on its way: kazoo would keep the request for the next connection
            request = self._waiting.popleft()
            if not self._in_flight:
                self._timer.set()
            self._last_call += 1
            self._in_flight[self._last_call] = request, trio.current_time() + self._timeout
            self._send(self._last_call, request)

    def _send(self, call: int, request: ZkRequest) -> None:
        client = self._client
        try:
            match request:
                case ZkGet(path=path, watch=watch):
                    result = client.get_async(path, watch=self._on_watch if watch else None)
                case ZkChildren(path=path, watch=watch):
                    result = client.get_children_async(path, watch=self._on_watch if watch else None, include_data=True)
                case ZkCreate(path=path, data=data, ephemeral=ephemeral, sequential=sequential):
                    result = client.create_async(path, data, self._acl, ephemeral=ephemeral, sequence=sequential)
                case ZkSet(path=path, data=data, version=version):
                    result = client.set_async(path, data, version)
                case ZkDelete(path=path, version=version):
                    result = client.delete_async(path, version)
                case ZkMulti(operations=operations):
                    result = self._multi(operations)
        except (ValueError, TypeError) as problem:  # a path that kazoo refuses to send
            log.error("request refused: %s", problem)
            self._finish(call, ZkFailed(request.ticket, ZkError.REFUSED))
            return
        result.rawlink(partial(self._on_result, call, request))

    def _multi(self, operations: Sequence[ZkCreate | ZkSet | ZkDelete]) -> Any:
        transaction = self._client.transaction()
        for operation in operations:
            # kazoo's own methods refuse null data, which is what Waltz means by "no value yet".
            path = self._client.chroot + operation.path
            match operation:
                case ZkCreate(data=data, ephemeral=ephemeral, sequential=sequential):
                    flags = (1 if ephemeral else 0) | (2 if sequential else 0)
                    transaction._add(Create(path, data, self._acl, flags), None)
                case ZkSet(data=data, version=version):
                    transaction._add(SetData(path, data, version))
                case ZkDelete(version=version):
                    transaction._add(Delete(path, version))
        return transaction.commit_async()

    def _finish(self, call: int, answer: ZkEvent) -> None:
        if self._in_flight.pop(call, None) is not None:  # else its deadline has passed
            self._emit(answer)
            self._fill()

    def _on_result(self, call: int, request: ZkRequest, result: Any) -> None:
        try:
            value = result.get_nowait()
        except NoNodeError:
            if isinstance(request, ZkGet) and request.watch and self._usable and call in self._in_flight:
                # A read of a missing node leaves no watch in ZooKeeper, a look at its existence does.
                look = self._client.exists_async(request.path, watch=self._on_watch)
                look.rawlink(partial(self._on_look, call, request))
                return
            self._finish(call, ZkFailed(request.ticket, ZkError.NO_NODE))
        except Exception as problem:
            self._finish(call, ZkFailed(request.ticket, _error(problem)))
        else:
            self._finish(call, _answer(request, value))

    def _on_look(self, call: int, request: ZkGet, result: Any) -> None:
        try:
            missing = result.get_nowait() is None
        except Exception as problem:
            self._finish(call, ZkFailed(request.ticket, _error(problem)))
            return
        if missing:
            self._finish(call, ZkFailed(request.ticket, ZkError.NO_NODE))
        elif self._usable and call in self._in_flight:
            self._send(call, request)  # it appeared in between
        else:
            self._finish(call, ZkFailed(request.ticket, ZkError.OUTCOME_UNKNOWN))

    def _on_watch(self, event: Any) -> None:
        # Watches that die with the connection are no news: on CONNECTED everything is read again.
        if event.type != EventType.NONE:
            self._emit(ZkChanged(event.path))


def _stat(found: Any) -> ZkStat:
    return ZkStat(found.version, found.cversion, found.ephemeralOwner or 0, found.czxid)


def _answer(request: ZkRequest, value: Any) -> ZkEvent:
    match request:
        case ZkGet(ticket=ticket):
            return ZkDone(ticket, _stat(value[1]), data=value[0])
        case ZkChildren(ticket=ticket):
            return ZkDone(ticket, _stat(value[1]), children=tuple(sorted(value[0])))
        case ZkCreate(ticket=ticket):
            return ZkDone(ticket, path=value)
        case ZkSet(ticket=ticket):
            return ZkDone(ticket, _stat(value))
        case ZkDelete(ticket=ticket):
            return ZkDone(ticket)
        case ZkMulti(ticket=ticket):
            return _multi_answer(ticket, value)


def _multi_answer(ticket: int, results: Sequence[Any]) -> ZkEvent:
    """A failed transaction does not raise: the operation that failed carries its own error."""
    problems = [result for result in results if isinstance(result, BaseException)]
    if not problems:
        return ZkDone(ticket)
    own = [problem for problem in problems if not isinstance(problem, (RolledBackError, RuntimeInconsistency))]
    return ZkFailed(ticket, _error((own or problems)[0]))


@asynccontextmanager
async def open_zookeeper(
    hosts: str,
    deliver: Callable[[Sequence[ZkEvent]], None],
    *,
    session_timeout_ms: int = 30_000,
    security: ZkSecurity = NO_ZK_SECURITY,
) -> AsyncIterator[ZooKeeperBridge]:
    """A session with the ZooKeeper at `hosts` (`host:port,…/chroot`); returns before it is connected.

    Raises:
        ConfigError: `hosts` cannot be read.
    """
    bridge = ZooKeeperBridge(hosts, deliver, session_timeout_ms, security)
    async with background_nursery() as nursery:
        nursery.start_soon(bridge.run_timers)
        bridge.start()
        try:
            yield bridge
        finally:
            await bridge.stop()
