"""Recovery of 0.13.2, its defects and the order of its steps included; they are listed in `tests/twin_0132/store.py`.

A fork: `waltz_core.store.recovery` with what 0.13.2 does in place of every rule. It knows no replica that is compared,
held, suspected or made to begin anew. Each replica evaluates the end of the log for itself, whenever it is not busy.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from waltz_core.base.log import SessionInfo
from waltz_core.base.quorum import decide, majority
from waltz_core.store.recovery_events import (
    AskMax,
    CasDone,
    CasLost,
    CasMetadata,
    Effect,
    Event,
    Marked,
    MaxKnown,
    ReadRecords,
    RecordsDenied,
    RecordsRead,
    RecordsWritten,
    RecoveryFailed,
    ReplicaFailed,
    ReplicaPhase,
    ReplicaReady,
    ReplicaUp,
    SessionRecovered,
    SetLowWaterMark,
    Truncate,
    WriteRecords,
)
from waltz_core.zookeeper.partition_metadata import recovered_metadata, same_metadata, states_by_storage
from waltz_core.zookeeper.znodes import UNRESOLVED, PartitionMetadata

_BUSY = (ReplicaPhase.ARRIVING, ReplicaPhase.COPYING, ReplicaPhase.MARKING)


class _Member:
    def __init__(self, replica: str) -> None:
        self.replica = replica
        self.phase = ReplicaPhase.OFFLINE
        self.info: SessionInfo | None = None
        self.mark = -1
        self.entered: int | None = None  # the mark that others see
        self.first_mark = -1
        self.counted = self.may_vote = self.voter = False
        self.clean = False  # holds no undecided record of its own
        self.marked = False
        self.target = -1  # end of the copy under way
        self.source = ""
        self.asked: str | None = None
        self.writing = 0
        self.denied: set[str] = set()

    @property
    def alive(self) -> bool:
        return self.phase not in (ReplicaPhase.OFFLINE, ReplicaPhase.FAILED)


class Recovery0132:
    """Recovery of one partition; takes and gives what `waltz_core.store.recovery.Recovery` does.

    Args:
        states_first: as in a run in which the write of the states came before the first append, which 0.13.2 leaves
            to chance.
    """

    def __init__(
        self,
        partition_id: int,
        session_id: int,
        generation: int,
        metadata: PartitionMetadata,
        metadata_version: int,
        assigned: Sequence[str],
        *,
        copy_count_max: int = 20,
        states_first: bool = False,
    ) -> None:
        self.resolved: int | None = None
        self.is_open = False
        self.failed = False
        self._partition_id, self._session_id, self._generation = partition_id, session_id, generation
        self._metadata, self._version = metadata, metadata_version
        self._assigned = tuple(assigned)
        self._members = {replica: _Member(replica) for replica in assigned}
        self._quorum = majority(len(self._members))
        self._states = states_by_storage(metadata)
        self._last = frozenset(self._states)
        self._copy_count_max = copy_count_max
        self._states_first = states_first
        self._writing: PartitionMetadata | None = None

    def phase(self, replica: str) -> ReplicaPhase:
        """Where a replica is."""
        return self._members[replica].phase

    def deadline(self) -> int | None:
        """It waits in silence."""
        return None

    def step(self, now: int, events: Sequence[Event], out: list[Effect]) -> None:
        """Handle events in order."""
        for event in events:
            self._on_event(event, out)
        self._decide()
        for member in self._members.values():
            if member.phase is ReplicaPhase.IDLE:
                self._advance(member, out)
        self._finish(out)

    # ---- events --------------------------------------------------------------------------------

    def _on_event(self, event: Any, out: list[Effect]) -> None:
        if isinstance(event, CasDone | CasLost):
            self._on_cas(event, out)
            return
        copied = isinstance(event, RecordsRead | RecordsDenied | RecordsWritten)
        member = self._members.get(event.target if copied else getattr(event, "replica", ""))
        if member is None:
            return
        phase = member.phase
        match event:
            case ReplicaUp(info=info) if phase is ReplicaPhase.OFFLINE:
                self._on_up(member, info, out)
            case ReplicaFailed(reason=reason) if member.alive:
                self._on_failed(member, reason, out)
            case MaxKnown(transaction_id=mark) if phase is ReplicaPhase.ARRIVING:
                self._arrived(member, mark, out)
            case MaxKnown(transaction_id=mark) if phase is ReplicaPhase.MARKING:  # it was cut before its mark
                member.mark, member.phase = mark, ReplicaPhase.IDLE
            case Marked() if phase is ReplicaPhase.MARKING:
                member.marked, member.phase = True, ReplicaPhase.IDLE
            case RecordsRead(source=source) if phase is ReplicaPhase.COPYING and member.asked == source:
                self._on_read(member, event, out)
            case RecordsDenied(source=source) if phase is ReplicaPhase.COPYING and member.asked == source:
                member.asked, member.phase = None, ReplicaPhase.IDLE
                member.denied.add(source)
            case RecordsWritten() if phase is ReplicaPhase.COPYING and member.asked is None:
                member.mark += member.writing
                member.denied.clear()
                self._copy_more(member, out)

    def _on_failed(self, member: _Member, reason: str, out: list[Effect]) -> None:
        member.phase = ReplicaPhase.FAILED
        if self.is_open:
            self.failed = True  # and whoever comes later fails, too (server-D8)
        else:
            self._abort(f"replica {member.replica} failed: {reason}", out)

    def _abort(self, reason: str, out: list[Effect]) -> None:
        """It is noticed between the steps of a replica's loop only, not while one copies (server-D7)."""
        if self.failed:
            return
        self.failed = True
        out.append(RecoveryFailed(reason, None))
        for member in self._members.values():
            if member.phase not in (*_BUSY, ReplicaPhase.READY, ReplicaPhase.OFFLINE):
                member.phase = ReplicaPhase.FAILED

    def _on_up(self, member: _Member, info: SessionInfo, out: list[Effect]) -> None:
        """What it remembers is looked at only where its entry is of a later session."""
        member.info = info
        if self.failed:
            member.phase = ReplicaPhase.FAILED
            return
        member.phase = ReplicaPhase.ARRIVING
        entry = self._states.get(member.replica)
        member.counted = entry is not None or not self._states
        if entry is None:
            keep = info.low_water_mark if self._states else None
        elif info.session_id < entry.session_id:
            keep = info.low_water_mark
        else:
            keep = None if entry.closing_mark == UNRESOLVED else entry.closing_mark
        member.may_vote = keep is None
        out.append(AskMax(member.replica) if keep is None else Truncate(member.replica, keep))

    def _arrived(self, member: _Member, mark: int, out: list[Effect]) -> None:
        assert member.info is not None
        member.mark = member.first_mark = mark
        member.voter = member.may_vote and mark >= member.info.low_water_mark
        member.clean = not member.voter
        self._enter(member, out)

    # ---- the end of the log ------------------------------------------------------------------------

    def _decide(self, evaluator: _Member | None = None) -> None:
        if self.resolved is not None or self.failed:
            return
        if not self._states:
            # Resolved by the first arrival; a second one with records would come too late to be noticed.
            if any(member.entered is not None for member in self._members.values()):
                self.resolved = -1
            return
        alive = [member for member in self._members.values() if member.alive]
        present = [m.entered for m in alive if m.counted and m.entered is not None]
        voters = [member.first_mark for member in alive if member.voter]
        if not voters:
            return
        # Each replica looks for itself, at marks from its own on, and not while it is copying.
        idle = (m.entered for m in alive if m.phase is ReplicaPhase.IDLE and evaluator in (None, m))
        lowest = min((mark for mark in idle if mark is not None and mark >= min(voters)), default=2**63)
        absent = len(self._last) - len(present)
        self.resolved = decide(present, lowest=lowest, absent=absent, quorum=majority(len(self._last)))

    # ---- what a replica does next --------------------------------------------------------------------

    def _enter(self, member: _Member, out: list[Effect]) -> None:
        member.phase = ReplicaPhase.IDLE
        if self.resolved is None:
            member.entered = member.mark
            self._decide(member)
            self._copy(member, out)

    def _advance(self, member: _Member, out: list[Effect]) -> None:
        resolved = self.resolved
        if self.failed:
            member.phase = ReplicaPhase.FAILED
        elif resolved is None or (member.marked and member.mark < resolved):
            self._copy(member, out)
        elif not member.marked:
            member.phase = ReplicaPhase.MARKING
            cut = member.mark > resolved
            out.append(Truncate(member.replica, resolved) if cut else SetLowWaterMark(member.replica, resolved))
        else:
            member.phase = ReplicaPhase.LEVEL
            member.clean = True

    def _sources(self, member: _Member) -> Iterator[tuple[int, str]]:
        for other in self._members.values():
            good = other.alive and other.counted and other.replica not in member.denied
            if good and other.entered is not None and other.entered > member.mark:
                yield other.entered, other.replica

    def _copy(self, member: _Member, out: list[Effect]) -> None:
        member.entered = member.mark
        ahead = min(self._sources(member), default=None)
        if ahead is not None:
            member.target, member.source = ahead
            member.phase = ReplicaPhase.COPYING
            self._copy_more(member, out)

    def _copy_more(self, member: _Member, out: list[Effect]) -> None:
        if self.resolved is not None:
            member.target = self.resolved
        count = min(member.target - member.mark, self._copy_count_max)
        if count > 0:
            member.asked = member.source
            out.append(ReadRecords(member.source, member.replica, member.mark + 1, count))
        else:
            self._enter(member, out)

    def _on_read(self, member: _Member, event: RecordsRead, out: list[Effect]) -> None:
        member.asked = None
        target = member.target if self.resolved is None else self.resolved
        numbered = enumerate(event.records, start=member.mark + 1)
        wanted = tuple(
            pair[1] for pair in itertools.takewhile(lambda pair: pair[0] == pair[1].transaction_id <= target, numbered)
        )
        if not wanted and target <= member.mark:
            member.phase = ReplicaPhase.IDLE
            return
        member.writing = len(wanted)  # nothing, where the source has nothing: and it is asked again
        out.append(WriteRecords(member.replica, wanted))

    # ---- metadata and the end ------------------------------------------------------------------------

    def _finish(self, out: list[Effect]) -> None:
        level = [member for member in self._members.values() if member.phase is ReplicaPhase.LEVEL]
        ready = sum(member.phase is ReplicaPhase.READY for member in self._members.values())
        if self.resolved is None or self.failed or len(level) + ready < self._quorum or not level:
            return
        if not self.is_open and not self._states_first:
            self._hand_over(level, out)
        named = [member for member in level if member.phase is ReplicaPhase.LEVEL and self._named(member)]
        if self.is_open or len(named) >= self._quorum:
            self._hand_over(named, out)
        wanted = recovered_metadata(
            self._metadata,
            partition_id=self._partition_id,
            generation=self._generation,
            session_id=self._session_id,
            assigned=self._assigned,
            taking_part={member.replica for member in self._members.values() if member.clean},
            resolved=self.resolved,
        )
        if self._writing is None and not same_metadata(wanted, self._metadata):
            self._writing = wanted
            out.append(CasMetadata(wanted, self._version))

    def _named(self, member: _Member) -> bool:
        state = self._states.get(member.replica)
        return state is not None and (state.session_id, state.closing_mark) == (self._session_id, UNRESOLVED)

    def _hand_over(self, members: Sequence[_Member], out: list[Effect]) -> None:
        assert self.resolved is not None
        for member in members:
            member.phase = ReplicaPhase.READY
            out.append(ReplicaReady(member.replica, self.resolved + 1))
        if not self.is_open:
            self.is_open = True
            out.append(SessionRecovered(self.resolved))

    def _on_cas(self, event: CasDone | CasLost, out: list[Effect]) -> None:
        if self._writing is None or self.failed:
            return
        if isinstance(event, CasDone):
            self._metadata = self._writing
        elif (event.metadata.session_id, event.metadata.generation) != (self._session_id, self._generation):
            self._abort(f"session {event.metadata.session_id} took over from session {self._session_id}", out)
            return
        else:
            self._metadata = event.metadata
        self._version = event.version
        self._writing = None
        self._states = states_by_storage(self._metadata) or self._states
