"""How a gateway is: what its port for health and metrics tells. Each cluster is asked a question now and then."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import trio

from waltz_core.base.errors import PartitionNotFoundError, WaltzError
from waltz_core.gateway.quotas import Quotas
from waltz_trio.base.metrics import Registry
from waltz_trio.gateway.clusters import Cluster
from waltz_trio.gateway.fanout import Fanout

GROUP: Final = "waltz-gateway"
_EVERY = 5.0  # seconds between two questions to a cluster
_PATIENCE = 5.0  # seconds for the answer


class Vitals:
    """Of one gateway; `run` keeps asking."""

    def __init__(
        self,
        clusters: Mapping[str, tuple[Cluster, int]],
        fanouts: Callable[[], Iterable[Fanout]],
        quotas: Quotas,
    ) -> None:
        """Nothing is known yet.

        Args:
            clusters: by source, each with a partition that is asked.
            fanouts: what feeds readers.
            quotas: of appends.
        """
        self._clusters = clusters
        self._troubles = dict.fromkeys(clusters, "it has not answered yet")
        self.registry = Registry(trio.current_time)
        self._gauge("appends-under-way", lambda: quotas.appends)
        self._gauge("append-bytes-under-way", lambda: quotas.size)
        self._gauge("readers-of-shared-feeds", lambda: sum(fanout.joined for fanout in fanouts()))
        self._gauge("readers-with-own-feeds", lambda: sum(fanout.alone for fanout in fanouts()))
        self._gauge("shared-feeds", lambda: sum(fanout.joined > 0 for fanout in fanouts()))
        self._gauge("window-bytes", lambda: sum(fanout.size for fanout in fanouts()))
        self._gauge("clusters-away", lambda: sum(bool(trouble) for trouble in self._troubles.values()))

    def _gauge(self, name: str, read: Callable[[], int]) -> None:
        self.registry.gauge(f"{GROUP}.{name}", read)

    async def run(self) -> None:
        """Ask each cluster for a committed mark, until cancelled."""
        async with trio.open_nursery() as nursery:
            for source, (cluster, partition) in self._clusters.items():
                nursery.start_soon(self._watch, source, cluster, partition)

    async def _watch(self, source: str, cluster: Cluster, partition: int) -> None:
        while True:
            trouble = f"no answer within {_PATIENCE:.0f} s"
            with trio.move_on_after(_PATIENCE):
                try:
                    await cluster.committed_mark(partition)
                    trouble = ""
                except PartitionNotFoundError:
                    trouble = ""  # it answers; which topics are wrong it knows from the partitions that there are
                except Exception as error:  # of any type: other clusters are served, and watched, all the same
                    trouble = str(error) if isinstance(error, WaltzError) else repr(error)
            self._troubles[source] = trouble
            await trio.sleep(_EVERY)

    def health(self) -> tuple[bool, dict[str, object]]:
        """Healthy while every cluster answers and has the partitions of its topics; else with the reasons."""
        reasons = {source: trouble for source, trouble in self._troubles.items() if trouble}
        for cluster, _ in self._clusters.values():
            reasons |= {f"topic {name}": wrong for name, wrong in cluster.wrong.items()}
        state = {
            "healthy": not reasons,
            "clusters": {source: not trouble for source, trouble in self._troubles.items()},
            "reasons": reasons,
        }
        return not reasons, {"gateway-health-check": state}
