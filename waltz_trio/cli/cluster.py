"""`waltz cluster ...`: whether servers reach storage nodes, and whether everything agrees."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial

import trio

from waltz_core.base.errors import WaltzError
from waltz_core.operations.verify import Failure, verify
from waltz_core.operations.view import ClusterView
from waltz_trio.base.printable import printable
from waltz_trio.cli.help import Parser
from waltz_trio.cli.options import (
    CONFIG,
    JSON,
    LOGGER_OUTPUT,
    Arguments,
    Command,
    CommandError,
    Option,
    parser_of,
    show,
)
from waltz_trio.cli.progress import ASKING, waiting
from waltz_trio.cli.tool import in_session, no_storage_node
from waltz_trio.ports.gather import NODE_MAX, gather
from waltz_trio.ports.tool import Tool
from waltz_trio.zk.admin import read_cluster

_BANNERS = {
    True: r"""
 ____                        _
|  _ \ __ _ ___ ___  ___  __| |
| |_) / _` / __/ __|/ _ \/ _` |
|  __/ (_| \__ \__ \  __/ (_| |
|_|   \__,_|___/___/\___|\__,_|
""",
    False: r"""
 _____     _ _          _
|  ___|_ _(_) | ___  __| |
| |_ / _` | | |/ _ \/ _` |
|  _| (_| | | |  __/ (_| |
|_|  \__,_|_|_|\___|\__,_|
""",
}


# ---- check-connectivity ----------------------------------------------------------------------


async def _check_connectivity(tool: Tool, arguments: Arguments) -> int:
    """All servers at once; exit status 0 if every server reaches every storage node (tools-T1).

    Raises:
        CommandError: there is no server, or no storage node.
    """
    cluster = await read_cluster(tool.zk, tool.paths)
    if not cluster.maps.connections.connections:
        raise await no_storage_node(tool)
    servers = cluster.servers
    if not servers:
        raise CommandError(
            f"expected servers below {tool.paths.servers} in ZooKeeper, found none: start one with waltz server run "
            "CONFIG.yml"
        )
    reached_by: dict[str, dict[str, bool] | None] = {str(server.endpoint): None for server in servers}

    async def ask(name: str) -> None:
        server = next(server for server in servers if str(server.endpoint) == name)
        with trio.move_on_after(NODE_MAX):
            try:
                async with tool.server(server.endpoint) as port:
                    reached_by[name] = dict(await port.storage_connectivity())
            except (WaltzError, OSError):
                pass  # shown as unreachable

    async with trio.open_nursery() as nursery:
        for name in reached_by:
            nursery.start_soon(ask, name)
    if arguments.flag("json"):
        print(json.dumps({"servers": [{"endpoint": name, "storage": reached} for name, reached in reached_by.items()]}))
    for name, reached in reached_by.items() if not arguments.flag("json") else ():
        text = "UNREACHABLE"
        if reached is not None:
            text = "{" + ", ".join(f"{storage}={str(good).lower()}" for storage, good in sorted(reached.items())) + "}"
        print(printable(f"Connectivity status of {name} is: {text}"))
    good = all(reached and all(reached.values()) for reached in reached_by.values())
    return 0 if good else 1


# ---- verify ----------------------------------------------------------------------------------


async def _verify(tool: Tool, arguments: Arguments) -> int:
    seconds = arguments.number("timeout", int(NODE_MAX), least=1)
    named = arguments.number("partition") if arguments.flag("partition") else None
    try:
        with waiting(ASKING):
            view = await gather(tool, seconds, certificates=False)
        chosen = range(view.num_partitions) if named is None else range(named, named + 1)
        if not chosen:
            raise CommandError("it has no partitions: nothing was verified")
        failures = [failure for partition_id in chosen for failure in verify(view, partition_id)]
    except (WaltzError, OSError) as error:
        raise CommandError(f"Failed to verify cluster. {error}") from error
    if arguments.flag("json"):
        print(json.dumps(_verify_json(view, failures), indent=2))
    else:
        lines = []
        for failure in failures:
            lines.append(f"Validation {failure.check} failed for partition {failure.partition_id}")
            lines.append(f"  Validation error is: {failure.text}".replace("\n", "\n  "))
        lines.append(_BANNERS[not failures].strip("\n"))
        show("\n".join(lines), logger_as_output=arguments.flag("logger-as-output"))
    return 1 if failures else 0


def _verify_json(view: ClusterView, failures: Sequence[Failure]) -> dict[str, object]:
    return {
        "cluster": view.name,
        "passed": not failures,
        "failures": [
            {"partition": failure.partition_id, "check": failure.check, "error": failure.text} for failure in failures
        ],
    }


# ---- the table -------------------------------------------------------------------------------

COMMANDS = (
    Command(
        "check-connectivity",
        "Check whether each server reaches each storage node",
        (CONFIG, JSON),
        partial(in_session, _check_connectivity),
    ),
    Command(
        "verify",
        "Verify that ZooKeeper, servers and storage nodes agree, and that every partition works",
        (
            CONFIG,
            Option("p", "partition", "Specify the partition to verify; all if not given"),
            Option("t", "timeout", f"Seconds that each node may take (default {NODE_MAX:.0f})"),
            LOGGER_OUTPUT,
            JSON,
        ),
        partial(in_session, _verify),
    ),
)


def make_parser() -> Parser:
    """The sub-commands."""
    return parser_of("waltz cluster", COMMANDS, __doc__)
