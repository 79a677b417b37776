"""`waltz doctor -c CONFIG`: what is wrong with a cluster, why, and the command that mends it."""

from __future__ import annotations

import json
from collections.abc import Sequence

import attrs

from waltz_core.cluster.diagnosis import Finding, diagnose
from waltz_core.cluster.view import ClusterView
from waltz_core.wire.client_messages import ServedState
from waltz_trio.cli.gather import NODE_MAX, gather
from waltz_trio.cli.options import CONFIG, JSON, Arguments, Command, Option, run_command
from waltz_trio.cli.tool import Tool, in_session
from waltz_trio.cluster_admin import ClusterDamagedError, ClusterMissingError
from waltz_trio.zk.client import UnavailableError

_NO_ZOOKEEPER = "check that ZooKeeper runs at zookeeper.connectString: echo ruok | nc HOST PORT"


async def _examine(tool: Tool, arguments: Arguments) -> int:
    seconds = arguments.number("timeout", int(NODE_MAX), least=1)
    view = await gather(tool, seconds)
    config = f"-c {arguments.text('cli-config-path')}"
    findings = [attrs.evolve(one, command=one.command.replace("-c CONFIG", config)) for one in diagnose(view)]
    _tell(findings, arguments, view)
    return 1 if findings else 0


def _run(arguments: Arguments) -> int:
    config = arguments.text("cli-config-path")
    try:
        return in_session(_examine, arguments)
    except ClusterDamagedError as error:
        finding = Finding(
            "damaged-cluster",
            str(error),
            f"stop the servers; waltz zookeeper restore -c {config} -i FILE, FILE being what "
            "`waltz zookeeper list --json` printed while all was well; or restore ZooKeeper from a backup of its own",
        )
    except ClusterMissingError as error:
        finding = Finding(
            "no-cluster",
            str(error),
            f"check cluster.root; a new cluster is made by: waltz zookeeper create -c {config} -n NAME -p PARTITIONS; "
            f"one that was lost comes back by: waltz zookeeper restore -c {config} -i FILE",
        )
    except UnavailableError as error:
        finding = Finding("zookeeper-down", str(error), _NO_ZOOKEEPER)
    _tell((finding,), arguments, None)
    return 1


def _tell(findings: Sequence[Finding], arguments: Arguments, view: ClusterView | None) -> None:
    if arguments.flag("json"):
        rows = [{"cause": one.cause, "evidence": one.evidence, "command": one.command} for one in findings]
        print(json.dumps(rows, indent=2))
        return
    for number, one in enumerate(findings, start=1):
        print(f"{number}. {one.cause}: {one.evidence}\n   → {one.command}\n")
    if view is not None and not findings:
        print(_healthy(view))
    elif findings:
        print(f"{len(findings)} finding{'s' if len(findings) > 1 else ''}")


def _healthy(view: ClusterView) -> str:
    untold = [server.name for server in view.servers if server.status is None]
    ready = sum(status.state == ServedState.READY for server in view.servers for status in server.status or ())
    text = (
        f"nothing is wrong: cluster {view.name!r}, {view.num_partitions} partitions, {len(view.servers)} servers, "
        f"{len(view.storages)} storage nodes"
    )
    return text if untold else f"{text}; {ready} partitions ready"


COMMAND = Command(
    "",
    "Reads ZooKeeper, asks every server and storage node, and says what is wrong; changes nothing. "
    "Exit status 1 if anything is.",
    (CONFIG, Option("t", "timeout", f"Seconds that each node may take (default {NODE_MAX:.0f})"), JSON),
    _run,
)


def main(argv: Sequence[str]) -> int:
    """Examine; returns the exit status."""
    return run_command("waltz doctor", COMMAND, argv)
