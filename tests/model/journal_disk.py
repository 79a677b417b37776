"""The journal of a simulated server: what is written outlives the process, what is under way may not."""

from __future__ import annotations

from random import Random

from tests.model.world import SimNode, World
from waltz_core.server.journal import JournalFailed, JournalWrite, JournalWritten
from waltz_core.server.journal_format import Decision, Entry, decode_entries

_SLOW_MS = 30
_OUTAGE_MS = 3_000


class JournalDisk:
    """Files are chunks here; a write is whole or absent, and its answer may get lost with the process.

    Attributes:
        outages: from and until when every write fails.
        entries: partition → everything that would survive.
    """

    def __init__(self, world: World, node: SimNode) -> None:
        self.world = world
        self.node = node
        self.entries: dict[int, list[Entry]] = {}
        self.decisions: dict[tuple[int, int, bytes], Decision] = {}  # (partition, id, request id) → that was appended
        self.outages: list[tuple[int, int]] = []
        self._rng = Random(f"{world.seed}/journal/{node.name}")
        node.plugins[JournalWrite] = self._write

    def draw_outages(self, before: int) -> None:
        """In some runs the disk is full for a while."""
        for _ in range(self._rng.choice((0, 0, 1, 2))):
            start = self._rng.randrange(max(1, before - _OUTAGE_MS))
            self.outages.append((start, start + self._rng.randrange(_OUTAGE_MS)))

    def _write(self, effect: JournalWrite) -> None:
        epoch, node = self.node.epoch, self.node
        crashed_write_lands = self._rng.random() < 0.5
        fails = any(start <= self.world.now < end for start, end in self.outages)

        def land() -> None:
            if epoch != node.epoch and not crashed_write_lands:
                return
            if not fails:
                self._keep(effect)
            if epoch == node.epoch:
                event = (
                    JournalFailed(effect.ticket, "no space left on device") if fails else JournalWritten(effect.ticket)
                )
                node.post(event)

        self.world.after(self._rng.randrange(1, _SLOW_MS), land)

    def _keep(self, effect: JournalWrite) -> None:
        kept = self.entries.setdefault(effect.partition_id, [])
        for _, entry in decode_entries(effect.data, self.node.name):
            kept.append(entry)
            if isinstance(entry, Decision) and entry.transaction_id >= 0:
                self.decisions[effect.partition_id, entry.transaction_id, entry.req_id] = entry
