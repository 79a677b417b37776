"""Clients of the original that do not read from storage nodes: behind a proxy, and from before the log start."""

from __future__ import annotations

import attrs

from tests.interop.cluster import SETTINGS, Kind, MixedCluster
from tests.interop.load import MixedLoad
from tests.interop.scenarios import COMMITS, Outcome, Scene, judged
from tests.processes.cluster import poll

OURS, JAVA = Kind.OURS, Kind.JAVA
_ROUNDS = 3  # of load between two looks at what is freed


def through_proxy(scene: Scene) -> Outcome:
    """Two clients of the original and one of ours behind a proxy, one of the original beside it; a server is killed,
    then the proxy, which is started again at once, as a supervisor does it, while ZooKeeper still names the old one."""
    settings = {**SETTINGS, "server.trustProxies": True}
    with scene.cluster(storage=(OURS, JAVA, OURS), server=(OURS, OURS), settings=settings) as cluster:
        behind = cluster.add_proxy("proxy")
        files = dict.fromkeys(("client-0", "client-1", "client-2"), behind)
        load = MixedLoad(cluster, (JAVA, JAVA, OURS, JAVA), files=files, accounts=6)
        load.start("client-0", "client-1")
        cluster.wait_commits(COMMITS)  # nobody writes but through the proxy
        load.start("client-2", "client-3")
        cluster.wait_commits(COMMITS)
        (owner,) = poll(
            "the partition has an owner", lambda: set(cluster.owners().values())
        )  # not between two sessions
        cluster.children[owner].kill()
        cluster.wait_commits(COMMITS)
        cluster.wait_unregistered(owner)
        cluster.start(owner)
        load.leave("client-3")
        for stop in (cluster.children["proxy"].kill, cluster.children["proxy"].stop):
            cluster.wait_commits(COMMITS)
            stop()
            cluster.start("proxy")
        cluster.wait_commits(COMMITS)
        return judged(load, 6 * COMMITS)


def through_archive(scene: Scene) -> Outcome:
    """A server archives and frees while clients of both kinds append; one of the original that has nothing yet joins
    when the log no longer begins at 0, and the server is killed while it reads."""
    vault = scene.directory / "vault"
    policy = {"archive.location": str(vault), "archive.fileRecords": 100, "archive.keepRecords": 50}
    settings = {**SETTINGS, **policy, "archive.after": "1 s", "storage.checkpointInterval": 100}
    with scene.cluster(storage=(OURS,) * 3, server=(OURS, OURS), settings=settings) as cluster:
        load = MixedLoad(cluster, (JAVA, OURS, JAVA), archive=vault, accounts=6)
        load.start("client-0", "client-1")
        for _ in range(_ROUNDS):
            cluster.wait_commits(COMMITS)
        first = poll("what is archived is freed", lambda: _log_start(cluster) or None)
        load.start("client-2")
        owner = cluster.only_owner()
        cluster.children[owner].kill()
        cluster.wait_commits(COMMITS)
        cluster.wait_unregistered(owner)
        cluster.start(owner)
        cluster.wait_healthy()
        cluster.wait_commits(COMMITS)
        outcome = judged(load, (_ROUNDS + 2) * COMMITS)
        start = _log_start(cluster)
        assert start >= first, "the log start fell"
        return attrs.evolve(outcome, note=f"the log begins at {start}; {outcome.note}")


def _log_start(cluster: MixedCluster) -> int:
    """Where storage nodes begin, as the owner of the partition tells it; 0 while nobody does."""
    found = [cluster.gauges(name).get("waltz-server.partition-0.log-start", 0) for name in cluster.server_names]
    return max((int(start or 0) for start in found), default=0)
