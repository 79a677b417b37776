"""Where a partition of a client stands: its phase, the connection it lives on, its generation, its mount.

```
 CLOSED ──► TAIL ──► WAITING ◄──────────── the connection is lost, from anywhere
    └───────────────────▲ │
                        │ ▼
       NOT_READY ◄──── MOUNTING ──► MOUNTED ──► (a new mount) MOUNTING
                          ├──► CLIENT_AHEAD   until the next mount
                          └──► BEFORE_START   until a feed is opened behind it; without a feed, TAIL
```

This file moves nothing by itself: `Mounting` decides. It tells each change of the phase to the application, draws the
request ids of mounts and appends from one sequence, and complains, once, about a mount that takes too long.
"""

from __future__ import annotations

from struct import Struct

from waltz_core.base.edge import Level, Report
from waltz_core.base.ids import Endpoint, ReqId
from waltz_core.client.calls import Phase, StatusChanged
from waltz_core.client.context import ClientContext
from waltz_core.client.link import Link

_SETTLED = (Phase.CLOSED, Phase.MOUNTED, Phase.CLIENT_AHEAD, Phase.BEFORE_START)  # nothing is under way
_REQ_ID = Struct(">iiii").pack  # as make_req_id, for the hot path
_SEQUENCE_MAX = (1 << 31) - 1


class Standing:
    """What all parts of one partition ask about."""

    __slots__ = (
        "_client_id",
        "_out",
        "_settings",
        "_since",
        "_warned",
        "feed",
        "generation",
        "link",
        "partition",
        "phase",
        "progress_at",
        "sequence",
        "session",
    )

    def __init__(self, partition: int, context: ClientContext) -> None:
        self.partition = partition
        self.generation = -1
        self.phase = Phase.CLOSED
        self.link: Link | None = None
        self.session: ReqId | None = None  # request id of the last mount on this connection
        self.sequence = 0  # of the last request id
        self.feed = 0  # number of the feed that was opened last
        self.progress_at = 0  # when a mount was asked for, or the feed moved
        self._client_id = context.client_id
        self._settings = context.settings
        self._out = context.out
        self._since = 0  # when the present time without a mount, or with one, began
        self._warned = False

    @property
    def server(self) -> Endpoint | str:
        """Where the partition is served, for people."""
        return "no server is known" if self.link is None else self.link.endpoint

    def enter(self, now: int, phase: Phase, text: str = "") -> None:
        """Go to another phase, and tell."""
        if phase is self.phase:
            return
        # One complaint per time without a mount, however often the attempts go round.
        if phase in (Phase.MOUNTED, Phase.CLOSED) or self.phase in (Phase.MOUNTED, Phase.CLOSED):
            self._since = now
            self._warned = False
        self.phase = phase
        self._out.put(StatusChanged(self.partition, phase, text, self.feed))

    def next_req_id(self) -> ReqId:
        """For the next request; sequence numbers are signed 32-bit integers that wrap, as in 0.13.2."""
        sequence = self.sequence
        self.sequence = sequence = sequence + 1 if sequence < _SEQUENCE_MAX else -_SEQUENCE_MAX - 1
        # The type of a request id is a name for bytes; calling it costs more than packing.
        return _REQ_ID(self._client_id, self.generation, self.partition, sequence)  # type: ignore[return-value]

    def report(self, text: str) -> None:
        """Tell the operator that this partition cannot continue."""
        self._out.put(Report(Level.ERROR, f"partition {self.partition}: {text}"))

    def since_ms(self, now: int) -> int:
        """How long it has been mounted, or has not been."""
        return now - self._since

    def warning_at(self) -> int | None:
        """When a mount has taken so long that an operator should know."""
        if self._warned or self.phase in _SETTLED:
            return None
        return self._since + self._settings.unmounted_warning_ms

    def warn(self, now: int) -> None:
        """Complain, if it is time."""
        at = self.warning_at()
        if at is None or now < at:
            return
        self._warned = True
        why = self.link.reason if self.link is not None and not self.link.ready else ""
        self._out.put(
            Report(
                Level.WARNING,
                f"partition {self.partition} has not been mounted for {(now - self._since) / 1000:.0f} s: "
                f"{self.phase.value} ({self.server}{': ' if why else ''}{why})",
            )
        )
