"""What the machines inside a storage node share: settings, time of the step, outboxes of effects, answers and notes."""

from __future__ import annotations

from waltz_core.base.alarms import Alarms
from waltz_core.base.contract import Tickets
from waltz_core.base.edge import Level, Report
from waltz_core.base.outbox import Outbox
from waltz_core.storage.config import StorageConfig
from waltz_core.storage.effects import StorageEffect
from waltz_core.storage.notes import Alarm, Note, Reply
from waltz_core.storage.procedure import Runner
from waltz_core.wire.admin_messages import AdminMessage
from waltz_core.wire.storage_messages import StorageMessage


class NodeContext:
    """One per process, owned by `StorageNode`."""

    __slots__ = (
        "alarms",
        "config",
        "effects",
        "free_bytes",
        "no_room",
        "notes",
        "now",
        "replies",
        "runner",
        "started_ms",
        "tickets",
        "touched",
        "wall_offset_ms",
    )

    def __init__(self, config: StorageConfig) -> None:
        self.config = config
        self.effects: Outbox[StorageEffect] = Outbox()
        self.replies: Outbox[Reply] = Outbox()
        self.notes: Outbox[Note] = Outbox()
        self.alarms: Alarms[Alarm] = Alarms()
        self.tickets = Tickets()
        self.runner = Runner(self.tickets, self.effects)
        self.touched: dict[int, None] = {}  # partitions whose lanes may have something to start
        self.now = 0  # ms, of the step under way
        self.started_ms = 0  # milliseconds since 1970, of the first step: no other process has the same
        self.wall_offset_ms = config.wall_clock_offset_ms
        self.free_bytes: int | None = None  # of the disk; None until the driver has reported it
        self.no_room = ""  # why appends are refused: the reserve of the disk is reached

    @property
    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return self.now + self.wall_offset_ms

    def reply(self, conn: int, message: StorageMessage | AdminMessage) -> None:
        """Answer on a connection."""
        self.replies.put((conn, message))

    def report(self, level: Level, text: str, peer: str = "", owner: str = "") -> None:
        """A line for the operator, perhaps about a peer."""
        self.effects.put(Report(level, text, peer, owner))
