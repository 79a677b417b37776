"""The numbers a client runs with."""

from __future__ import annotations

from waltz_core.base.record import record
from waltz_core.wire.frame import FRAME_SIZE_MAX_STORAGE


@record
class ClientSettings:
    """Periods in milliseconds, sizes in bytes; defaults as 0.13.2 where it has the number."""

    connect_ms: int | None = None  # a cluster that has not answered by then is given up (client.connectTimeout)
    nudge_ms: int = 5_000  # an append older than this is asked about (client.longWaitThreshold)
    not_ready_ms: int = 500  # pause after NOT_READY
    keep_alive_ms: int = 600_000  # a connection idle for this long writes a keep-alive
    hello_ms: int = 10_000  # a peer that does not greet within this is given up
    silence_ms: int = 30_000  # a peer that owes an answer and sends nothing for this long is given up
    suspect_ms: int = 3_000  # a peer that owes an answer and is silent for this long: others are asked who serves
    unmounted_warning_ms: int = 10_000  # a mount that takes longer is reported
    reconnect_base_ms: int = 50  # first pause before dialing again
    reconnect_cap_ms: int = 2_000  # longest pause
    fetch_base_ms: int = 10  # first pause after a failed payload read
    fetch_cap_ms: int = 5_000
    fetch_in_flight_max: int = 2_048  # payloads asked for and not here, per partition; fewer where each is a request
    mark_retry_ms: int = 1_000  # a mark not answered by then is asked for again
    # Transactions delivered and not consumed, per partition; what a server is asked for. Half of it should exceed the
    # smallest window of 0.13.2 (100): what was dropped is asked for with a window of its own, and one that is not used
    # up stays open.
    feed_buffer_max: int = 100_000
    own_payloads_size_max: int = 8 << 20  # of its own appends, kept for its feeds; the rest is read at servers
    cluster_refresh_ms: int = 30_000  # how often a server is asked for the map although nothing seems to have changed
    cluster_trouble_ms: int = 2_000  # the same while a partition is not mounted; another server is asked each time
    cluster_answer_ms: int = 10_000  # a server that does not answer by then is not asked again soon
    lock_names: bool = True  # servers that take them get the names of locks, not only hashes
    carries_others: bool = False  # appends of other clients go over its connections: a proxy
    first_connection: int = 0  # number of the first connection to a server, where a client outlives its process
    frame_size_max: int = FRAME_SIZE_MAX_STORAGE  # largest frame accepted from a server
