"""Pure functions on the metadata of a partition: a new session, the states after its recovery."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from waltz_core.base.ids import ReplicaId
from waltz_core.zookeeper.znodes import UNRESOLVED, PartitionMetadata, ReplicaState


def states_by_storage(metadata: PartitionMetadata) -> dict[str, ReplicaState]:
    """The replica states by the connect string of the storage node."""
    return {state.replica_id.storage: state for state in metadata.replica_states}


def last_session(states: Mapping[str, ReplicaState]) -> int:
    """The session that wrote `states`; -1 if none did."""
    return max((state.session_id for state in states.values()), default=-1)


def is_unknown(states: Mapping[str, ReplicaState], replica: str, session_id: int) -> bool:
    """Whether `states` do not know that a session which marked the replica took it in."""
    if not states or session_id < last_session(states):
        return False
    state = states.get(replica)
    return state is None or (state.session_id, state.closing_mark) != (session_id, UNRESOLVED)


def recovered_metadata(
    metadata: PartitionMetadata,
    *,
    partition_id: int,
    generation: int,
    session_id: int,
    assigned: Sequence[str],
    taking_part: Collection[str],
    resolved: int,
) -> PartitionMetadata:
    """The metadata once the tails of the last session are decided.

    Replicas that take part are named with this session, unresolved. Of the others the metadata says up
    to where their log is good: `resolved` for those of the last session, what it said for older ones,
    and a dummy session for a replica that never took part. Replicas not assigned any more are forgotten.

    Args:
        metadata: what ZooKeeper holds now.
        assigned: connect strings of the partition's storage nodes.
        taking_part: those of them that acknowledge appends of this session.
        resolved: the decided end of the log.
    """
    old = states_by_storage(metadata)
    states: list[ReplicaState] = []
    for storage in assigned:
        replica_id, state = ReplicaId(partition_id, storage), old.get(storage)
        if storage in taking_part:
            state = ReplicaState(replica_id, session_id, UNRESOLVED)
        elif state is None:
            state = ReplicaState(replica_id, -1, resolved)
        elif state.session_id < session_id and state.closing_mark == UNRESOLVED:
            state = ReplicaState(replica_id, state.session_id, resolved)
        states.append(state)
    return PartitionMetadata(generation, session_id, tuple(states))


def same_metadata(one: PartitionMetadata, other: PartitionMetadata) -> bool:
    """Equal up to the order of the replica states, which is of no meaning."""
    return (one.generation, one.session_id, states_by_storage(one)) == (
        other.generation,
        other.session_id,
        states_by_storage(other),
    )
