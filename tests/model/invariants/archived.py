"""What is archived is the log; what is freed is archived; who begins at 0 gets all of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tests.model.durable import split
from tests.model.invariants.base import Invariant

if TYPE_CHECKING:
    from tests.model.observer import Observer
    from waltz_core.base.log import Record


class Archived(Invariant):
    """Every commit to the archive goes on where it ended, with the records of the log.

    Records leave a disk only below what was compared with the archive: `Observer.archived` follows the comparisons, and
    the invariants about disks look at it.
    """

    def __init__(self, observer: Observer) -> None:
        super().__init__(observer)
        vault = observer.cluster.vault
        vault.on_commit = self._committed
        vault.on_equal = self._equal

    def _committed(self, partition: int, records: Sequence[Record]) -> None:
        log, end = self.observer.logs[partition], len(self.observer.cluster.vault.records[partition])
        self.observer.counts["archived"] += len(records)
        for expected, item in enumerate(records, start=end - len(records)):
            self.require(expected < len(log), f"{partition}/{expected} is archived and not committed")
            _, req_id, header, data = split(log[expected])
            same = (item.transaction_id, item.req_id, item.header, item.data) == (expected, req_id, header, data)
            self.require(same, f"{partition}/{expected} is archived as {item}")

    def _equal(self, partition: int, first: int, end: int) -> None:
        archived = self.observer.archived
        if first <= archived[partition]:
            archived[partition] = max(archived[partition], end)

    def at_end(self) -> None:
        observer = self.observer
        if not observer.cluster.agents:
            return
        for storage in observer.cluster.storages:
            for partition in storage.holds if storage.node.alive and storage.ready else ():
                start, held = (
                    storage.node.machine.replicas[partition].log_start,
                    observer.cluster.vault.records[partition],
                )
                self.require(
                    start <= len(held), f"{storage.node.name} freed {partition}/{start - 1}, archived: {len(held)}"
                )
                observer.counts["freed"] = max(observer.counts["freed"], start)
