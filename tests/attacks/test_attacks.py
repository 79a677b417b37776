"""The quick form: attacks on every port for a moment. Nothing is timed: conditions come true, or they do not."""

from __future__ import annotations

import contextlib
from pathlib import Path

import attrs
import pytest

from tests.attacks.field import (
    ATTACKERS,
    CALLERS,
    DEV,
    GATEWAY,
    GUARDED,
    OPEN,
    PROXY,
    Field,
    Port,
    field_of,
    result,
    running,
)
from tests.attacks.peers import CONNECTING, WIDTH, saying
from tests.processes.cluster import poll
from tests.processes.zookeeper import ZooKeeperServer

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def test_nobody_notices_hostile_peers_without_certificates(tmp_path: Path, zookeeper: ZooKeeperServer) -> None:
    with field_of(OPEN, tmp_path, zookeeper.fresh_chroot(), storage_nodes=1) as field:
        for port in field.ports:
            withstood(field, port, [(name, "") for name in CONNECTING])
            withstood(field, port, [(name, "") for name in saying(port.protocol)])
        for process in ("server-0", "storage-0"):
            named(field, process)


def test_nobody_notices_hostile_peers_with_certificates(tmp_path: Path, zookeeper: ZooKeeperServer) -> None:
    with field_of(GUARDED, tmp_path, zookeeper.fresh_chroot(), storage_nodes=1) as field:
        for port in field.ports:
            for certificate in ATTACKERS:
                withstood(field, port, [(name, certificate) for name in saying(port.protocol)])
        for process in ("server-0", "storage-0"):
            named(field, process)
        assert "certificate 'stranger'" in field.text("server-0")
        assert "certificate 'reader'" in field.text("server-0")


def test_a_development_cluster_goes_on_beside_hostile_peers(tmp_path: Path) -> None:
    with field_of(DEV, tmp_path, "") as field:
        for port in field.ports:
            withstood(field, port, [(name, "") for name in CONNECTING])
            withstood(field, port, [(name, "") for name in saying(port.protocol)])
        named(field, "dev")


def test_a_gateway_goes_on_beside_hostile_callers(tmp_path: Path) -> None:
    with field_of(GATEWAY, tmp_path, "") as field:
        for port in field.ports:
            withstood(field, port, [(name, "") for name in CONNECTING])
            for caller in ("", *CALLERS) if port.protocol == "gateway" else ("",):
                withstood(field, port, [(name, caller) for name in saying(port.protocol)])
        named(field, "gateway")
        gateway = next(port for port in field.ports if port.protocol == "gateway")
        for _ in range(5):  # beside other work, the moment of the attack may end before its WebSockets
            if "the WebSocket was ended: " in field.text("gateway"):
                return
            withstood(field, gateway, [("fields", CALLERS[0])])
        pytest.fail("no WebSocket that breaks its protocol is named")


def test_clients_of_a_proxy_notice_no_hostile_peers(tmp_path: Path, zookeeper: ZooKeeperServer) -> None:
    with field_of(PROXY, tmp_path, zookeeper.fresh_chroot(), storage_nodes=1) as field:
        for port in field.ports:
            withstood(field, port, [(name, "") for name in CONNECTING])
            withstood(field, port, [(name, "") for name in saying(port.protocol)])
        named(field, "proxy")


def withstood(field: Field, port: Port, attacks: list[tuple[str, str]]) -> None:
    """Attacks on one port, several at a time: appends go on, and afterwards nothing is left of them."""
    before = field.descriptors(port.process)
    with contextlib.ExitStack() as stack:
        targets = [field.target(port, name, "", certificate, 2) for name, certificate in attacks]
        hostile = [stack.enter_context(running("peers", attrs.asdict(target))) for target in targets]
        field.wait_commits(20)
        for one, (name, _) in zip(hostile, attacks, strict=True):
            assert result(one)["connections"] > 0, name
    field.wait_commits(20)
    assert field.children[port.process].running, f"{port.process} ended at {attacks} on its {port.name} port"
    # Some descriptors come and go with the load; a leak would be hundreds.
    what = f"{port.process} lets go of descriptors"
    poll(what, lambda: field.descriptors(port.process) < before + WIDTH // 10)


def named(field: Field, process: str) -> None:
    """The log has lines of who it was."""
    lines = [line for line in field.text(process).splitlines() if "WARNING" in line and "127.0.0.1:" in line]
    assert lines, f"no line in the log of {process} names a peer"
