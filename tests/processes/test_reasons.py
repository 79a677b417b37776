"""Why a storage node cannot be used: one line in the log of the server, its /health, and what `waltz doctor` names."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest

from tests.processes.broken import append
from tests.processes.cluster import Cluster, poll, running_cluster
from tests.processes.zookeeper import ZooKeeperServer
from waltz_trio.cli.main import main
from waltz_trio.net.certificates import issue, make_ca

pytestmark = [pytest.mark.processes, pytest.mark.slow]

NODE = "storage-1"


@pytest.fixture(scope="module")
def ward(tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeperServer) -> Iterator[Cluster]:
    """A cluster that every case breaks and mends."""
    directory = tmp_path_factory.mktemp("ward")
    settings = {
        "storage.answerTimeout": 2_000,
        "network.handshakeTimeout": 2_000,
        "server.ssl.verifyHost": True,
        "ssl.verifyHost": True,
    }
    where = zookeeper.fresh_chroot()
    with running_cluster(directory, where, flags=(), own_certificates=True, settings=settings) as made:
        yield made


@attrs.frozen
class Reason:
    """A break, and what is said of it everywhere."""

    act: Callable[[Cluster], None]
    pattern: str  # in the line of the log, in the health, and in the evidence of the doctor
    cause: str  # the doctor's
    advice: str


def killed(cluster: Cluster) -> None:
    cluster.children[NODE].kill()


def silent(cluster: Cluster) -> None:
    cluster.children[NODE].pause()
    append(cluster, 1)  # an idle node is asked for nothing


def shows(made: Callable[[Cluster], bytes]) -> Callable[[Cluster], None]:
    """A storage node that comes back with another certificate."""

    def act(cluster: Cluster) -> None:
        assert cluster.tls is not None
        cluster.children[NODE].stop()
        cluster.tls.path(NODE).write_bytes(made(cluster))
        cluster.start(NODE)

    return act


def of_strangers(cluster: Cluster) -> bytes:
    pair = issue(make_ca("another"), NODE, ["127.0.0.1", "localhost"])
    return pair.key + b"\n" + pair.certificate


def of_another_name(cluster: Cluster) -> bytes:
    assert cluster.tls is not None
    pair = issue(cluster.tls.authority, NODE, ["elsewhere.example"])
    return pair.key + b"\n" + pair.certificate


REASONS = {
    "refused": Reason(killed, "Connection refused", "storage-down", "start it: waltz storage run"),
    "certificate": Reason(
        shows(of_strangers), "unable to get local issuer certificate", "untrusted-storage-node", "storage.ssl"
    ),
    "name": Reason(shows(of_another_name), "certificate is not valid for", "untrusted-storage-node", "storage.ssl"),
    "timeout": Reason(
        silent,
        "did not answer|did not finish the TLS handshake|no answer within",
        "storage-down",
        "start it: waltz storage run",
    ),
}
"""By what they are called in the log of a server."""


@pytest.mark.parametrize("kind", REASONS)
def test_a_storage_node_that_cannot_be_used_is_told_with_the_reason_in_log_health_and_doctor(
    ward: Cluster, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    reason, address, server = REASONS[kind], ward.advertised[NODE], ward.children["server-0"]
    before = len(server.text())

    def roots() -> list[dict[str, Any]]:
        capsys.readouterr()
        main(["doctor", "--json", "-t", "3", "-g", "0", "-c", str(ward.tools_file)])
        found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
        return found

    def lines() -> list[str]:
        start = f"storage node {address} cannot be used: "
        return [
            line for line in server.text()[before:].splitlines() if start in line and re.search(reason.pattern, line)
        ]

    def shown() -> str:
        return str((ward.health("server-0") or {}).get("storageNodes", {}).get(address, ""))

    reason.act(ward)
    poll("it is in the log", lambda: lines() or None)
    poll("it is in the health", lambda: re.search(reason.pattern, shown()))
    (root,) = poll("the doctor names it and nothing else", lambda: found if len(found := roots()) == 1 else None)
    assert root["cause"] == reason.cause
    assert address in root["evidence"]
    assert re.search(reason.pattern, root["evidence"]), root
    assert reason.advice in root["command"]
    # Silence has two reasons, one after the other: no answer, then no handshake. Each change is one line.
    texts = [line.partition("cannot be used: ")[2] for line in lines()]
    assert len(texts) == len(set(texts)) <= (2 if kind == "timeout" else 1)

    if ward.children[NODE].running:
        ward.children[NODE].kill()
    assert ward.tls is not None
    ward.tls.issue(NODE)
    ward.start(NODE)
    poll("it is usable", lambda: shown() == "usable")
    poll("the doctor finds nothing", lambda: not roots())
    assert f"storage node {address} can be used again" in server.text()[before:]
