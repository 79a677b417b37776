"""Limits and sizes of the configuration, drawn for a run: most as they ship, some so small that they are reached.

Drawn from a stream of its own, after everything else: the rest of a run's plan is the same with limits and without.
"""

from __future__ import annotations

from random import Random
from typing import Any

from waltz_core.access.admission import Places
from waltz_core.base.record import record

PREFIX = "limit "
"""Marks the name of a limit among names of kinds of faults: what a run may be repeated without."""

_SMALL = (0.1, 0.25, 0.5)
"""How often a limit is a small one; a run has one of these."""

_SERVER: dict[str, tuple[Any, ...]] = {
    "exact_locks": (0, 1, 20, 300),
    "batch_bytes_max": (1, 200, 2_000),
    "flight_bytes_max": (1, 300, 3_000),
    "mount_count_max": (1, 4, 30),
    "feed_count_min": (1, 7, 60),
    "locks_max": (2,),
    "gathered_max": (2_600,),
    "out_bytes_max": (5_000,),
    "unsent_max": (300_000,),
    "queue_count_max": (2, 12),
    "reads_count_max": (1, 6),
    "journal_unwritten_max": (1, 600),
    "greeting_ms": (2_000,),
    "frame_size_max": (9_000,),
    "places": (
        Places(unproven_ms=3_000, idle_ms=25_000),
        Places(per_address_max=3, unproven_ms=5_000, idle_ms=25_000),
    ),
}
_STORAGE: dict[str, tuple[Any, ...]] = {
    "read_size_max": (1, 300, 4_000),
    "queue_count_max": (40,),
    "write_bytes_max": (1, 400),
    "parked_count_max": (1, 20),
    "parked_bytes_max": (1, 2_000),
    "scrub_bytes_per_s": (2_000, 200_000),
    "greeting_ms": (2_000,),
    "places": (Places(unproven_ms=3_000),),
}
_CLIENT: dict[str, tuple[Any, ...]] = {
    "fetch_in_flight_max": (1, 3),
    "mark_retry_ms": (150,),
    "nudge_ms": (400, 1_500),
    "not_ready_ms": (20,),
    "keep_alive_ms": (1_500, 10_000),
    "silence_ms": (6_000,),
    "suspect_ms": (400,),
    "reconnect_cap_ms": (60, 10_000),
    "cluster_refresh_ms": (1_000,),
    "cluster_trouble_ms": (300,),
    "cluster_answer_ms": (1_000,),
}
# Drawn later than the others, and apart from them: what a seed draws of those stays the same.
_SERVER_LATER: dict[str, tuple[Any, ...]] = {
    "append_turn": (1, 7),
    "append_window": (1, 20),
    "trace_every": (1, 7),
    "append_pace": (1, 3),
}
_STORAGE_LATER: dict[str, tuple[Any, ...]] = {"trace_every": (1, 7)}
_PROCESS_LATER: dict[str, tuple[Any, ...]] = {"sync_in_place": (True,)}
_CLIENT_LATER: dict[str, tuple[Any, ...]] = {"own_payloads_size_max": (0, 900)}
# Of several parts, or of what a run has drawn otherwise.
_PROCESS: dict[str, tuple[Any, ...]] = {
    "zk_session_ms": (1_200, 9_000),
    "copy_count_max": (1, 7),
    "payload_share": (1.2, 1.6),
}


@record
class Limits:
    """What differs from the configuration as it ships, by part: name of the field and its value."""

    server: tuple[tuple[str, Any], ...] = ()
    storage: tuple[tuple[str, Any], ...] = ()
    client: tuple[tuple[str, Any], ...] = ()
    process: tuple[tuple[str, Any], ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """How each is called when a run is repeated without it."""
        parts = {"server": self.server, "storage": self.storage, "client": self.client, "process": self.process}
        return tuple(f"{PREFIX}{part}.{name}" for part, fields in parts.items() for name, _ in fields)

    def without(self, names: frozenset[str]) -> Limits:
        """All but some, by these names."""

        def kept(part: str, fields: tuple[tuple[str, Any], ...]) -> tuple[tuple[str, Any], ...]:
            return tuple((name, value) for name, value in fields if f"{PREFIX}{part}.{name}" not in names)

        return Limits(
            kept("server", self.server),
            kept("storage", self.storage),
            kept("client", self.client),
            kept("process", self.process),
        )


AS_SHIPPED = Limits()


def draw_limits(seed: int) -> Limits:
    """What a run has small."""
    rng = Random(f"{seed}/limits")
    often = rng.choice(_SMALL)

    def draw(fields: dict[str, tuple[Any, ...]], rng: Random = rng) -> tuple[tuple[str, Any], ...]:
        # Each draws the same number of times whatever comes of it: a field that is added changes its successors only.
        drawn = [(name, rng.random(), rng.choice(values)) for name, values in fields.items()]
        return tuple((name, value) for name, chance, value in drawn if chance < often)

    storage = draw(_STORAGE)
    if any(name == "scrub_bytes_per_s" for name, _ in storage):
        storage += (("scrub_first_ms", 1_000), ("scrub_pause_ms", 5_000))
    server, client, process = draw(_SERVER), draw(_CLIENT), draw(_PROCESS)
    later = Random(f"{seed}/limits later")
    server, storage = server + draw(_SERVER_LATER, later), storage + draw(_STORAGE_LATER, later)
    process += draw(_PROCESS_LATER, later)
    return Limits(server, storage, client + draw(_CLIENT_LATER, later), process)
