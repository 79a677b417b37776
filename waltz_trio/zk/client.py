"""ZooKeeper for tools: plain awaitable calls that raise."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import trio

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
from waltz_core.base.errors import ClusterError
from waltz_trio.base.znodes import ZnodeStore
from waltz_trio.zk.embedded import EmbeddedZnodes
from waltz_trio.zk.security import NO_ZK_SECURITY, ZkSecurity
from waltz_trio.zk.store import open_znode_store


class ZnodeError(ClusterError):
    """A request to ZooKeeper that did not succeed; `path` is what it was about."""

    error = ZkError.REFUSED

    def __init__(self, path: str, text: str | None = None) -> None:
        super().__init__(text or f"ZooKeeper: {self.error.value}: {path}")
        self.path = path


class NoNodeError(ZnodeError):
    """The node, or its parent, does not exist."""

    error = ZkError.NO_NODE


class NodeExistsError(ZnodeError):
    """The node exists already."""

    error = ZkError.NODE_EXISTS


class BadVersionError(ZnodeError):
    """Somebody else changed the node."""

    error = ZkError.BAD_VERSION


class NotEmptyError(ZnodeError):
    """The node has children."""

    error = ZkError.NOT_EMPTY


class UnavailableError(ZnodeError):
    """ZooKeeper was not reached; nothing was changed."""

    error = ZkError.UNAVAILABLE


class OutcomeUnknownError(ZnodeError):
    """The connection broke before the answer: the change may have been made, or may be made yet."""

    error = ZkError.OUTCOME_UNKNOWN


class SessionExpiredError(ZnodeError):
    """The session ended; nothing was changed by this request."""

    error = ZkError.EXPIRED


class ZnodeRefusedError(ZnodeError):
    """ZooKeeper does not allow it."""


_TYPES = {
    kind.error: kind
    for kind in (
        NoNodeError,
        NodeExistsError,
        BadVersionError,
        NotEmptyError,
        UnavailableError,
        OutcomeUnknownError,
        SessionExpiredError,
        ZnodeRefusedError,
    )
}

READ_ATTEMPTS = 3


class _Answer:
    """The place for one answer."""

    def __init__(self) -> None:
        self.event = trio.Event()
        self.value: ZkDone | ZkError = ZkError.OUTCOME_UNKNOWN


class ZnodeClient:
    """One session. Made by `open_znode_client`; all paths are absolute, below the chroot if there is one."""

    def __init__(self, where: str, connect_timeout: float) -> None:
        self._where = where
        self._connect_timeout = connect_timeout
        self._tickets = itertools.count(1)
        self._answers: dict[int, _Answer] = {}
        self._changes: dict[str, trio.Event] = {}
        self._connected = trio.Event()
        self._closed = False
        self.session_id = 0
        self.store: ZnodeStore | None = None

    def deliver(self, events: Sequence[ZkEvent]) -> None:
        """Take what the store says."""
        for event in events:
            match event:
                case ZkDone(ticket=ticket):
                    self._settle(ticket, event)
                case ZkFailed(ticket=ticket, error=error):
                    self._settle(ticket, error)
                case ZkChanged(path=path):
                    self._changes.pop(path, trio.Event()).set()
                case ZkStateChanged():
                    self._on_state(event)

    def _settle(self, ticket: int, value: ZkDone | ZkError) -> None:
        answer = self._answers.pop(ticket, None)
        if answer is not None:
            answer.value = value
            answer.event.set()

    def _on_state(self, event: ZkStateChanged) -> None:
        if event.state is ZkState.CONNECTED:
            self.session_id = event.session_id
            self._connected.set()
            return
        if self._connected.is_set():
            self._connected = trio.Event()
        changes, self._changes = self._changes, {}
        for changed in changes.values():
            changed.set()  # watches are gone: who waits must look again
        if event.state is ZkState.CLOSED:
            self._closed = True
            self._connected.set()

    async def wait_connected(self) -> None:
        """Wait for a usable session.

        Raises:
            UnavailableError: not within the time-out.
        """
        with trio.move_on_after(self._connect_timeout):
            await self._connected.wait()
        if self._closed:
            raise UnavailableError("/", f"ZooKeeper at {self._where} refused the session")
        if not self._connected.is_set():
            raise UnavailableError(
                "/", f"ZooKeeper at {self._where} was not reached within {self._connect_timeout:g} s"
            )

    async def _ask(self, path: str, make: Callable[[int], ZkRequest], *, repeat: bool) -> ZkDone:
        """Send a request, again if it cannot have been carried out or does no harm twice."""
        for attempt in itertools.count(1):
            await self.wait_connected()
            assert self.store is not None
            ticket = next(self._tickets)
            answer = self._answers[ticket] = _Answer()
            self.store.submit([make(ticket)])
            try:
                await answer.event.wait()
            finally:
                self._answers.pop(ticket, None)
            if isinstance(answer.value, ZkDone):
                return answer.value
            again = answer.value is ZkError.UNAVAILABLE or (repeat and answer.value is ZkError.OUTCOME_UNKNOWN)
            if not again or attempt == READ_ATTEMPTS:
                raise _TYPES[answer.value](path)
        raise AssertionError("unreachable")

    async def get(self, path: str, *, watch: bool = False) -> tuple[bytes | None, ZkStat]:
        """Data and stat of a node; None is null data.

        Raises:
            ZnodeError: of the kind that says why.
        """
        done = await self._ask(path, lambda ticket: ZkGet(ticket, path, watch), repeat=True)
        assert done.stat is not None
        return done.data, done.stat

    async def exists(self, path: str) -> ZkStat | None:
        """Stat of a node, None where there is none.

        Raises:
            ZnodeError: of the kind that says why.
        """
        try:
            return (await self.get(path))[1]
        except NoNodeError:
            return None

    async def children(self, path: str) -> tuple[str, ...]:
        """Sorted names of the children.

        Raises:
            ZnodeError: of the kind that says why.
        """
        return (await self._ask(path, lambda ticket: ZkChildren(ticket, path), repeat=True)).children

    async def create(
        self, path: str, data: bytes | None = None, *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        """Create a node and return its path.

        Raises:
            ZnodeError: of the kind that says why.
        """
        done = await self._ask(path, lambda ticket: ZkCreate(ticket, path, data, ephemeral, sequential), repeat=False)
        return done.path

    async def set(self, path: str, data: bytes | None, version: int) -> None:
        """Write data if the version matches; -1 matches every version.

        Raises:
            ZnodeError: of the kind that says why.
        """
        await self._ask(path, lambda ticket: ZkSet(ticket, path, data, version), repeat=False)

    async def delete(self, path: str, version: int = -1) -> None:
        """Delete a node if the version matches.

        Raises:
            ZnodeError: of the kind that says why.
        """
        await self._ask(path, lambda ticket: ZkDelete(ticket, path, version), repeat=False)

    async def multi(self, operations: Sequence[ZkCreate | ZkSet | ZkDelete]) -> None:
        """Several writes, all or none.

        Raises:
            ZnodeError: of the kind that says why the first refused one was refused.
        """
        paths = ", ".join(operation.path for operation in operations)
        await self._ask(paths, lambda ticket: ZkMulti(ticket, tuple(operations)), repeat=False)

    async def walk(self, path: str) -> list[str]:
        """Every node at and below `path`, parents first.

        Raises:
            ZnodeError: of the kind that says why.
        """
        paths = [path]
        for name in await self.children(path):
            paths += await self.walk(f"{path}/{name}")
        return paths

    @asynccontextmanager
    async def lock(self, path: str, on_wait: Callable[[ZkStat], None] | None = None) -> AsyncIterator[None]:
        """Hold the ephemeral node `path` as a lock; waits as long as another process holds it.

        Raises:
            ZnodeError: of the kind that says why the lock could not be asked for.
        """
        waited = False
        while not await self._try_lock(path):
            changed = self._changes.setdefault(path, trio.Event())
            try:
                _, stat = await self.get(path, watch=True)
            except NoNodeError:
                continue
            if stat.ephemeral_owner == self.session_id:
                break  # ours: the answer to its creation was lost
            if not waited and on_wait is not None:
                on_wait(stat)
                waited = True
            await changed.wait()
        try:
            yield
        finally:
            with trio.CancelScope(shield=True), trio.move_on_after(self._connect_timeout):
                await self._unlock(path)

    async def _try_lock(self, path: str) -> bool:
        try:
            await self.create(path, None, ephemeral=True)
        except (NodeExistsError, OutcomeUnknownError):
            return False
        return True

    async def _unlock(self, path: str) -> None:
        """Delete the lock if it is ours; the end of the session deletes it too."""
        try:
            if (await self.get(path))[1].ephemeral_owner == self.session_id:
                await self.delete(path)
        except ZnodeError:
            pass


@asynccontextmanager
async def open_znode_client(
    where: str | EmbeddedZnodes,
    *,
    session_timeout_ms: int = 30_000,
    connect_timeout_ms: int = 10_000,
    security: ZkSecurity = NO_ZK_SECURITY,
) -> AsyncIterator[ZnodeClient]:
    """A connected session for a tool.

    Raises:
        ConfigError: the address cannot be read.
        UnavailableError: ZooKeeper was not reached within the connect time-out.
    """
    client = ZnodeClient(where if isinstance(where, str) else "this process", connect_timeout_ms / 1000)
    async with open_znode_store(
        where, client.deliver, session_timeout_ms=session_timeout_ms, security=security
    ) as store:
        client.store = store
        await client.wait_connected()
        yield client
