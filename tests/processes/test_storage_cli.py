"""`waltz storage` against real storage processes: every command, its texts and its refusals."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio

from tests.processes.cluster import Cluster
from tests.processes.zookeeper import ZooKeeperServer
from waltz_core.base.ids import Endpoint, ReqId
from waltz_core.base.log import Record
from waltz_core.zookeeper.store_metadata import add_storage_node
from waltz_trio.cli.main import main
from waltz_trio.cli.tool import tool_of
from waltz_trio.cli.zookeeper import open_cluster
from waltz_trio.config.config import Config
from waltz_trio.zk.admin import change_store

pytestmark = pytest.mark.processes

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cluster(request: pytest.FixtureRequest, tmp_path: Path, zookeeper: ZooKeeperServer) -> Iterator[Cluster]:
    """Two storage nodes of one group each, partitions not yet assigned at the nodes; no server."""
    count = getattr(request, "param", 2)
    made = Cluster(tmp_path, zookeeper.fresh_chroot(), partitions=3, storage_nodes=count, servers=0)
    try:
        config = ("-c", str(made.tools_file))
        made.tool("zookeeper", "create", *config, "-n", "test", "-p", "3")
        for group, name in enumerate(made.storage_names):
            ports = made.addresses[name]
            node = ("-s", f"127.0.0.1:{ports['storage.port']}")
            made.tool(
                "zookeeper",
                "add-storage-node",
                *config,
                *node,
                "-a",
                str(ports["storage.admin.port"]),
                "-g",
                str(group),
            )
            made.tool("zookeeper", "assign-partition", *config, *node, "-p", "0-2" if group == 0 else "0")
        made.start(*made.storage_names)
        yield made
        made.assert_calm()
    finally:
        made.end()


ONE_NODE = pytest.mark.parametrize("cluster", [1], indirect=True, ids=["one node"])


@pytest.fixture
def run(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a sub-command; returns exit status, standard output, standard error."""

    def call(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        status = main(["storage", *words, "-c", str(cluster.tools_file)])
        output = capsys.readouterr()
        return status, output.out, output.err

    return call


def admin_of(cluster: Cluster, number: int) -> str:
    return f"127.0.0.1:{cluster.addresses[f'storage-{number}']['storage.admin.port']}"


def data_port(cluster: Cluster, number: int) -> str:
    return str(cluster.addresses[f"storage-{number}"]["storage.port"])


def records(first: int, count: int) -> tuple[Record, ...]:
    return tuple(Record(one, ReqId(one.to_bytes(16)), 1, b"data" * one, 5) for one in range(first, first + count))


def fill(cluster: Cluster, number: int, partition: int, count: int, session: int = 3) -> None:
    """Append to one node as a server would."""
    config = Config.load(cluster.tools_file)

    async def work() -> None:
        async with open_cluster(config) as (zk, paths):
            tool = await tool_of(config, zk, paths)
            async with tool.data(Endpoint("127.0.0.1", int(data_port(cluster, number)))) as port:
                port.session_id, port.partition_id = session, partition
                first = await port.max_transaction_id() + 1
                await port.append(records(first, count))
                await port.set_low_water_mark(first + count - 1)

    trio.run(work)


def test_assignment_and_listing(cluster: Cluster, run: Run) -> None:
    first, second = admin_of(cluster, 0), admin_of(cluster, 1)
    assert run("list", "-s", first) == (0, "\n", "")
    assert run("sync-partitions") == (0, "", "")
    status, out, err = run("list", "-s", first)
    assert (status, err) == (0, "")
    assert out.startswith(
        f"Partition Info for id: 0 at {first}\n\t sessionId: -1\n\t lowWaterMark: -1\n\t localLowWaterMark: -1\n"
        f"\t isAssigned: true\n\t isAvailable: true\nPartition Info for id: 1 at {first}\n"
    )
    status, out, err = run("list")
    assert (
        re.findall(r"Partition Info for id:\s*(\d+) at (\S+)", out)
        == sorted([("0", first), ("1", first), ("2", first), ("0", second)], key=lambda one: (one[1], one[0]))
        or len(re.findall("Partition Info", out)) == 4
    )
    assert run("add-partition", "-s", second, "-p", "1,2") == (0, "", "")
    found = json.loads(run("list", "-s", second, "-j")[1])
    assert [one["partition"] for one in found["nodes"][0]["partitions"]] == [0, 1, 2]
    assert run("sync-partitions") == (0, "", "")
    found = json.loads(run("list", "-s", second, "--json")[1])
    assert [one["partition"] for one in found["nodes"][0]["partitions"]] == [0]
    assert run("remove-partition", "-s", second, "-p", "0", "-d", "-y") == (0, "", "")
    assert not list((cluster.directory / "storage-1" / "0").glob("*"))


def test_what_cannot_be_done_is_said(cluster: Cluster, run: Run) -> None:
    first = admin_of(cluster, 0)
    assert run("add-partition", "-s", first, "-p", "9")[2].startswith("Error: Failed to add partition 9. \n")
    assert "partition 9 does not exist" in run("add-partition", "-s", first, "-p", "9")[2]
    status, _, err = run("remove-partition", "-s", first, "-p", "1")
    assert status == 1
    assert err.startswith(f"Error: Failed to remove partition 1 from {first}. \n")
    assert "Partition:1 is not assigned." in err
    assert "There is no terminal" in run("remove-partition", "-s", first, "-p", "1", "-d")[2]
    commands: list[tuple[str, ...]] = [
        ("repair", "-s", first),
        ("accept-limbo", "-s", first, "-y"),
        ("confirm-metadata", "-y"),
        ("unsafe-recover", "-a", "-y"),
    ]
    for words in commands:
        status, _, err = run(*words, "-p", "9")
        assert status == 1
        assert "partition 9 does not exist: the cluster has 3 partitions, from 0" in err
    wrong = f"127.0.0.1:{data_port(cluster, 0)}"
    commands = [("list", "-s", wrong), ("repair", "-s", wrong, "-p", "0")]
    for words in commands:
        status, _, err = run(*words)
        assert status == 1
        assert "is the port of this node for servers, its admin port is " in err
        assert f"write {first}" in err
    cluster.children["storage-1"].kill()
    second = admin_of(cluster, 1)
    status, _, err = run("list")
    assert status == 1
    assert f"Cannot fetch partition ownership for {second}:" in err
    status, _, err = run("validate")
    assert status == 1
    assert "Error: Invalid hostname or port: " in err
    assert "Invalid hostname or admin port: " in err
    assert "failed to connect: " in err
    status, out, _ = run("validate", "--json")
    assert (status, len(json.loads(out)["failures"])) == (1, 2)
    status, _, err = run("sync-partitions")
    assert err.startswith("Error: Partition assignment cannot be fully synced. \n")
    assert len(json.loads(run("list", "-s", first, "-j")[1])["nodes"][0]["partitions"]) == 3
    cluster.children["storage-1"].start()
    cluster.wait_up("storage-1")
    assert run("validate") == (0, "", "")


def test_a_wrong_call_is_one_before_anything_is_asked_or_done(cluster: Cluster, run: Run) -> None:
    """It ended with 1, as something that had failed, and asked whether to delete the files of an empty range."""
    first, empty = admin_of(cluster, 0), "range 3-1 is empty: it begins with the lower number, such as 1-3"
    form, recover = "be in format of host:admin_port", ("recover-partition", "-d", first)
    calls = {
        ("add-partition", "-s", "nowhere", "-p", "1"): form,
        ("add-partition", "-s", "localhost:-5", "-p", "1"): f"{form}: expected host:port, found 'localhost:-5'",
        ("add-partition", "-s", first, "-p", "3-1"): empty,
        ("list", "-s", "nowhere"): "in format of host:admin_port",
        ("remove-partition", "-s", first, "-p", ","): 'Partitions list is empty: ","',
        ("remove-partition", "-s", first, "-p", "0,3-1", "-d"): empty,
        ("availability", "-s", first, "-p", "0", "-o", "yes"): "--online must be set to 'true' or 'false'",
        ("availability", "-s", first, "-p", "x", "-o", "true"): 'For input string: "x"',
        ("max-transaction-id", "-s", first, "-sp", "1", "-p", "x"): 'For input string: "x"',
        ("max-transaction-id", "-s", first, "-sp", "99999", "-p", "0"): "--storage-port must be at most 65535",
        ("repair", "-s", first, "-p", "0", "-f", "here,there"): form,
        (*recover, "-s", first, "-dp", "1", "-p", "0", "-b", "x"): "Batch size must be a positive integer",
        (*recover, "-s", first, "-dp", "1", "-p", "-1", "-b", "5"): "Partition id must be a non-negative integer",
        (*recover, "-s", "nowhere", "-dp", "1", "-p", "0", "-b", "5"): form,
        ("add-node", "-s", "nowhere", "-a", "1", "-g", "0"): "Storage must be in format of host:port",
        ("add-node", "-s", "h:1", "-a", "1", "-g", "-1"): "--group must be at least 0, found -1",
        ("drain", "-s", first, "-w", "0", "-n"): "--timeout must be at least 1, found 0",
    }
    for words, problem in calls.items():
        status, out, err = run(*words)
        assert (status, out) == (2, ""), (words, err)
        assert problem in err
        assert err.count("\n") == 1


def test_a_wrong_call_of_other_tools_is_one_too(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An empty variable of a script restarted all nodes, and was a traceback where a file should be named."""
    monkeypatch.chdir(tmp_path)
    calls = {
        ("cluster", "verify", "-p", "x"): 'For input string: "x"',
        ("restart-plan", "-o", ""): "--only: expected names of nodes or hosts, separated by commas, found none",
        ("restart-plan", "-w", "-1", "-e", "true"): "--wait must be at least 0, found -1",
        ("zookeeper", "list", "--output="): "--output: expected the path of a file, found nothing",
    }
    for words, problem in calls.items():
        assert main([*words, "-c", str(cluster.tools_file)]) == 2, words
        output = capsys.readouterr()
        assert output.out == ""
        assert problem in output.err
    assert not list(tmp_path.glob("waltz-restart.json"))


def test_a_name_in_zookeeper_that_cannot_be_read_stops_no_other_partition(cluster: Cluster, run: Run) -> None:
    """0.13.2 writes such names; `confirm-metadata` of any partition failed by it."""
    name = "127.0.0.1:70000"

    async def write() -> None:
        async with open_cluster(Config.load(cluster.tools_file)) as (zk, paths):
            await change_store(zk, paths, lambda maps, _: add_storage_node(maps, name, 1, 5173), lambda stat: None)

    trio.run(write)
    run("sync-partitions")
    status, out, err = run("confirm-metadata", "-p", "0", "-y")
    assert (status, "session" in out) == (0, True), err
    cluster.tool("zookeeper", "remove-storage-node", "-c", str(cluster.tools_file), "-s", name)
    assert name not in cluster.tool("zookeeper", "list", "-c", str(cluster.tools_file))


@ONE_NODE
def test_a_node_under_two_names_keeps_what_either_of_them_is_assigned(cluster: Cluster, run: Run) -> None:
    """The name without partitions told it to give everything up."""
    run("sync-partitions")
    first = admin_of(cluster, 0)
    port, name = int(first.rpartition(":")[2]), f"localhost:{data_port(cluster, 0)}"

    async def write() -> None:
        async with open_cluster(Config.load(cluster.tools_file)) as (zk, paths):
            await change_store(zk, paths, lambda maps, _: add_storage_node(maps, name, 0, port), lambda stat: None)

    trio.run(write)
    own, tools = f"127.0.0.1:{data_port(cluster, 0)}", ("-c", str(cluster.tools_file))
    for words in ((), ("assign-partition", "-s", name, "-p", "1"), ("unassign-partition", "-s", own, "-p", "1")):
        if words:
            cluster.tool("zookeeper", words[0], *tools, *words[1:])
        assert run("sync-partitions") == (0, "", "")
        held = json.loads(run("list", "-s", first, "-j")[1])["nodes"][0]["partitions"]
        assert [each["partition"] for each in held] == [0, 1, 2]


@ONE_NODE
def test_availability_and_the_highest_id(cluster: Cluster, run: Run) -> None:
    first = admin_of(cluster, 0)
    run("sync-partitions")
    fill(cluster, 0, 0, 7)
    ask = ("max-transaction-id", "-s", first, "-sp", data_port(cluster, 0), "-p", "0")
    assert run(*ask) == (0, "Max Transaction ID: 6\n", "")
    assert json.loads(run(*ask, "--json")[1])["max_transaction_id"] == 6
    assert "cannot run offline recovery while partition is online" in run(*ask, "-o")[2]
    assert run("availability", "-s", first, "-p", "0", "-o", "false") == (0, "", "")
    _, _, err = run(*ask)
    assert err.startswith(f"Error: Failed to read max transaction ID for storage {first}. \n")
    assert "read and write for partition=0 have been disabled on storage node" in err
    assert run(*ask, "-o") == (0, "Max Transaction ID: 6\n", "")
    assert "isAvailable: false" in run("list", "-s", first)[1]
    assert run("availability", "-s", first, "-p", "0", "-o", "true") == (0, "", "")


def test_a_partition_is_recovered_from_another_node(cluster: Cluster, run: Run) -> None:
    first, second = admin_of(cluster, 0), admin_of(cluster, 1)
    run("sync-partitions")
    fill(cluster, 0, 0, 45)
    recover = ("recover-partition", "-s", first, "-d", second, "-dp", data_port(cluster, 1), "-p", "0", "-b")
    tls = cluster.write_file("peers", cluster.tls.keys("server.ssl.", "tools") if cluster.tls else {})
    files = ("-sssl", str(tls), "-dssl", str(tls))
    assert "cannot run offline recovery while partition is online" in run(*recover, "20", *files)[2]
    assert run("availability", "-s", second, "-p", "0", "-o", "false")[0] == 0
    assert "Batch size must be a positive integer" in run(*recover, "0", *files)[2]
    assert "--batch-size: expected a whole number, at most 2147483647" in run(*recover, "2147483648", *files)[2]
    assert "--partition: expected a whole number, at most" in run(*recover[:8], "2147483648", "-b", "20", *files)[2]
    assert "--destination-storage-port must be at most 65535" in run(*recover[:6], "70000", *recover[7:], "20")[2]
    status, out, err = run(*recover, "20", *files)
    assert (status, out) == (0, "")
    assert "45 of 45 transactions, 100 %" in err
    assert run(*recover, "20", *files)[0] == 0
    assert run(*recover, "20")[0] == 0  # with the certificate of -c, as any other command
    assert run("availability", "-s", second, "-p", "0", "-o", "true")[0] == 0
    for number in range(2):
        assert (cluster.directory / f"storage-{number}" / "0" / "0000000000000000000.seg").stat().st_size > 4000
    one, two = (
        (cluster.directory / f"storage-{number}" / "0" / "0000000000000000000.seg").read_bytes() for number in range(2)
    )
    assert one[128:] == two[128:]


@ONE_NODE
def test_a_node_says_why_it_does_not_start_and_is_healthy_when_it_does(cluster: Cluster, run: Run) -> None:
    run("sync-partitions")
    fill(cluster, 0, 0, 5)
    child = cluster.children["storage-0"]
    health = cluster.get("storage-0", "/health")["storage-health-check"]
    assert (health["healthy"], health["message"]) == (True, '{"storage":"true"}')
    assert cluster.get("storage-0", "/ping") == "pong\n"
    gauges = cluster.get("storage-0", "/metrics")["gauges"]
    assert gauges["waltz-storage.partition-0.max-transaction-id"] == {"value": 4}
    child.stop()
    data = cluster.directory / "storage-0" / "0" / "0000000000000000000.seg"
    content = bytearray(data.read_bytes())
    content[-1] ^= 1
    data.write_bytes(content)
    child.start()
    cluster.wait_up("storage-0")
    health = cluster.get("storage-0", "/health")["storage-health-check"]
    assert not health["healthy"]
    assert "transaction 4 at offset" in health["partitions"]["0"]
    assert "state: limbo" in run("list", "-s", admin_of(cluster, 0))[1]
    child.stop()
    control = cluster.directory / "storage-0" / "waltz-storage.ctl"
    control.write_bytes(control.read_bytes()[:90])
    child.start()
    assert child.wait() == 1
    assert "the file has lost its end" in child.text()
