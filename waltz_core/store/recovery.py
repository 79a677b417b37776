"""What a new store session does before its first append: decides where the log ends, makes replicas level.

The procedure is that of Waltz 0.13.2 (RecoveryManagerImpl) with the safer rules of `SafetyRules`; with
`LEGACY` it comes to the outcomes of 0.13.2. No connection, clock or ZooKeeper here: the parent performs
the effects and reports their answers.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, assert_never

from waltz_core.base.contract import earliest
from waltz_core.base.rules import SAFE, SafetyRules
from waltz_core.store.metadata import (
    is_unknown,
    last_session,
    recovered_metadata,
    same_metadata,
    states_by_storage,
)
from waltz_core.store.quorum import Decision, decide, majority
from waltz_core.store.recovery_events import (
    AskMax,
    CasDone,
    CasLost,
    CasMetadata,
    CopyBlocked,
    Effect,
    Event,
    LogStartRaised,
    LogStartSet,
    Marked,
    MaxKnown,
    Phase,
    ReadRecords,
    RecordsDenied,
    RecordsRead,
    RecordsWritten,
    RecoveryFailed,
    RecoveryStuck,
    RecoveryUnstuck,
    ReplicaFailed,
    ReplicaFenced,
    ReplicaReady,
    ReplicaRefused,
    ReplicaUp,
    SessionRecovered,
    SetLogStart,
    SetLowWaterMark,
    Tick,
    Truncate,
    WriteRecords,
)
from waltz_core.zookeeper.znodes import UNRESOLVED, PartitionMetadata, ReplicaState

if TYPE_CHECKING:
    from waltz_core.base.log import Record, SessionInfo

__all__ = [
    "AskMax",
    "CasDone",
    "CasLost",
    "CasMetadata",
    "CopyBlocked",
    "Effect",
    "Event",
    "LogStartRaised",
    "LogStartSet",
    "Marked",
    "MaxKnown",
    "Phase",
    "ReadRecords",
    "RecordsDenied",
    "RecordsRead",
    "RecordsWritten",
    "Recovery",
    "RecoveryFailed",
    "RecoveryStuck",
    "RecoveryUnstuck",
    "ReplicaFailed",
    "ReplicaFenced",
    "ReplicaReady",
    "ReplicaRefused",
    "ReplicaUp",
    "SessionRecovered",
    "SetLogStart",
    "SetLowWaterMark",
    "Tick",
    "Truncate",
    "WriteRecords",
]

_STUCK_AFTER_MS: Final = 1000  # waiting shorter than this is ordinary and not reported
_COPY_COUNT: Final = 1000  # records per copy step; Java: 20
_ASK_AGAIN_MS: Final = 10_000  # after so long a source that could not give out a record is asked for it again


class _Probe(enum.Enum):
    """Whether a session that the states do not know has appended to a replica: then it may have committed."""

    NONE = enum.auto()
    ASKED = enum.auto()
    CLEAR = enum.auto()  # it has not, or not enough of them hold what it appended
    SUSPECT = enum.auto()  # it has: the states are older than they should be


class _Member:
    """One assigned replica, as far as recovery is concerned."""

    __slots__ = (
        "asked",
        "avoid",
        "blocked",
        "clean",
        "counted",
        "denied",
        "denied_until",
        "entered",
        "first_mark",
        "info",
        "kept",
        "mark",
        "marked",
        "may_vote",
        "movable",
        "phase",
        "probe",
        "replica",
        "source",
        "start",
        "target",
        "voter",
        "vouched",
        "writing",
    )

    def __init__(self, replica: str) -> None:
        self.replica = replica
        self.phase = Phase.OFFLINE
        self.info: SessionInfo | None = None  # None until it arrived
        self.mark = -1  # its highest id, as far as we know; nobody but us changes it
        self.entered: int | None = None  # the mark that others see: not raised step by step while copying
        self.first_mark = -1  # the mark it arrived with
        self.probe = _Probe.NONE
        self.may_vote = False  # the states list it in the last session, unresolved
        self.voter = False
        self.counted = False  # supports marks in the decision; otherwise it is as absent
        self.vouched = True  # its records are known to be those of the log
        self.clean = False  # holds no undecided record of its own
        self.marked = False
        self.source: _Member | None = None  # of the copy or comparison under way
        self.target = -1  # end of the copy under way
        self.asked: str | None = None  # whose answer to a read is due
        self.writing: int | None = None  # records in the write under way
        self.kept: Record | None = None  # its own last record, while it is compared
        self.avoid: set[str] = set()  # sources that had nothing for it
        self.denied: set[str] = set()  # sources that cannot give out the record it needs next
        self.denied_until: int | None = None  # when they are asked again
        self.blocked = ""  # why no source is left, as reported last
        self.start = 0  # the smallest id it keeps
        self.movable = False  # its log can be made to begin at another id

    @property
    def alive(self) -> bool:
        """Arrived, and neither lost nor refused."""
        return self.phase not in (Phase.OFFLINE, Phase.FAILED, Phase.REFUSED)

    @property
    def busy(self) -> bool:
        """An answer of a replica is due."""
        return self.phase in (Phase.ARRIVING, Phase.COMPARING, Phase.COPYING, Phase.STARTING, Phase.MARKING)

    @property
    def own(self) -> int:
        """Its own low-water mark."""
        assert self.info is not None
        return self.info.low_water_mark


class Recovery:
    """Recovery of one partition by one store session.

    A replica goes OFFLINE → ARRIVING → IDLE ⇄ COPYING, then, once the end of the log is decided,
    → MARKING → (COPYING) → LEVEL → READY. Late replicas go the same way after the session opened.
    The recovery itself: undecided → decided (`resolved`, set once) → open, or over at any point.

    Args:
        metadata: what ZooKeeper holds with this session announced; `metadata_version` of its znode.
        assigned: connect strings of the partition's storage nodes.
        copy_count_max: records per copy step.
        stuck_after_ms: how long waiting goes on before it is reported.
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
        copy_count_max: int = _COPY_COUNT,
        stuck_after_ms: int = _STUCK_AFTER_MS,
        rules: SafetyRules = SAFE,
    ) -> None:
        assert assigned
        assert metadata.session_id == session_id
        self._partition_id = partition_id
        self._session_id = session_id
        self._generation = generation
        self._metadata = metadata
        self._version = metadata_version
        self._assigned = tuple(assigned)
        self._copy_count_max = copy_count_max
        self._stuck_after_ms = stuck_after_ms
        self._rules = rules
        self._members = {replica: _Member(replica) for replica in assigned}
        self._quorum = majority(len(self._members))
        self._states = states_by_storage(metadata)  # by which arrivals are judged: as written last
        self._last = frozenset(self._states)  # the last session's replicas: the base of the decision
        self._resolved: int | None = None
        self._open = False
        self._failed = False
        self._writing: PartitionMetadata | None = None  # the CasMetadata under way
        self._waits_since: int | None = None
        self._stuck = ""  # reason reported last

    # ---- for the parent and for people ---------------------------------------------------------

    @property
    def resolved(self) -> int | None:
        """The decided end of the log; never changes once set."""
        return self._resolved

    @property
    def is_open(self) -> bool:
        """Whether `SessionRecovered` was emitted."""
        return self._open

    @property
    def failed(self) -> bool:
        """Whether the recovery was aborted."""
        return self._failed

    def phase(self, replica: str) -> Phase:
        """Where an assigned replica is."""
        return self._members[replica].phase

    def deadline(self) -> int | None:
        """When waiting must be reported, or a source asked again."""
        if self._failed:
            return None
        report = None if self._waits_since is None or self._stuck else self._waits_since + self._stuck_after_ms
        return earliest(report, *(member.denied_until for member in self._members.values()))

    def step(self, now: int, events: Sequence[Event], out: list[Effect]) -> None:
        """Handle events in order; stale and unexpected ones are ignored."""
        before = self._resolved
        for event in events:
            self._on_event(event, out)
        self._clear_suspects(out)
        self._decide()
        for member in self._members.values():
            if member.denied_until is not None and now >= member.denied_until:
                member.denied.clear()
                member.denied_until = None
            if member.phase is Phase.IDLE:
                self._advance(member, out)
            if member.denied and member.denied_until is None:
                member.denied_until = now + _ASK_AGAIN_MS
        self._finish(out)
        self._report(now, out)
        self._check(before)

    # ---- events --------------------------------------------------------------------------------

    def _on_event(self, event: Event, out: list[Effect]) -> None:
        match event:
            case CasDone() | CasLost():
                self._on_cas(event, out)
            case Tick():
                pass
            case RecordsRead() | RecordsDenied() | RecordsWritten():
                member = self._members.get(event.target)
                if member is not None:
                    self._on_copy(member, event, out)
            case LogStartRaised(log_start=start):
                for member in self._members.values():
                    if member.phase is Phase.READY:
                        member.start = max(member.start, start)
            case ReplicaUp() | ReplicaFenced() | ReplicaFailed() | MaxKnown() | Marked() | LogStartSet():
                member = self._members.get(event.replica)
                if member is not None:
                    self._on_replica(member, event, out)
            case _:
                assert_never(event)

    def _on_replica(
        self,
        member: _Member,
        event: ReplicaUp | ReplicaFenced | ReplicaFailed | MaxKnown | Marked | LogStartSet,
        out: list[Effect],
    ) -> None:
        match event:
            case ReplicaUp():
                if member.phase is Phase.OFFLINE:
                    self._on_up(member, event, out)
            case ReplicaFenced(fence=fence):
                self._on_fence(member, fence, out)
            case ReplicaFailed(reason=reason):
                if member.alive:
                    self._on_failed(member, reason, out)
            case MaxKnown(transaction_id=transaction_id):
                if member.phase is Phase.ARRIVING:
                    self._on_arrived(member, transaction_id, out)
                elif member.phase is Phase.MARKING:  # it was cut before its mark
                    member.mark = transaction_id
                    member.phase = Phase.IDLE
            case Marked():
                if member.phase is Phase.MARKING:
                    member.marked = True
                    member.phase = Phase.IDLE
            case LogStartSet(log_start=start):
                self._on_start_set(member, start, out)
            case _:
                assert_never(event)

    def _on_start_set(self, member: _Member, start: int, out: list[Effect]) -> None:
        if member.phase is Phase.STARTING:
            member.start, member.mark = start, start - 1
            self._enter(member, out)

    def _on_fence(self, member: _Member, fence: int, out: list[Effect]) -> None:
        """Somebody was here with a later session: either we are superseded, or the metadata was rewound."""
        if self._rules.rewound_metadata_stops and fence > self._session_id:
            reason = f"replica {member.replica} has answered session {fence}, later than our {self._session_id}"
            self._abort(f"{reason}: another server took over, or the metadata was set back", out, fence)

    def _on_number(self, member: _Member, marked_by: int, out: list[Effect]) -> None:
        """We have marked nobody yet: if a replica was marked by our number, it was another session's.

        With a number of its own every session that opens has a higher one than all before, whatever became of the
        metadata: some replica of its quorum was marked by the last of them.
        """
        if self._rules.rewound_metadata_stops and marked_by == self._session_id and not self._failed:
            reason = f"replica {member.replica} was marked by another session {marked_by}: the metadata was set back"
            self._abort(reason, out, marked_by)

    def _on_failed(self, member: _Member, reason: str, out: list[Effect]) -> None:
        member.phase = Phase.FAILED
        if not self._open:
            # Its mark may be part of the decision: the next session starts from what is left.
            self._abort(f"replica {member.replica} failed: {reason}", out)
        elif not self._rules.late_failure_is_local:
            self._failed = True
        else:
            for other in self._members.values():
                if other.alive and other.asked == member.replica:
                    other.asked = None
                    other.phase = Phase.IDLE  # its read will not be answered: take another source

    def _abort(self, reason: str, out: list[Effect], fence: int | None = None) -> None:
        if self._failed:
            return
        self._failed = True
        out.append(RecoveryFailed(reason, fence))
        for member in self._members.values():
            # Java: RecoveryManagerImpl notices an abort between the steps of the loop, not while copying.
            runs_on = not self._rules.copy_capped_at_source and (member.busy or member.phase is Phase.READY)
            if member.phase is not Phase.OFFLINE and not runs_on:
                member.phase = Phase.FAILED

    def _refuse(self, member: _Member, reason: str, out: list[Effect]) -> None:
        member.phase = Phase.REFUSED
        out.append(ReplicaRefused(member.replica, reason))

    # ---- a replica arrives -----------------------------------------------------------------------

    def _on_up(self, member: _Member, event: ReplicaUp, out: list[Effect]) -> None:
        member.info = event.info
        member.start, member.movable = event.log_start, event.movable
        self._on_fence(member, max(event.info.session_id, -1 if event.fence is None else event.fence), out)
        self._on_number(member, event.info.session_id, out)
        if self._failed:
            member.phase = Phase.FAILED
        elif event.limbo:
            self._refuse(member, "its log may end too early; repair it or accept the loss there", out)
        else:
            self._arrive(member, out)

    def _arrive(self, member: _Member, out: list[Effect]) -> None:
        """Let the replica be cut to what is good for certain, or ask what it holds (recovery.md §3)."""
        state, info, rules, own = self._states.get(member.replica), member.info, self._rules, member.own
        assert info is not None
        member.counted = True
        member.phase = Phase.ARRIVING
        unknown = is_unknown(self._states, member.replica, info.session_id)
        if unknown and rules.rewound_metadata_stops and member.probe is _Probe.NONE:
            member.probe = _Probe.ASKED
            out.append(AskMax(member.replica))
            return
        if not self._states:  # E0: the first session ever, or the metadata is gone
            member.may_vote = True
            if rules.lost_metadata_stops and own >= 0:
                # The session it reports is no evidence: a first recovery that was aborted leaves one.
                member.phase = Phase.HELD
            else:
                out.append(AskMax(member.replica))
        elif state is None:  # E2: new; what an earlier membership left there is compared before it is kept
            member.counted = False
            member.vouched = not rules.kept_records_compared
            self._cut(member, own, out)
        elif info.session_id < state.session_id:  # E1: older than the states say: set back, or wiped
            settled = state.closing_mark != UNRESOLVED
            member.counted = settled or not rules.rolled_back_is_absent
            member.vouched = not rules.kept_records_compared
            self._cut(member, min(own, state.closing_mark) if settled and rules.placeholder_arrival else own, out)
        elif state.closing_mark != UNRESOLVED:  # E3: took no part in the last session
            self._cut(member, self._good_until(member, state, info), out)
        else:  # E4, E5: took part
            member.may_vote = True
            if rules.later_session_arrival and info.session_id > state.session_id:
                # E5': a later session marked it and died before its states were written: it committed nothing.
                self._cut(member, own, out)
            else:
                out.append(AskMax(member.replica))

    def _good_until(self, member: _Member, state: ReplicaState, info: SessionInfo) -> int:
        """Up to where the log of a replica with a closing mark is good (E3, E3')."""
        rules, own, last = self._rules, info.low_water_mark, last_session(self._states)
        member.vouched = state.session_id >= 0 or not rules.kept_records_compared
        if info.session_id == state.session_id:
            return state.closing_mark
        if rules.low_water_mark_kept and info.session_id >= last:
            # The last session marked it and could not name it any more, or a recovery that was aborted after
            # it did: the log up to that mark is decided, and in the second case holds all that it committed.
            member.vouched = True
            member.may_vote = info.session_id > last
            return own
        if not rules.placeholder_arrival:
            return state.closing_mark
        if rules.low_water_mark_kept and rules.kept_records_compared and state.closing_mark < own:
            # A session in between marked it and never named it: an open one, or one that came to nothing.
            member.vouched = False
            return own
        return min(state.closing_mark, own)

    def _cut(self, member: _Member, mark: int, out: list[Effect]) -> None:
        if self._rules.low_water_mark_kept and mark < member.own:
            # Storage nodes refuse to be cut or marked below their mark, so each attempt would end a session.
            reason = f"its log is good up to {mark}, but its low-water mark is {member.own}; its copy must be replaced"
            self._refuse(member, reason, out)
        else:
            # One that began anew where the others' logs do holds nothing below, and its node cuts nothing there.
            out.append(Truncate(member.replica, max(mark, member.start - 1)))

    def _on_arrived(self, member: _Member, mark: int, out: list[Effect], kept: int | None = None) -> None:
        """The replica was cut, or told what it holds; or need not be cut, as what it holds is known (`kept`)."""
        assert member.info is not None
        if member.probe is _Probe.ASKED:
            # A session of ours appends only when the states name it. These do not, so they were set back, or the
            # session was one of 0.13.2 (server-D1).
            if mark > member.own:
                # But if another replica holds the same, it was only copied, by a recovery that was aborted.
                member.probe = _Probe.SUSPECT
                member.mark = mark
                member.vouched = False
                member.phase = Phase.IDLE
            else:
                member.probe = _Probe.CLEAR
                self._arrive(member, out)
            return
        if not self._states and self._rules.lost_metadata_stops and mark >= 0:
            member.phase = Phase.HELD
            return
        member.mark = member.first_mark = mark
        member.voter = member.may_vote and mark >= member.own
        member.clean = not member.voter
        member.vouched = member.vouched or mark < member.start  # nothing is left to compare
        if member.may_vote and self._rules.rolled_back_is_absent and mark < member.info.local_low_water_mark:
            member.counted = False  # it once held more than it does: it may have lost what it acknowledged
        if kept is not None:
            member.mark = kept
        self._enter(member, out)

    def _enter(self, member: _Member, out: list[Effect]) -> None:
        """Show its mark to the others, look whether that decides, and follow whoever is ahead."""
        member.phase = Phase.IDLE
        if self._resolved is None:
            member.entered = member.mark
            self._decide(member)
            if member.vouched and not self._below_own(member):
                self._copy(member, out)

    def _clear_suspects(self, out: list[Effect]) -> None:
        """Let suspects in if too few replicas can hold what the unknown session appended for it to be committed."""
        suspects = [m for m in self._members.values() if m.phase is Phase.IDLE and m.probe is _Probe.SUSPECT]
        if not suspects or self._failed:
            return
        entered = [m for m in self._members.values() if m.alive and m.counted and m.entered is not None]
        for member in suspects:
            others = sum(self._without(other, member) for other in entered)
            if self._resolved is not None or others > len(self._members) - self._quorum:
                self._clear(member, out)

    @staticmethod
    def _without(other: _Member, suspect: _Member) -> bool:
        """Whether a replica holds nothing that the suspect's session appended."""
        assert other.info is not None
        assert suspect.info is not None
        return other.info.session_id < suspect.info.session_id or other.first_mark <= other.own

    def _clear(self, member: _Member, out: list[Effect], kept: int | None = None) -> None:
        """Let a suspect in, with the records up to `kept`, which a member holds too, instead of cutting it."""
        member.probe = _Probe.CLEAR
        member.vouched = True
        member.avoid.clear()
        first = len(out)
        self._arrive(member, out)
        if kept is not None and len(out) > first and isinstance(cut := out[-1], Truncate):
            del out[first:]
            self._on_arrived(member, cut.transaction_id, out, kept)

    def _below_own(self, member: _Member) -> bool:
        """Whether the decided mark is one that the replica would refuse."""
        return self._rules.low_water_mark_kept and self._resolved is not None and self._resolved < member.own

    # ---- the decision ----------------------------------------------------------------------------

    def _supporters(self) -> Iterator[_Member]:
        """Replicas of the last session whose marks count."""
        for member in self._members.values():
            if member.alive and member.counted and member.vouched and member.entered is not None:
                yield member

    def _decide(self, evaluator: _Member | None = None) -> None:
        if self._resolved is not None or self._failed or self._held():
            return
        if not self._states:
            fresh = sum(member.entered is not None for member in self._members.values())
            # Java: resolved by the first arrival; a second one with records would come too late to be noticed.
            if fresh >= (self._quorum if self._rules.lost_metadata_stops else 1):
                self._resolved = -1
        else:
            self._resolved = self._decision(evaluator).mark
        if self._resolved is not None:
            for member in self._members.values():
                member.avoid.clear()

    def _decision(self, evaluator: _Member | None) -> Decision:
        present = [(member, member.entered) for member in self._supporters() if member.entered is not None]
        voters = [member.first_mark for member in self._members.values() if member.alive and member.voter]
        if not voters:
            return Decision(None, None)
        lowest = min(voters)
        if self._rules.low_water_mark_kept:
            # Records up to the mark of a recovery that was aborted are candidates of the last session, and a
            # replica that carries such a mark cannot be brought below it.
            last = last_session(self._states)
            for member, mark in present:
                if member.info is not None and member.info.session_id >= last and mark >= member.own:
                    lowest = max(lowest, member.own)
        if not self._rules.copying_does_not_delay:
            # Java: each replica looks for itself, at marks from its own on, and not while it is copying.
            idle = (m.entered for m in self._members.values() if m.phase is Phase.IDLE and evaluator in (None, m))
            lowest = min((mark for mark in idle if mark is not None and mark >= lowest), default=2**63)
        absent = len(self._last) - len(present)
        return decide((mark for _, mark in present), lowest=lowest, absent=absent, quorum=majority(len(self._last)))

    def _held(self) -> bool:
        return any(m.phase is Phase.HELD or (m.alive and m.probe is _Probe.SUSPECT) for m in self._members.values())

    # ---- what an idle replica does next ------------------------------------------------------------

    def _advance(self, member: _Member, out: list[Effect]) -> None:
        resolved = self._resolved
        assert member.info is not None
        if self._failed:
            member.phase = Phase.FAILED
        elif self._below_own(member):
            reason = f"its low-water mark {member.own} is above the decided {resolved}; its copy must be replaced"
            self._refuse(member, reason, out)
        elif not member.vouched:
            self._compare(member, out)
        elif resolved is None:
            self._copy(member, out)
        elif not member.marked:
            if member.mark > resolved:
                member.phase = Phase.MARKING
                out.append(Truncate(member.replica, resolved))
            elif member.mark < resolved and self._marked_last(member):
                self._copy(member, out)
            else:
                member.phase = Phase.MARKING
                out.append(SetLowWaterMark(member.replica, resolved))
        elif member.mark < resolved:
            self._copy(member, out)
        else:
            member.phase = Phase.LEVEL
            member.clean = True
            if self._rules.copy_capped_at_source:
                member.entered = member.mark

    def _marked_last(self, member: _Member) -> bool:
        """Whether a replica that lags is copied to before it is marked.

        Otherwise the mark comes first: then the next recovery keeps what was copied, though the states say less.
        """
        assert member.info is not None
        refuses = self._rules.low_water_mark_kept and member.mark < member.info.local_low_water_mark
        return refuses or (self._rules.voters_level_first and member.voter)

    def _sources(self, member: _Member) -> Iterator[_Member]:
        """Replicas that records may be copied to `member` from."""
        for other in self._members.values():
            good = other.counted or (other.marked and self._rules.copy_capped_at_source)
            aside = other.replica in member.avoid or other.replica in member.denied
            if other is not member and other.alive and good and other.vouched and not aside:
                yield other

    def _copy(self, member: _Member, out: list[Effect]) -> None:
        """Follow the replica that is ahead by least; stay idle if nobody is."""
        member.entered = member.mark
        ahead = [(o.entered, o) for o in self._sources(member) if o.entered is not None and o.entered > member.mark]
        near = [(entered, o.replica) for entered, o in ahead if o.start <= member.mark + 1]
        if near:
            member.target, name = min(near)
            member.source = self._members[name]
            member.phase = Phase.COPYING
            self._copy_more(member, out)
        elif ahead:
            self._begin_anew(member, min(o.start for _, o in ahead), out)
        else:
            self._report_blocked(member, member.mark + 1, out)

    def _report_blocked(self, member: _Member, transaction_id: int, out: list[Effect]) -> None:
        """Say, once, that nobody gives out what a replica needs; it costs the others nothing."""
        if not member.denied:
            return
        reason = f"transaction {transaction_id} cannot be read from {', '.join(sorted(member.denied))}"
        if reason != member.blocked:
            member.blocked = reason
            out.append(CopyBlocked(member.replica, reason))

    def _begin_anew(self, member: _Member, start: int, out: list[Effect]) -> None:
        """What it needs next was given up by the others: committed long ago, and kept elsewhere."""
        if not member.movable:
            reason = f"the log of the others begins at {start}, and a node of 0.13.2 cannot begin there"
            self._refuse(member, f"{reason}; assign a storage node that can in its place", out)
            return
        member.phase = Phase.STARTING
        out.append(SetLogStart(member.replica, start))

    def _copy_more(self, member: _Member, out: list[Effect]) -> None:
        source = member.source
        assert source is not None
        if self._resolved is not None:
            member.target = self._resolved
        count = min(member.target - member.mark, self._copy_count_max)
        if self._rules.copy_capped_at_source:
            count = min(count, source.mark - member.mark) if source.alive else 0
        if count > 0:
            self._ask(source, member, member.mark + 1, count, out)
            return
        self._enter(member, out)

    def _on_copy(self, member: _Member, event: RecordsRead | RecordsDenied | RecordsWritten, out: list[Effect]) -> None:
        match event:
            case RecordsDenied(source=source):
                if member.asked == source and member.phase in (Phase.COMPARING, Phase.COPYING):
                    # Damage in one record is no reason to do without the replica: another one may have it whole.
                    member.asked = None
                    member.phase = Phase.IDLE
                    member.denied.add(source)
            case RecordsRead(source=source, records=records):
                if member.asked == source and member.phase in (Phase.COMPARING, Phase.COPYING):
                    member.asked = None
                    (self._on_compared if member.phase is Phase.COMPARING else self._on_read)(member, records, out)
            case RecordsWritten():
                if member.phase is Phase.COPYING and member.writing is not None:
                    member.mark += member.writing
                    member.writing = None
                    member.denied.clear()  # they may well have the next one
                    member.denied_until = None
                    member.blocked = ""
                    self._copy_more(member, out)
            case _:
                assert_never(event)

    def _on_read(self, member: _Member, records: Sequence[Record], out: list[Effect]) -> None:
        assert member.source is not None
        # The target may have come down since we asked: nothing above it is wanted any more.
        target = member.target if self._resolved is None else self._resolved
        wanted = tuple(
            itertools.takewhile(
                lambda pair: pair[0] == pair[1].transaction_id <= target, enumerate(records, start=member.mark + 1)
            )
        )
        if wanted or (target > member.mark and not self._rules.copy_capped_at_source):
            member.writing = len(wanted)
            out.append(WriteRecords(member.replica, tuple(item for _, item in wanted)))
            return
        member.phase = Phase.IDLE
        if member.source.mark > member.mark and target > member.mark:
            self._no_answer(member, member.source, member.mark + 1, out)

    def _no_answer(self, member: _Member, source: _Member, transaction_id: int, out: list[Effect]) -> None:
        """A source lacks what it told us to hold: try another one, as long as there will be more of them."""
        if self._resolved is None:
            member.avoid.add(source.replica)
        else:
            self._refuse(member, f"{source.replica} does not give out record {transaction_id}", out)

    def _compare(self, member: _Member, out: list[Effect]) -> None:
        """Read its last record, then that of a member: logs with one equal record are equal up to it."""
        ahead = [o for o in self._sources(member) if o.entered is not None and o.mark >= member.mark]
        source = next((o for o in ahead if o.start <= member.mark), None)
        if source is None and ahead and self._resolved is not None:
            member.vouched = True  # all of it is given up: the others begin behind it
            self._copy(member, out)
        elif source is not None:
            member.phase = Phase.COMPARING
            member.source = source
            member.kept = None
            self._ask(member, member, member.mark, 1, out)
        elif not ahead:
            self._report_blocked(member, member.mark, out)

    def _on_compared(self, member: _Member, records: Sequence[Record], out: list[Effect]) -> None:
        source = member.source
        assert source is not None
        found = records[0] if records and records[0].transaction_id == member.mark else None
        member.phase = Phase.IDLE
        if member.kept is None:
            if found is None:
                self._refuse(member, f"it does not give out its own record {member.mark}", out)
            elif source.alive:
                member.kept = found
                member.phase = Phase.COMPARING
                self._ask(source, member, member.mark, 1, out)
        elif found is None:
            self._no_answer(member, source, member.mark, out)
        elif found == member.kept and member.probe is _Probe.SUSPECT:
            self._clear(member, out, member.mark)
        elif found == member.kept:
            member.vouched = True
        elif self._resolved is None:
            member.avoid.add(source.replica)  # an undecided tail may differ; once it is decided we ask again
        else:
            reason = f"its record {member.mark} is not the one of {source.replica}; its copy must be replaced"
            self._refuse(member, reason, out)

    def _ask(self, source: _Member, member: _Member, first: int, count: int, out: list[Effect]) -> None:
        member.asked = source.replica
        out.append(ReadRecords(source.replica, member.replica, first, count))

    # ---- metadata and the end ------------------------------------------------------------------------

    def _finish(self, out: list[Effect]) -> None:
        """Hand over level replicas: at first a quorum of them, each only once ZooKeeper names it."""
        level = [member for member in self._members.values() if member.phase is Phase.LEVEL]
        ready = sum(member.phase is Phase.READY for member in self._members.values())
        if self._resolved is None or self._failed or self._held() or len(level) + ready < self._quorum or not level:
            return
        if not self._rules.states_before_votes and not self._open:
            self._hand_over(level, out)
        named = [member for member in level if self._named(member)]
        if self._open or len(named) >= self._quorum:
            self._hand_over(named, out)
        wanted = self._wanted(self._resolved)
        if self._writing is None and not same_metadata(wanted, self._metadata):
            self._writing = wanted
            out.append(CasMetadata(wanted, self._version))

    def _named(self, member: _Member) -> bool:
        state = self._states.get(member.replica)
        return state is not None and (state.session_id, state.closing_mark) == (self._session_id, UNRESOLVED)

    def _wanted(self, resolved: int) -> PartitionMetadata:
        if self._rules.marked_before_named:
            taking_part = {m.replica for m in self._members.values() if m.alive and m.clean and m.marked}
        else:
            taking_part = {m.replica for m in self._members.values() if m.clean}
        return recovered_metadata(
            self._metadata,
            partition_id=self._partition_id,
            generation=self._generation,
            session_id=self._session_id,
            assigned=self._assigned,
            taking_part=taking_part,
            resolved=resolved,
        )

    def _hand_over(self, members: Sequence[_Member], out: list[Effect]) -> None:
        assert self._resolved is not None
        for member in members:
            member.phase = Phase.READY
            out.append(ReplicaReady(member.replica, self._resolved + 1))
        if not self._open:
            self._open = True
            out.append(SessionRecovered(self._resolved))

    def _on_cas(self, event: CasDone | CasLost, out: list[Effect]) -> None:
        if self._writing is None or self._failed:
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
        lost = [m.replica for m in self._members.values() if m.phase is Phase.READY and not self._named(m)]
        if lost and self._rules.states_before_votes:
            self._abort(f"the metadata in ZooKeeper was set back: it does not name {', '.join(lost)} any more", out)

    # ---- waiting -------------------------------------------------------------------------------------

    def _report(self, now: int, out: list[Effect]) -> None:
        reason = self._waiting()
        if not reason:
            self._waits_since = None
            if self._stuck:
                self._stuck = ""
                if not self._failed:
                    out.append(RecoveryUnstuck())
        elif self._waits_since is None:
            self._waits_since = now
        elif reason != self._stuck and (self._stuck or now - self._waits_since >= self._stuck_after_ms):
            self._stuck = reason
            out.append(RecoveryStuck(reason))

    def _waiting(self) -> str:
        """What recovery waits for; empty while something is under way, and when it is over."""
        if self._open or self._failed or self._writing or any(m.busy for m in self._members.values()):
            return ""
        suspects = [m for m in self._members.values() if m.alive and m.probe is _Probe.SUSPECT]
        held = suspects or [member for member in self._members.values() if member.phase is Phase.HELD]
        if held:
            found = ", ".join(f"{m.replica} (session {m.info.session_id}, mark {m.own})" for m in held if m.info)
            if suspects:
                return (
                    f"the metadata does not name what a session appended to: {found}; was ZooKeeper restored from an "
                    "older state? The partition waits until its metadata is repaired, or until an operator confirms "
                    "that all replicas that still exist are connected"
                )
            if self._resolved is not None:
                return f"the partition is about to start empty, but there are transactions on {found}: give them up?"
            return (
                f"the metadata names no replica, but there are transactions on {found}; waits for an operator to "
                "confirm that all replicas that still exist are connected: what only others hold would be lost"
            )
        if self._resolved is not None or not self._states:
            there = (Phase.IDLE,) if self._resolved is None else (Phase.LEVEL, Phase.READY)
            missing = [member.replica for member in self._members.values() if member.phase not in there]
            ready = len(self._members) - len(missing)
            waits = ", ".join(
                f"{replica} ({blocked})" if (blocked := self._members[replica].blocked) else replica
                for replica in missing
            )
            return f"{ready} of {self._quorum} replicas needed are there; waits for {waits}"
        return self._undecided()

    def _undecided(self) -> str:
        present = {member.replica: member.entered for member in self._supporters() if member.entered is not None}
        absent = ", ".join(self._absence(replica) for replica in sorted(self._last - present.keys()))
        if not present:
            return f"waits for a replica of the last session: {absent}"
        first = 1 + max(member.own for member in self._members.values() if member.replica in present)
        held = ", ".join(f"{replica} ends at {mark}" for replica, mark in present.items())
        last = max(present.values())
        if first <= last:
            return f"transactions {first}..{last} may be committed or not, and more may be: {held}; waits for {absent}"
        return f"later transactions than {last} may be committed: {held}; waits for {absent}"

    def _absence(self, replica: str) -> str:
        member = self._members.get(replica)
        if member is None:
            return f"{replica} (not assigned any more)"
        if member.phase is Phase.OFFLINE:
            return f"{replica} (not connected)"
        if member.phase is Phase.REFUSED:
            return f"{replica} (stays out)"
        return f"{replica} (its copy is older than it should be, and does not count)"

    # ---- invariants ----------------------------------------------------------------------------------

    def _check(self, resolved_before: int | None) -> None:
        assert resolved_before is None or self._resolved == resolved_before  # I10
        ready = [member for member in self._members.values() if member.phase is Phase.READY]
        assert all(member.marked and member.mark == self._resolved for member in ready)  # I10
        if self._rules.states_before_votes:
            assert all(self._named(member) for member in ready)  # I4, S4
        if self._resolved is not None and self._rules.low_water_mark_kept:
            assert all(member.own <= self._resolved for member in ready)  # S5: low-water marks never decrease
