"""Exhaustive search over store sessions of one partition: real `Recovery`, simulated replicas and znode.

Replicas take records in order or lag, sessions are superseded at any point and linger, the outcome of a
metadata write may be unknown, replicas restart (and forget their fence) or lose their files, the
assignment changes. Every reachable state within the bounds is visited once, up to renaming of replicas.

    python -m tests.model.recovery_model --sessions 3 --ids 2 --wipes 1 --lingering 0
    python -m tests.model.recovery_model --all --json PATH

What is checked in every state:

* S1, S5, I7: a session opens with everything committed before, with the same contents;
* S2, I10: every replica that may take appends holds exactly the committed log up to the decided mark;
* S4, I4: whoever votes is named in ZooKeeper, in that session, unresolved, before its vote counts;
* S6: the arrival of a replica that took part in the last session cuts no committed record;
* S12: a replica named in a session has that session on disk, unless its files were lost since;
* L5: recovery comes to rest; L1, on every n-th state: with all replicas up, the next session opens.

Reading a replica's highest id or its records is done at once: nobody but the session that asks can
change what it sees. Everything else may be overtaken by anything.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import attrs

from tests.model.recovery_world import PARTITION, Pending, Storage, make_record, replica_of, writer_of
from waltz_core.base.log import SessionInfo
from waltz_core.base.quorum import decide, majority
from waltz_core.store import recovery_events as rec
from waltz_core.store.recovery import Recovery
from waltz_core.zookeeper.partition_metadata import states_by_storage
from waltz_core.zookeeper.znodes import EMPTY_METADATA, UNRESOLVED, PartitionMetadata


class Bounds(NamedTuple):
    """How far the search goes."""

    sessions: int = 3  # ids 0..sessions-1
    ids: int = 2  # transactions 0..ids-1
    wipes: int = 0  # replicas that lose their files
    restarts: int = 0
    limbos: int = 0  # replicas whose log turns out to be damaged: they refuse until they are repaired
    changes: int = 0  # of the assignment
    unknown: int = 0  # metadata writes whose outcome the session does not learn
    lingering: int = 1  # superseded sessions that still act
    fresh: bool = False  # start with an empty znode instead of an open session
    assignments: tuple[str, ...] = ("abc",)  # the first one to start with
    lagging: bool = False  # start with a member that slept through the last session


class ViolationError(Exception):
    """An invariant does not hold."""


class Session:
    """One server's store session: a real recovery, then a minimal appender."""

    __slots__ = ("acked", "assigned", "greeted", "keys", "next", "opened", "pending", "recovery", "session_id")

    def __init__(self, session_id: int, assigned: str, recovery: Recovery) -> None:
        self.session_id = session_id
        self.assigned = assigned
        self.recovery = recovery
        self.pending: list[Pending] = []
        self.greeted = ""  # replicas that had LastSessionInfo
        self.acked: dict[str, int] = {}  # highest durable id of every replica that may take appends
        self.opened = False
        self.next = 0  # next id to append, once open
        self.keys: dict[str, tuple[object, ...]] = {}  # `_member_key`, remembered while nothing changes


class State:
    """Everything: what survives, and the sessions that act."""

    __slots__ = (
        "assigned",
        "changes",
        "committed",
        "limbo",
        "limbos",
        "metadata",
        "restarts",
        "sessions",
        "storages",
        "unknown",
        "version",
        "wiped",
        "wipes",
    )

    def __init__(self, bounds: Bounds) -> None:
        names = sorted(set("".join(bounds.assignments)))
        self.storages = {name: Storage(-1, -1, -1, ()) for name in names}
        self.metadata: PartitionMetadata = EMPTY_METADATA
        self.version = 0
        self.assigned = bounds.assignments[0]
        self.sessions: list[Session] = []  # those that still act, the current one last
        self.committed: tuple[int, ...] = ()  # writer of every committed record
        self.wiped: frozenset[str] = frozenset()  # lost their files and were not marked since
        self.limbo: frozenset[str] = frozenset()  # damaged and not repaired
        self.wipes, self.restarts, self.limbos = bounds.wipes, bounds.restarts, bounds.limbos
        self.changes, self.unknown = bounds.changes, bounds.unknown

    def clone(self, touched: int | None = None) -> State:
        """A copy; of the sessions only the one at `touched` may change in it, by default all."""
        new: State = object.__new__(State)
        new.storages = {name: _clone_storage(storage) for name, storage in self.storages.items()}
        new.metadata, new.version = self.metadata, self.version
        new.assigned = self.assigned
        new.sessions = [
            _clone_session(session) if touched in (None, at) else session for at, session in enumerate(self.sessions)
        ]
        new.committed, new.wiped = self.committed, self.wiped
        new.limbo, new.limbos = self.limbo, self.limbos
        new.wipes, new.restarts = self.wipes, self.restarts
        new.changes, new.unknown = self.changes, self.unknown
        return new


def _clone_storage(old: Storage) -> Storage:
    new: Storage = object.__new__(Storage)
    new.session, new.low, new.local, new.fence, new.floor = old.session, old.low, old.local, old.fence, old.floor
    new.log = list(old.log)
    return new


def _clone_session(old: Session) -> Session:
    new: Session = object.__new__(Session)
    new.session_id, new.assigned, new.greeted, new.next = old.session_id, old.assigned, old.greeted, old.next
    new.opened, new.pending = old.opened, list(old.pending)
    new.acked = dict(old.acked)
    new.keys = {}
    new.recovery = clone_recovery(old.recovery)
    return new


def clone_recovery(old: Recovery) -> Recovery:
    """An independent copy; what it shares is immutable or only replaced."""
    new: Recovery = object.__new__(type(old))
    new.__dict__.update(old.__dict__)
    new._at = copy.copy(old._at)
    members: dict[str, Any] = {}
    for name, member in old._at.members.items():
        twin = object.__new__(type(member))
        for slot in member.__slots__:
            setattr(twin, slot, getattr(member, slot))
        twin.avoid = set(member.avoid)
        members[name] = twin
    for twin in members.values():
        if twin.source is not None:
            twin.source = members[twin.source.replica]
    new._at.members = members
    return new


Action = tuple[str, int, Any]

_FAULTS = ("restart", "wipe", "limbo", "repair")
"""Actions that a storage node does not survive as a process."""


class Model:
    """Successors of a state, and the invariants."""

    def __init__(self, bounds: Bounds, recovery: type[Recovery] = Recovery) -> None:
        self.bounds = bounds
        self._recovery = recovery

    # ---- actions -------------------------------------------------------------------------------

    def initial(self) -> State:
        """An open session 0 on all replicas, or the very beginning."""
        first = State(self.bounds)
        if self.bounds.fresh:
            return first
        self._start(first)
        session = first.sessions[0]
        late = first.assigned[-1] if self.bounds.lagging else ""
        for replica in first.assigned:
            if replica != late:
                self._arrive(first, session, replica)
        self._settle(first, session)
        assert session.opened
        return first

    def actions(self, at: State) -> Iterator[Action]:
        """Everything that can happen next."""
        bounds = self.bounds
        if at.metadata.session_id + 1 < bounds.sessions:
            yield ("start", 0, None)
        for number, session in enumerate(at.sessions):
            for replica in session.assigned:
                if replica not in session.greeted and at.storages[replica].fence <= session.session_id:
                    yield ("arrive", number, replica)
            yield from (("run", number, effect) for effect in session.pending)
            if at.unknown:
                yield from (("unknown", number, e) for e in session.pending if isinstance(e, rec.CasMetadata))
            if session.opened:
                if session.next < bounds.ids and number == len(at.sessions) - 1:
                    yield ("append", number, None)
                behind = [replica for replica, acked in session.acked.items() if acked + 1 < session.next]
                yield from (("deliver", number, replica) for replica in behind)
        yield from self._faults(at)

    def _faults(self, at: State) -> Iterator[Action]:
        for replica in at.storages:
            if at.restarts:
                yield ("restart", 0, replica)
            if at.wipes:
                yield ("wipe", 0, replica)
            if replica in at.limbo:
                yield ("repair", 0, replica)
            elif at.limbos:
                yield ("limbo", 0, replica)
        if at.changes:
            for assigned in self.bounds.assignments:
                if assigned != at.assigned:
                    yield ("assign", 0, assigned)

    def take(self, at: State, action: Action) -> State:
        """The state after an action."""
        kind, number, argument = action
        new = at.clone(-1 if kind in ("start", "assign") else None if kind in _FAULTS else number)
        if kind == "start":
            self._start(new)
        elif kind == "assign":
            new.assigned = argument
            new.changes -= 1
        elif kind in _FAULTS:
            self._fault(new, kind, argument)
        else:
            session = new.sessions[number]
            if kind == "arrive":
                self._arrive(new, session, argument)
            elif kind in ("run", "unknown"):
                self._run(new, session, argument, known=kind == "run")
            elif kind == "append":
                session.next += 1
            else:
                self._deliver(new, session, argument)
        self._check(new)
        return new

    def _start(self, at: State) -> None:
        at.metadata = attrs.evolve(at.metadata, generation=1, session_id=at.metadata.session_id + 1)
        at.version += 1
        session_id = at.metadata.session_id
        recovery = self._recovery(PARTITION, session_id, 1, at.metadata, at.version, tuple(at.assigned))
        at.sessions.append(Session(session_id, at.assigned, recovery))
        del at.sessions[: -1 - self.bounds.lingering]

    def _arrive(self, at: State, session: Session, replica: str) -> None:
        session.greeted = "".join(sorted(session.greeted + replica))
        info = at.storages[replica].info(session.session_id)
        self._tell(at, session, rec.ReplicaUp(replica, info, limbo=replica in at.limbo))

    def _tell(self, at: State, session: Session, event: rec.Event) -> None:
        for _ in range(100):
            out: list[rec.Effect] = []
            session.recovery.step(0, [event], out)
            at_once: list[Pending] = []
            for effect in out:
                match effect:
                    case rec.AskMax() | rec.ReadRecords():
                        at_once.append(effect)
                    case rec.Truncate() | rec.SetLowWaterMark() | rec.WriteRecords() | rec.CasMetadata():
                        session.pending.append(effect)
                    case rec.ReplicaReady(replica=replica, next_id=next_id):
                        session.acked[replica] = next_id - 1
                    case rec.SessionRecovered(high_water_mark=mark):
                        self._opened(at, session, mark)
                    case rec.RecoveryFailed():
                        self._end(at, session)
                        return
            if not at_once:
                return
            for effect in at_once[1:]:
                self._run(at, session, effect)
                if session not in at.sessions:
                    return
            answer = self._execute(at, session, at_once[0])
            event = answer
        raise ViolationError("L5: recovery asks without end")

    def _execute(self, at: State, session: Session, effect: Pending, known: bool = True) -> rec.Event:
        if isinstance(effect, rec.CasMetadata):
            if effect.expected_version != at.version:
                return rec.CasLost(at.metadata, at.version)
            at.metadata = effect.metadata
            at.version += 1
            return rec.CasDone(at.version) if known else rec.CasLost(at.metadata, at.version)
        replica = replica_of(effect)
        storage = at.storages[replica]
        if storage.fence != session.session_id:
            return rec.ReplicaFailed(replica, "fenced")
        match effect:
            case rec.AskMax():
                return rec.MaxKnown(replica, storage.max)
            case rec.Truncate(transaction_id=mark):
                self._check_cut(at, session, replica, mark)
                storage.truncate(mark)
                return rec.MaxKnown(replica, storage.max)
            case rec.SetLowWaterMark(mark=mark):
                if storage.max > mark or mark < storage.low or storage.max < storage.local:
                    return rec.ReplicaFailed(replica, "low-water mark refused")
                storage.set_low_water_mark(session.session_id, mark)
                if session.session_id == at.metadata.session_id:
                    at.wiped -= {replica}
                return rec.Marked(replica)
            case rec.ReadRecords(source=source, target=target, first=first, count=count):
                return rec.RecordsRead(source, target, tuple(storage.log[first : first + count]))
            case rec.WriteRecords(target=target, records=records):
                storage.append(records)
                return rec.RecordsWritten(target, len(records))

    def _run(self, at: State, session: Session, effect: Pending, known: bool = True) -> None:
        if effect in session.pending:
            session.pending.remove(effect)
        if not known:
            at.unknown -= 1
        self._tell(at, session, self._execute(at, session, effect, known))

    def _deliver(self, at: State, session: Session, replica: str) -> None:
        storage = at.storages[replica]
        if storage.fence != session.session_id:
            self._end(at, session)  # losing a replica that follows the log ends the session
            return
        session.acked[replica] += 1
        storage.append([make_record(session.acked[replica], session.session_id)])
        named = states_by_storage(at.metadata).get(replica)
        is_named = named is not None and (named.session_id, named.closing_mark) == (session.session_id, UNRESOLVED)
        if not is_named and at.metadata.session_id == session.session_id:
            raise ViolationError(f"S4: {replica} votes in session {session.session_id} and is not named")
        ranked = sorted(session.acked.values(), reverse=True)
        quorum = majority(len(session.assigned))
        if len(ranked) >= quorum:
            self._commit(at, session, ranked[quorum - 1])

    def _commit(self, at: State, session: Session, mark: int) -> None:
        low = session.recovery.resolved
        assert low is not None
        for transaction_id in range(low + 1, mark + 1):
            if transaction_id < len(at.committed):
                if at.committed[transaction_id] != session.session_id:
                    raise ViolationError(f"S1: {transaction_id} is committed twice, with different contents")
            elif transaction_id == len(at.committed):
                at.committed += (session.session_id,)
            else:
                raise ViolationError(f"S1: {transaction_id} is committed above a gap")

    def _fault(self, at: State, kind: str, replica: str) -> None:
        storage = at.storages[replica]
        if kind == "wipe":
            at.wipes -= 1
            at.storages[replica] = Storage(-1, -1, -1, ())
            at.wiped |= {replica}
            at.limbo -= {replica}
        elif kind == "limbo":
            at.limbos -= 1
            at.limbo |= {replica}
            at.storages[replica].restart()
        elif kind == "repair":
            at.limbo -= {replica}
            at.storages[replica].restart()
        else:
            at.restarts -= 1
            storage.restart()
        for session in list(at.sessions):
            if replica in session.acked:
                self._end(at, session)
            elif replica in session.greeted:
                session.pending = [
                    e for e in session.pending if isinstance(e, rec.CasMetadata) or replica_of(e) != replica
                ]
                self._tell(at, session, rec.ReplicaFailed(replica, kind))

    def _end(self, at: State, session: Session) -> None:
        if session in at.sessions:
            at.sessions.remove(session)

    def _settle(self, at: State, session: Session) -> None:
        for _ in range(1000):
            if session not in at.sessions or not session.pending:
                return
            self._run(at, session, session.pending[0])
        raise ViolationError("L5: recovery does not come to rest")

    # ---- invariants ----------------------------------------------------------------------------

    def _opened(self, at: State, session: Session, mark: int) -> None:
        logs = {tuple(map(writer_of, at.storages[replica].log)) for replica in session.acked}
        if len(logs) != 1 or len(session.acked) < majority(len(session.assigned)):
            raise ViolationError(f"I10: session {session.session_id} opens on {logs}")
        (log,) = logs
        if len(log) != mark + 1 or log[: len(at.committed)] != at.committed:
            raise ViolationError(f"S1, S5: session {session.session_id} opens with {log}, committed is {at.committed}")
        at.committed = log
        session.opened, session.next = True, mark + 1

    def _check(self, at: State) -> None:
        for session in at.sessions:
            resolved = session.recovery.resolved
            if session.opened and resolved is not None:
                for replica in session.acked:
                    log = tuple(map(writer_of, at.storages[replica].log[: resolved + 1]))
                    if at.storages[replica].fence == session.session_id and log != at.committed[: resolved + 1]:
                        raise ViolationError(f"S2: {replica} follows the log with {log}, committed is {at.committed}")
        for replica, named in states_by_storage(at.metadata).items():
            stored = at.storages[replica].session
            if named.closing_mark == UNRESOLVED and stored < named.session_id and replica not in at.wiped:
                raise ViolationError(f"S12: {replica} is named in {named.session_id} and was marked by {stored}")

    def _check_cut(self, at: State, session: Session, replica: str, mark: int) -> None:
        entry = states_by_storage(at.metadata).get(replica)
        if entry is None or entry.closing_mark != UNRESOLVED or replica in at.wiped:
            return
        log = tuple(map(writer_of, at.storages[replica].log))
        whole = at.metadata.session_id == session.session_id and log[: len(at.committed)] == at.committed
        if whole and mark + 1 < len(at.committed) and entry.session_id <= at.storages[replica].session:
            raise ViolationError(f"S6: {replica} is cut at {mark}, committed is {at.committed}")

    def check_liveness(self, at: State) -> None:
        """With everybody up and nothing in the way, the next session opens.

        Unless there is no quorum of useful ones: files are gone, replicas were taken away, or an aborted
        recovery marked some above what was decided after it, which only an operator can put right
        (server-D23). Or the assignment took away the last one that could vote.
        """
        new = at.clone()
        new.sessions.clear()
        for storage in new.storages.values():
            storage.restart()
        new.limbo = frozenset()
        self._start(new)
        session = new.sessions[0]
        for replica in new.assigned:
            if session in new.sessions:
                self._arrive(new, session, replica)
                self._settle(new, session)
        if session.opened:
            return
        members, last = session.recovery._at.members.values(), session.recovery._at.last
        useful = [
            m for m in members if m.phase is not rec.ReplicaPhase.REFUSED and m.vouched and m.replica not in new.wiped
        ]
        quorums = len(useful) >= majority(len(members)) and sum(m.replica in last for m in useful) >= majority(
            len(last)
        )
        if quorums and (last <= set(new.assigned) or any(m.voter for m in members)):
            raise ViolationError(f"L1: session {session.session_id} does not open: {[m.phase.name for m in members]}")


def availability(model: Model, at: State) -> Counter[str]:
    """With which pairs and triples of replicas the next session opens, and with which it could.

    "could" is the rule of availability: the voters that are present are so many that every write quorum has one of
    them. "decided as they arrive" is the decision on the marks that replicas came with, nothing copied before.
    """
    found: Counter[str] = Counter()
    for size in (2, 3):
        for present in itertools.combinations(at.assigned, size):
            new = at.clone()
            new.sessions.clear()
            for storage in new.storages.values():
                storage.restart()
            model._start(new)
            session = new.sessions[0]
            for replica in present:
                if session in new.sessions:
                    model._arrive(new, session, replica)
                    model._settle(new, session)
            recovery = session.recovery
            members = [member for member in recovery._at.members.values() if member.replica in present]
            counted = [m for m in members if m.phase not in _AWAY and m.counted and m.vouched and m.entered is not None]
            usable = sum(m.phase not in _AWAY for m in members) >= majority(len(new.assigned))
            voters = [m.first_mark for m in counted if m.voter]
            last = recovery._at.last
            quorum = majority(len(last))
            found["tried"] += 1
            found["opens"] += session.opened
            could = bool(voters) and usable and sum(m.replica in last for m in counted) > len(last) - quorum
            found["could"] += could
            found["could and does not open"] += could and not session.opened
            if voters and usable:
                marks = [m.first_mark for m in counted]
                decision = decide(marks, lowest=min(voters), absent=len(last) - len(counted), quorum=quorum)
                found["decided as they arrive"] += decision is not None
            if could and session.opened and recovery.resolved != max(m.first_mark for m in counted):
                found["opens below the highest mark present"] += 1
    return found


_AWAY = (rec.ReplicaPhase.OFFLINE, rec.ReplicaPhase.FAILED, rec.ReplicaPhase.REFUSED)


def key_of(at: State) -> tuple[object, ...]:
    """Equal for states that differ only in the names of replicas."""
    entries = states_by_storage(at.metadata)
    local: list[tuple[Any, ...]] = []
    for name, storage in at.storages.items():
        entry = entries.get(name)
        parts: list[object] = [
            storage.session,
            storage.low,
            storage.local,
            storage.fence,
            tuple(map(writer_of, storage.log)),
            () if entry is None else (entry.session_id, entry.closing_mark),
            name in at.assigned,
            name in at.wiped,
            name in at.limbo,
        ]
        parts += [_member_key(session, name) for session in at.sessions]
        local.append((tuple(parts), name))
    local.sort()
    rank = {name: place for place, (_, name) in enumerate(local)}
    sessions = tuple(_session_key(session, at, rank) for session in at.sessions)
    budgets = (at.wipes, at.restarts, at.limbos, at.changes, at.unknown)
    return (tuple(part for part, _ in local), at.metadata.session_id, at.committed, budgets, sessions)


def _member_key(session: Session, name: str) -> tuple[object, ...]:
    member = session.recovery._at.members.get(name)
    if member is None:
        return ()
    if name not in session.keys:
        info: SessionInfo | None = member.info
        session.keys[name] = (
            member.phase.value,
            () if info is None else (info.session_id, info.low_water_mark, info.local_low_water_mark),
            member.mark,
            -9 if member.entered is None else member.entered,
            member.first_mark,
            (member.counted, member.voter, member.vouched, member.clean, member.marked, name in session.greeted),
            member.target,
            -9 if member.writing is None else member.writing,
            -9 if member.kept is None else writer_of(member.kept),
            session.acked.get(name, -9),
        )
    return session.keys[name]


def _session_key(session: Session, at: State, rank: dict[str, int]) -> object:
    recovery = session.recovery
    pending = sorted(_effect_key(effect, rank) for effect in session.pending)
    sources = sorted(
        (rank[member.replica], rank[member.source.replica], -1 if member.asked is None else rank[member.asked])
        for member in recovery._at.members.values()
        if member.source is not None and member.phase in (rec.ReplicaPhase.COPYING, rec.ReplicaPhase.COMPARING)
    )
    avoided = sorted((rank[m.replica], tuple(sorted(rank[a] for a in m.avoid))) for m in recovery._at.members.values())
    known = states_by_storage(recovery._metadata)
    states = sorted((rank[name], entry.session_id, entry.closing_mark) for name, entry in known.items())
    return (
        session.session_id,
        session.next,
        recovery.resolved,
        session.opened,
        recovery._version == at.version,
        tuple(pending),
        tuple(sources),
        tuple(avoided),
        tuple(states),
        tuple(sorted(rank[name] for name in recovery._at.last)),
    )


def _effect_key(effect: Pending, rank: dict[str, int]) -> str:
    match effect:
        case rec.CasMetadata(metadata=metadata, expected_version=_):
            states = states_by_storage(metadata).items()
            return f"cas {sorted((rank[name], entry.session_id, entry.closing_mark) for name, entry in states)}"
        case rec.WriteRecords(target=target, records=records):
            return f"write {rank[target]} {[(r.transaction_id, writer_of(r)) for r in records]}"
        case rec.Truncate(replica=replica, transaction_id=mark):
            return f"cut {rank[replica]} {mark}"
        case _:
            return f"mark {rank[replica_of(effect)]}"


class Outcome(NamedTuple):
    """What a search found."""

    states: int
    transitions: int
    complete: bool  # False when it stopped at `states_max` or at the violation
    violation: str
    trace: tuple[Action, ...]


def explore(
    model: Model,
    *,
    states_max: int = 0,
    liveness_every: int = 0,
    availability_every: int = 0,
    counts: Counter[str] | None = None,
) -> Outcome:
    """Visit every state, depth first; add what `availability` finds to `counts`."""
    first = model.initial()
    seen = {hash(key_of(first))}
    stack: list[tuple[State, Iterator[Action], Action | None]] = [(first, model.actions(first), None)]
    transitions = 0
    while stack:
        at, actions, _ = stack[-1]
        action = next(actions, None)
        if action is None:
            stack.pop()
            continue
        transitions += 1
        try:
            new = model.take(at, action)
            key = hash(key_of(new))
            if key in seen:
                continue
            seen.add(key)
            if liveness_every and len(seen) % liveness_every == 0:
                model.check_liveness(new)
            if availability_every and counts is not None and len(seen) % availability_every == 0:
                counts.update(availability(model, new))
        except (ViolationError, AssertionError) as error:
            path = [step for _, _, step in stack if step is not None] + [action]
            return Outcome(len(seen), transitions, False, f"{type(error).__name__}: {error}", tuple(path))
        stack.append((new, model.actions(new), action))
        if states_max and len(seen) >= states_max:
            return Outcome(len(seen), transitions, False, "", ())
    return Outcome(len(seen), transitions, True, "", ())


BAR: tuple[Bounds, ...] = (
    Bounds(sessions=4, ids=3, lingering=0),
    Bounds(sessions=3, ids=2),
    Bounds(sessions=3, ids=3, restarts=1, lingering=0),
    Bounds(sessions=3, ids=2, changes=1, assignments=("abc", "abd"), lingering=0),
    Bounds(sessions=2, ids=3, changes=1, assignments=("abc", "abd")),
    Bounds(sessions=3, ids=2, limbos=1, lingering=0),
    Bounds(sessions=3, ids=2, wipes=1, lingering=0),
    Bounds(sessions=3, ids=1, wipes=1, restarts=1, limbos=1, lingering=0),
    Bounds(sessions=3, ids=1, limbos=1, changes=1, assignments=("abc", "abd"), lingering=0),
    Bounds(sessions=3, ids=2, unknown=1, lingering=0),
    Bounds(sessions=3, ids=1, lagging=True, unknown=1, lingering=0),
    Bounds(sessions=2, ids=1, wipes=1, restarts=1, limbos=1, unknown=1),
    Bounds(sessions=3, ids=1, fresh=True, restarts=1, lingering=0),
    Bounds(sessions=3, ids=1, wipes=1, assignments=("abcd",), lingering=0),
    Bounds(sessions=3, ids=1, changes=1, assignments=("abcd", "abc"), lingering=0),
    Bounds(sessions=3, ids=2, wipes=1, changes=1, assignments=("ab", "ac"), lingering=0),
)
"""Searches that end: 3 replicas (2 or 4 in the last ones), 3 records, 4 sessions, each kind of fault."""


def _search(bounds: Bounds) -> tuple[Bounds, Outcome, float, Counter[str]]:
    started = time.monotonic()
    counts: Counter[str] = Counter()
    outcome = explore(Model(bounds), liveness_every=100, availability_every=400, counts=counts)
    return bounds, outcome, time.monotonic() - started, counts


def search_all(jobs: int, where: str | None) -> int:
    """Every search of `BAR`; exit status 1 if one finds a violation or does not end."""
    began = time.monotonic()
    states = transitions = bad = 0
    counts: Counter[str] = Counter()
    searches = []
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for bounds, outcome, seconds, found in pool.imap_unordered(_search, BAR):
            print(_line(bounds, outcome, seconds), flush=True)
            states += outcome.states
            transitions += outcome.transitions
            bad += not outcome.complete
            counts += found
            bounded = {name: value for name, value in bounds._asdict().items() if value != Bounds._field_defaults[name]}
            searches.append({**bounded, "states": outcome.states, "violation": outcome.violation})
            for action in outcome.trace:
                print("  ", *action)
    report = {
        "states": states,
        "transitions": transitions,
        "violations": bad,
        "availability": dict(sorted(counts.items())),
        "wall_s": round(time.monotonic() - began, 1),
        "searches": searches,
    }
    print(f"{states} states, {transitions} transitions, {bad} violations, {report['wall_s']} s; {dict(counts)}")
    if where is not None:
        Path(where).write_text(json.dumps(report, indent=1), encoding="utf-8")
    return 1 if bad else 0


def _line(bounds: Bounds, outcome: Outcome, seconds: float) -> str:
    chosen = ", ".join(
        f"{name}={value}" for name, value in bounds._asdict().items() if value != Bounds._field_defaults[name]
    )
    complete = "complete" if outcome.complete else "not complete"
    return (
        f"{chosen or 'smallest'}: {outcome.states} states, {outcome.transitions} transitions, {complete}, "
        f"{seconds:.0f} s; {outcome.violation or 'no violation'}"
    )


def main(arguments: Sequence[str]) -> int:
    """Search and print what was found; exit status 1 on a violation."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    for name in ("sessions", "ids", "wipes", "restarts", "limbos", "changes", "unknown", "lingering"):
        parser.add_argument(f"--{name}", type=int, default=Bounds._field_defaults[name])
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--lagging", action="store_true")
    parser.add_argument("--assignments", nargs="+", default=["abc"])
    parser.add_argument("--states-max", type=int, default=0)
    parser.add_argument("--liveness-every", type=int, default=100)
    parser.add_argument("--availability-every", type=int, default=0)
    parser.add_argument("--all", action="store_true", help="every search that the bar asks for, instead of one")
    parser.add_argument("--jobs", type=int, default=2, help="processes, with --all")
    parser.add_argument("--json", metavar="PATH", help="write one object, with --all")
    options = vars(parser.parse_args(arguments))
    everything, jobs, where = (options.pop(name) for name in ("all", "jobs", "json"))
    if everything:
        return search_all(jobs, where)
    limits = {name: options.pop(name) for name in ("states_max", "liveness_every", "availability_every")}
    bounds = Bounds(**options | {"assignments": tuple(options["assignments"])})
    started = time.monotonic()
    counts: Counter[str] = Counter()
    outcome = explore(Model(bounds), **limits, counts=counts)
    print(_line(bounds, outcome, time.monotonic() - started))
    if counts:
        print(dict(sorted(counts.items())))
    for action in outcome.trace:
        print("  ", *action)
    return 1 if outcome.violation else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
