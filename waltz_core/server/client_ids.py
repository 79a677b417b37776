"""Takes client ids from ZooKeeper for clients that do not speak to it themselves."""

from __future__ import annotations

from collections import deque
from typing import TypeAlias

from waltz_core.base.contract import Tickets
from waltz_core.base.edge import ZkDone, ZkError, ZkFailed, ZkGet, ZkRequest, ZkSet
from waltz_core.base.errors import ProtocolError
from waltz_core.base.ids import ReqId
from waltz_core.zookeeper.znodes import decode_id_counter, encode_id_counter

_RETRY_MS = 100

_Given: TypeAlias = tuple[int, ReqId, int]  # conn, request, client id


class ClientIds:
    """One read and one conditional write per id, one at a time; a lost answer skips an id, as in 0.13.2."""

    def __init__(self, root: str, tickets: Tickets) -> None:
        self._path = f"{root}/ids/client"
        self._tickets = tickets
        self._asked: deque[tuple[int, ReqId]] = deque()
        self._given: list[_Given] = []
        self._requests: list[ZkRequest] = []
        self._ticket: int | None = None
        self._next: int | None = None  # the id being written, None while reading
        self._retry_at: int | None = None

    def ask(self, conn: int, req_id: ReqId) -> None:
        """A client wants an id."""
        self._asked.append((conn, req_id))
        if self._ticket is None and self._retry_at is None:
            self._read()

    def waits(self, conn: int) -> bool:
        """Whether a connection has asked and was not answered yet."""
        return any(one == conn for one, _ in self._asked)

    def requests(self) -> list[ZkRequest]:
        """What to ask ZooKeeper, since the last call."""
        requests, self._requests = self._requests, []
        return requests

    def take(self) -> list[_Given]:
        """Ids given since the last call."""
        given, self._given = self._given, []
        return given

    def deadline(self) -> int | None:
        """When to try again."""
        return self._retry_at

    def due(self) -> None:
        """Try again."""
        self._retry_at = None
        self._read()

    def answered(self, now: int, event: ZkDone | ZkFailed) -> bool:
        """An answer of ZooKeeper; False if it is not ours."""
        if event.ticket != self._ticket:
            return False
        self._ticket = None
        if isinstance(event, ZkFailed):
            if event.error is ZkError.BAD_VERSION:
                self._read()
            else:
                self._retry_at = now + _RETRY_MS
        elif self._next is None:
            self._write(now, event)
        else:
            self._given.append((*self._asked.popleft(), self._next))
            if self._asked:
                self._read()
        return True

    def _read(self) -> None:
        self._next = None
        self._ticket = self._tickets.take()
        self._requests.append(ZkGet(self._ticket, self._path))

    def _write(self, now: int, event: ZkDone) -> None:
        assert event.stat is not None
        try:
            self._next = decode_id_counter(event.data or b"") + 1
        except ProtocolError:
            self._retry_at = now + _RETRY_MS
            return
        self._ticket = self._tickets.take()
        self._requests.append(ZkSet(self._ticket, self._path, encode_id_counter(self._next), event.stat.version))
