"""`waltz server ...`: run a server; inspect one, and set the partitions that it should prefer."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import trio

from waltz_core.base.ids import Endpoint
from waltz_trio.base import log
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
from waltz_trio.cli.tool import endpoint_of, explained, tls_of
from waltz_trio.cli.zookeeper import load_config
from waltz_trio.config.config import Config, net_limits
from waltz_trio.node.main import run_until_signal
from waltz_trio.ports.server import ServerPort, open_server_port

_HTTP_TIMEOUT = 10  # seconds
_GROUP = "waltz-server."


# ---- run -------------------------------------------------------------------------------------


def _run(arguments: Arguments) -> int:
    (path,) = arguments.operands
    config = Config.load(path)
    log.set_up(config.text("log.level"))
    from waltz_trio.node.server import ServerProcess  # what the tools do without, and would wait for

    async def serve() -> int:
        return await run_until_signal(ServerProcess(config))

    return trio.run(serve)


# ---- list ------------------------------------------------------------------------------------


def _list(arguments: Arguments) -> int:
    endpoint = endpoint_of(arguments.text("server"), "Http must be in format of host:port")
    metrics = fetch_json(endpoint, "/metrics")
    gauges = metrics.get("gauges", {})
    if f"{_GROUP}waltz-server-num-partitions" not in gauges:
        raise CommandError(f"http://{endpoint}/metrics has no figures of a server: is it the port of a storage node?")

    def value(name: str) -> Any:
        return gauges.get(_GROUP + name, {}).get("value")

    replicas = {int(partition): nodes for partition, nodes in (value("replica-info") or {}).items()}
    if arguments.flag("json"):
        output = {
            "endpoint": value("endpoint"),
            "server_id": value("server-id"),
            "num_partitions": value("waltz-server-num-partitions"),
            "partitions": sorted(_served(gauges)),
            "storage_nodes": {str(partition): nodes for partition, nodes in sorted(replicas.items())},
        }
        print(json.dumps(output, indent=2))
        return 0
    lines = [f"There are {value('waltz-server-num-partitions')} partitions for current server"]
    for partition, nodes in sorted(replicas.items()):
        lines.append(f"Storage node for partition {partition}: [{', '.join(nodes)}]")
    show("\n".join(lines), logger_as_output=arguments.flag("logger-as-output"))
    return 0


def _served(gauges: dict[str, Any]) -> set[int]:
    prefix = f"{_GROUP}partition-"
    return {int(name[len(prefix) :].split(".")[0]) for name in gauges if name.startswith(prefix)}


def fetch_json(endpoint: Endpoint, path: str) -> dict[str, Any]:
    """What a process answers over HTTP, with any status.

    Raises:
        CommandError: it does not answer, or with something else than JSON.
    """
    connection = http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=_HTTP_TIMEOUT)
    try:
        connection.request("GET", path)
        body = connection.getresponse().read()
    except (OSError, http.client.HTTPException, UnicodeError) as error:  # the last: a name that can be none of a host
        raise CommandError(f"http://{endpoint}{path}: {str(error) or type(error).__name__}") from error
    finally:
        connection.close()
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise CommandError(f"http://{endpoint}{path} answers something else than JSON: is it an HTTP port?") from error
    if not isinstance(answer, dict):
        raise CommandError(f"http://{endpoint}{path} answers no JSON object")
    return answer


# ---- preferred partitions --------------------------------------------------------------------


def _prefer(verb: str, act: Callable[[ServerPort, tuple[int, ...]], Any], arguments: Arguments) -> int:
    config = load_config(arguments)
    partitions = arguments.partitions("partition")
    endpoint = endpoint_of(arguments.text("server"), "Server must be in format of host:port")
    listed = ", ".join(map(str, partitions))
    failure = f"Failed to {verb} preferred partition(s) [{listed}] to server Endpoint {endpoint}."

    async def run() -> int:
        async with explained(failure), open_server_port(endpoint, tls_of(config, "ssl."), net_limits(config)) as port:
            done = await act(port, partitions)
        if not done:
            raise CommandError(f"{failure} The server refused: are all of them partitions of the cluster?")
        return 0

    return trio.run(run)


async def _add(port: ServerPort, partitions: tuple[int, ...]) -> bool:
    return await port.add_preferred(partitions)


async def _remove(port: ServerPort, partitions: tuple[int, ...]) -> bool:
    return await port.remove_preferred(partitions)


# ---- the table -------------------------------------------------------------------------------

_RANGES = "(or multiple partitions as comma-separated int ranges such as 0-6,7,10-16)"
_SERVER = Option("s", "server", "Specify server in format of host:port", required=True)
_PARTITION = Option("p", "partition", f"Specify the partition {_RANGES}", required=True)

COMMANDS = (
    Command(
        "run",
        "Run a server until SIGINT or SIGTERM",
        (),
        _run,
        operand="CONFIG.yml",
        example="server.yml",
        answers=False,
    ),
    Command(
        "list",
        "List the partitions of the cluster and the storage nodes that hold them, as one server knows them",
        (
            Option("s", "server", "Specify server in format of host:jetty_port", required=True),
            LOGGER_OUTPUT,
            JSON,
        ),
        _list,
    ),
    Command(
        "add-preferred-partition",
        "Add preferred partitions to a server, which then owns them as long as it runs",
        (CONFIG, _SERVER, _PARTITION),
        partial(_prefer, "add", _add),
    ),
    Command(
        "remove-preferred-partition",
        "Remove preferred partitions from a server",
        (CONFIG, _SERVER, _PARTITION),
        partial(_prefer, "remove", _remove),
    ),
)


def make_parser() -> Parser:
    """The sub-commands."""
    return parser_of("waltz server", COMMANDS, __doc__)
