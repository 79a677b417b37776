"""The cluster that is attacked: its ports, and what its processes hold."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.processes.cluster import ROOT, Cluster

PORTS = {  # what is attacked: process, key of its port, protocol
    "client": ("server-0", "server.port", "client"),
    "storage": ("storage-0", "storage.port", "storage"),
    "admin": ("storage-0", "storage.admin.port", "admin"),
    "server http": ("server-0", "server.jetty.port", "http"),
    "storage http": ("storage-0", "storage.jetty.port", "http"),
}
LIMITS = {"network.handshakeTimeout": 2000, "network.requestTimeout": 3000}  # so that places are free again soon


def attack(cluster: Cluster, name: str, port: str, seconds: float) -> subprocess.Popen[str]:
    """A hostile process, under way."""
    process, key, protocol = PORTS[port]
    number = cluster.addresses[process][key]
    command = [sys.executable, "-m", "tests.attacks.peers", name, protocol, str(number), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def result(hostile: subprocess.Popen[str]) -> dict[str, Any]:
    """What it did, once it has ended; it ends by itself."""
    text, _ = hostile.communicate(timeout=120)
    assert hostile.returncode == 0, "the attacker failed"
    found: dict[str, Any] = json.loads(text)
    return found


def descriptors(cluster: Cluster, process: str) -> int:
    """Open files and sockets of a process."""
    return len(os.listdir(f"/proc/{cluster.children[process].pid}/fd"))


def memory(cluster: Cluster, process: str) -> int:
    """Resident bytes of a process."""
    status = Path(f"/proc/{cluster.children[process].pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024
