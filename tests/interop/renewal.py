"""Certificates and roles change in place under peers of both kinds; all are those that `waltz certificates` made."""

from __future__ import annotations

import contextlib
import io
import re
import socket
import ssl
from pathlib import Path

import yaml

from tests.interop.cluster import Kind, MixedCluster
from tests.interop.load import MixedLoad
from tests.interop.scenarios import COMMITS, Outcome, Scene, judged, wait_owners
from tests.processes.cluster import poll
from waltz_trio.cli.main import main as waltz_main

OURS, JAVA = Kind.OURS, Kind.JAVA
_HOSTS = "localhost,127.0.0.1"
_STORAGE, _SERVERS, _CLIENTS = (OURS, JAVA, OURS), (OURS, OURS, JAVA), (JAVA, OURS, JAVA)


def in_place(scene: Scene) -> Outcome:
    """Everybody's certificate is replaced under load, and one of the original's with its new one joins; a server is
    killed, so that everybody connects to one that shows another certificate than before; a client of the original
    loses its role and is given it back; a server of the original takes over from ours, and storage nodes let it in."""
    folder = scene.directory / "certificates"
    names = [f"storage-{number}" for number in range(len(_STORAGE))]
    servers = [f"server-{number}" for number in range(len(_SERVERS))]
    clients = [f"client-{number}" for number in range(len(_CLIENTS))]
    wanted = [word for name in names for word in ("--storage", f"{name}={_HOSTS}")]
    wanted += [word for name in servers for word in ("--server", f"{name}={_HOSTS}")]
    wanted += [word for name in (*clients, "client") for word in ("--client", name)]
    _certificates("make", folder, *wanted, "--admin", "tools")
    options = {"storage": _STORAGE, "server": _SERVERS, "running": 2, "certificates": folder}
    with scene.cluster(**options) as cluster:
        files = {name: cluster.write_file(name, {}) for name in clients}
        load = MixedLoad(cluster, _CLIENTS, files=files, accounts=6)
        load.start("client-0", "client-1")
        cluster.wait_commits(COMMITS)
        _renew_all(cluster, folder, [*names, *servers, *clients, "client", "tools"])
        load.start("client-2")
        owner = cluster.only_owner()
        cluster.children[owner].kill()
        cluster.wait_commits(COMMITS)
        _take_role_away(cluster, load, folder)
        cluster.wait_unregistered(owner)
        cluster.start("server-2")
        (heir,) = set(cluster.owners().values())
        cluster.stop(heir)
        cluster.wait_commits(COMMITS)
        wait_owners(cluster, "server-2")
        return judged(load, 3 * COMMITS)


def _certificates(verb: str, folder: Path, *arguments: str) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        status = waltz_main(["certificates", verb, str(folder), *arguments])
    assert status == 0, f"waltz certificates {verb}: status {status}"


def _renew_all(cluster: MixedCluster, folder: Path, names: list[str]) -> None:
    """New certificates where the former ones were; each process of ours shows its new one, without a restart."""
    ours = [name for name in (*cluster.storage_names, "server-0", "server-1") if cluster.kinds[name] is OURS]
    before = {name: _shown(cluster, name, folder) for name in ours}
    _certificates("renew", folder, *names)
    for name in ours:
        after = _shown(cluster, name, folder)
        assert after != before[name], f"{name} shows its former certificate"
        pem = (folder / f"{name}.pem").read_text()
        assert after == ssl.PEM_cert_to_DER_cert(pem[: pem.index("-----END CERTIFICATE-----") + 25] + "\n")


def _shown(cluster: MixedCluster, name: str, folder: Path) -> bytes:
    """The certificate (DER) that a process shows now."""
    ports = cluster.addresses[name]
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    context.load_cert_chain(folder / "tools.pem")
    port = ports.get("server.port") or ports["storage.port"]
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as tls,
    ):
        return tls.getpeercert(binary_form=True) or b""


def _take_role_away(cluster: MixedCluster, load: MixedLoad, folder: Path) -> None:
    """A client of the original must not append for a while; the others go on, and so does it afterwards."""
    roles = folder / "roles.yml"
    before = roles.read_text()
    rules = [rule for rule in yaml.safe_load(before) if rule["certificate"] != "client-0"]
    assert len(rules) == len(yaml.safe_load(before)) - 1
    owner = cluster.only_owner()
    _replace(roles, yaml.safe_dump(rules))
    # It mounts again, in vain; whether it reads, depends on what it had been given before.
    for pattern in ("the roles have changed: certificate 'client-0'", r"'client-0' at \S+ \(no role\) may not "):
        poll(f"{owner}: {pattern}", lambda: re.search(pattern, cluster.children[owner].text()), 150)  # noqa: B023
    held = _own_commits(load, "client-0")
    cluster.wait_commits(COMMITS)
    assert _own_commits(load, "client-0") == held, "what lost its role appends"
    _replace(roles, before)
    poll("client-0 goes on", lambda: _own_commits(load, "client-0") > held + COMMITS // 4)


def _replace(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def _own_commits(load: MixedLoad, name: str) -> int:
    """How many of its appends a client was told of."""
    mine = [attempt for attempt in load.attempts().values() if attempt.payload.name.startswith(f"{name}-")]
    return sum(attempt.transaction_id is not None for attempt in mine)
