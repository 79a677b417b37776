"""What a new store session does before its first append: decides where the log ends, makes replicas level.

```
undecided ──────► decided ──────► open           over, at any point: a replica that matters failed, a later
          end of          states  │              session has been there, the metadata was set back
          the log         written └► late replicas go the same way
```

Recovery has three kinds of evidence: the states of the replicas in ZooKeeper, written by the last session that opened;
what each replica remembers (session and marks, on its disk); and its highest id. It takes four steps, each in a file of
its own:

1. `arrivals`: a table of cases judges each replica that arrives; it is cut to what is certainly good, or says what it
   holds. `intake` acts on that.
2. `decision`: as soon as the marks of the last session's replicas allow it, the end of the log is decided, for good.
3. `levelling`: each replica is copied to or cut, and marked, until it holds exactly the log.
4. Here: once a quorum of the *new* assignment is level, the states that name it are written to ZooKeeper by
   compare-and-set; with that write the session is open. No replica votes in a session in which ZooKeeper does not name
   it (I4): the next recovery could not know of its vote.

`members` draws the states of a replica; `waiting` puts into words what recovery waits for. Everything that survives a
crash is on the replicas and in ZooKeeper. After an aborted recovery the next session simply starts over: the aborted
one has only cut what had to go, copied what may be committed, and set marks.

The procedure is that of Waltz 0.13.2 with safer rules (docs/compatibility.md lists them). No connection, clock or
ZooKeeper here: the parent performs the effects and reports their answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, assert_never

from waltz_core.base.contract import earliest
from waltz_core.store.decision import try_to_decide
from waltz_core.store.intake import arrive, arrived, clear, clear_suspects
from waltz_core.store.levelling import advance, enter, on_denied, on_read, on_written
from waltz_core.store.members import Member, Situation
from waltz_core.store.recovery_events import (
    BegunAnew,
    CasDone,
    CasLost,
    CasMetadata,
    Effect,
    Event,
    LogStartRaised,
    Marked,
    MaxKnown,
    RecordsDenied,
    RecordsRead,
    RecordsWritten,
    RecoveryFailed,
    RecoveryStuck,
    RecoveryUnstuck,
    ReplicaFailed,
    ReplicaFenced,
    ReplicaPhase,
    ReplicaReady,
    ReplicaUp,
    SessionRecovered,
    Tick,
)
from waltz_core.store.waiting import reason_to_wait
from waltz_core.zookeeper.partition_metadata import recovered_metadata, same_metadata, states_by_storage
from waltz_core.zookeeper.znodes import UNRESOLVED, PartitionMetadata

_STUCK_AFTER_MS: Final = 1000  # waiting shorter than this is ordinary and not reported
_COPY_COUNT: Final = 1000  # records per copy step; Java: 20
_ASK_AGAIN_MS: Final = 10_000  # after so long a source that could not give out a record is asked for it again


class Recovery:
    """Recovery of one partition by one store session.

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
    ) -> None:
        assert assigned
        assert metadata.session_id == session_id
        self._at = Situation(session_id, metadata, assigned, copy_count_max)
        self._partition_id = partition_id
        self._generation = generation
        self._metadata = metadata
        self._version = metadata_version
        self._assigned = tuple(assigned)
        self._stuck_after_ms = stuck_after_ms
        self._writing: PartitionMetadata | None = None  # the CasMetadata under way
        self._waits_since: int | None = None
        self._stuck = ""  # reason reported last

    # ---- for the parent and for people ---------------------------------------------------------

    @property
    def resolved(self) -> int | None:
        """The decided end of the log; never changes once set."""
        return self._at.resolved

    @property
    def failed(self) -> bool:
        """Whether the recovery was aborted."""
        return self._at.failed

    def phase(self, replica: str) -> ReplicaPhase:
        """Where an assigned replica is."""
        return self._at.members[replica].phase

    def deadline(self) -> int | None:
        """When waiting must be reported, or a source asked again."""
        if self._at.failed:
            return None
        report = None if self._waits_since is None or self._stuck else self._waits_since + self._stuck_after_ms
        return earliest(report, *(member.denied_until for member in self._at.members.values()))

    def step(self, now: int, events: Sequence[Event], out: list[Effect]) -> None:
        """Handle events in order; stale and unexpected ones are ignored."""
        before = self._at.resolved
        for event in events:
            self._on_event(event, out)
        clear_suspects(self._at, out)
        try_to_decide(self._at)
        for member in self._at.members.values():
            if member.denied_until is not None and now >= member.denied_until:
                member.denied.clear()
                member.denied_until = None
            if member.phase is ReplicaPhase.IDLE:
                advance(self._at, member, out)
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
                self._on_copy(event, out)
            case LogStartRaised(log_start=start):
                for ready in self._at.members.values():
                    if ready.phase is ReplicaPhase.READY:
                        ready.start = max(ready.start, start)
            case ReplicaUp() | ReplicaFenced() | ReplicaFailed() | MaxKnown() | Marked() | BegunAnew():
                member = self._at.members.get(event.replica)
                if member is not None:
                    self._on_replica(member, event, out)
            case _:
                assert_never(event)

    def _on_replica(
        self,
        member: Member,
        event: ReplicaUp | ReplicaFenced | ReplicaFailed | MaxKnown | Marked | BegunAnew,
        out: list[Effect],
    ) -> None:
        match event:
            case ReplicaUp():
                if member.phase is ReplicaPhase.OFFLINE:
                    self._on_up(member, event, out)
            case ReplicaFenced(fence=fence):
                self._on_fence(member, fence, out)
            case ReplicaFailed(reason=reason):
                if member.alive:
                    self._on_failed(member, reason, out)
            case MaxKnown(transaction_id=transaction_id):
                if member.phase is ReplicaPhase.ARRIVING:
                    arrived(self._at, member, transaction_id, out)
                elif member.phase is ReplicaPhase.MARKING:  # it was cut before its mark
                    member.mark = transaction_id
                    member.phase = ReplicaPhase.IDLE
            case Marked():
                if member.phase is ReplicaPhase.MARKING:
                    member.marked = True
                    member.phase = ReplicaPhase.IDLE
            case BegunAnew(log_start=start):
                self._on_start_set(member, start, out)
            case _:
                assert_never(event)

    def _on_copy(self, event: RecordsRead | RecordsDenied | RecordsWritten, out: list[Effect]) -> None:
        member = self._at.members.get(event.target)
        if member is None:
            return
        match event:
            case RecordsDenied(source=source):
                on_denied(member, source)
            case RecordsRead(source=source, records=records):
                if on_read(self._at, member, source, records, out):
                    clear(self._at, member, out, member.mark)
            case RecordsWritten():
                on_written(self._at, member, out)

    def _on_start_set(self, member: Member, start: int, out: list[Effect]) -> None:
        if member.phase is ReplicaPhase.STARTING:
            member.start, member.mark = start, start - 1
            enter(self._at, member, out)

    def _on_fence(self, member: Member, fence: int, out: list[Effect]) -> None:
        """Somebody was here with a later session: either we are superseded, or the metadata was rewound."""
        if fence > self._at.session_id:
            reason = f"replica {member.replica} has answered session {fence}, later than our {self._at.session_id}"
            self._abort(f"{reason}: another server took over, or the metadata was set back", out, fence)

    def _on_number(self, member: Member, marked_by: int, out: list[Effect]) -> None:
        """We have marked nobody yet: if a replica was marked by our number, it was another session's.

        With a number of its own every session that opens has a higher one than all before, no matter what became of the
        metadata: some replica of its quorum was marked by the last of them.
        """
        if marked_by == self._at.session_id and not self._at.failed:
            reason = f"replica {member.replica} was marked by another session {marked_by}: the metadata was set back"
            self._abort(reason, out, marked_by)

    def _on_failed(self, member: Member, reason: str, out: list[Effect]) -> None:
        member.phase = ReplicaPhase.FAILED
        if not self._at.open:
            # Its mark may be part of the decision: the next session starts from what is left.
            self._abort(f"replica {member.replica} failed: {reason}", out)
        else:
            for other in self._at.members.values():
                if other.alive and other.asked == member.replica:
                    other.asked = None
                    other.phase = ReplicaPhase.IDLE  # its read will not be answered: take another source

    def _abort(self, reason: str, out: list[Effect], fence: int | None = None) -> None:
        if self._at.failed:
            return
        self._at.failed = True
        out.append(RecoveryFailed(reason, fence))
        for member in self._at.members.values():
            if member.phase is not ReplicaPhase.OFFLINE:
                member.phase = ReplicaPhase.FAILED

    # ---- a replica arrives -----------------------------------------------------------------------

    def _on_up(self, member: Member, event: ReplicaUp, out: list[Effect]) -> None:
        member.info = event.info
        member.start, member.movable = event.log_start, event.movable
        self._on_fence(member, max(event.info.session_id, -1 if event.fence is None else event.fence), out)
        self._on_number(member, event.info.session_id, out)
        if self._at.failed:
            member.phase = ReplicaPhase.FAILED
        elif event.limbo:
            member.refuse("its log may end too early; repair it or accept the loss there", out)
        else:
            arrive(self._at, member, out)

    # ---- metadata and the end ------------------------------------------------------------------------

    def _finish(self, out: list[Effect]) -> None:
        """Hand over level replicas: at first a quorum of them, each only once ZooKeeper names it."""
        at = self._at
        level = [member for member in at.members.values() if member.phase is ReplicaPhase.LEVEL]
        ready = sum(member.phase is ReplicaPhase.READY for member in at.members.values())
        if at.resolved is None or at.failed or at.held or len(level) + ready < at.quorum or not level:
            return
        named = [member for member in level if self._named(member)]
        if at.open or len(named) >= at.quorum:
            self._hand_over(named, out)
        wanted = self._wanted(at.resolved)
        if self._writing is None and not same_metadata(wanted, self._metadata):
            self._writing = wanted
            out.append(CasMetadata(wanted, self._version))

    def _named(self, member: Member) -> bool:
        state = self._at.states.get(member.replica)
        return state is not None and (state.session_id, state.closing_mark) == (self._at.session_id, UNRESOLVED)

    def _wanted(self, resolved: int) -> PartitionMetadata:
        taking_part = {m.replica for m in self._at.members.values() if m.alive and m.clean and m.marked}
        return recovered_metadata(
            self._metadata,
            partition_id=self._partition_id,
            generation=self._generation,
            session_id=self._at.session_id,
            assigned=self._assigned,
            taking_part=taking_part,
            resolved=resolved,
        )

    def _hand_over(self, members: Sequence[Member], out: list[Effect]) -> None:
        assert self._at.resolved is not None
        for member in members:
            member.phase = ReplicaPhase.READY
            out.append(ReplicaReady(member.replica, self._at.resolved + 1))
        if not self._at.open:
            self._at.open = True
            out.append(SessionRecovered(self._at.resolved))

    def _on_cas(self, event: CasDone | CasLost, out: list[Effect]) -> None:
        if self._writing is None or self._at.failed:
            return
        if isinstance(event, CasDone):
            self._metadata = self._writing
        elif (event.metadata.session_id, event.metadata.generation) != (self._at.session_id, self._generation):
            self._abort(f"session {event.metadata.session_id} took over from session {self._at.session_id}", out)
            return
        else:
            self._metadata = event.metadata
        self._version = event.version
        self._writing = None
        self._at.states = states_by_storage(self._metadata) or self._at.states
        lost = [m.replica for m in self._at.members.values() if m.phase is ReplicaPhase.READY and not self._named(m)]
        if lost:
            self._abort(f"the metadata in ZooKeeper was set back: it does not name {', '.join(lost)} any more", out)

    # ---- waiting -------------------------------------------------------------------------------------

    def _report(self, now: int, out: list[Effect]) -> None:
        reason = "" if self._writing else reason_to_wait(self._at)
        if not reason:
            self._waits_since = None
            if self._stuck:
                self._stuck = ""
                if not self._at.failed:
                    out.append(RecoveryUnstuck())
        elif self._waits_since is None:
            self._waits_since = now
        elif reason != self._stuck and (self._stuck or now - self._waits_since >= self._stuck_after_ms):
            self._stuck = reason
            out.append(RecoveryStuck(reason))

    # ---- invariants ----------------------------------------------------------------------------------

    def _check(self, resolved_before: int | None) -> None:
        assert resolved_before is None or self._at.resolved == resolved_before  # I10
        ready = [member for member in self._at.members.values() if member.phase is ReplicaPhase.READY]
        assert all(member.marked and member.mark == self._at.resolved for member in ready)  # I10
        assert all(self._named(member) for member in ready)  # I4, S4
        if self._at.resolved is not None:
            assert all(member.own <= self._at.resolved for member in ready)  # S5: low-water marks never decrease
