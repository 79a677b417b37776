"""Settings of a storage node."""

from __future__ import annotations

from waltz_core.access.admission import UNLIMITED, Places
from waltz_core.access.roles import NO_ROLES, Roles
from waltz_core.base.record import record


@record
class StorageConfig:
    """Settings of a storage node."""

    key: bytes  # cluster key, 16 bytes
    partition_count: int
    segment_size_threshold: int = 1_000_000_000  # bytes
    read_size_max: int = 8 << 20  # bytes of one list answer, which has at least one record
    queue_count_max: int = 4096  # requests that may wait for one partition
    queue_bytes_max: int = 256 << 20  # bytes of appends that may wait; one is always accepted
    write_bytes_max: int = 16 << 20  # of appends written at once, if there are several: what a power failure can tear
    parked_count_max: int = 600  # messages kept for a peer that does not read its answers; beyond, it is not read from
    parked_bytes_max: int = 16 << 20  # bytes of requests of one connection that cannot be served yet
    shown_directory: str = "<dir>"  # the data directory, for messages to people
    wall_clock_offset_ms: int = 0  # add to `now` to get ms since 1970
    frame_size_max: int = 1 << 30
    trace_every: int = 0  # one in so many transactions is traced; 0 = none
    version: str = "unknown"  # of this software, for metrics
    scrub_bytes_per_s: int = 0  # of the check of all records in the background; 0 = none
    scrub_first_ms: int = 60_000  # from the start to the first pass
    scrub_pause_ms: int = 24 * 3600 * 1000  # from the end of a pass to the next one
    reserve_bytes: int = 0  # no appends while the file system has less room than this; 0 = until it is full
    certificates_asked: bool = False  # of servers and tools
    roles: Roles = NO_ROLES  # who may do what
    greeting_ms: int = 0  # a peer that does not greet, or show the cluster key, in this time is dropped; 0 = never
    places: Places = UNLIMITED  # how many connections; proven by the cluster key, and never idle too long from then on
    gathered_max: int = 2 << 30  # bytes of unfinished frames, all connections together
    codecs: tuple[int, ...] = (0, 1)  # offered on both ports
