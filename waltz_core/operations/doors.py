"""What is wrong with gateways, for those that `tools.gateways` names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from waltz_core.base.record import record
from waltz_core.operations.findings import Finding


@record
class GatewayView:
    """One gateway and its answer."""

    address: str  # host:port of its health
    problem: str = ""  # why there is none
    away: Mapping[str, str] = {}  # clusters that it does not reach, each with the reason
    topics: Mapping[str, str] = {}  # topics that it cannot serve, each with the reason


def gateways(views: tuple[GatewayView, ...]) -> Iterator[Finding]:
    """Of those that were asked."""
    for view in views:
        if view.problem:
            yield Finding(
                "gateway-down",
                f"the gateway at {view.address} does not answer: {view.problem}",
                "waltz gateway run -c GATEWAY.yml; if it runs, check gateway.healthHost and gateway.healthPort in its "
                "configuration, and tools.gateways in that of the tools",
            )
        for source, reason in sorted(view.away.items()):
            yield Finding(
                "gateway-cut-off",
                f"the gateway at {view.address} does not reach the cluster {source}: {reason}",
                "waltz doctor -c CONFIG, for that cluster; if nothing is wrong there, check cluster of its topics in "
                "gateway.topics, the certificate that the gateway shows there, and the network",
                settles=True,
            )
        for topic, reason in sorted(view.topics.items()):
            yield Finding(
                "gateway-topic-wrong",
                f"the gateway at {view.address} cannot serve all of {topic}: {reason}",
                "correct partitions, or cluster, of that topic in gateway.topics, and start the gateway again",
            )
