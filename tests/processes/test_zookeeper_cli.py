"""`waltz zookeeper` against a real ZooKeeper: the life of a cluster, and everything that is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from kazoo.client import KazooClient

from tests.processes.zookeeper import ZooKeeperServer, free_port
from waltz_core.base.ids import Endpoint
from waltz_core.proxy.state import ProxyState, encode_proxy_state
from waltz_core.zookeeper.znodes import ServerDescriptor, encode_server_descriptor
from waltz_trio.cli.main import main
from waltz_trio.zk.client import open_znode_client

pytestmark = pytest.mark.processes

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def hosts(zookeeper: ZooKeeperServer) -> str:
    return zookeeper.fresh_chroot()


@pytest.fixture
def run(hosts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a sub-command; returns exit status, standard output, standard error without the lines of the audit."""
    config = tmp_path / "cli.yml"
    config.write_text(f"zookeeper.connectString: {hosts}\ncluster.root: /env/test\n")

    def call(*words: str) -> tuple[int, str, str]:
        status = main(["zookeeper", *words, "-c", str(config)])
        output = capsys.readouterr()
        errors = output.err.splitlines(keepends=True)
        return status, output.out, "".join(line for line in errors if " audit: " not in line)

    return call


CREATED = """\
Verifying cluster does not already exist...
Setting the cluster parameters...
The cluster parameters are set.
  name=demo cluster
  numPartitions=4
"""


def make_cluster(run: Run) -> None:
    assert run("create", "-n", "demo cluster", "-p", "4") == (0, CREATED, "")


def test_create_makes_exactly_what_the_original_makes(run: Run, hosts: str) -> None:
    make_cluster(run)

    async def look() -> dict[str, tuple[bytes | None, int]]:
        async with open_znode_client(hosts) as zk:
            nodes = {path: await zk.get(path) for path in await zk.walk("/env")}
            return {path: (data, stat.version) for path, (data, stat) in nodes.items()}

    found = trio.run(look)
    store = found.pop("/env/test/store")
    assert re.fullmatch(rb"\x01.{16}\x00\x00\x00\x04", store[0] or b"", re.DOTALL)
    assert store[1] == 1
    assert found == {
        "/env": (None, 0),
        "/env/test": (bytes.fromhex("b4e8734701000c64656d6f20636c757374657200000004"), 1),
        "/env/test/ids": (None, 0),
        "/env/test/ids/client": (bytes(4), 0),
        "/env/test/ids/server": (bytes(4), 0),
        "/env/test/serverDescriptors": (bytes.fromhex("03ffffffff0000000000000000"), 0),
        "/env/test/store/assignment": (b"\x01\0\0\0\0", 1),
        "/env/test/store/connection": (b"\x01\0\0\0\0", 1),
        "/env/test/store/group": (b"\x01\0\0\0\0", 1),
        "/env/test/store/partition": (None, 0),
    }


def test_a_cluster_is_created_once(run: Run) -> None:
    make_cluster(run)
    status, out, err = run("create", "-n", "other", "-p", "2")
    assert (status, err) == (1, "")
    assert out.endswith("Cluster already exists. Aborting.\n")
    assert run("create", "-n", "other", "-p", "-1")[2] == "Error: Number of partitions must be a non-negative integer\n"
    expected = 'Error: For input string: "x" (--partitions: expected a whole number, at most 2147483647)\n'
    assert run("create", "-n", "other", "-p", "x") == (2, "", expected)


def test_the_life_of_storage_nodes(run: Run) -> None:
    make_cluster(run)
    quiet = (0, "", "")
    assert run("add-storage-node", "-s", "b:6000", "-a", "6100", "-g", "0") == quiet
    assert run("add-storage-node", "-s", "a:6000", "-a", "6100", "-g", "1") == quiet
    assert run("add-storage-node", "-s", "c:6000", "-a", "6100", "-g", "1") == quiet
    assert run("add-storage-node", "-s", "a:6000", "-a", "1", "-g", "1")[2] == "Error: Storage node already exists.\n"
    assert run("auto-assign", "-g", "0") == quiet
    assert run("auto-assign", "-g", "0")[2] == "Error: Found storage node with assignment in group.\n"
    assert run("auto-assign", "-g", "9")[2] == "Error: No storage node found in group.\n"
    assert run("assign-partition", "-p", "0-2", "-s", "a:6000") == quiet
    assert run("assign-partition", "-p", "2,3", "-s", "c:6000") == quiet
    assert run("unassign-partition", "-p", "2", "-s", "a:6000") == quiet
    refused = run("unassign-partition", "-p", "2", "-s", "c:6000")
    assert refused == (1, "", "Error: Storage group does not contain full partitions after removing 2\n")
    refused = run("remove-storage-node", "-s", "c:6000")
    assert refused == (1, "", "Error: Storage node cannot be removed when containing partitions\n")
    status, out, _ = run("list")
    assert status == 0
    assert re.sub("key=[-0-9a-f]{36}", "key=KEY", out) == LISTED
    status, key, _ = run("show-cluster-key")
    assert status == 0
    assert f"  key={key}" in out
    assert json.loads(run("show-cluster-key", "--json")[1]) == {"key": key.strip()}


LISTED = """\
cluster root [/env/test]:
  name=demo cluster
  numPartitions=4
cluster root [/env/test] has server descriptors:
cluster root [/env/test] has partition assignment metadata:
  cversion=-1, endpoints=0, partitions=0
cluster root [/env/test] has partition assignments:
store [/env/test/store] parameters:
  key=KEY
  numPartitions=4
store [/env/test/store] replica and group assignments:
  a:6000 = [0, 1], GroupId: 1
  b:6000 = [0, 1, 2, 3], GroupId: 0
  c:6000 = [2, 3], GroupId: 1
store [/env/test/store] connections:
  a:6000 has admin port: 6100
  b:6000 has admin port: 6100
  c:6000 has admin port: 6100
store [/env/test/store/partition/0] replica states:
  No node found
store [/env/test/store/partition/1] replica states:
  No node found
store [/env/test/store/partition/2] replica states:
  No node found
store [/env/test/store/partition/3] replica states:
  No node found
"""


def test_the_list_is_there_for_programs_too(run: Run) -> None:
    make_cluster(run)
    run("add-storage-node", "-s", "b:6000", "-a", "6100", "-g", "3")
    status, out, _ = run("list", "--json")
    assert status == 0
    found = json.loads(out)
    assert found["storage"] == [{"storage": "b:6000", "partitions": [], "group": 3, "admin_port": 6100}]
    assert found["assignment"] == {"cversion": -1, "in_force": False, "partitions": []}
    assert found["partitions"] == [None] * 4


def test_a_wrong_storage_name_or_port_is_refused(run: Run) -> None:
    make_cluster(run)
    wrong = "Error: Storage must be in format of host:port\n"
    for name in ("a", "a:", "::1:6000"):
        assert run("add-storage-node", "-s", name, "-a", "1", "-g", "0") == (2, "", wrong)
    for name in ("127.0.0.1:70000", "a:0", "a:1 ", "ö st:1", "host/x:1", "a,b:1", "a:+1", "a:x"):
        status, text, error = run("add-storage-node", "-s", name, "-a", "1", "-g", "0")
        assert (status, text) == (2, "")
        assert f"in format of host:port, found {name!r}: expected a host without blanks" in error
    assert "1..65535" in run("add-storage-node", "-s", "a:1", "-a", "0", "-g", "0")[2]
    assert "--group must be at least 0, found -1" in run("add-storage-node", "-s", "a:1", "-a", "2", "-g", "-1")[2]


def test_what_needs_a_cluster_says_that_there_is_none(run: Run) -> None:
    missing = "Error: unable to get store params: znode /env/test/store does not exist\n"
    assert run("list") == (1, "", missing)
    assert run("show-cluster-key") == (1, "", missing)
    assert run("auto-assign", "-g", "0") == (1, "", missing)


def test_delete_wants_the_right_name_and_consent(run: Run) -> None:
    absent = "Running deletion for cluster [demo cluster] ...\ncluster root [/env/test] does not exist\n"
    assert run("delete", "-n", "demo cluster") == (1, absent, "")
    make_cluster(run)
    status, out, _ = run("delete", "-n", "wrong", "--yes")
    assert status == 1
    assert out.endswith("specified cluster name [wrong] does not match zookeeper value [demo cluster]\n")
    status, _, err = run("delete", "-n", "demo cluster")
    assert status == 1
    assert "give --yes" in err
    assert run("list")[0] == 0
    assert run("delete", "-n", "demo cluster", "--yes")[0] == 0
    assert run("list")[0] == 1


def test_force_deletes_whatever_the_name_is(run: Run) -> None:
    make_cluster(run)
    assert run("delete", "-n", "whatever", "-f")[0] == 0
    make_cluster(run)


def test_half_a_cluster_is_deleted_by_force_only(run: Run, hosts: str) -> None:
    client = KazooClient(hosts=hosts)
    client.start()
    client.create("/env", None)
    client.create("/env/test", None)
    client.stop()
    client.close()
    status, out, _ = run("delete", "-n", "demo cluster", "--yes")
    assert status == 1
    assert "no cluster parameters" in out
    assert run("delete", "-n", "demo cluster", "-f")[0] == 0
    make_cluster(run)


def set_znode(hosts: str, path: str, data: bytes) -> None:
    async def act() -> None:
        async with open_znode_client(hosts) as zk:
            await zk.set(path, data, -1)

    trio.run(act)


def test_a_listing_restores_a_cluster(run: Run, hosts: str, tmp_path: Path) -> None:
    make_cluster(run)
    run("add-storage-node", "-s", "a:1", "-a", "2", "-g", "0")
    run("auto-assign", "-g", "0")
    backup = tmp_path / "backup.json"
    backup.write_text(run("list", "--json")[1])
    kept = json.loads(backup.read_text())

    def restore(*words: str) -> tuple[int, str, str]:
        return run("restore", "-i", str(backup), *words)

    assert restore()[:2] == (0, "nothing is missing below /env/test, and everything there can be read\n")
    set_znode(hosts, "/env/test/store/group", b"?")
    status, _, err = run("list")
    assert status == 1
    assert "znode /env/test/store/group cannot be read" in err
    status, out, err = restore()
    assert (status, err.count("give --yes")) == (1, 1)  # nobody is asked here
    assert "/env/test/store/group cannot be used (" in out
    assert restore("-y")[0] == 0
    assert json.loads(run("list", "--json")[1]) == kept

    run("delete", "-n", "demo cluster", "-f")
    assert restore("-y")[0] == 0
    again = json.loads(run("list", "--json")[1])
    assert again.pop("ids") == {"client": 1_000_000, "server": 1_000_000}
    assert again["assignment"].pop("in_force") is False
    del kept["ids"], kept["assignment"]["in_force"]
    assert again == kept


def test_a_backup_takes_the_place_of_the_last_one_only_as_a_whole(run: Run, hosts: str, tmp_path: Path) -> None:
    """`list --json > FILE` had emptied the last good backup before it found that ZooKeeper was damaged."""
    make_cluster(run)
    file = tmp_path / "backup.json"
    assert run("list", "-o", str(file))[:2] == (0, f"{file}: 4 partitions, 0 storage nodes\n")
    kept = file.read_text()
    assert kept == run("list", "--json")[1]

    set_znode(hosts, "/env/test/serverDescriptors", b"?")
    status, _, err = run("list", "-o", str(file))
    assert (status, file.read_text()) == (1, kept)
    assert f"{file} was not written, as it would be no backup: cannot be read: /env/test/serverDescriptors: " in err
    run("delete", "-n", "demo cluster", "-f")
    assert run("list", "-o", str(file))[0] == 1
    assert file.read_text() == kept
    assert run("list", "-o", str(tmp_path / "no" / "file"))[0] == 1


def test_what_is_no_backup_of_this_cluster_is_refused(run: Run, hosts: str, tmp_path: Path) -> None:
    make_cluster(run)
    file = tmp_path / "backup.json"
    assert f"Error: {file}: No such file" in run("restore", "-i", str(file))[2]
    for text, said in (
        ("{", "Expecting property name"),
        ("[]", "the whole: expected an object, found []"),
        ("{}", "num_partitions is missing"),
    ):
        file.write_text(text)
        status, _, err = run("restore", "-i", str(file), "-y")
        assert status == 1
        assert f"Error: {file} is not what `waltz zookeeper list --json` prints: {said}" in err
    file.write_text(run("list", "--json")[1])
    run("delete", "-n", "demo cluster", "-f")
    make_cluster(run)
    status, _, err = run("restore", "-i", str(file), "-y")
    assert status == 1
    assert "the backup is of" in err


def test_counts_of_partitions_that_contradict_each_other_are_told(run: Run, hosts: str, tmp_path: Path) -> None:
    make_cluster(run)
    backup = tmp_path / "backup.json"
    backup.write_text(run("list", "--json")[1])
    set_znode(hosts, "/env/test", bytes.fromhex("b4e8734701000c64656d6f20636c757374657200000005"))
    status, _, err = run("list")
    assert status == 1
    assert "znode /env/test says 5 partitions, /env/test/store says 4" in err
    assert "`waltz zookeeper restore`" in err
    assert run("restore", "-i", str(backup), "-y")[0] == 0
    assert run("list", "--json")[1] == backup.read_text()


def test_an_id_that_may_have_been_given_out_is_not_guessed(run: Run, hosts: str, tmp_path: Path) -> None:
    make_cluster(run)
    backup = tmp_path / "backup.json"
    backup.write_text(run("list", "--json")[1])
    set_znode(hosts, "/env/test/ids/client", b"?")
    late = tmp_path / "late.json"
    late.write_text(run("list", "--json")[1])
    status, _, err = run("restore", "-i", str(late), "-y")
    assert status == 1
    assert "does not tell what /env/test/ids/client held: take one of a time when it was sound" in err
    assert run("restore", "-i", str(backup), "-y")[0] == 0
    assert json.loads(run("list", "--json")[1])["ids"] == {"client": 1_000_000, "server": 0}


def test_delete_refuses_while_servers_run(run: Run, hosts: str) -> None:
    make_cluster(run)
    server = KazooClient(hosts=hosts)
    server.start()
    descriptor = ServerDescriptor(7, Endpoint("host", 6000), (1, 2))
    server.create("/env/test/serverDescriptors/s_", encode_server_descriptor(descriptor), ephemeral=True, sequence=True)
    status, _, err = run("delete", "-n", "demo cluster", "--yes")
    assert status == 1
    assert "7 at host:6000" in err
    assert "  server=7, endpoint=host:6000, preferred partitions=[1,2]" in run("list")[1]
    assert run("delete", "-n", "demo cluster", "-f")[0] == 0
    server.stop()
    server.close()


def test_a_change_waits_for_the_admin_lock(run: Run, hosts: str) -> None:
    make_cluster(run)
    holder = KazooClient(hosts=hosts)
    holder.start()
    holder.create("/env/test/store/adminLock", None, ephemeral=True)
    waiting = holder.handler.spawn(_release_when_waited_for, holder)
    status, _, err = run("add-storage-node", "-s", "a:1", "-a", "1", "-g", "0")
    waiting.join()
    assert status == 0
    assert "Waiting for the admin lock" in err
    holder.stop()
    holder.close()


def _release_when_waited_for(holder: KazooClient) -> None:
    """Delete the lock once somebody watches it."""
    for _ in range(100_000):
        if "/store/adminLock" in holder.command(b"wchp"):
            break
    holder.delete("/env/test/store/adminLock")


def test_an_unreachable_zookeeper_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hosts = f"127.0.0.1:{free_port()}"
    config = tmp_path / "cli.yml"
    config.write_text(
        f"zookeeper.connectString: {hosts}\ncluster.root: /a\nzookeeper.connectTimeout: 200\nzookeper.typo: 1\n"
    )
    assert main(["zookeeper", "list", "-c", str(config)]) == 1
    error = capsys.readouterr().err
    assert f"Error: ZooKeeper at {hosts} was not reached within 0.2 s\n" in error
    assert "zookeper.typo" in error
    assert main(["zookeeper", "list", "-c", str(tmp_path / "none.yml")]) == 1
    assert "Error: cannot read" in capsys.readouterr().err


def test_a_command_on_all_nodes_fails_where_there_is_none(
    run: Run, hosts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has looked at nothing, which is no success."""
    make_cluster(run)

    def call(*words: str) -> tuple[int, str, str]:
        status = main([*words, "-c", str(tmp_path / "cli.yml")])
        return status, *capsys.readouterr()

    connectivity = ("cluster", "check-connectivity")
    commands = [connectivity, *(("storage", word) for word in ("list", "validate", "sync-partitions"))]
    for command in commands:
        for form in ((), ("--json",)):
            status, text, error = call(*command, *form)
            assert (status, text) == (1, "")
            assert "Error: expected storage nodes below /env/test/store in ZooKeeper, found none: check" in error
    zookeeper = KazooClient(hosts=hosts)
    zookeeper.start()
    zookeeper.create("/env/test/proxy", encode_proxy_state(ProxyState(5, 1, ((5, 9),), "demo cluster", 4, 0)))
    for command in commands:
        status, text, error = call(*command)
        assert (status, text) == (1, "")
        assert "/env/test is the root of a proxy: give the configuration of its cluster" in error
    zookeeper.delete("/env/test/proxy")
    zookeeper.stop()
    zookeeper.close()
    assert run("add-storage-node", "-s", "127.0.0.1:5171", "-a", "5173", "-g", "1")[0] == 0
    for form in ((), ("--json",)):
        status, text, error = call(*connectivity, *form)
        assert (status, text) == (1, "")
        assert "expected servers below /env/test/serverDescriptors in ZooKeeper, found none" in error
