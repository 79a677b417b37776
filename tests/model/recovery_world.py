"""Simulated replicas and metadata znode around one real `Recovery`; whoever drives it picks what happens next.

Nothing happens by itself: effects wait in `pending` until `run` executes one of them, so a vector script,
a random schedule and an exhaustive search can all choose the order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from tests.twin_0132.recovery import Recovery0132
from waltz_core.base.ids import ReplicaId, ReqId
from waltz_core.base.log import Record, SessionInfo
from waltz_core.store import recovery_events as rec
from waltz_core.store.recovery import Recovery
from waltz_core.zookeeper.znodes import PartitionMetadata, ReplicaState

PARTITION = 7

Call: TypeAlias = rec.AskMax | rec.Truncate | rec.SetLowWaterMark | rec.ReadRecords | rec.WriteRecords
AnyRecovery: TypeAlias = Recovery | Recovery0132
Pending: TypeAlias = Call | rec.CasMetadata


def make_record(transaction_id: int, writer: int = 0) -> Record:
    """A record that tells the session that wrote it."""
    return Record(transaction_id, ReqId(writer.to_bytes(16, "big")), 0, b"", 0)


def writer_of(record: Record) -> int:
    """The session that wrote a record of `make_record`."""
    return int.from_bytes(record.req_id, "big")


def state(storage: str, session_id: int, closing_mark: int) -> ReplicaState:
    """A replica state of the partition under test."""
    return ReplicaState(ReplicaId(PARTITION, storage), session_id, closing_mark)


class RefusedError(Exception):
    """The storage node answers with a failure."""


class Storage:
    """One replica as a storage node keeps it: what is durable, and the fence in memory."""

    __slots__ = ("fence", "floor", "local", "log", "low", "session")

    def __init__(self, session: int, low: int, local: int, log: Sequence[Record], *, floor: bool = False) -> None:
        self.session = self.fence = session
        self.low = low
        self.local = local
        self.log = list(log)
        self.floor = floor  # ours: refuses to be cut below its low-water mark

    @property
    def max(self) -> int:
        return len(self.log) - 1

    def info(self, session: int) -> SessionInfo:
        """LastSessionInfo: fences every session before `session`."""
        if session < self.fence:
            raise RefusedError("fenced")
        self.fence = session
        return SessionInfo(self.session, self.low, self.local)

    def restart(self) -> None:
        """What was only in memory is lost."""
        self.fence = self.session

    def truncate(self, mark: int) -> None:
        if self.floor and mark < (self.low if self.max >= self.low else self.local):
            raise RefusedError("below the low-water mark")
        del self.log[mark + 1 :]

    def set_low_water_mark(self, session: int, mark: int) -> None:
        if self.max > mark or mark < self.low or self.max < self.local:
            raise RefusedError("low-water mark refused")
        self.session, self.low, self.local = session, mark, self.max

    def append(self, records: Sequence[Record]) -> None:
        for record in records:
            if record.transaction_id != self.max + 1:
                raise RefusedError("out of order")
            self.log.append(record)


class World:
    """One recovery and what it talks to."""

    def __init__(
        self,
        storages: dict[str, Storage],
        metadata: PartitionMetadata,
        make: Callable[[PartitionMetadata, int], AnyRecovery],
    ) -> None:
        self.storages = storages
        self.metadata = metadata
        self.version = 0
        self.session = metadata.session_id
        self.recovery = make(metadata, self.version)
        self.pending: list[Pending] = []
        self.told: list[rec.Effect] = []  # everything that is for the parent
        self.calls: list[Pending] = []  # everything ever asked for
        self.beyond: list[rec.ReadRecords] = []  # reads of what the source did not hold when it was asked
        self.now = 0

    @property
    def opened(self) -> bool:
        """Whether the recovery has said that the session is open."""
        return any(isinstance(effect, rec.SessionRecovered) for effect in self.told)

    def tell(self, *events: rec.Event) -> None:
        """Step the recovery."""
        out: list[rec.Effect] = []
        self.recovery.step(self.now, events, out)
        for effect in out:
            match effect:
                case (
                    rec.AskMax()
                    | rec.Truncate()
                    | rec.SetLowWaterMark()
                    | rec.ReadRecords()
                    | rec.WriteRecords()
                    | rec.CasMetadata()
                ):
                    self.pending.append(effect)
                    self.calls.append(effect)
                    if isinstance(effect, rec.ReadRecords) and self._is_beyond(effect):
                        self.beyond.append(effect)
                case _:
                    self.told.append(effect)

    def arrive(self, replica: str, **extra: int | bool | None) -> None:
        """The replica answers LastSessionInfo."""
        try:
            info = self.storages[replica].info(self.session)
        except RefusedError:
            self.tell(rec.ReplicaFenced(replica, self.storages[replica].fence))
            return
        self.tell(rec.ReplicaUp(replica, info, **extra))  # type: ignore[arg-type]  # fence and limbo

    def run(self, effect: Pending) -> None:
        """Execute one pending effect and report its answer."""
        self.pending.remove(effect)
        if isinstance(effect, rec.CasMetadata):
            self.tell(self._cas(effect))
            return
        replica = replica_of(effect)
        try:
            answer = self._call(self.storages[replica], effect)
        except RefusedError as error:
            self.tell(rec.ReplicaFailed(replica, str(error)))
            return
        self.tell(answer)

    def fail(self, replica: str, reason: str = "injected") -> None:
        """The link to a replica ends: its calls are never executed, and nothing is read for it any more."""
        self.pending = [
            effect
            for effect in self.pending
            if isinstance(effect, rec.CasMetadata)
            or replica not in (replica_of(effect), getattr(effect, "target", replica_of(effect)))
        ]
        self.tell(rec.ReplicaFailed(replica, reason))

    def take_reads(self) -> list[rec.ReadRecords]:
        """The reads that are pending, for a test that answers them itself."""
        reads = [effect for effect in self.pending if isinstance(effect, rec.ReadRecords)]
        for read in reads:
            self.pending.remove(read)
        return reads

    def deny_reads(self) -> None:
        """No source can read the first record that it is asked for."""
        for read in self.take_reads():
            self.tell(rec.RecordsDenied(read.source, read.target, read.first))

    def announce(self) -> None:
        """Another session announces itself."""
        self.metadata = PartitionMetadata(
            self.metadata.generation, self.metadata.session_id + 1, self.metadata.replica_states
        )
        self.version += 1

    def settle(self, held: Callable[[Pending], bool] = lambda effect: False, limit: int = 100_000) -> None:
        """Run everything that is not held, in order, until nothing is left."""
        for _ in range(limit):
            effect = next((e for e in self.pending if not held(e)), None)
            if effect is None:
                return
            self.run(effect)
        raise AssertionError("recovery does not come to rest")

    def told_of(self, kind: type[rec.Effect]) -> list[rec.Effect]:
        """What the parent was told of one kind."""
        return [effect for effect in self.told if isinstance(effect, kind)]

    def _is_beyond(self, effect: rec.ReadRecords) -> bool:
        return effect.first + effect.count - 1 > self.storages[effect.source].max

    def _call(self, storage: Storage, effect: Call) -> rec.Event:
        if storage.fence != self.session:
            raise RefusedError("fenced")
        match effect:
            case rec.AskMax(replica=replica):
                return rec.MaxKnown(replica, storage.max)
            case rec.Truncate(replica=replica, transaction_id=mark):
                storage.truncate(mark)
                return rec.MaxKnown(replica, storage.max)
            case rec.SetLowWaterMark(replica=replica, mark=mark):
                storage.set_low_water_mark(self.session, mark)
                return rec.Marked(replica)
            case rec.ReadRecords(source=source, target=target, first=first, count=count):
                return rec.RecordsRead(source, target, tuple(storage.log[first : first + count]))
            case rec.WriteRecords(target=target, records=records):
                storage.append(records)
                return rec.RecordsWritten(target, len(records))

    def _cas(self, effect: rec.CasMetadata) -> rec.Event:
        if effect.expected_version != self.version:
            return rec.CasLost(self.metadata, self.version)
        self.metadata = effect.metadata
        self.version += 1
        return rec.CasDone(self.version)


def replica_of(effect: Call) -> str:
    """The replica that is asked."""
    match effect:
        case rec.ReadRecords(source=source):
            return source
        case rec.WriteRecords(target=target):
            return target
        case _:
            return effect.replica
