"""Takes client ids from ZooKeeper for clients that do not speak to it themselves.

One read and one conditional write per id, for one client at a time; a lost answer skips an id, as in 0.13.2.

    idle ── asked ──▶ READ ── counter ──▶ WRITE ── done ──▶ given, then idle, or READ for the next client
              ▲                             │
              └──── version changed ────────┘          any other failure: READ again after a pause, which grows

The id is the client's when ZooKeeper has the raised counter: from then on nobody else gets it. No id is taken for a
connection that has ended; one that is being written then goes to the next client, or is skipped.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import TypeAlias, assert_never

from waltz_core.base.alarms import SetsAlarms
from waltz_core.base.attempts import Attempts
from waltz_core.base.contract import Rng
from waltz_core.base.edge import Report, ZkDone, ZkFailed, ZkGet, ZkRequest, ZkSet
from waltz_core.base.errors import ProtocolError
from waltz_core.base.ids import ReqId
from waltz_core.base.outbox import Emits
from waltz_core.base.pending import Awaits
from waltz_core.cluster.identity import next_id
from waltz_core.server.context import ClusterAlarm, IdStep
from waltz_core.zookeeper.attempts import ZnodeAttempts
from waltz_core.zookeeper.znodes import encode_id_counter

_PAUSE_MIN_MS = 100
_PAUSE_MAX_MS = 2_000  # clients wait

_Given: TypeAlias = tuple[int, ReqId, int]  # conn, request, client id


class ClientIds:
    """Who waits for an id, and the one that is being taken."""

    def __init__(
        self,
        root: str,
        out: Emits[ZkRequest | Report],
        awaits: Awaits[IdStep],
        alarms: SetsAlarms[ClusterAlarm],
        rng: Rng,
    ) -> None:
        self._path = f"{root}/ids/client"
        self._out = out
        self._awaits = awaits
        self._attempts = ZnodeAttempts(
            Attempts(_PAUSE_MIN_MS, _PAUSE_MAX_MS, rng),
            out,
            partial(alarms.set, ClusterAlarm.CLIENT_IDS),
            failing=f"ZooKeeper, {self._path}: clients get no ids",
            works=f"ZooKeeper, {self._path}: clients get ids again",
        )
        self._asked: OrderedDict[int, ReqId] = OrderedDict()  # by connection; the first one is served
        self._given: list[_Given] = []
        self._busy = False  # an answer is awaited, or the pause before the next try
        self._next = -1  # the id that is being written

    def ask(self, conn: int, req_id: ReqId) -> None:
        """A client wants an id, and waits for no other."""
        self._asked[conn] = req_id
        if not self._busy:
            self._read()

    def waits(self, conn: int) -> bool:
        """Whether a connection has asked and was not answered yet."""
        return conn in self._asked

    def gone(self, conn: int) -> None:
        """A connection has ended: nobody wants its id any more."""
        self._asked.pop(conn, None)

    def take(self) -> list[_Given]:
        """Ids given since the last call."""
        given, self._given = self._given, []
        return given

    def due(self) -> None:
        """Try again."""
        self._read()

    def answered(self, now: int, event: ZkDone | ZkFailed, step: IdStep) -> None:
        """ZooKeeper has answered."""
        if isinstance(event, ZkFailed):
            if self._attempts.lost(now, event.error):
                self._read()
            return
        match step:
            case IdStep.READ if not self._asked:
                self._read()
            case IdStep.READ:
                self._write(now, event)
            case IdStep.WRITE:
                if self._asked:
                    self._given.append((*self._asked.popitem(last=False), self._next))
                self._attempts.succeeded()
                self._read()
            case _:
                assert_never(step)

    def _read(self) -> None:
        """For whoever is the first now, if there is anybody."""
        self._busy = bool(self._asked)
        if not self._busy:
            self._attempts.give_up()
            return
        self._out.put(ZkGet(self._awaits.ask(IdStep.READ), self._path))

    def _write(self, now: int, event: ZkDone) -> None:
        try:
            self._next, version = next_id(event)
        except ProtocolError as error:
            self._attempts.failed(now, str(error))
            return
        ticket = self._awaits.ask(IdStep.WRITE)
        self._out.put(ZkSet(ticket, self._path, encode_id_counter(self._next), version))
