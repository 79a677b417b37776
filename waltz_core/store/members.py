"""The replicas of a partition as recovery knows them, and everything else that its parts share.

The state of a replica is a product: where it is (`ReplicaPhase`), what its log is worth (`Standing`, from its
arrival), and how far it got (`mark`, `marked`, `clean`). Phases follow one another like this; in brackets, the one
answer that is awaited:

```
OFFLINE ─► ARRIVING [highest id] ─► IDLE ◄─────────────────────────────────────────────┐
              │                      │                                                 │
              ▼                      ├─► COMPARING [its last kept record, a member's] ─┤  not vouched for
            HELD                     ├─► COPYING [records read, records written] ──────┤  behind another one
   until an operator decides         ├─► STARTING [log start] ─────────────────────────┤  what it needs was given up
                                     ├─► MARKING [highest id, or mark] ────────────────┘  once the end is decided
                                     └─► LEVEL ─► READY                                   holds exactly the log
                              REFUSED: stays out of this session     FAILED: lost, or the recovery is over
```

What the products mean for the decision: a replica supports marks if it is alive, `counted`, `vouched` and has
`entered` a mark; it is absent otherwise. Of the supporters, the marks that a `voter` arrived with set the floor. One
with a `probe` of SUSPECT holds up the decision, and so does one that is HELD: what they hold may be committed. One that
is SPARE does not; it is only compared, so that it keeps what it has in common with the others.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from waltz_core.base.quorum import majority
from waltz_core.store.arrivals import Standing, ended
from waltz_core.store.recovery_events import Effect, ReplicaPhase, ReplicaRefused
from waltz_core.zookeeper.partition_metadata import last_session, states_by_storage
from waltz_core.zookeeper.znodes import PartitionMetadata, ReplicaState

if TYPE_CHECKING:
    from waltz_core.base.log import Record, SessionInfo


_BUSY = (
    ReplicaPhase.ARRIVING,
    ReplicaPhase.COMPARING,
    ReplicaPhase.COPYING,
    ReplicaPhase.STARTING,
    ReplicaPhase.MARKING,
)


class Probe(enum.Enum):
    """Whether a session that the states do not know has appended to a replica: then it may have committed."""

    NONE = enum.auto()
    ASKED = enum.auto()
    SUSPECT = enum.auto()  # it has: the states are older than they should be
    SPARE = enum.auto()  # it has, but too few hold that: what no member holds, too, is cut
    CLEAR = enum.auto()  # it has not, or it holds nothing of its own any more


class Member:
    """One assigned replica, as far as recovery is concerned."""

    __slots__ = (
        "asked",
        "avoid",
        "blocked",
        "clean",
        "common",
        "compared",
        "counted",
        "denied",
        "denied_until",
        "differs",
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
        "proven",
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
        self.phase = ReplicaPhase.OFFLINE
        self.info: SessionInfo | None = None  # None until it arrived
        self.mark = -1  # its highest id, as far as we know; nobody but us changes it
        self.entered: int | None = None  # the mark that others see: not raised step by step while copying
        self.first_mark = -1  # the mark it arrived with
        self.probe = Probe.NONE
        self.common = -1  # a suspect's: up to here a member holds the same records
        self.differs: dict[str, int] = {}  # a suspect's: members that hold another record of this id, or none
        self.proven = -1  # up to here it was a suspect and turned out to hold what a member does
        self.may_vote = False  # see `Standing`
        self.voter = False  # it may, and holds all that it should
        self.counted = False
        self.vouched = True
        self.clean = False  # holds no undecided record of its own
        self.marked = False
        self.source: Member | None = None  # of the copy or comparison under way
        self.target = -1  # end of the copy under way
        self.asked: str | None = None  # whose answer to a read is due
        self.writing: int | None = None  # records in the write under way
        self.compared = -1  # the record that is compared
        self.kept: Record | None = None  # its own copy of that
        self.avoid: set[str] = set()  # sources that had nothing for it
        self.denied: set[str] = set()  # sources that cannot give out the record it needs next
        self.denied_until: int | None = None  # when they are asked again
        self.blocked = ""  # why no source is left, as reported last
        self.start = 0  # the smallest id it keeps
        self.movable = False  # its log can be made to begin at another id

    @property
    def alive(self) -> bool:
        """Arrived, and neither lost nor refused."""
        return self.phase not in (ReplicaPhase.OFFLINE, ReplicaPhase.FAILED, ReplicaPhase.REFUSED)

    @property
    def busy(self) -> bool:
        """An answer of a replica is due."""
        return self.phase in _BUSY

    @property
    def unknown(self) -> bool:
        """It holds records of a session that the states do not know."""
        return self.probe in (Probe.SUSPECT, Probe.SPARE)

    @property
    def own(self) -> int:
        """Its own low-water mark."""
        assert self.info is not None
        return self.info.low_water_mark

    @property
    def standing(self) -> Standing:
        """What its log is worth."""
        return Standing(self.counted, self.vouched, self.may_vote)

    def stands(self, standing: Standing) -> None:
        """Judged."""
        self.counted, self.vouched, self.may_vote = standing.counted, standing.vouched, standing.may_vote

    def refuse(self, reason: str, out: list[Effect]) -> None:
        """Keep it out of this session."""
        self.phase = ReplicaPhase.REFUSED
        out.append(ReplicaRefused(self.replica, reason))


class Situation:
    """What one recovery knows. Only `Recovery` makes it; its parts read it and move the members.

    `states` are those by which arrivals are judged: as written last. `last` are the replicas that the states named at
    the beginning, the base of the decision.
    """

    __slots__ = (
        "copy_count_max",
        "failed",
        "last",
        "members",
        "open",
        "quorum",
        "resolved",
        "session_id",
        "states",
    )

    def __init__(
        self,
        session_id: int,
        metadata: PartitionMetadata,
        assigned: Sequence[str],
        copy_count_max: int,
    ) -> None:
        self.session_id = session_id
        self.members = {replica: Member(replica) for replica in assigned}
        self.quorum = majority(len(self.members))
        self.states: Mapping[str, ReplicaState] = states_by_storage(metadata)
        self.last = frozenset(self.states)
        self.copy_count_max = copy_count_max
        self.resolved: int | None = None  # the decided end of the log; set once
        self.open = False
        self.failed = False

    @property
    def suspects(self) -> list[Member]:
        """Replicas with records of a session that the states do not know, which may be committed."""
        return [member for member in self.members.values() if member.alive and member.probe is Probe.SUSPECT]

    @property
    def held(self) -> bool:
        """Whether what some replica holds forbids a decision."""
        return any(
            m.phase is ReplicaPhase.HELD or (m.alive and m.probe is Probe.SUSPECT) for m in self.members.values()
        )

    def end(self, member: Member, mark: int) -> int:
        """Up to where a replica that holds `mark` can hold the log: see `ended`. Once that is decided, it is."""
        if self.resolved is not None or not self.states or member.info is None:
            return mark
        others = (other for other in self.members.values() if other.replica in self.states and other.proven < 0)
        infos = (other.info for other in others if other.info is not None)
        return ended(mark, member.info, infos, last_session(self.states))

    def below_own(self, member: Member) -> bool:
        """Whether the decided mark is one that the replica would refuse."""
        return self.resolved is not None and self.resolved < member.own
