"""Ways to break a cluster of real processes that `waltz doctor` must name, each with what its advice comes to.

Every `Break` begins and ends with a healthy cluster: what `mend` does is what the finding advises, no more.
"""

from __future__ import annotations

import datetime
import os
import re
import resource
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import attrs
import trio
import yaml

import waltz_trio as waltz
from tests.processes.cluster import Cluster, poll
from waltz_core.zookeeper import znodes
from waltz_core.zookeeper.paths import cluster_paths
from waltz_core.zookeeper.znodes import PartitionAssignment, ServerPartitions

PATHS = cluster_paths("/cluster")
STORAGE = "storage-0", "storage-1", "storage-2"
NODE = STORAGE[1]  # what most of them break


@attrs.frozen
class Break:
    """One way."""

    causes: tuple[str, ...]  # of the roots, in their order
    act: Callable[[Cluster], object]
    mend: Callable[[Cluster, str], object]  # gets the advice of the last root
    follows: frozenset[str] = frozenset()  # causes below the first root
    evidence: Callable[[Cluster], str] = attrs.field(default=lambda cluster: "")  # part of that of the last root


# ---- breaking --------------------------------------------------------------------------------


def restart_with(name: str, **changes: object) -> Callable[[Cluster], None]:
    """Start a process again with other values in its file (`__` for a dot)."""

    def act(cluster: Cluster) -> None:
        path = cluster.directory / f"{name}.yml"
        path.with_suffix(".sound").write_text(path.read_text())
        keys = yaml.safe_load(path.read_text())
        cluster.children[name].stop()
        path.write_text(yaml.safe_dump({**keys, **{key.replace("__", "."): it for key, it in changes.items()}}))
        cluster.start(name)

    return act


def other_port(key: str) -> Callable[[Cluster], None]:
    """A storage node that listens elsewhere than ZooKeeper says."""

    def act(cluster: Cluster) -> None:
        restart_with(NODE, **{key.replace(".", "__"): cluster.ports.take()})(cluster)

    return act


def another_cluster(cluster: Cluster) -> None:
    """A storage node with the directory and the root of another cluster at the place of one of ours."""
    config = cluster.write_file("other", {"cluster.root": "/other"})
    cluster.tool("zookeeper", "create", "-c", str(config), "-n", "other", "-p", "1")
    directory = cluster.directory / "other-storage"
    directory.mkdir()
    restart_with(NODE, cluster__root="/other", storage__directory=str(directory))(cluster)


def certificate(name: str, days: float) -> Callable[[Cluster], None]:
    """A process that shows a certificate which ends so soon."""

    def act(cluster: Cluster) -> None:
        assert cluster.tls is not None
        cluster.tls.issue(name, datetime.timedelta(days=days))

    return act


def assigned(change: Callable[[dict[int, dict[int, int]]], object]) -> Callable[[Cluster], None]:
    """Write another assignment of partitions to servers: server → partition → generation."""

    def act(cluster: Cluster) -> None:
        held = znodes.decode_partition_assignment(cluster.read_znode(PATHS.servers))
        owners = {server.server_id: dict(server.partitions) for server in held.servers}
        change(owners)
        servers = tuple(ServerPartitions(number, tuple(each.items())) for number, each in owners.items())
        changed = PartitionAssignment(held.cversion, held.num_partitions, servers)
        cluster.write_znode(PATHS.servers, znodes.encode_partition_assignment(changed))

    return act


def taken_from_all(owners: dict[int, dict[int, int]]) -> None:
    for each in owners.values():
        each.pop(0, None)


def given_to_all(owners: dict[int, dict[int, int]]) -> None:
    generation = max(each[0] for each in owners.values() if 0 in each)
    for each in owners.values():
        each[0] = generation


def given_to_nobody(owners: dict[int, dict[int, int]]) -> None:
    generation = max(each.pop(0) for each in owners.values() if 0 in each)
    owners[99] = {0: generation}


def admin_ports(change: Callable[[Cluster, dict[str, int]], object]) -> Callable[[Cluster], None]:
    """Write other admin ports of storage nodes."""

    def act(cluster: Cluster) -> None:
        held = znodes.decode_connection_metadata(cluster.read_znode(PATHS.connections))
        ports = dict(held.connections)
        change(cluster, ports)
        metadata = znodes.ConnectionMetadata(tuple(ports.items()))
        cluster.write_znode(PATHS.connections, znodes.encode_connection_metadata(metadata))

    return act


def forget_port(cluster: Cluster, ports: dict[str, int]) -> None:
    del ports[cluster.advertised[NODE]]


def mistake_port(cluster: Cluster, ports: dict[str, int]) -> None:
    ports[cluster.advertised[NODE]] = cluster.ports.take()


def unassign(partition: int, *names: str) -> Callable[[Cluster], None]:
    """Take a partition from storage nodes, in ZooKeeper alone; the command for it would refuse."""

    def act(cluster: Cluster) -> None:
        held = znodes.decode_replica_assignments(cluster.read_znode(PATHS.assignment))
        taken = {cluster.advertised[name] for name in names}
        replicas = tuple(
            (storage, tuple(each for each in partitions if storage not in taken or each != partition))
            for storage, partitions in held.replicas
        )
        changed = znodes.encode_replica_assignments(znodes.ReplicaAssignments(replicas))
        cluster.write_znode(PATHS.assignment, changed)

    return act


def set_back(cluster: Cluster) -> None:
    """ZooKeeper has the metadata of an older store session, as after a backup that came back."""
    path = PATHS.partition(0)
    held = znodes.decode_partition_metadata(cluster.read_znode(path))
    for name in cluster.server_names:
        cluster.children[name].stop()
    for name in cluster.server_names:
        cluster.start(name)
    cluster.wait_healthy()
    for name in cluster.server_names:
        cluster.children[name].stop()
    cluster.write_znode(path, znodes.encode_partition_metadata(held))


def kill(*names: str) -> Callable[[Cluster], None]:
    """`kill -9`."""

    def act(cluster: Cluster) -> None:
        for name in names:
            cluster.children[name].kill()

    return act


def pause(cluster: Cluster) -> None:
    """SIGSTOP: connections stand, nothing is answered."""
    cluster.children[NODE].pause()


def archive_at(*names: str, place: str) -> Callable[[Cluster], None]:
    """Servers that keep an archive below the cluster's directory."""

    def act(cluster: Cluster) -> None:
        where = cluster.directory / place
        if place == "file":
            where.write_text("no directory")
        for name in names:
            restart_with(name, archive__location=str(where))(cluster)

    return act


def append(cluster: Cluster, count: int, size: int = 100) -> None:
    """Transactions of so many bytes in partition 0."""

    async def run() -> None:
        async with waltz.open_client(cluster.client_file) as client:
            for _ in range(count):
                await client.send(0, waltz.Append(bytes(size)))
            await client.flush()

    trio.run(run)


def aside(cluster: Cluster) -> Path:
    return cluster.directory / NODE / "0.aside"


def not_mounted(cluster: Cluster) -> None:
    """A storage node comes back without the files of a partition."""
    append(cluster, 50)
    cluster.children[NODE].stop()
    aside(cluster).with_name("0").rename(aside(cluster))
    cluster.start(NODE)


def disk_gone(cluster: Cluster) -> None:
    """The next file of a partition cannot be created: its directory is none any more."""
    restart_with(NODE, storage__segment__size__threshold=2_000)(cluster)
    poll("nothing lags", lambda: level(cluster))
    place = aside(cluster).with_name("0")
    place.rename(aside(cluster))
    place.write_text("no directory")
    append(cluster, 50)


def level(cluster: Cluster) -> bool:
    """Whether every replica takes part in the session of partition 0."""
    held = znodes.decode_partition_metadata(cluster.read_znode(PATHS.partition(0)))
    return all(
        state.session_id == held.session_id and state.closing_mark == znodes.UNRESOLVED for state in held.replica_states
    )


def rot_everywhere(cluster: Cluster) -> None:
    """A byte of one transaction changes on every disk, and somebody reads it."""
    append(cluster, 20)
    for name in (*cluster.server_names, *STORAGE):
        cluster.children[name].stop()
    for name in STORAGE:
        path = last_segment(cluster, name)
        path.with_suffix(".backup").write_bytes(path.read_bytes())
        path.write_bytes(rotten(path.read_bytes()))
    cluster.start(*STORAGE, *cluster.server_names)
    cluster.wait_healthy()

    async def read() -> None:
        async with waltz.open_client(cluster.client_file) as client:
            mark = await client.committed_mark(0)
            try:
                await client.read(0, mark - 19, mark)
            except waltz.PartitionUnavailableError:
                return
            raise AssertionError("what is damaged everywhere was read")

    trio.run(read)


def last_segment(cluster: Cluster, name: str) -> Path:
    return max((cluster.directory / name / "0").glob("*.seg"))


def rotten(data: bytes) -> bytes:
    """A segment whose fifth record from the end has lost a bit; `append` makes 136 bytes of each."""
    changed = bytearray(data)
    changed[len(data.rstrip(bytes(1))) - 5 * 136] ^= 1
    return bytes(changed)


def journal_disk_full(cluster: Cluster) -> None:
    """The decision journal of a server, which has to be on its disk before any append is, grows no more."""
    journal = cluster.directory / "journal"
    journal.mkdir()
    restart_with("server-0", server__journal__mode="sync", server__journal__directory=str(journal))(cluster)
    poll("it owns a partition", lambda: "server-0" in cluster.owners().values())
    (partition,) = (number for number, name in cluster.owners().items() if name == "server-0")
    child = cluster.children["server-0"]
    limit_files(child.pid, child.log.stat().st_size + (64 << 10))  # it goes on to write its log

    async def fill() -> None:
        locks = [("lock", number) for number in range(200)]

        async def send(client: waltz.Client) -> None:
            while True:
                await client.send(partition, waltz.Append(b"", append=locks))

        with trio.CancelScope() as scope:  # its appends wait for ever: closing must not
            async with waltz.open_client(cluster.client_file) as client, trio.open_nursery() as nursery:
                nursery.start_soon(send, client)
                while "the decision journal cannot be written" not in child.says():  # noqa: ASYNC110
                    await trio.sleep(0.05)
                scope.cancel()

    trio.run(fill)


def limit_files(pid: int, size: int | None = None) -> None:
    """No file of a process gets any longer than that."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard if size is None else size, hard))


def archive_hangs(cluster: Cluster) -> None:
    """The processes of the archive stand still, as they do where a file server does not answer; appends go on."""
    for name in cluster.server_names:
        restart_with(name, archive__location=str(vault(cluster)), archive__fileRecords=20)(cluster)
    cluster.wait_healthy()
    poll("all is archived", lambda: archive_lag(cluster) < 20)
    signal_archives(cluster, signal.SIGSTOP)
    append(cluster, 20 * 11)


def vault(cluster: Cluster) -> Path:
    return cluster.directory / "hanging-vault"


def archive_lag(cluster: Cluster) -> int:
    """Transactions of partition 0 that are not archived."""
    told = (cluster.gauges(name).get("waltz-server.partition-0.archive-lag") for name in cluster.server_names)
    return max((int(lag) for lag in told if lag is not None), default=1 << 30)


def signal_archives(cluster: Cluster, number: signal.Signals) -> None:
    """To all processes that the servers have started."""
    tasks = (Path(f"/proc/{cluster.children[name].pid}/task") for name in cluster.server_names)
    started = [pid for task in tasks for each in task.glob("*/children") for pid in each.read_text().split()]
    assert started, "no archive runs"
    for pid in started:
        os.kill(int(pid), number)


# ---- mending ---------------------------------------------------------------------------------


def carried_out(**places: Callable[[Cluster], str]) -> Callable[[Cluster, str], None]:
    """Run the commands of an advice in their order, with the words filled in that it leaves to people."""

    def mend(cluster: Cluster, advice: str) -> None:
        commands = re.findall(r"waltz ([a-z]+ [a-z-]+(?: [-\w:./]+)*)", advice.partition(", or ")[0])
        assert commands, advice
        for text in commands:
            words = [places[word](cluster) if word in places else word for word in text.split()]
            asks = words[1] == "confirm-metadata" or "--delete-storage-files" in words
            cluster.tool(*words, *(("-y",) if asks else ()))

    return mend


def put_right(name: str, expected: str) -> Callable[[Cluster, str], None]:
    """Set the configuration of a process right and start it again; the advice names what has to be looked at."""

    def mend(cluster: Cluster, advice: str) -> None:
        assert expected in advice, advice
        path = cluster.directory / f"{name}.yml"
        cluster.children[name].stop()
        path.write_text(path.with_suffix(".sound").read_text())
        cluster.start(name)

    return mend


def both_put_right(cluster: Cluster, advice: str) -> None:
    for name in cluster.server_names:
        put_right(name, "check archive.location of the server")(cluster, advice)


def renewed(name: str) -> Callable[[Cluster, str], None]:
    """Put a new certificate into the file of a process, which goes on."""

    def mend(cluster: Cluster, advice: str) -> None:
        assert "replace certificate and key in the files of the node" in advice
        assert cluster.tls is not None
        cluster.tls.issue(name)

    return mend


def restarted(*names: str, expected: str) -> Callable[[Cluster, str], None]:
    """Start processes (again), as the advice says."""

    def mend(cluster: Cluster, advice: str) -> None:
        assert expected in advice, advice
        for name in names:
            if cluster.children[name].running:
                cluster.children[name].stop()
            cluster.start(name)

    return mend


def delete_child(cluster: Cluster, advice: str) -> None:
    assert "find out who wrote it" in advice
    cluster.write_znode(f"{PATHS.servers}/x", None)


def replaced(cluster: Cluster, advice: str) -> None:
    assert "waltz storage run" in advice
    cluster.children[NODE].kill()
    cluster.start(NODE)


def set_back_mended(cluster: Cluster, advice: str) -> None:
    carried_out()(cluster, advice)
    cluster.start(*cluster.server_names)


def mounted(cluster: Cluster, advice: str) -> None:
    """The files are gone for good: what comes last in the advice."""
    repair, _, rest = advice.partition("; if that does not mend it: ")
    done = cluster.attempt(*repair.split()[1:])
    assert (done.returncode, "is limbo" in done.stdout) == (1, True), done.stdout
    carried_out()(cluster, rest)
    shutil.rmtree(aside(cluster))


def disk_back(cluster: Cluster, advice: str) -> None:
    assert "check disk, room and file system" in advice
    place = aside(cluster).with_name("0")
    place.unlink()
    aside(cluster).rename(place)
    carried_out()(cluster, advice)
    put_right(NODE, "waltz storage repair")(cluster, advice)


def put_back(cluster: Cluster, advice: str) -> None:
    """From a backup on one node; the others fetch it from there."""
    assert "put the partition's files back from its backup; then waltz storage repair" in advice
    first, *others = STORAGE
    cluster.children[first].stop()
    path = last_segment(cluster, first)
    path.write_bytes(path.with_suffix(".backup").read_bytes())
    cluster.start(first)
    for name in others:
        admin = f"127.0.0.1:{cluster.addresses[name]['storage.admin.port']}"
        cluster.tool("storage", "repair", "-c", str(cluster.tools_file), "-s", admin, "-p", "0")


def room_made(cluster: Cluster, advice: str) -> None:
    assert f"check disk, room and rights of server.journal.directory of {cluster.advertised['server-0']}" in advice
    verify = re.findall(r"waltz (cluster verify [-\w:./ ]+), *|waltz (cluster verify [-\w:./ ]+) shows", advice)[0]
    words = (verify[0] or verify[1]).split()
    assert cluster.attempt(*words).returncode == 1
    limit_files(cluster.children["server-0"].pid)
    poll("verify shows that it goes on", lambda: cluster.attempt(*words).returncode == 0)
    put_right("server-0", "")(cluster, advice)


def archived_in_bulk(cluster: Cluster, advice: str) -> None:
    carried_out(LOCATION=lambda cluster: str(vault(cluster)))(cluster, advice)
    signal_archives(cluster, signal.SIGCONT)
    poll("the servers go on behind what is archived", lambda: archive_lag(cluster) < 20)
    for name in cluster.server_names:
        put_right(name, "")(cluster, advice)


def address(cluster: Cluster) -> str:
    return cluster.advertised[NODE]


BREAKS: dict[str, Break] = {
    "the files of a partition are gone": Break(
        ("limbo",), not_mounted, mounted, frozenset({"no-spare-replica"}), lambda cluster: "its data files are gone"
    ),
    "a disk fails": Break(
        ("disk-error",), disk_gone, disk_back, frozenset({"no-spare-replica"}), lambda cluster: "Not a directory"
    ),
    "a transaction is damaged on every disk": Break(
        ("damaged-records",) * 3, rot_everywhere, put_back, evidence=lambda cluster: "has 1 damaged record: transaction"
    ),
    "the disk of the decision journal is full": Break(
        ("unhealthy",), journal_disk_full, room_made, evidence=lambda cluster: "the decision journal cannot be written"
    ),
    "a storage node hangs": Break(
        ("storage-down",), pause, replaced, frozenset({"no-spare-replica"}), lambda cluster: "no answer within"
    ),
    "all storage nodes were killed": Break(
        ("storage-down", "storage-down", "storage-down"),
        kill(*STORAGE),
        restarted(*STORAGE, expected="waltz storage run"),
        frozenset({"no-quorum", "recovery-stuck"}),
    ),
    "the data port is another": Break(
        ("port-unreachable",), other_port("storage.port"), put_right(NODE, "check firewall, port"), evidence=address
    ),
    "the admin port is another": Break(
        ("port-unreachable",),
        other_port("storage.admin.port"),
        put_right(NODE, "check firewall, port"),
    ),
    "ZooKeeper has another admin port than the node": Break(
        ("port-unreachable",),
        admin_ports(mistake_port),
        carried_out(ADMIN_PORT=lambda cluster: str(cluster.addresses[NODE]["storage.admin.port"])),
        evidence=address,
    ),
    "a storage node was added by half": Break(
        ("half-added-storage-node",),
        admin_ports(forget_port),
        carried_out(
            ADMIN_PORT=lambda cluster: str(cluster.addresses[NODE]["storage.admin.port"]),
        ),
    ),
    "a storage node has a name that cannot be read": Break(
        ("unreadable-storage-node",),
        admin_ports(lambda cluster, ports: ports.update({"127.0.0.1:70000": 5173})),
        carried_out(),
    ),
    "a storage node is in ZooKeeper under two names": Break(
        ("same-node",),
        admin_ports(
            lambda cluster, ports: ports.update(
                {cluster.advertised[NODE].replace("127.0.0.1", "localhost"): ports[cluster.advertised[NODE]]}
            )
        ),
        carried_out(),
    ),
    "a storage node is of another cluster": Break(
        ("wrong-key",), another_cluster, put_right(NODE, "check storage.directory"), frozenset({"no-spare-replica"})
    ),
    "a certificate of a server has ended": Break(
        ("certificate-expired",), certificate("server-0", -0.001), renewed("server-0")
    ),
    "a certificate ends soon": Break(
        ("certificate-ends-soon",), certificate(NODE, 5), renewed(NODE), evidence=lambda cluster: "ends in 5 days"
    ),
    "what is registered is no server": Break(
        ("undecodable-server",), lambda cluster: cluster.write_znode(f"{PATHS.servers}/x", b"?"), delete_child
    ),
    "nobody owns a partition": Break(
        ("no-owner",), assigned(taken_from_all), restarted("server-0", expected="restart one of the servers")
    ),
    "two servers own a partition": Break(
        ("two-owners",), assigned(given_to_all), restarted("server-0", expected="restart one of these servers")
    ),
    "the owner of a partition is gone": Break(
        ("owner-gone",), assigned(given_to_nobody), restarted("server-0", expected="waltz server run")
    ),
    "a partition was taken from a node in ZooKeeper": Break(
        ("mismatched-assignment",), unassign(1, NODE), carried_out(), evidence=address
    ),
    "a partition has no replica": Break(
        ("no-replica",),
        unassign(1, *STORAGE),
        carried_out(),
        frozenset({"mismatched-assignment"}),
    ),
    "the metadata of a partition is of an older session": Break(
        ("no-server", "metadata-set-back"), set_back, set_back_mended
    ),
    "the archive cannot be written": Break(
        ("archive-trouble", "archive-trouble"),
        archive_at("server-0", "server-1", place="file"),
        both_put_right,
        evidence=lambda cluster: "appends continue, nothing is freed",
    ),
    "the archive hangs": Break(
        ("archive-behind",), archive_hangs, archived_in_bulk, evidence=lambda cluster: "whole files"
    ),
    "one server of two archives": Break(
        ("archive-not-everywhere",),
        archive_at("server-0", place="vault"),
        put_right("server-0", "put the keys archive.* of the other servers into"),
        evidence=lambda cluster: cluster.advertised["server-1"],
    ),
}
