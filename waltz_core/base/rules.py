"""Where we are safer than Waltz 0.13.2, one flag per rule.

Off, a machine behaves as 0.13.2 does: that is how vectors which record a deviation are checked and
what simulated 0.13.2 peers run. Product code always runs `SAFE`; no configuration switches a rule off.
"""

from __future__ import annotations

from waltz_core.base.record import record


@record
class SafetyRules:
    """One field per rule; the comment cites the defect it removes."""

    # store sessions and recovery
    states_before_votes: bool = True  # server-D1: no append before the replica states are in ZooKeeper
    later_session_arrival: bool = True  # server-D1, recovery 14.2 (E5'): session newer than the states
    placeholder_arrival: bool = True  # server-D2, recovery 14.3 (E3'): never trust a closing mark above the own mark
    leftovers_by_req_id: bool = True  # server-D3: ownership gap: leftovers are looked up in the log
    rolled_back_is_absent: bool = True  # server-D4, ruling R3: a replica older than the metadata counts as absent
    lost_metadata_stops: bool = True  # server-D5: replicas with records and no states: wait for an operator
    rewound_metadata_stops: bool = True  # ruling R6: metadata older than the replicas: stop
    late_failure_is_local: bool = True  # server-D8: one late replica failing does not bar the others
    copy_capped_at_source: bool = True  # server-D7: never read beyond the source's mark, nor after an abort
    marked_before_named: bool = True  # ruling R3: the states name a replica only after its SetLowWaterMark
    low_water_mark_kept: bool = True  # server-D23: nobody is decided, cut or marked below its own low-water mark
    voters_level_first: bool = True  # recovery L1: marked while it lags, a voter would not vote again after an abort
    kept_records_compared: bool = True  # recovery I6: an unvouched replica's last record must equal a member's
    copying_does_not_delay: bool = True  # recovery 4: the decision never waits for a copy under way

    # server
    conflicts_in_flight_refused: bool = True  # server-5: the queue never waits for an append in flight
    marks_ahead_refused: bool = True  # ours: a client mark above the log passes every lock check
    locks_reset_on_gap: bool = True  # server-D3: new lock table whenever somebody else may have committed
    client_ids_claimed: bool = True  # ours: where clients show certificates, a live client id belongs to one name
    own_request_ids: bool = True  # ours: nobody appends under the request id of another client
    marks_confirmed: bool = True  # ours: a mark is answered only once a quorum says that nobody succeeded this server
    failed_fetch_forgotten: bool = True  # server-D13: one failed data fetch does not poison the key
    waiting_mounts_answered: bool = True  # ours: a mount that waits when its partition is let go gets NOT_READY
    preferences_kept: bool = True  # tools-T13: preferred partitions survive a restart
    preferences_checked: bool = True  # server-D26: an empty list or a negative id is refused by an answer

    # wire
    surplus_refused: bool = True  # storage-10 (page §1): a message with surplus bytes is not executed

    # storage node
    fence_persisted: bool = True  # storage-10.1, ruling R1
    sessions_plausible: bool = True  # ours: a session far above every known one is a mistake or an attack
    open_required: bool = True  # storage-10.2: nothing is done for a connection that did not open
    append_atomic: bool = True  # storage-10.4: a batch out of order stores nothing
    truncation_floor: bool = True  # recovery-D5, storage-10.5: never below the low-water mark
    unassigned_refused: bool = True  # storage-10.7: answered, nothing reset
    reads_verified: bool = True  # disk-8.11: the record checksum is checked on every read
    partitions_isolated: bool = True  # disk-8.5: one damaged partition does not stop the node
    torn_not_corrupt: bool = True  # disk-8.3: only an unsynced tail of the last segment is cut
    index_rebuilt: bool = True  # disk-8.1, disk-8.2: the index is a cache
    headers_checked: bool = True  # disk-8.4: segment headers against names, neighbours and index
    control_file_kept: bool = True  # disk-8.6: a short control file is an error, not a new node
    sequence_wraps: bool = True  # disk-8.10: sequence numbers are compared modulo 2^32

    # client
    reconnect_paced: bool = True  # client-C15: pauses grow, with jitter; 0.13.2 dials again at once
    silent_peer_dropped: bool = True  # client-5, client-C7: a peer that owes an answer is not waited for without end
    remount_on_generation: bool = True  # client-4: a server may have closed and reopened the partition unseen
    remount_after_loss: bool = True  # client-5: a server that drops appends without a word may not know our mount
    mark_asked_again: bool = True  # client-C7: an unanswered mark request is repeated

    # cluster
    assignment_complete: bool = True  # zk-D1: claims never make the assignment incomplete
    bad_children_skipped: bool = True  # zk-D4: an undecodable server descriptor is skipped


SAFE = SafetyRules()
"""Every rule on: what every process of the product runs."""

LEGACY = SafetyRules(**dict.fromkeys(SafetyRules.__annotations__, False))
"""Every rule off: how 0.13.2 behaves."""
