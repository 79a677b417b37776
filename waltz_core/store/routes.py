"""Chooses the replica that answers a read: shares inversely proportional to latency."""

from __future__ import annotations

from collections.abc import Callable, Iterable

# Java: LatencyWeightedRouter starts every replica at 10 ms, clamps to 1…3000 and halves towards the
# newest sample; a replica that lags behind the id counts as 3000 ms.
_EXPECTED_AT_START_MS = 10
_LATENCY_MIN_MS = 1
_LATENCY_MAX_MS = 3000


class ReadRoutes:
    """Expected latency and accumulated weight of every replica that may be read."""

    __slots__ = ("_expected", "_weight")

    def __init__(self, replicas: Iterable[str] = ()) -> None:
        self._expected: dict[str, int] = {}
        self._weight: dict[str, int] = {}
        for replica in replicas:
            self.add(replica)

    def add(self, replica: str) -> None:
        """A replica became readable; it starts level with the least used one."""
        self._expected[replica] = _EXPECTED_AT_START_MS
        self._weight[replica] = min(self._weight.values(), default=0)

    def remove(self, replica: str) -> None:
        """A replica may not be read any more."""
        self._expected.pop(replica, None)
        self._weight.pop(replica, None)

    def choose(self, suitable: Callable[[str], bool]) -> str | None:
        """The suitable replica with the smallest weight (first added wins ties), None without one."""
        best: str | None = None
        for replica, weight in self._weight.items():
            if (best is None or weight < self._weight[best]) and suitable(replica):
                best = replica
        if best is not None:
            self._weight[best] += self._expected[best]
        return best

    def measured(self, replica: str, latency_ms: int) -> None:
        """A read from `replica` took `latency_ms`."""
        if replica in self._expected:
            clamped = max(_LATENCY_MIN_MS, min(_LATENCY_MAX_MS, latency_ms))
            self._expected[replica] = (self._expected[replica] + clamped) >> 1
