"""What the machines of a storage node hand to their parent within one step: answers and reports."""

from __future__ import annotations

from waltz_core.base.edge import Level, Report
from waltz_core.wire.admin_messages import AdminMessage
from waltz_core.wire.storage_messages import StorageMessage


class Outbox:
    """Answers by connection and lines for the operator, gathered until the end of the step."""

    __slots__ = ("replies", "reports")

    def __init__(self) -> None:
        self.replies: list[tuple[int, StorageMessage | AdminMessage]] = []
        self.reports: list[Report] = []

    def reply(self, conn: int, message: StorageMessage | AdminMessage) -> None:
        """Answer on a connection; dropped if it is gone by then."""
        self.replies.append((conn, message))

    def report(self, level: Level, text: str) -> None:
        """Tell the operator."""
        self.reports.append(Report(level, text))
