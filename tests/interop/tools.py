"""The tools of each kind, unchanged, on a cluster of the other kind."""

from __future__ import annotations

import json
import re

from tests.interop.cluster import Kind, MixedCluster
from tests.interop.load import MixedLoad
from tests.interop.scenarios import COMMITS, Outcome, Scene
from tests.processes.cluster import poll

OURS, JAVA = Kind.OURS, Kind.JAVA
_PARTITIONS = 3


def original_on_ours(scene: Scene) -> Outcome:
    """ZooKeeperCli, StorageCli, ServerCli, ClientCli, ClusterCli and PerformanceCli: a cluster of ours is made, looked
    at, loaded, changed and repaired by them, and they find it whole."""
    with scene.cluster(partitions=_PARTITIONS, storage=(OURS,) * 3, server=(OURS,) * 2, tools=JAVA) as cluster:
        transactions = _clients(cluster)
        _zookeeper(cluster)
        _servers(cluster)
        _storage(cluster, transactions)
        _whole(cluster)
    return Outcome(sum(transactions), "made, loaded, changed, repaired and verified by the original's tools")


def _config(cluster: MixedCluster) -> tuple[str, str]:
    return "-c", str(cluster.tools_file)


def _admin_port(cluster: MixedCluster, name: str) -> str:
    return f"127.0.0.1:{cluster.addresses[name]['storage.admin.port']}"


def _zookeeper(cluster: MixedCluster) -> None:
    """ZooKeeperCli reads what our servers and the commands of `set_up` wrote, and goes on."""
    config = _config(cluster)
    listed = cluster.java_tool("zookeeper", "list", *config)
    assert "  name=test cluster\n  numPartitions=3\n" in listed
    for name in cluster.server_names:
        endpoint = f"127.0.0.1:{cluster.addresses[name]['server.port']}"
        assert re.search(rf"server=\d+, endpoint={endpoint}, preferred partitions=\[\*\]", listed), listed
    for name in cluster.storage_names:
        ports = cluster.addresses[name]
        assert f"127.0.0.1:{ports['storage.port']} = [0, 1, 2], GroupId: " in listed
        assert f"127.0.0.1:{ports['storage.port']} has admin port: {ports['storage.admin.port']}" in listed
        for partition in range(_PARTITIONS):
            state = rf"ReplicaId\({partition},127.0.0.1:{ports['storage.port']}\), SessionId: \d+, "
            assert re.search(state + "closingHighWaterMark: UNRESOLVED", listed), listed
    assert len(re.findall(r"server=\d+, partition=\d, generation=\d+", listed)) == _PARTITIONS
    assert re.fullmatch(r"[0-9a-f-]{36}\n", cluster.java_tool("zookeeper", "show-cluster-key", *config))
    node = ("-s", "127.0.0.1:1")
    cluster.java_tool("zookeeper", "add-storage-node", *config, *node, "-a", "2", "-g", "0")
    cluster.java_tool("zookeeper", "assign-partition", *config, *node, "-p", "2")
    cluster.java_tool("zookeeper", "unassign-partition", *config, *node, "-p", "2")
    cluster.java_tool("zookeeper", "remove-storage-node", *config, *node)
    cluster.wait_healthy()


def _clients(cluster: MixedCluster) -> list[int]:
    """ClientCli and PerformanceCli; returns the number of transactions in each partition."""
    config = ("-c", str(cluster.client_file))
    counts = [0] * _PARTITIONS
    cluster.java_tool("client", "validate", *config, "-tpc", "60", "-nc", "2", "-i", "1", "-ap", "2")
    produced = cluster.java_tool(
        "performance", "test-producers", *config, "-s", "100", "-p", "100", "-t", "2", "-i", "1", "-ap", "3", "-l", "10"
    )
    assert "Appended 200 transactions" in produced
    consumed = cluster.java_tool("performance", "test-consumers", *config, "-s", "100", "-t", "5", "-ap", "1", "-ml")
    assert "Read 5 transactions" in consumed
    for partition in range(_PARTITIONS):
        told = cluster.java_tool("client", "high-water-mark", *config, "-p", str(partition))
        found = re.search(rf"Partition {partition} current high watermark: (\d+)", told)
        assert found, told
        counts[partition] = int(found[1]) + 1
        mark = int(found[1])  # our figures may be two seconds older than the answer
        poll(f"our figures say {mark} too", lambda: cluster.committed().get(partition) == mark)  # noqa: B023
    assert sum(counts) >= 120 + 200 + 5
    return counts


def _servers(cluster: MixedCluster) -> None:
    """ServerCli: what a server owns, and preferences that move a partition."""
    owners = cluster.owners()
    for name in cluster.server_names:
        listed = cluster.java_tool("server", "list", "-s", f"127.0.0.1:{cluster.addresses[name]['server.jetty.port']}")
        owned = sum(owner == name for owner in owners.values())
        assert f"There are {owned} partitions for current server" in listed
        for partition in range(_PARTITIONS):
            assert f"Storage node for partition {partition}: [" in listed
    wanted = next(name for name in cluster.server_names if name != owners[0])
    server = ("-s", f"127.0.0.1:{cluster.addresses[wanted]['server.port']}", "-p", "0", *_config(cluster))
    cluster.java_tool("server", "add-preferred-partition", *server)
    poll("the partition moves to the server that prefers it", lambda: cluster.owners().get(0) == wanted)
    cluster.java_tool("server", "remove-preferred-partition", *server)
    cluster.wait_healthy()


def _storage(cluster: MixedCluster, transactions: list[int]) -> None:
    """StorageCli: what nodes hold, and a partition taken out of service, recovered, given up and taken back."""
    config = _config(cluster)
    listed = cluster.java_tool("storage", "list", *config)
    for name in cluster.storage_names:
        admin = _admin_port(cluster, name)
        for partition in range(_PARTITIONS):
            assert re.search(
                rf"Partition Info for id: {partition} at {admin}\n\t sessionId: \d+\n\t lowWaterMark: -?\d+\n"
                r"\t localLowWaterMark: -?\d+\n\t isAssigned: true\n\t isAvailable: true",
                listed,
            ), listed
    cluster.java_tool("storage", "validate", *config)

    source, target = (_admin_port(cluster, name) for name in ("storage-1", "storage-0"))
    data = ("-sp", str(cluster.addresses["storage-0"]["storage.port"]))
    one = ("-s", target, "-p", "1")
    cluster.java_tool("storage", "availability", *config, *one, "-o", "false")
    told = cluster.java_tool("storage", "max-transaction-id", *config, *one, *data, "-o")
    assert f"Max Transaction ID: {transactions[1] - 1}" in told
    _recover(cluster, source, target)
    cluster.java_tool("storage", "availability", *config, *one, "-o", "true")
    cluster.wait_healthy()
    told = cluster.java_tool("storage", "max-transaction-id", *config, *one, *data)
    assert "Max Transaction ID: " in told

    cluster.java_tool("storage", "remove-partition", *config, "-s", target, "-p", "2", "-d")
    assert not list((cluster.directory / "storage-0" / "2").glob("*.seg"))
    cluster.java_tool("storage", "sync-partitions", *config)
    cluster.wait_healthy()


def _recover(cluster: MixedCluster, source: str, target: str) -> None:
    port = str(cluster.addresses["storage-0"]["storage.port"])
    recover = ("-s", source, "-d", target, "-dp", port, "-p", "1", "-b", "20")
    cluster.java_tool("storage", "recover-partition", *_config(cluster), *recover)


def _whole(cluster: MixedCluster) -> None:
    """ClusterCli finds nothing to complain of, once the servers have taken the replicas in again."""
    config = _config(cluster)
    reached = cluster.java_tool("cluster", "check-connectivity", *config)
    for name in cluster.server_names:
        line = re.search(
            rf"Connectivity status of 127.0.0.1:{cluster.addresses[name]['server.port']} is: (.*)", reached
        )
        assert line, reached
        assert line[1].count("=true") == 3, reached

    def verified() -> bool:
        said = cluster.java_tool("cluster", "verify", *config, "-t", "30")
        return "Validation" not in said and bool(said.strip())

    poll("ClusterCli verify finds nothing", verified, patience=120)


def ours_on_original(scene: Scene) -> Outcome:
    """`waltz zookeeper` and `waltz storage` make, look at, change and repair a cluster of the original."""
    with scene.cluster(partitions=2, storage=(JAVA,) * 3, server=(JAVA,)) as cluster:
        load = MixedLoad(cluster, (OURS, JAVA), accounts=6)
        load.start()
        for partition in range(cluster.partitions):
            cluster.wait_commits(COMMITS, partition)
        config = _config(cluster)
        for noun in ("zookeeper", "storage"):
            listed = cluster.tool(noun, "list", *config, "--json").splitlines()
            begin = next(number for number, line in enumerate(listed) if line[:1] in ("{", "["))  # behind warnings
            assert json.loads("\n".join(listed[begin:])), f"waltz {noun} list says nothing"
        cluster.tool("storage", "validate", *config)
        source, target = (
            "127.0.0.1:" + str(cluster.addresses[name]["storage.admin.port"]) for name in ("storage-1", "storage-0")
        )
        data = str(cluster.addresses["storage-0"]["storage.port"])
        one = ("-s", target, "-p", "1")
        cluster.tool("storage", "availability", *config, *one, "-o", "false")
        assert "Max Transaction ID: " in cluster.tool("storage", "max-transaction-id", *config, *one, "-sp", data, "-o")
        cluster.wait_commits(COMMITS, 1)
        cluster.tool(
            "storage", "recover-partition", *config, "-s", source, "-d", target, "-dp", data, "-p", "1", "-b", "20"
        )
        cluster.tool("storage", "availability", *config, *one, "-o", "true")
        cluster.tool("storage", "remove-partition", *config, "-s", target, "-p", "0", "-d", "-y")
        cluster.tool("storage", "sync-partitions", *config)
        for partition in range(cluster.partitions):
            cluster.wait_commits(COMMITS, partition)
        verdict = load.finish()
        return Outcome(verdict.committed, "made, changed and repaired by our tools")
