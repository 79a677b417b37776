"""What is wrong with a peer, in the log: a line for each reason, and not for each connection."""

from __future__ import annotations

from collections.abc import Callable

import trio

from waltz_core.base.edge import Level

_KEPT = 1000  # peers whose complaints are remembered, so that each is logged once a minute
_EVERY = 60.0


class Complaints:
    """Told at most once a minute per address and reason: a scanner must not fill the log, nor hide what is wrong with
    somebody else."""

    def __init__(self, report: Callable[[Level, str], None]) -> None:
        self._report = report
        self._told: dict[tuple[str, str], float] = {}

    def put(self, peer: str, text: str) -> None:
        """Something is wrong with `peer`, or with no particular one."""
        host = peer.rpartition(":")[0]
        now = trio.current_time()
        if now - self._told.get((host, text), -_EVERY) < _EVERY:
            return
        if len(self._told) >= _KEPT:
            self._told.clear()
        self._told[host, text] = now
        self._report(Level.WARNING, f"{peer}: {text}" if peer else text)
