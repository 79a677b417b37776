"""Records copied from one replica to another: which of them are sound, and which sources could not give them out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from waltz_core.base.checksum import crc32
from waltz_core.base.log import Record
from waltz_core.base.outbox import Emits
from waltz_core.store.session_notes import SourcePutAside
from waltz_core.wire.records import RecordRun


def sound_part(records: Sequence[Record], first: int) -> Sequence[Record]:
    """Those up to which ids continue from `first` and payloads match their checksums."""
    if isinstance(records, RecordRun):
        return records[: records.sound(first)]
    for at, item in enumerate(records):
        if item.transaction_id != first + at or crc32(item.data) != item.checksum & 0xFFFFFFFF:
            return records[:at]
    return records


class SourcesAside:
    """Reports each record that a replica could not give out: once, and not if the replica itself is lost."""

    __slots__ = ("_notes", "_reported", "new")

    def __init__(self, notes: Emits[SourcePutAside]) -> None:
        self._notes = notes
        self._reported: dict[tuple[str, int], str] = {}  # (replica, id) → why it could not be read
        self.new: list[SourcePutAside] = []  # of this step

    def add(self, source: str, transaction_id: int, reason: str) -> None:
        """A source could not give out a record."""
        self.new.append(SourcePutAside(source, transaction_id, reason))

    def report(self, lost: Callable[[str], bool]) -> None:
        """At the end of a step: a replica that was lost in it gets a report of its own."""
        new, self.new = self.new, []
        for aside in new:
            key = aside.source, aside.transaction_id
            if not lost(aside.source) and self._reported.get(key) != aside.reason:
                self._reported[key] = aside.reason
                self._notes.put(aside)
