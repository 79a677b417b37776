"""What one cluster of both kinds must go through, each a function that raises if anything is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count, product
from pathlib import Path
from typing import Any

import attrs

from tests.interop.cluster import Kind, MixedCluster
from tests.interop.installation import Installation
from tests.interop.load import MixedLoad
from tests.processes.cluster import poll
from tests.processes.zookeeper import ZooKeeperServer
from tests.witness.log import Verdict

COMMITS = 100  # between two events
OURS, JAVA = Kind.OURS, Kind.JAVA
_numbers = count(1)


@attrs.frozen
class Scene:
    """What every scenario is given."""

    directory: Path  # of its own
    zookeeper: ZooKeeperServer
    installation: Installation

    def at(self, directory: Path) -> Scene:
        """The same with another directory."""
        return attrs.evolve(self, directory=directory)

    @contextmanager
    def cluster(self, **options: Any) -> Iterator[MixedCluster]:
        """A cluster that serves; every process ends with the block, and a failure shows what each wrote last."""
        directory = self.directory / f"cluster-{next(_numbers)}"
        directory.mkdir()
        made = MixedCluster(directory, self.zookeeper.fresh_chroot(), self.installation, **options)
        try:
            made.set_up()
            yield made
            made.assert_calm()
        except BaseException as error:
            error.add_note(made.story())
            raise
        finally:
            made.end()


@attrs.frozen
class Outcome:
    """What a scenario that held came to."""

    transactions: int  # acknowledged to clients, all of them found in the log
    note: str = ""


Scenario = Callable[[Scene], Outcome]


def judged(load: MixedLoad, commits: int) -> Outcome:
    """End the load and judge: dense log, equal bytes, honest outcomes, sound locks, both kinds read it alike."""
    verdict: Verdict = load.finish()
    assert verdict.committed >= commits, f"{verdict.committed} commits, {commits} were waited for"
    refused = verdict.failed["decided again"] + verdict.failed["LockConflictError"]
    assert refused, "the clients never got in each other's way"
    return Outcome(verdict.committed, f"{refused} refused for a lock")


def _commits_everywhere(cluster: MixedCluster) -> None:
    for partition in range(cluster.partitions):
        cluster.wait_commits(COMMITS, partition)


def wait_owners(cluster: MixedCluster, *names: str) -> None:
    """Wait until exactly these servers serve the partitions: on a busy machine an answer about it may come late."""

    def served() -> bool:
        owners = cluster.owners()
        return len(owners) == cluster.partitions and set(owners.values()) == set(names)

    poll(f"{', '.join(names)} serve", served)


# ---- the eight mixes -------------------------------------------------------------------------------


def mix(client: Kind, server: Kind, storage: Kind) -> Scenario:
    """Two clients, a server and three storage nodes of given kinds; a storage node is killed and comes back; then
    the server is killed and one of the other kind takes over, while a client of the other kind joins in."""

    def run(scene: Scene) -> Outcome:
        with scene.cluster(storage=(storage,) * 3, server=(server, server.other), running=1) as cluster:
            cluster.start("server-1")
            load = MixedLoad(cluster, (client, client, client.other), accounts=6)
            load.start("client-0", "client-1")
            cluster.wait_commits(COMMITS)
            cluster.children["storage-1"].kill()
            cluster.wait_commits(COMMITS)
            cluster.start("storage-1")
            cluster.wait_commits(COMMITS)
            wait_owners(cluster, "server-0")
            cluster.children["server-0"].kill()
            load.start("client-2")
            cluster.wait_commits(COMMITS)
            wait_owners(cluster, "server-1")
            return judged(load, 4 * COMMITS)

    return run


# ---- more than one kind in one role ----------------------------------------------------------------


def one_quorum(server: Kind) -> Scenario:
    """Storage nodes of both kinds acknowledge the same appends; each is killed and comes back."""

    def run(scene: Scene) -> Outcome:
        with scene.cluster(storage=(OURS, JAVA, server.other), server=(server,)) as cluster:
            load = MixedLoad(cluster, (OURS, JAVA), accounts=6)
            load.start()
            cluster.wait_commits(COMMITS)
            for name in cluster.storage_names:
                cluster.children[name].kill()
                cluster.wait_commits(COMMITS)
                cluster.start(name)
                cluster.wait_commits(COMMITS)
            return judged(load, 7 * COMMITS)

    return run


def one_assignment(scene: Scene) -> Outcome:
    """Two servers of different kinds share partitions; each is killed, each takes over, each assigns to the other."""
    with scene.cluster(partitions=3, storage=(OURS, JAVA, OURS), server=(OURS, JAVA), running=1) as cluster:
        cluster.start("server-1")  # the coordinator is ours
        cluster.wait_healthy()
        load = MixedLoad(cluster, (OURS, JAVA), accounts=6)
        load.start()
        _commits_everywhere(cluster)
        wait_owners(cluster, "server-0", "server-1")
        coordinators = []
        for killed, heir in (("server-0", "server-1"), ("server-1", "server-0")):
            coordinators.append(_coordinator(cluster))
            cluster.children[killed].kill()
            cluster.wait_unregistered(killed)
            _commits_everywhere(cluster)
            wait_owners(cluster, heir)  # the other kind takes over everything
            cluster.start(killed)  # the heir gives it its share
            cluster.wait_healthy()
            _commits_everywhere(cluster)
            wait_owners(cluster, "server-0", "server-1")
        coordinators.append(_coordinator(cluster))
        assert coordinators == ["server-0", "server-1", "server-0"]
        return judged(load, 15 * COMMITS)


def three_servers(scene: Scene) -> Outcome:
    """Two servers of ours, which watch each other, and one of 0.13.2 that they leave in peace; each is killed."""
    with scene.cluster(partitions=3, storage=(OURS, JAVA, OURS), server=(OURS, JAVA, OURS)) as cluster:
        cluster.wait_healthy()
        load = MixedLoad(cluster, (OURS, JAVA), accounts=6)
        load.start()
        wait_owners(cluster, *cluster.server_names)
        for killed in cluster.server_names:
            heirs = [name for name in cluster.server_names if name != killed]
            cluster.children[killed].kill()
            cluster.wait_unregistered(killed)
            wait_owners(cluster, *heirs)
            _commits_everywhere(cluster)
            cluster.start(killed)
            cluster.wait_healthy()
            wait_owners(cluster, *cluster.server_names)
            _commits_everywhere(cluster)
        return judged(load, 18 * COMMITS)


def _coordinator(cluster: MixedCluster) -> str:
    registered = cluster.registered()
    return registered[min(registered)]


def mutual_tls(scene: Scene) -> Outcome:
    """Everybody shows a key and verifies every peer, from the original's key stores; servers of both kinds serve."""
    options = {"storage": (OURS, JAVA, OURS), "server": (OURS, JAVA), "running": 1, "stores": True}
    with scene.cluster(**options) as cluster:
        cluster.start("server-1")
        load = MixedLoad(cluster, (OURS, JAVA), accounts=6)
        load.start()
        cluster.wait_commits(COMMITS)
        cluster.children["server-0"].kill()
        cluster.wait_commits(COMMITS)
        for name in cluster.children:
            assert "peers are not verified" not in cluster.children[name].text()
        return judged(load, 2 * COMMITS)


def rolling_replacement(scene: Scene) -> Outcome:
    """Every process of a running cluster of the original is replaced by ours, one at a time, and back again."""
    with scene.cluster(partitions=2, storage=(JAVA,) * 3, server=(JAVA,) * 2) as cluster:
        load = MixedLoad(cluster, (JAVA, JAVA, OURS, OURS), accounts=6)
        load.start("client-0", "client-1")
        _commits_everywhere(cluster)
        swaps = 0
        for kind in (OURS, JAVA):
            for name in (*cluster.storage_names, *cluster.server_names):
                cluster.replace(name, kind)
                _commits_everywhere(cluster)
                swaps += 1
            old, new = ((0, 1), (2, 3)) if kind is OURS else ((2, 3), (0, 1))
            for leaving, joining in zip(old, new, strict=True):
                load.leave(f"client-{leaving}")
                load.start(f"client-{joining}")
                _commits_everywhere(cluster)
                swaps += 1
        load.start("client-2", "client-3")
        outcome = judged(load, 2 * COMMITS * (swaps + 1))
        return attrs.evolve(outcome, note=f"{swaps} processes replaced; {outcome.note}")


_EIGHT = tuple(product((OURS, JAVA), (OURS, JAVA), (OURS, JAVA)))
MIXES = tuple(f"client {one.value}, server {two.value}, storage {three.value}" for one, two, three in _EIGHT)
"""Names of the eight mixes."""


def scenarios() -> dict[str, Scenario]:
    """Everything by name, the mixes first."""
    from tests.interop import directory, pipeline, reading, renewal, timetable, tools

    found = {name: mix(*kinds) for name, kinds in zip(MIXES, _EIGHT, strict=True)}
    found["storage nodes of both kinds, server ours"] = one_quorum(OURS)
    found["storage nodes of both kinds, server 0.13.2"] = one_quorum(JAVA)
    found["servers of both kinds, either one assigns"] = one_assignment
    found["two servers of ours and one of 0.13.2"] = three_servers
    found["mutual TLS from the original's key stores"] = mutual_tls
    found["rolling replacement, there and back"] = rolling_replacement
    found["timetable of restarts, through the original's client"] = timetable.restarts
    found["the original's tools on our cluster"] = tools.original_on_ours
    found["our tools on the original's cluster"] = tools.ours_on_original
    found["our pipeline on the original's cluster"] = pipeline.on_original
    found["clients of 0.13.2 through a proxy"] = reading.through_proxy
    found["clients of 0.13.2 before the log start, archive"] = reading.through_archive
    found["certificates and roles replaced in place"] = renewal.in_place
    found["one directory: ours, 0.13.2 with a truncation, ours"] = directory.there_and_back
    return found
