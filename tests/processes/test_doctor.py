"""`waltz doctor`, `waltz cluster` and `waltz server` against clusters that are really broken."""

from __future__ import annotations

import datetime
import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import waltz_trio as waltz
from tests.processes.broken import BREAKS, append, carried_out, put_right, restart_with
from tests.processes.cluster import PATIENCE, Cluster, poll, running_cluster
from tests.processes.load import Load
from tests.processes.zookeeper import ZooKeeperServer
from waltz_core.operations.diagnosis import diagnose
from waltz_core.operations.findings import Finding
from waltz_core.zookeeper.paths import cluster_paths
from waltz_trio.cli.main import main
from waltz_trio.cli.tool import tool_of
from waltz_trio.cli.zookeeper import open_cluster
from waltz_trio.config.config import Config
from waltz_trio.ports.gather import gather

pytestmark = pytest.mark.processes

Run = Callable[..., tuple[int, str]]
REAL = ("storage-down", "port-unreachable", "no-spare-replica", "server-down")
LOOKS = 100  # of a healthy cluster, and as many while it heals


@pytest.fixture
def cluster(request: pytest.FixtureRequest, tmp_path: Path, zookeeper: ZooKeeperServer) -> Iterator[Cluster]:
    options = {"partitions": 2, "servers": getattr(request, "param", 2), "own_certificates": True}
    with running_cluster(tmp_path, zookeeper.fresh_chroot(), **options) as made:
        yield made


ONE_SERVER = pytest.mark.parametrize("cluster", [1], indirect=True, ids=["one server"])


@pytest.fixture
def run(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `waltz WORDS -c tools.yml`; returns exit status and standard output."""

    def call(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        status = main([*words, "-c", str(cluster.tools_file)])
        return status, capsys.readouterr().out

    return call


def findings(run: Run, grace: int = 0) -> dict[str, tuple[str, str]]:
    """Cause → evidence and command, those that follow from others among them; the status says whether there are any."""
    status, text = run("doctor", "--json", "-t", "3", "-g", str(grace))
    rows = json.loads(text)
    assert status == (1 if rows else 0)
    return {
        row["cause"]: (row["evidence"], row["command"]) for root in rows for row in (root, *root.get("follows", ()))
    }


def wait_for(run: Run, *causes: str) -> dict[str, tuple[str, str]]:
    """The findings, once all of `causes` are among them."""

    def told() -> dict[str, tuple[str, str]] | None:
        found = findings(run)
        return found if found.keys() >= set(causes) else None

    return poll(f"the doctor tells {causes}", told)


def wait_well(run: Run) -> None:
    poll("the doctor finds nothing", lambda: not findings(run))


def admin_of(cluster: Cluster, number: int) -> str:
    return f"127.0.0.1:{cluster.addresses[f'storage-{number}']['storage.admin.port']}"


def test_what_is_down_is_named_with_what_follows(cluster: Cluster, run: Run) -> None:
    wait_well(run)
    status, text = run("doctor")
    assert (status, text.split(":")[0]) == (0, "nothing is wrong")
    assert "note: no-roles: server 127.0.0.1" in text
    for name in ("server-0", "storage-0"):
        assert "no roles are set (security.roles)" in cluster.children[name].text()
    assert run("cluster", "verify")[0] == 0

    cluster.children["storage-0"].kill()
    evidence, command = wait_for(run, "storage-down")["storage-down"]
    assert cluster.advertised["storage-0"] in evidence
    assert "waltz storage run" in command

    cluster.children["storage-1"].kill()
    found = wait_for(run, "storage-down", "no-quorum", "recovery-stuck")
    assert "needed are 2" in found["no-quorum"][0]
    assert "unsafe-recover" not in found["recovery-stuck"][1]  # seconds after the loss nobody gives data up
    assert "bring back" in found["recovery-stuck"][1]
    status, text = run("doctor", "-t", "3", "-g", "0")
    assert status == 1
    assert "\n2 findings, " in text  # the two nodes; quorum and recoveries stand below them
    assert "   · no-quorum: partitions 0-1" in text
    status, text = run("cluster", "verify", "--json")
    assert status == 1
    assert "PARTITION_QUORUM_STATUS" in {failure["check"] for failure in json.loads(text)["failures"]}
    status, text = run("cluster", "check-connectivity")
    assert status == 1
    assert f"{cluster.advertised['storage-0']}=false" in text
    cluster.start("storage-0", "storage-1")

    cluster.children["server-0"].pause()
    assert cluster.advertised["server-0"] in wait_for(run, "server-down")["server-down"][0]
    cluster.children["server-0"].resume()
    for name in cluster.server_names:
        cluster.children[name].kill()
    assert "waltz server run" in wait_for(run, "no-server")["no-server"][1]
    assert run("cluster", "check-connectivity") == (1, "")
    cluster.start(*cluster.server_names)
    wait_well(run)


@pytest.mark.slow
def test_a_clock_that_is_off_is_named(cluster: Cluster, run: Run) -> None:
    child = cluster.children["storage-1"]
    child.stop()
    child.environment = {"LD_PRELOAD": str(libfaketime()), "FAKETIME": "-90s", "DONT_FAKE_MONOTONIC": "1"}
    child.start()
    evidence, command = wait_for(run, "clock-off")["clock-off"]
    assert f"storage node {cluster.advertised['storage-1']} is 9" in evidence
    assert "behind" in evidence
    assert "set-ntp" in command

    child.stop()
    child.environment = {}
    child.start()
    wait_well(run)


def libfaketime() -> Path:
    """The library that shows a process another time; Debian's package of that name."""
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    assert found, "libfaketime is missing: apt-get install libfaketime"
    return found[0]


@ONE_SERVER
def test_what_does_not_agree_is_named_with_the_command_that_mends_it(cluster: Cluster, run: Run) -> None:
    config = str(cluster.tools_file)
    cluster.tool("storage", "availability", "-c", config, "-s", admin_of(cluster, 0), "-p", "1", "-o", "false")
    _, command = wait_for(run, "offline")["offline"]
    cluster.tool(*command.split()[1:])

    cluster.tool("storage", "remove-partition", "-c", config, "-s", admin_of(cluster, 1), "-p", "0")
    evidence, command = wait_for(run, "mismatched-assignment")["mismatched-assignment"]
    assert "which does not hold it" in evidence
    cluster.tool(*command.split()[1:])
    wait_well(run)

    for name in cluster.server_names:
        cluster.children[name].stop()
    paths = cluster_paths("/cluster")
    cluster.write_znode(paths.partition(0), None)
    assert "partition 0" in wait_for(run, "missing-metadata")["missing-metadata"][0]

    cluster.tool("zookeeper", "delete", "-c", config, "-n", "test cluster", "-f")
    assert "waltz zookeeper create" in wait_for(run, "no-cluster")["no-cluster"][1]
    cluster.tool("zookeeper", "create", "-c", config, "-n", "test cluster", "-p", "2")
    for number, name in enumerate(cluster.storage_names):
        port = str(cluster.addresses[name]["storage.admin.port"])
        node = ("-s", cluster.advertised[name], "-a", port, "-g", str(number))
        cluster.tool("zookeeper", "add-storage-node", "-c", config, *node)
    evidence, _ = wait_for(run, "two-clusters")["two-clusters"]
    assert "refuses the key" in evidence


@pytest.mark.slow
def test_every_znode_that_cannot_be_read_is_named(cluster: Cluster, run: Run, tmp_path: Path) -> None:
    wait_well(run)
    paths = cluster_paths("/cluster")
    maps = paths.groups, paths.assignment, paths.connections
    for path in (paths.root, paths.store, *maps, paths.servers, paths.client_ids, paths.server_ids):
        held = cluster.write_znode(path, b"?")
        evidence, command = wait_for(run, "damaged-cluster")["damaged-cluster"]
        assert path in evidence
        assert f"zookeeper restore -c {cluster.tools_file} -i" in command
        cluster.write_znode(path, held)
        wait_well(run)

    cluster.write_znode(paths.partition(1), b"?")
    evidence, command = wait_for(run, "unreadable-metadata")["unreadable-metadata"]
    assert paths.partition(1) in evidence
    cluster.tool(*command.split()[1:], "-y")
    cluster.children["server-0"].kill()  # both partitions go to the other one, which reads the metadata anew
    cluster.start("server-0")
    wait_well(run)

    # What is there still is enough to mend the assignment.
    backup = tmp_path / "backup.json"
    cluster.write_znode(paths.servers, b"?")
    backup.write_text(run("zookeeper", "list", "--json")[1])
    for name in cluster.server_names:
        cluster.children[name].stop()
    cluster.tool("zookeeper", "restore", "-c", str(cluster.tools_file), "-i", str(backup), "-y")
    cluster.start(*cluster.server_names)
    wait_well(run)


@ONE_SERVER
def test_damage_on_a_disk_is_named(cluster: Cluster, run: Run, tmp_path: Path) -> None:
    for name in cluster.server_names:
        cluster.children[name].stop()
    child = cluster.children["storage-2"]
    child.stop()
    directory = tmp_path / "storage-2"
    (segment,) = (directory / "0").glob("*.seg")
    data = bytearray(segment.read_bytes())
    data[8:16] = bytes(8)  # part of its header
    segment.write_bytes(data)
    config = tmp_path / "storage-2.yml"
    config.write_text(f"{config.read_text()}storage.reserve: {1 << 60}\n")
    cluster.start("storage-2")

    found = wait_for(run, "limbo", "disk-full")
    assert segment.name in found["limbo"][0]
    assert f"accept-limbo -c {cluster.tools_file} -s {admin_of(cluster, 2)} -p 0" in found["limbo"][1]
    assert cluster.advertised["storage-2"] in found["disk-full"][0]


@ONE_SERVER
def test_a_certificate_that_has_ended_is_named(cluster: Cluster, run: Run) -> None:
    assert cluster.tls is not None
    path = cluster.tls.path("storage-1")
    path.write_bytes(ended_pair())
    cluster.children["storage-1"].kill()
    cluster.start("storage-1")
    found = wait_for(run, "certificate-expired")
    assert cluster.advertised["storage-1"] in found["certificate-expired"][0]


@pytest.mark.slow
def test_a_cluster_that_heals_is_not_called_broken(cluster: Cluster, run: Run) -> None:
    """What a restart leaves behind for seconds (links not dialled again, owners not named yet) ends by itself."""
    wait_well(run)
    for name in ("storage-0", "storage-2", "server-1", "storage-1"):
        cluster.children[name].kill()
        cluster.start(name)
        assert findings(run, grace=60) == {}


@pytest.mark.slow
def test_no_false_alarm_in_two_hundred_looks_at_a_cluster_that_works_or_heals(cluster: Cluster) -> None:
    """What is in order is called so, and what is just coming back is named as what may end by itself."""
    load = Load(cluster, clients=1)
    load.start()
    cluster.wait_commits(50)

    async def look_on(count: int, judge: Callable[[tuple[Finding, ...]], None], done: threading.Event) -> None:
        config = Config.load(cluster.tools_file)
        async with open_cluster(config) as (zk, paths):
            tool = await tool_of(config, zk, paths)
            looks = 0
            while looks < count or not done.is_set():
                judge(diagnose(await gather(tool, certificates=False)))
                looks += 1

    restarted, at_once = threading.Event(), threading.Event()
    at_once.set()

    def healthy(roots: tuple[Finding, ...]) -> None:
        assert roots == ()

    allowed = {cluster.advertised[name] for name in ("storage-1", "server-1")}

    def healing(roots: tuple[Finding, ...]) -> None:
        for root in roots:
            stopped = any(name in root.evidence + root.command for name in allowed)  # the doctor is right about these
            assert root.settles or (stopped and root.cause in REAL), root

    trio.run(look_on, LOOKS, healthy, at_once)
    with ThreadPoolExecutor() as threads:  # what a thread starts ends with it, so the processes are this one's
        looks = threads.submit(trio.run, look_on, LOOKS, healing, restarted)
        try:
            for name in ("storage-1", "server-1"):
                cluster.children[name].stop()
                cluster.start(name)
                cluster.wait_healthy()
        finally:
            restarted.set()
        looks.result()
    done = cluster.attempt("doctor", "-c", str(cluster.tools_file))
    assert done.returncode == 0, done.stdout
    trio.run(look_on, 1, healthy, at_once)
    assert load.finish().committed > 0


@pytest.fixture(scope="module")
def ward(tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeperServer) -> Iterator[Cluster]:
    """A cluster that every case breaks and mends."""
    directory = tmp_path_factory.mktemp("ward")
    with running_cluster(
        directory, zookeeper.fresh_chroot(), partitions=2, servers=2, flags=(), own_certificates=True
    ) as made:
        yield made


@pytest.fixture
def run_in_ward(ward: Cluster, capsys: pytest.CaptureFixture[str]) -> Run:
    """As `run`."""

    def call(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        status = main([*words, "-c", str(ward.tools_file)])
        return status, capsys.readouterr().out

    return call


@pytest.mark.slow
@pytest.mark.parametrize("name", BREAKS)
def test_the_root_cause_comes_first_and_its_advice_mends_it(
    ward: Cluster, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    case = BREAKS[name]
    poll("nothing is wrong", lambda: not roots_of(ward, capsys))
    case.act(ward)
    root = wait_roots(ward, capsys, case.causes, case.follows)
    assert case.evidence(ward) in root["evidence"]
    case.mend(ward, root["command"])
    poll("nothing is wrong", lambda: not roots_of(ward, capsys), 2 * PATIENCE)  # stores open again after up to 20 s


def roots_of(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """What the doctor finds in one look, with what follows below it."""
    capsys.readouterr()
    main(["doctor", "--json", "-t", "3", "-g", "0", "-c", str(cluster.tools_file)])
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


def wait_roots(
    cluster: Cluster,
    capsys: pytest.CaptureFixture[str],
    causes: tuple[str, ...],
    follows: frozenset[str] = frozenset(),
) -> dict[str, Any]:
    """The last root, once these and no others are found, and these causes below the first one."""
    last: list[dict[str, Any]] = []

    def named() -> dict[str, Any] | None:
        last[:] = found = roots_of(cluster, capsys)
        below = {row["cause"] for row in found[0].get("follows", ())} if found else set()
        fits = tuple(row["cause"] for row in found) == causes and below >= follows
        return found[-1] if fits else None

    try:
        return poll(f"the doctor finds {causes}", named)
    except TimeoutError as error:
        error.add_note(json.dumps(last, indent=2))
        raise


@pytest.mark.slow
def test_a_network_that_is_cut_or_slow_is_named_with_what_lags(
    tmp_path: Path, zookeeper: ZooKeeperServer, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = {"storage.answerTimeout": 3000}
    with running_cluster(tmp_path, zookeeper.fresh_chroot(), flags=(), proxied=True, settings=quick) as cluster:
        assert cluster.proxy is not None
        poll("nothing is wrong", lambda: not roots_of(cluster, capsys))

        cluster.proxy.cut_between("server-0", "storage-1")
        append(cluster, 200)
        root = wait_roots(cluster, capsys, ("partitioned-network",), frozenset({"lagging-replica"}))
        assert f"does not reach storage node {cluster.advertised['storage-1']}" in root["evidence"]
        assert root["evidence"].endswith(("did not answer within 3000 ms", "did not finish the TLS handshake in 10 s"))
        assert "check network, firewall" in root["command"]

        cut = cluster.proxy.cut_between
        append_in_vain(cluster, lambda: cut("server-0", "storage-2"))
        wait_roots(cluster, capsys, ("partitioned-network",) * 2, frozenset({"recovery-stuck"}))
        cluster.proxy.heal()
        poll("nothing is wrong", lambda: not roots_of(cluster, capsys))

        cluster.children["storage-1"].stop()
        append(cluster, 5_000)
        cluster.proxy.slow_between("server-0", "storage-1", 50_000)
        cluster.start("storage-1")
        root = wait_roots(cluster, capsys, ("lagging-replica",))
        assert cluster.advertised["storage-1"] in root["evidence"]
        carried_out()(cluster, root["command"].partition("if it does not: ")[2])
        poll("nothing is wrong", lambda: not roots_of(cluster, capsys))


def append_in_vain(cluster: Cluster, cut: Callable[[], None]) -> None:
    """Cut the network under a client whose appends then find out."""
    server = cluster.children["server-0"]
    before = server.says().count("store session ended")

    async def run() -> None:
        with trio.CancelScope() as scope:  # its appends wait for ever: closing must not
            async with waltz.open_client(cluster.client_file) as client:
                await client.append(0, waltz.Append(b""))
                await trio.to_thread.run_sync(cut)
                await client.send(0, waltz.Append(b""))
                while server.says().count("store session ended") == before:  # noqa: ASYNC110
                    await trio.sleep(0.05)
                scope.cancel()

    trio.run(run)


@pytest.mark.slow
def test_transactions_that_are_nowhere_are_noted_until_their_archive_is_back(ward: Cluster, run_in_ward: Run) -> None:
    poll("nothing is wrong", lambda: not findings(run_in_ward))
    vault, aside = ward.directory / "vault-0", ward.directory / "aside"
    policy = {"archive__fileRecords": 20, "archive__keepRecords": 20, "storage__checkpointInterval": 30}
    for name in ward.server_names:
        restart_with(name, archive__location=str(vault), **policy)(ward)
    append(ward, 200)

    def freed() -> bool:
        told = (ward.gauges(name).get("waltz-server.partition-0.log-start") for name in ward.server_names)
        return any(told)

    def said() -> str | None:
        status, text = run_in_ward("doctor", "-t", "3", "-g", "0")
        return text if status == 0 else None

    poll("storage nodes have given up what is archived", freed)
    assert "archive-begins-late" not in poll("nothing is wrong", said)
    for name in ward.server_names:
        ward.children[name].stop()
    vault.rename(aside)
    vault.mkdir()
    ward.start(*ward.server_names)
    text = poll("it is noted", lambda: text if "archive-begins-late" in (text := said() or "") else None)
    assert re.search(
        r"note: archive-begins-late: transactions 0 to [\d,]+ of partition 0 are neither on the storage", text
    )
    assert "waltz spark verify --archive LOCATION" in text
    assert main(["spark", "verify", "--archive", str(aside), "--jobs", "1"]) == 0

    for name in ward.server_names:
        ward.children[name].stop()
    shutil.rmtree(vault)
    aside.rename(vault)
    ward.start(*ward.server_names)
    poll(
        "it is noted no more",
        lambda: text if "archive-begins-late" not in (text := said() or "archive-begins-late") else None,
    )
    for name in ward.server_names:
        put_right(name, "")(ward, "")


@pytest.mark.slow
def test_gateways_that_are_gone_or_cut_off_are_named(ward: Cluster, run_in_ward: Run) -> None:
    poll("nothing is wrong", lambda: not findings(run_in_ward))
    sound = ward.tools_file.read_text()
    port, health = ward.ports.take(), ward.ports.take()
    ward.addresses["gateway"] = {"server.jetty.port": health}
    path = ward.directory / "gateway.yml"

    def write(*clusters: Path) -> None:
        topics = [{"name": file.stem, "cluster": str(file), "partitions": 0} for file in clusters]
        path.write_text(json.dumps({"gateway.port": port, "gateway.healthPort": health, "gateway.topics": topics}))

    write(ward.client_file)
    ward.tools_file.write_text(f"{sound}\ntools.gateways: ['127.0.0.1:{health}']\n")
    try:
        (cause,) = findings(run_in_ward).items()
        assert (cause[0], cause[1][1].partition(";")[0]) == ("gateway-down", "waltz gateway run -c GATEWAY.yml")
        child = ward.child("gateway", "-m", "waltz_trio.cli.main", "gateway", "run", "-c", str(path))
        ward.start("gateway")
        wait_well(run_in_ward)

        child.stop()
        elsewhere = ward.directory / "elsewhere.yml"
        elsewhere.write_text(ward.client_file.read_text().replace("cluster.root: /cluster", "cluster.root: /elsewhere"))
        write(ward.client_file, elsewhere)
        ward.start("gateway")
        evidence, command = wait_for(run_in_ward, "gateway-cut-off")["gateway-cut-off"]
        assert "elsewhere.yml" in evidence
        assert "check cluster of its topics in gateway.topics" in command
        write(ward.client_file)
        child.stop()
        ward.start("gateway")
        wait_well(run_in_ward)
        child.stop()
    finally:
        ward.tools_file.write_text(sound)


def test_zookeeper_that_is_not_there_is_named(tmp_path: Path) -> None:
    config = tmp_path / "tools.yml"
    config.write_text("zookeeper.connectString: 127.0.0.1:1\nzookeeper.connectTimeout: 500\ncluster.root: /x\n")
    command = [sys.executable, "-m", "waltz_trio.cli.main", "doctor", "-c", str(config), "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    (row,) = json.loads(ended.stdout)
    assert (ended.returncode, row["cause"]) == (1, "zookeeper-down")
    assert ended.stderr == ""  # each attempt of the library to connect was a line here


@pytest.mark.slow
def test_a_server_is_listed_and_preferred(cluster: Cluster, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    ports = cluster.addresses["server-0"]
    poll("each server owns one", lambda: sorted(cluster.owners().values()) == ["server-0", "server-1"])
    assert main(["server", "list", "-s", f"127.0.0.1:{ports['server.jetty.port']}"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("There are 1 partitions for current server\nStorage node for partition 0: [127.0.0.1:")
    assert main(["server", "list", "--json", "-s", f"127.0.0.1:{ports['server.jetty.port']}"]) == 0
    assert json.loads(capsys.readouterr().out)["num_partitions"] == 1

    where = ("-s", f"127.0.0.1:{ports['server.port']}")
    assert run("server", "add-preferred-partition", *where, "-p", "0-1")[0] == 0
    poll("it owns both", lambda: cluster.owners() == {0: "server-0", 1: "server-0"})
    cluster.children["server-0"].kill()
    poll("the other one takes over", lambda: set(cluster.owners().values()) == {"server-1"})
    cluster.start("server-0")
    poll("it owns both again", lambda: cluster.owners() == {0: "server-0", 1: "server-0"})
    assert run("server", "remove-preferred-partition", *where, "-p", "0-1")[0] == 0
    assert run("server", "add-preferred-partition", *where, "-p", "2")[0] == 1
    assert main(["server", "list", "-s", where[1]]) == 1


def ended_pair() -> bytes:
    """A key and a self-signed certificate of last year."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "storage")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=400))
        .not_valid_after(now - datetime.timedelta(days=35))
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return private + certificate.public_bytes(pem)
