"""What the parts of a client process share."""

from __future__ import annotations

from collections.abc import Collection

from waltz_core.base.alarms import Alarms
from waltz_core.base.contract import Rng
from waltz_core.base.outbox import Outbox
from waltz_core.client.alarms import AlarmKey, Doubts, Timed
from waltz_core.client.calls import Effect
from waltz_core.client.link import Link
from waltz_core.client.own_payloads import OwnOfClient
from waltz_core.client.settings import ClientSettings


class ClientContext:
    """One for each client: every part is built with it, and puts its effects into its outbox."""

    __slots__ = (
        "alarms",
        "client_id",
        "closed",
        "doubts",
        "out",
        "own",
        "partition_count",
        "rng",
        "settings",
        "touched",
        "versions",
    )

    def __init__(self, settings: ClientSettings, rng: Rng, versions: Collection[int]) -> None:
        self.settings = settings
        self.rng = rng
        self.versions = versions  # of the client protocol
        self.out: Outbox[Effect] = Outbox()
        self.alarms: Alarms[AlarmKey] = Alarms()
        self.touched: dict[Timed | Link, None] = {}  # in this step: they set their alarms at its end
        self.doubts = Doubts()
        self.own = OwnOfClient(settings.own_payloads_size_max)
        self.client_id = 0  # until the cluster has given one
        self.partition_count: int | None = None  # likewise
        self.closed = False

    def touch(self, machine: Timed | Link) -> None:
        """Something happened to it: it may be due earlier now."""
        self.touched[machine] = None

    def exists(self, partition: int) -> bool:
        """The cluster has such a partition."""
        return self.partition_count is not None and 0 <= partition < self.partition_count
