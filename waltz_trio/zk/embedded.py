"""A znode store inside this process, kept in one file: `waltz dev` and tests need no ZooKeeper.

Persistent nodes survive a crash: an answer leaves only after the file it is in was synced and renamed into
place. Ephemeral nodes belong to sessions of this process and die with it.
"""

from __future__ import annotations

import fcntl
import json
import os
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import trio

from waltz_core.base.edge import ZkChanged, ZkError, ZkEvent, ZkFailed, ZkRequest, ZkState, ZkStateChanged
from waltz_core.base.errors import ConfigError, CorruptionError
from waltz_core.zookeeper.znode_tree import StoredTree, Znode, ZnodeTree
from waltz_trio.base import durable
from waltz_trio.base.background import background_nursery

_FORMAT = "waltz znodes 1"


class EmbeddedSession:
    """One session with an embedded store."""

    def __init__(
        self, store: EmbeddedZnodes, deliver: Callable[[Sequence[ZkEvent]], None], session_timeout_ms: int
    ) -> None:
        self._store = store
        self.deliver = deliver
        self.session_timeout_ms = session_timeout_ms
        self.session_id = 0
        self.connected = False
        self.ended = False

    def submit(self, requests: Iterable[ZkRequest]) -> None:
        """Take requests, in order; each is answered by exactly one event with its ticket."""
        if not self.ended:
            self._store.enqueue(self, requests)

    def abandon(self) -> None:
        """End as a killed process does: the ephemeral nodes stay for a session time-out."""
        if not self.ended:
            self.ended = True
            self._store.forsake(self)


class EmbeddedZnodes:
    """The store. Made by `open_embedded_znodes`."""

    def __init__(self, path: Path | None, tree: ZnodeTree, nursery: trio.Nursery) -> None:
        self._path = path
        self._tree = tree
        self._saved = tree.stored()
        self._nursery = nursery
        self._queue: list[tuple[EmbeddedSession, ZkRequest | Callable[[], None]]] = []
        self._wake = trio.Event()
        self._sessions: dict[int, EmbeddedSession] = {}
        self._events: dict[EmbeddedSession, list[ZkEvent]] = {}

    # ---- sessions ----------------------------------------------------------------------------

    @contextmanager
    def session(
        self, deliver: Callable[[Sequence[ZkEvent]], None], *, session_timeout_ms: int = 30_000
    ) -> Iterator[EmbeddedSession]:
        """A session; leaving ends it and deletes its ephemeral nodes at once."""
        session = EmbeddedSession(self, deliver, session_timeout_ms)
        self._command(session, lambda: self._connect(session))
        try:
            yield session
        finally:
            if not session.ended:
                session.ended = True
                # Not queued behind a task that may be cancelled with us: the nodes must go now.
                self._sessions.pop(session.session_id, None)
                self._tree.close_session(session.session_id)
                self._command(session, self._collect_watches)

    def interrupt(self, session: EmbeddedSession) -> None:
        """Break a session's connection, for tests and demos; `resume` or `expire` follows."""
        self._command(session, lambda: self._interrupt(session))

    def resume(self, session: EmbeddedSession) -> None:
        """Connect an interrupted session again: the same one, if it lives."""
        self._command(session, lambda: self._connect(session))

    def expire(self, session: EmbeddedSession) -> None:
        """End a session from this side, for tests and demos; the process gets a new one at once."""
        self._command(session, lambda: self._expire(session))

    def forsake(self, session: EmbeddedSession) -> None:
        """Keep a silent session's ephemeral nodes for its time-out."""
        self._sessions.pop(session.session_id, None)
        self._tree.forget_watches(session.session_id)
        self._nursery.start_soon(self._reap, session)

    async def _reap(self, session: EmbeddedSession) -> None:
        await trio.sleep(session.session_timeout_ms / 1000)
        self._command(session, lambda: self._close(session))

    # ---- requests ----------------------------------------------------------------------------

    def enqueue(self, session: EmbeddedSession, requests: Iterable[ZkRequest]) -> None:
        """Called by sessions: take requests in order."""
        self._queue.extend((session, request) for request in requests)
        self._wake.set()

    def _command(self, session: EmbeddedSession, action: Callable[[], None]) -> None:
        self._queue.append((session, action))
        self._wake.set()

    async def run(self) -> None:
        """Carry out what is queued, save, then answer; until cancelled."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            queue, self._queue = self._queue, []
            for session, work in queue:
                if callable(work):
                    work()
                else:
                    self._apply(session, work)
            await self._save()
            events, self._events = self._events, {}
            for session, mine in events.items():
                if not session.ended:
                    session.deliver(mine)

    def _apply(self, session: EmbeddedSession, request: ZkRequest) -> None:
        if not session.connected:
            self._tell(session, ZkFailed(request.ticket, ZkError.UNAVAILABLE))
            return
        answer = self._tree.apply(session.session_id, request)
        self._collect_watches()  # a watch that a write fires is heard before the answer to the write
        self._tell(session, answer)

    def _tell(self, session: EmbeddedSession, event: ZkEvent) -> None:
        self._events.setdefault(session, []).append(event)

    def _collect_watches(self) -> None:
        for session_id, path in self._tree.fired():
            watcher = self._sessions.get(session_id)
            if watcher is not None:
                self._tell(watcher, ZkChanged(path))

    def _connect(self, session: EmbeddedSession) -> None:
        if session.ended:
            return
        if not self._tree.has_session(session.session_id):
            session.session_id = self._tree.open_session()
        self._sessions[session.session_id] = session
        session.connected = True
        self._tell(session, ZkStateChanged(ZkState.CONNECTED, session.session_id))

    def _interrupt(self, session: EmbeddedSession) -> None:
        session.connected = False
        self._tree.forget_watches(session.session_id)
        self._tell(session, ZkStateChanged(ZkState.SUSPENDED))

    def _expire(self, session: EmbeddedSession) -> None:
        self._close(session)
        self._tell(session, ZkStateChanged(ZkState.EXPIRED))
        self._connect(session)

    def _close(self, session: EmbeddedSession) -> None:
        self._sessions.pop(session.session_id, None)
        session.connected = False
        self._tree.close_session(session.session_id)
        self._collect_watches()

    # ---- the file ----------------------------------------------------------------------------

    async def _save(self) -> None:
        stored = self._tree.stored()
        if self._path is None or stored.znodes == self._saved.znodes:
            return
        self._saved = stored
        await trio.to_thread.run_sync(write_znodes, self._path, stored)


@asynccontextmanager
async def open_embedded_znodes(path: str | os.PathLike[str] | None = None) -> AsyncIterator[EmbeddedZnodes]:
    """A store kept in the file `path`, or in memory only.

    Raises:
        ConfigError: another process uses the file.
        CorruptionError: the file is damaged.
    """
    file = None if path is None else Path(path)
    with _only_user(file):
        stored = None if file is None else read_znodes(file)
        async with background_nursery() as nursery:
            store = EmbeddedZnodes(file, ZnodeTree(stored), nursery)
            nursery.start_soon(store.run)
            yield store


@contextmanager
def _only_user(path: Path | None) -> Iterator[None]:
    """Two processes on one file would overwrite each other's writes."""
    if path is None:
        yield
        return
    lock = durable.open_file(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"{path} is in use by another process") from None
        yield
    finally:
        durable.close(lock)


def write_znodes(path: Path, stored: StoredTree) -> None:
    """Replace the file durably."""
    rows = [
        [z.path, None if z.data is None else z.data.hex(), z.version, z.created, z.czxid, z.mzxid, z.pzxid]
        for z in stored.znodes
    ]
    body = json.dumps({"zxid": stored.zxid, "znodes": rows}, separators=(",", ":"))
    text = f"{_FORMAT} {zlib.crc32(body.encode()):08x}\n{body}\n"
    durable.replace_file(path, text.encode("ascii"))


def read_znodes(path: Path) -> StoredTree | None:
    """What the file holds; None where there is no file yet.

    Raises:
        CorruptionError: the file is not what `write_znodes` wrote.
    """
    try:
        head, _, body = path.read_text(encoding="ascii").partition("\n")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        head, body = "", ""
    body = body.removesuffix("\n")
    if head != f"{_FORMAT} {zlib.crc32(body.encode()):08x}":
        raise CorruptionError(f"{path} is damaged or not a file of znodes: its checksum does not match; restore it")
    content: dict[str, Any] = json.loads(body)
    znodes = tuple(
        Znode(name, None if data is None else bytes.fromhex(data), version, created, 0, 0, czxid, mzxid, pzxid)
        for name, data, version, created, czxid, mzxid, pzxid in content["znodes"]
    )
    return StoredTree(content["zxid"], znodes)
