"""What is committed stays on a quorum of disks for ever."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.model.invariants.base import Invariant


class CommittedStays(Invariant):
    """No cut, crash or overwrite leaves fewer durable copies of a committed record than a quorum."""

    def on_gone(self, storage: Any, partition: int, ids: Sequence[int]) -> None:
        log = self.observer.logs[partition]
        needed = self.observer.needed_copies()
        for one in ids:
            if one < len(log):
                copies = self.observer.copies(partition, one, log[one])
                self.require(
                    copies >= needed,
                    f"{partition}/{one} was committed and is on {copies} disks after a change on {storage.node.name}",
                )

    def at_end(self) -> None:
        for partition, log in enumerate(self.observer.logs):
            for one, body in enumerate(log):
                copies = self.observer.copies(partition, one, body)
                self.require(copies >= self.observer.needed_copies(), f"{partition}/{one} is on {copies} disks")
