"""Every client gets each id once, in order, and it is what the log holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.model.durable import split
from tests.model.invariants.base import Invariant


class Feeds(Invariant):
    """What is delivered is dense from where the application stands, and committed."""

    def on_deliver(self, client: Any, partition: int, run: Sequence[Any]) -> None:
        mark = client.applied.get(partition)
        log = self.observer.logs[partition]
        for item in run:
            found = item.transaction_id
            if mark is not None:
                self.require(found == mark + 1, f"{client.name} got {partition}/{found} after {mark}")
            mark = found
            self.require(found < len(log), f"{client.name} got {partition}/{found}, which is not committed")
            _, req_id, header, _ = split(log[found])
            self.require(
                (item.req_id, item.header) == (req_id, header),
                f"{client.name} got another transaction than the log holds at {partition}/{found}",
            )

    def at_end(self) -> None:
        for client in self.observer.clients:
            for partition, mark in client.applied.items():
                end = len(self.observer.logs[partition]) - 1
                if partition in client.feeding and mark is not None:
                    self.require(mark == end, f"{client.name} got partition {partition} up to {mark} of {end}")
