"""What must hold in every run, one file each; a run asks all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.model.invariants.archived import Archived
from tests.model.invariants.base import Invariant, InvariantError
from tests.model.invariants.bounds import Bounds
from tests.model.invariants.commits_durable import CommitsDurable
from tests.model.invariants.committed_stays import CommittedStays
from tests.model.invariants.dense_ids import DenseIds
from tests.model.invariants.feeds import Feeds
from tests.model.invariants.journalled import Journalled
from tests.model.invariants.linearizable_reads import LinearizableReads
from tests.model.invariants.lock_soundness import LockSoundness
from tests.model.invariants.log_order import LogOrder
from tests.model.invariants.marks import Marks
from tests.model.invariants.outcomes import Outcomes
from tests.model.invariants.owed_reads import OwedReads
from tests.model.invariants.quiet import Quiet
from tests.model.invariants.real_time import RealTime
from tests.model.invariants.replica_agreement import ReplicaAgreement
from tests.model.invariants.truncation import Truncation
from tests.model.invariants.witness import ReplicaReport

if TYPE_CHECKING:
    from tests.model.observer import Observer

ALL: tuple[type[Invariant], ...] = (
    DenseIds,
    CommitsDurable,
    CommittedStays,
    ReplicaAgreement,
    LogOrder,
    Marks,
    Feeds,
    LockSoundness,
    Journalled,
    Outcomes,
    RealTime,
    LinearizableReads,
    OwedReads,
    Truncation,
    Archived,
    Bounds,
    Quiet,
    ReplicaReport,
)


def make_all(observer: Observer) -> list[Invariant]:
    """One of each."""
    return [kind(observer) for kind in ALL]


__all__ = ["ALL", "Invariant", "InvariantError", "make_all"]
