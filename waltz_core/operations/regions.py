"""What is wrong with a proxy and its root: the rules of `waltz doctor` where `cluster.root` is that of a proxy.

A proxy holds nothing that anybody has to mend: storage nodes and recoveries are the cluster's, where the
doctor looks at them. Here it is asked whether there is a proxy, just the one, and whether it hears its cluster.
"""

from __future__ import annotations

from collections.abc import Iterator

from waltz_core.operations import findings
from waltz_core.operations.findings import Finding, ranges_text
from waltz_core.operations.view import ClusterView, ServerView
from waltz_core.wire.client_messages import ServedState
from waltz_core.wire.shared import AGE

_RUN = "waltz proxy run -c PROXY.yml"


def proxies(view: ClusterView) -> Iterator[Finding]:
    """Of a root that is a proxy's."""
    assert view.proxy_of is not None
    cluster = repr(view.proxy_of)
    if not view.servers:
        yield Finding(
            "no-proxy",
            f"{view.root} is the root of a proxy of cluster {cluster}, and none is registered there",
            _RUN,
            about=(findings.SERVERS,),
        )
    if len(view.servers) > 1:
        names = ", ".join(server.name for server in view.servers)
        yield Finding(
            "two-proxies",
            f"{len(view.servers)} proxies are registered below {view.root}: {names}; the newest one counts",
            "stop the others, or give each a root of its own (cluster.root)",
            settles=True,  # one that was killed and started again is registered twice until its old session ends
        )
    for server in view.servers:
        if server.problem and server.partitions is None:
            yield Finding(
                "proxy-down",
                f"proxy {server.name} is registered and does not answer: {server.problem}",
                f"look at its log; restart it: {_RUN}",
                about=(findings.server(server.name),),
                because=(findings.port(server.name),),
            )
        elif server.problem:
            yield Finding(
                "proxy-silent",
                f"proxy {server.name} answers some questions, and then no more: {server.problem}",
                f"look at its log; restart it if this does not end: {_RUN}",
                about=(findings.server(server.name),),
                because=(findings.port(server.name),),
                settles=True,  # one that ends just now
            )
        yield from _cut_off(server, cluster)


def _cut_off(server: ServerView, cluster: str) -> Iterator[Finding]:
    """Partitions whose owner the proxy does not reach; those for the same reason are one finding."""
    alike: dict[str, list[int]] = {}
    for status in server.status or ():
        if status.state != ServedState.READY:
            alike.setdefault(status.reason or "it does not say why", []).append(status.partition_id)
    for reason, partitions in alike.items():
        ages = [server.figures.get((AGE, number)) for number in partitions]
        known = [age for age in ages if age is not None]
        age = f"what it gives out is up to {max(known) / 1000:.0f} s old" if known else "it has never heard them"
        yield Finding(
            "upstream-away",
            f"proxy {server.name} does not reach the owner of partition{'s' * (len(partitions) > 1)} "
            f"{ranges_text(partitions)} of cluster {cluster} ({reason}); {age}",
            "waltz doctor -c UPSTREAM, with a configuration of tools for that cluster; if nothing is wrong there, "
            "check proxy.upstream.root and proxy.upstream.connectString of the proxy, its client.ssl.* and the network",
            because=(findings.server(server.name),),
            settles=True,
        )
