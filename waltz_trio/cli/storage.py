"""`waltz storage ...`: run a storage node; look at nodes, assign, switch and recover their partitions."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import trio

from waltz_core.base.errors import WaltzError
from waltz_core.base.ids import Endpoint, parse_endpoint
from waltz_core.base.log import Record, SessionInfo
from waltz_core.operations import recover_partition as copying
from waltz_core.operations.recover_partition import RecoverPartition
from waltz_core.wire import admin_messages as admin
from waltz_trio.base import log
from waltz_trio.base.printable import printable
from waltz_trio.cli import mend, moves
from waltz_trio.cli.help import PORT_MAX, Parser, UsageError
from waltz_trio.cli.interruption import advising
from waltz_trio.cli.options import (
    CONFIG,
    JSON,
    LOGGER_OUTPUT,
    YES,
    Arguments,
    Command,
    CommandError,
    Option,
    confirm,
    parser_of,
    show,
)
from waltz_trio.cli.tool import Work, endpoint_of, explained, in_session, named_admin, no_storage_node, tls_of
from waltz_trio.config.config import Config
from waltz_trio.net.tls import ClientTls
from waltz_trio.node.main import run_until_signal
from waltz_trio.ports.admin import AdminClient
from waltz_trio.ports.gather import gather
from waltz_trio.ports.storage import StoragePort
from waltz_trio.ports.tool import Tool
from waltz_trio.zk.admin import read_cluster

_PARTITIONS_KEY = "waltz-storage.waltz-storage-partition-ids"


async def _admin_endpoints(tool: Tool) -> list[Endpoint]:
    """Admin ports of every node in the connection map, by name.

    Raises:
        CommandError: there is none.
    """
    maps = (await read_cluster(tool.zk, tool.paths)).maps
    if not maps.connections.connections:
        raise await no_storage_node(tool)
    return [Endpoint(storage.split(":")[0], port) for storage, port in sorted(maps.connections.connections)]


# ---- run -------------------------------------------------------------------------------------


def _run(arguments: Arguments) -> int:
    (path,) = arguments.operands
    config = Config.load(path)
    log.set_up(config.text("log.level"))
    from waltz_trio.node.storage_node import StorageProcess  # what the tools do without, and would wait for

    async def serve() -> int:
        return await run_until_signal(StorageProcess(config))

    return trio.run(serve)


# ---- list ------------------------------------------------------------------------------------


async def _list(tool: Tool, arguments: Arguments) -> int:
    given = arguments.text_or_none("storage")
    if given is None:
        endpoints = await _admin_endpoints(tool)
    else:
        endpoints = [endpoint_of(given, "Http must be in format of host:admin_port")]
    held: dict[Endpoint, list[dict[str, Any]]] = {}
    failures: dict[Endpoint, str] = {}
    for endpoint in endpoints:
        try:
            what = f"Cannot fetch partition ownership for {endpoint}:"
            async with explained(what), named_admin(tool, endpoint) as client:
                held[endpoint] = _partitions_in(await client.metrics())
        except CommandError as error:
            failures[endpoint] = str(error)
    if arguments.flag("json"):
        print(json.dumps(_list_json(held, failures), indent=2))
    else:
        text = "\n".join(
            "".join(_list_text(endpoint, partition) for partition in many) for endpoint, many in held.items()
        )
        if text.strip() or not failures:
            show(text, logger_as_output=arguments.flag("logger-as-output"))
        for failure in failures.values():
            print(printable(f"Error: {failure}", "\n"), file=sys.stderr)
    return 1 if failures else 0


def _partitions_in(metrics: str) -> list[dict[str, Any]]:
    """What the metrics of a node, ours or of 0.13.2, say about its partitions."""
    gauges = json.loads(metrics)["gauges"]

    def value(partition_id: int, name: str) -> Any:
        return gauges.get(f"waltz-storage.partition-{partition_id}.{name}", {}).get("value")

    partitions = []
    for partition_id in gauges.get(_PARTITIONS_KEY, {}).get("value") or ():
        flags = value(partition_id, "flags") or 0
        partitions.append(
            {
                "partition": partition_id,
                "session_id": value(partition_id, "session-id"),
                "low_water_mark": value(partition_id, "low-water-mark"),
                "local_low_water_mark": value(partition_id, "local-low-water-mark"),
                "assigned": bool(flags & 4),
                "available": bool(flags & 1),
                "max_transaction_id": value(partition_id, "max-transaction-id"),
                "state": value(partition_id, "state"),
                "reason": value(partition_id, "reason"),
            }
        )
    return partitions


def _list_text(endpoint: Endpoint, partition: dict[str, Any]) -> str:
    lines = [
        f"Partition Info for id: {partition['partition']} at {endpoint}",
        f"\t sessionId: {partition['session_id']}",
        f"\t lowWaterMark: {partition['low_water_mark']}",
        f"\t localLowWaterMark: {partition['local_low_water_mark']}",
        f"\t isAssigned: {str(partition['assigned']).lower()}",
        f"\t isAvailable: {str(partition['available']).lower()}",
    ]
    if partition["state"] not in (None, "open"):
        lines.append(f"\t state: {partition['state']}: {partition['reason']}")
    return "".join(f"{line}\n" for line in lines)


def _list_json(found: dict[Endpoint, list[dict[str, Any]]], failures: dict[Endpoint, str]) -> dict[str, Any]:
    return {
        "nodes": [{"endpoint": str(endpoint), "partitions": many} for endpoint, many in found.items()],
        "failures": [{"endpoint": str(endpoint), "reason": reason} for endpoint, reason in failures.items()],
    }


# ---- assignment, availability ----------------------------------------------------------------

_STORAGE_FORM = "Storage must be in format of host:admin_port"


async def _add_partition(tool: Tool, arguments: Arguments) -> int:
    partitions, endpoint = arguments.partitions("partition"), endpoint_of(arguments.text("storage"), _STORAGE_FORM)
    what = f"Failed to add partition {arguments.text('partition')}. "
    async with explained(what), named_admin(tool, endpoint) as client:
        await client.assign(partitions)
    return 0


async def _remove_partition(tool: Tool, arguments: Arguments) -> int:
    storage, delete = arguments.text("storage"), arguments.flag("delete-storage-files")
    partitions, endpoint = arguments.partitions("partition"), endpoint_of(storage, _STORAGE_FORM)
    if delete:
        confirm(
            f"This deletes the data files of partition {arguments.text('partition')} on {storage} for good. Go on?",
            given=arguments.flag("yes"),
        )
    what = f"Failed to remove partition {arguments.text('partition')} from {storage}. "
    async with explained(what), named_admin(tool, endpoint) as client:
        await client.unassign(partitions, delete_files=delete)
    return 0


async def _availability(tool: Tool, arguments: Arguments) -> int:
    online = arguments.text("online")
    storage, partition = arguments.text("storage"), arguments.text("partition")
    if online not in ("true", "false"):
        raise UsageError("--online must be set to 'true' or 'false'")
    partitions, endpoint = arguments.partitions("partition"), endpoint_of(storage, _STORAGE_FORM)
    what = f"Failed to set availability of partition {partition} to {online} for {storage}. "
    async with explained(what), named_admin(tool, endpoint) as client:
        await client.set_available(partitions, online == "true")
    return 0


async def _sync_partitions(tool: Tool, arguments: Arguments) -> int:
    """Every node is tried; the original stopped at the first that failed.

    A node is told of what all of its names are assigned: by one of them alone it would give up what another one has.
    """
    view = await gather(tool, certificates=False)
    maps, ports, assigned = view.maps, dict(view.maps.connections.connections), dict(view.maps.replicas.replicas)
    if not maps.replicas.replicas:
        raise await no_storage_node(tool)
    failures = []
    for storage in sorted(assigned):
        wanted = frozenset[int]().union(*(assigned.get(name, ()) for name in view.names_of(storage)))
        try:
            async with explained(f"{storage}:"):
                if storage not in ports:
                    raise CommandError("its admin port is not known")
                async with tool.admin(Endpoint(storage.split(":")[0], ports[storage])) as client:
                    await _sync(client, wanted)
        except CommandError as error:
            failures.append(str(error))
    if failures:
        raise CommandError("Partition assignment cannot be fully synced. \n" + "\n".join(failures))
    return 0


async def _sync(client: AdminClient, wanted: frozenset[int]) -> None:
    present = await client.assigned()
    missing = sorted(one for one in wanted if not present.get(one, False))
    surplus = sorted(set(present) - wanted)
    if missing:
        await client.assign(missing)
    if surplus:
        await client.unassign(surplus)


# ---- validate, max-transaction-id ------------------------------------------------------------


async def _validate(tool: Tool, arguments: Arguments) -> int:
    """Every port is tried; the original stopped at the first that failed."""
    maps = (await read_cluster(tool.zk, tool.paths)).maps
    if not maps.groups.groups and not maps.connections.connections:
        raise await no_storage_node(tool)
    failures = []
    tried = [storage for storage, _ in sorted(maps.groups.groups)]
    tried += [f"{storage.split(':')[0]}:{port}" for storage, port in sorted(maps.connections.connections)]
    for storage, _ in sorted(maps.groups.groups):
        try:
            async with explained("Invalid hostname or port: "), tool.data(parse_endpoint(storage)):
                pass
        except CommandError as error:
            failures.append(str(error).replace("\n", "", 1))
    for storage, port in sorted(maps.connections.connections):
        try:
            endpoint = Endpoint(storage.split(":")[0], port)
            async with explained("Invalid hostname or admin port: "), tool.admin(endpoint):
                pass
        except CommandError as error:
            failures.append(str(error).replace("\n", "", 1))
    if arguments.flag("json"):
        print(json.dumps({"ports": tried, "failures": failures}, indent=2))
        return 1 if failures else 0
    if failures:
        raise CommandError("\n".join(failures))
    return 0


async def _max_transaction_id(tool: Tool, arguments: Arguments) -> int:
    storage = arguments.text("storage")
    endpoint, partition_id = endpoint_of(storage, _STORAGE_FORM), arguments.number("partition")
    data = Endpoint(endpoint.host, arguments.number("storage-port", least=1, most=PORT_MAX))
    async with explained(f"Failed to read max transaction ID for storage {storage}. "):
        async with named_admin(tool, endpoint) as client:
            session_id = await _session_of(client, partition_id, offline=arguments.flag("offline"))
        async with tool.data(data, offline=arguments.flag("offline")) as port:
            port.session_id, port.partition_id = session_id, partition_id
            highest = await port.max_transaction_id()
    if arguments.flag("json"):
        print(json.dumps({"storage": storage, "partition": partition_id, "max_transaction_id": highest}))
    else:
        print(f"Max Transaction ID: {highest}")
    return 0


async def _session_of(client: AdminClient, partition_id: int, *, offline: bool) -> int:
    """A session id with which the node lets us read: its fence if it reports it, else the persisted one."""
    if client.version and not offline:
        answer = await client.expect(
            lambda seq: admin.ReplicaStateRequest(seq, partition_id), admin.ReplicaStateResponse
        )
        return answer.fence
    return (await _session_info(client, partition_id)).session_id


async def _session_info(client: AdminClient, partition_id: int) -> SessionInfo:
    answer = await client.expect(
        lambda seq: admin.LastSessionInfoRequest(seq, partition_id), admin.LastSessionInfoResponse
    )
    return answer.last_session_info


# ---- recover-partition -----------------------------------------------------------------------


def _tls_from(path: str | None) -> ClientTls | None:
    """The TLS group `server.ssl.` of another file; None without one: that of all other commands."""
    return None if path is None else tls_of(Config.load(path), "server.ssl.")


async def _recover_partition(tool: Tool, arguments: Arguments) -> int:
    partition_text, batch_text = arguments.text("partition"), arguments.text("batch-size")
    form = "Source and destination storage must both be in format of host:admin_port"
    source = endpoint_of(arguments.text("source-storage"), form)
    destination = endpoint_of(arguments.text("destination-storage"), form)
    if not partition_text.isdecimal():
        raise UsageError("Partition id must be a non-negative integer")
    partition_id = arguments.number("partition")
    batch_size = arguments.number("batch-size") if batch_text.isdecimal() else 0
    if batch_size == 0:
        raise UsageError("Batch size must be a positive integer")
    data = Endpoint(destination.host, arguments.number("destination-storage-port", least=1, most=PORT_MAX))
    try:
        source_tls = _tls_from(arguments.text_or_none("source-ssl-config-path"))
        destination_tls = _tls_from(arguments.text_or_none("destination-ssl-config-path"))
        async with named_admin(tool, source, source_tls) as source_admin:
            async with named_admin(tool, destination, destination_tls) as destination_admin:
                info = await _session_info(destination_admin, partition_id)
            async with tool.data(data, destination_tls, offline=True) as port:
                port.session_id, port.partition_id = info.session_id, partition_id
                with advising(lambda: "What was copied stays; the same command again copies what is missing"):
                    await _copy(source_admin, port, info, batch_size)
    except (WaltzError, OSError) as error:
        raise CommandError(f"Partition {partition_text} failed to recover. \n{error}") from error
    return 0


async def _copy(source: AdminClient, port: StoragePort, destination: SessionInfo, batch_count: int) -> None:
    """Bring the destination up to the local low-water mark that the source has now."""
    await port.max_transaction_id()
    recovery = RecoverPartition(destination, batch_count)
    said = -1
    while True:
        match recovery.step:
            case copying.Truncate(mark=mark):
                answer: copying.Answer = copying.Truncated(await port.truncate(mark))
            case copying.AskSource():
                answer = copying.SourceInfo(await _session_info(source, port.partition_id))
            case copying.Read(first=first, count=count):
                answer = copying.RecordsRead(await _read(source, port.partition_id, first, count))
            case copying.Append(records=records):
                await port.append(records)
                answer = copying.Appended()
            case copying.Mark(mark=mark):
                await port.set_low_water_mark(mark)
                answer = copying.Marked()
                percent = 100 * (mark + 1) // (recovery.target + 1)
                if percent >= said + 10:
                    said = percent
                    print(f"{mark + 1} of {recovery.target + 1} transactions, {percent} %", file=sys.stderr)
            case copying.Done():
                return
        recovery.answered(answer)


async def _read(source: AdminClient, partition_id: int, first: int, count: int) -> Sequence[Record]:
    answer = await source.expect(
        lambda seq: admin.RecordListRequest(seq, partition_id, first, count), admin.RecordListResponse
    )
    return answer.records


# ---- the table -------------------------------------------------------------------------------


def _command(name: str, meaning: str, work: Work, *options: Option) -> Command:
    return Command(name, meaning, (CONFIG, *options), partial(in_session, work))


_RANGES = "(or multiple partitions as comma-separated int ranges such as 0-6,7,10-16)"
_STORAGE = Option("s", "storage", "Specify storage in format of host:admin_port", required=True)

COMMANDS = (
    Command(
        "run",
        "Run a storage node until SIGINT or SIGTERM",
        (),
        _run,
        operand="CONFIG.yml",
        example="storage.yml",
        answers=False,
    ),
    _command(
        "list",
        "List partition ownership information",
        _list,
        Option("s", "storage", "Specify storage in format of host:admin_port; all nodes if not given"),
        LOGGER_OUTPUT,
        JSON,
    ),
    _command(
        "add-partition",
        "Add a partition ownership to a storage node",
        _add_partition,
        _STORAGE,
        Option("p", "partition", f"Specify the partition {_RANGES} to be added to the given server", required=True),
    ),
    _command(
        "remove-partition",
        "Remove a partition ownership from a storage node and, if asked to, delete its segment files",
        _remove_partition,
        _STORAGE,
        Option("p", "partition", f"Specify the partition {_RANGES} to be removed from the storage node", required=True),
        Option("d", "delete-storage-files", "Storage files of this partition will be deleted.", takes_value=False),
        YES,
    ),
    _command(
        "availability",
        "Set the read/write availability of the partition in a storage node",
        _availability,
        _STORAGE,
        Option("p", "partition", f"Specify the partition {_RANGES}", required=True),
        Option("o", "online", "Specify 'true' or 'false' for the storage node is online", required=True),
    ),
    _command(
        "sync-partitions",
        "Sync partition ownership to storage nodes based on assignment specified in ZooKeeper",
        _sync_partitions,
    ),
    _command("validate", "Validate Waltz storage node connectivity", _validate, JSON),
    _command(
        "max-transaction-id",
        "Displays the max transaction ID",
        _max_transaction_id,
        _STORAGE,
        Option("sp", "storage-port", "Specify the port of storage, where port is non-admin port", required=True),
        Option("p", "partition", "Specify the partition id whose max transaction ID to be returned", required=True),
        Option("o", "offline", "Check max transaction ID when storage is offline", takes_value=False),
        JSON,
    ),
    _command(
        "repair",
        "Fetch good records from other nodes for those that are damaged on one",
        mend.repair,
        _STORAGE,
        Option("p", "partition", f"Specify the partition {_RANGES} to be repaired", required=True),
        Option("f", "sources", "Nodes to fetch from, host:admin_port, separated by commas; all others if not given"),
    ),
    _command(
        "accept-limbo",
        "Let the log of a replica in limbo end where its damage begins",
        mend.accept_limbo,
        _STORAGE,
        Option("p", "partition", "Specify the partition id", required=True),
        YES,
    ),
    _command(
        "confirm-metadata",
        "Rebuild a partition's metadata that is gone from ZooKeeper, or older than its replicas",
        mend.confirm_partition,
        Option("p", "partition", "Specify the partition id", required=True),
        YES,
    ),
    _command(
        "unsafe-recover",
        "Give up what only storage nodes hold that are gone for good",
        mend.unsafe_recover,
        Option("p", "partition", "Specify the partition id", required=True),
        Option("a", "accept-data-loss", "Committed transactions may be lost", takes_value=False),
        YES,
    ),
    _command(
        "recover-partition",
        "Copies records for a partition from one storage node to another",
        _recover_partition,
        Option("s", "source-storage", "Specify source storage in format of host:admin_port", required=True),
        Option("d", "destination-storage", "Specify destination storage in format of host:admin_port", required=True),
        Option(
            "dp",
            "destination-storage-port",
            "Specify the port of destination storage, where port is non-admin port",
            required=True,
        ),
        Option("p", "partition", "Specify the partition id to be recovered", required=True),
        Option("b", "batch-size", "Specify the batch size to use when fetching records", required=True),
        Option(
            "sssl",
            "source-ssl-config-path",
            "Specify the SSL config file path for the source storage node (by default ssl.* of -c counts)",
        ),
        Option(
            "dssl",
            "destination-ssl-config-path",
            "Specify the SSL config file path for the destination storage node (by default ssl.* of -c counts)",
        ),
    ),
)


def make_parser() -> Parser:
    """The sub-commands."""
    return parser_of("waltz storage", (*COMMANDS, *moves.COMMANDS), __doc__)
