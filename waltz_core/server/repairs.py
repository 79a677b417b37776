"""Repairs that this server starts: a replica reports damage, its node learns from which nodes to fetch good records.

    wanted ──▶ reads the admin ports from ZooKeeper ──▶ dials the node ──▶ opens ──▶ asks ──▶ ended, with an outcome

One repair per replica at a time, and a pause before the next, which grows as long as damage stays. Nothing of this is
durable: what a node repairs is on its disk before it answers, and a server that restarts hears of damage again when it
greets the replica.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TypeAlias

from waltz_core.base.alarms import SetsAlarms
from waltz_core.base.contract import earliest
from waltz_core.base.edge import Closed, Dialed, Level, Received, Report, ZkDone, ZkFailed, ZkGet
from waltz_core.base.errors import ConfigError, ProtocolError
from waltz_core.base.ids import Endpoint, parse_endpoint
from waltz_core.base.outbox import Emits
from waltz_core.base.pending import Awaits
from waltz_core.server.context import ClusterState, Dials, PortsRead, StorageAlarm
from waltz_core.wire import admin_messages as admin
from waltz_core.wire.admin_link import AdminLink
from waltz_core.wire.dialer import DialerEffect, DialState
from waltz_core.wire.shared import name_of
from waltz_core.zookeeper.znodes import decode_connection_metadata

ANSWER_MS = 600_000  # a repair may have to fetch and write a lot
AGAIN_MS = 30_000  # the same replica is not sent two repairs within this time
AGAIN_MAX_MS = 600_000  # where something stays damaged it is tried again, less and less often

RepairEffect: TypeAlias = DialerEffect | ZkGet
_Key: TypeAlias = tuple[int, str]


class _Job:
    """One repair: asks ZooKeeper for the admin ports, then the node for the repair."""

    __slots__ = ("asked", "link", "sources", "ticket", "until")

    def __init__(self, ticket: int, until: int) -> None:
        self.ticket = ticket
        self.until = until
        self.link: AdminLink | None = None
        self.sources: tuple[Endpoint, ...] = ()
        self.asked = False


class Repairs:
    """All repairs under way, one per replica at most, and when a replica may be sent the next one."""

    def __init__(
        self,
        root: str,
        cluster: ClusterState,
        out: Emits[RepairEffect],
        awaits: Awaits[PortsRead],
        alarms: SetsAlarms[StorageAlarm],
        new_conn: Callable[[Dials], int],
    ) -> None:
        self._path = f"{root}/store/connection"
        self._cluster = cluster
        self._out = out
        self._awaits = awaits
        self._alarms = alarms
        self._new_conn = partial(new_conn, self)
        self._jobs: dict[_Key, _Job] = {}
        self._links: dict[int, tuple[_Key, AdminLink]] = {}  # by connection; also those that are given up
        self._not_before: dict[_Key, int] = {}
        self._last_outcome: dict[_Key, str] = {}
        self._again: dict[_Key, int] = {}  # replicas that stay damaged, and when they are tried again
        self._pause: dict[_Key, int] = {}

    def asked(self) -> Iterator[tuple[int, str]]:
        """Partition and replica of each repair that a storage node has yet to answer."""
        return (key for key, job in self._jobs.items() if job.link is not None)

    def wanted(self, now: int, partition_id: int, replica: str) -> None:
        """A replica is damaged, or not in service."""
        key = partition_id, replica
        if key in self._jobs or now < self._not_before.get(key, now):
            return
        self._not_before[key] = now + AGAIN_MS
        pause = self._pause[key] = min(2 * self._pause.get(key, AGAIN_MS // 2), AGAIN_MAX_MS)
        self._again[key] = now + pause
        job = self._jobs[key] = _Job(self._awaits.ask(PortsRead(*key)), now + ANSWER_MS)
        self._out.put(ZkGet(job.ticket, self._path))
        self._set_alarm()

    def ports_read(self, event: ZkDone | ZkFailed, asked: PortsRead) -> None:
        """The admin ports are known, or cannot be read; a repair that was given up meanwhile ignores them."""
        key = asked.partition_id, asked.replica
        job = self._jobs.get(key)
        if job is None or job.ticket != event.ticket:
            return
        ports: Mapping[str, int] = {}
        if isinstance(event, ZkDone):
            try:
                ports = dict(decode_connection_metadata(event.data or b"").connections)
            except ProtocolError as error:
                self._say(key, f"{self._path}: {error}")
        joined = self._cluster.joined
        target = _admin_port(asked.replica, ports)
        if target is None or joined is None:
            self._finish(key, f"the admin port of {asked.replica} is not known")
            return
        replicas = self._cluster.storages_of(asked.partition_id)
        others = (_admin_port(other, ports) for other in replicas if other != asked.replica)
        job.sources = tuple(source for source in others if source is not None)
        job.link = link = AdminLink(target, joined.cluster_key, joined.num_partitions, self._out, self._new_conn)
        assert link.conn is not None
        self._links[link.conn] = key, link

    def dialed(self, now: int, event: Dialed) -> None:
        """The node is reached."""
        _, link = self._links[event.conn]
        link.dialed(now)

    def received(self, now: int, event: Received) -> None:
        """Bytes from the node; none are taken once its repair has an outcome, as the link is given up by that."""
        key, link = self._links[event.conn]
        answers = link.received(event.data)
        if link.state is DialState.READY and not self._jobs[key].asked:
            self._ask(key, link)
        for answer in answers:
            self._on_answer(key, link, answer)

    def closed(self, now: int, event: Closed) -> None:
        """A connection has ended, perhaps before the answer."""
        key, link = self._links.pop(event.conn)
        link.closed(now, event.reason)
        job = self._jobs.get(key)
        if job is not None and job.link is link:
            self._finish(key, f"its admin port: {link.endpoint}: {link.trouble}")

    def due(self, now: int, ours: Callable[[int, str], bool]) -> None:
        """The alarm rang; `ours` tells whether a partition is served here and a replica belongs to it."""
        for key, job in list(self._jobs.items()):
            if now >= job.until:
                if job.link is not None:
                    job.link.give_up("no answer")
                self._finish(key, f"no answer within {ANSWER_MS // 1000} s")
        for key in [key for key, at in self._again.items() if now >= at]:
            if key in self._jobs:
                self._again[key] = self._jobs[key].until  # by then it is over, and may have left something
                continue
            del self._again[key]
            if ours(*key):
                self.wanted(now, *key)
            else:
                self._pause.pop(key, None)
        self._set_alarm()

    def _set_alarm(self) -> None:
        self._alarms.set(
            StorageAlarm.REPAIRS, earliest(*(job.until for job in self._jobs.values()), *self._again.values())
        )

    def _ask(self, key: _Key, link: AdminLink) -> None:
        job = self._jobs[key]
        job.asked = True
        if link.codec:
            link.ask(admin.RepairRequest(link.next_seq(), key[0], job.sources, ()))
        else:
            link.give_up("no repair")
            self._finish(key, "it runs 0.13.2, which cannot be repaired from here")

    def _on_answer(self, key: _Key, link: AdminLink, answer: admin.AdminMessage) -> None:
        if key not in self._jobs:
            return
        link.give_up("the repair has ended")
        match answer:
            case admin.RepairResponse():
                if not _left(answer):
                    self._again.pop(key, None)
                    self._pause.pop(key, None)
                self._finish(key, _text_of(answer))
            case admin.AdminFailureResponse(message=message):
                self._finish(key, f"refused: {message}")
            case _:
                self._finish(key, f"unexpected answer {type(answer).__name__}")

    def _finish(self, key: _Key, outcome: str) -> None:
        del self._jobs[key]
        self._set_alarm()
        self._say(key, outcome)

    def _say(self, key: _Key, text: str) -> None:
        """Report an outcome, but not the same one again and again."""
        if self._last_outcome.get(key) != text:
            self._last_outcome[key] = text
            self._out.put(Report(Level.WARNING, f"partition {key[0]}: repair of replica {key[1]}: {text}"))


def _admin_port(storage: str, ports: Mapping[str, int]) -> Endpoint | None:
    port = ports.get(storage)
    try:
        return None if port is None else Endpoint(parse_endpoint(storage).host, port)
    except ConfigError:
        return None


def _left(answer: admin.RepairResponse) -> list[admin.RepairedRange]:
    """What is still damaged."""
    good = admin.RepairOutcome.REPAIRED, admin.RepairOutcome.NOT_SUSPECT
    return [one for one in answer.ranges if one.outcome not in good]


def _text_of(answer: admin.RepairResponse) -> str:
    left = _left(answer)
    count = sum(one.last_id - one.first_id + 1 for one in answer.ranges if one.outcome == admin.RepairOutcome.REPAIRED)
    text = f"{count} transactions repaired"
    if left:
        shown = ", ".join(
            f"{one.first_id}..{one.last_id} {name_of(admin.RepairOutcome, one.outcome)}" for one in left[:10]
        )
        text += f"; waiting for an operator: {shown}"
    return f"{text} ({answer.message})" if answer.message else text
