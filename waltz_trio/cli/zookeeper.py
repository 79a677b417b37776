"""`waltz zookeeper ...`: make and change clusters in ZooKeeper."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import trio

from waltz_core.base.edge import ZkStat
from waltz_core.base.errors import ClusterError, ConfigError
from waltz_core.base.ids import parse_endpoint
from waltz_core.operations.backup import backup_json, parse_backup
from waltz_core.zookeeper import store_metadata
from waltz_core.zookeeper.paths import ClusterPaths, cluster_paths
from waltz_core.zookeeper.store_metadata import StoreChange, StoreMaps
from waltz_core.zookeeper.znodes import UNRESOLVED, PartitionMetadata, ServerDescriptor
from waltz_trio.base import durable
from waltz_trio.cli.audit import audited
from waltz_trio.cli.help import Parser, UsageError
from waltz_trio.cli.interruption import interruptible
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
from waltz_trio.cli.progress import waiting
from waltz_trio.config.config import Config
from waltz_trio.zk.admin import (
    ClusterDump,
    ClusterExistsError,
    ClusterMissingError,
    change_store,
    create_cluster,
    delete_cluster,
    plan_restoration,
    read_cluster,
    read_cluster_params,
    read_servers,
    read_store_params,
)
from waltz_trio.zk.client import ZnodeClient, open_znode_client
from waltz_trio.zk.security import zookeeper_security

SESSION_TIMEOUT_MS = 30_000


@asynccontextmanager
async def open_cluster(config: Config) -> AsyncIterator[tuple[ZnodeClient, ClusterPaths]]:
    """A session with the ZooKeeper of a tools configuration.

    Raises:
        ConfigError: a key is missing or cannot be used.
        UnavailableError: ZooKeeper was not reached.
    """
    paths = cluster_paths(config.text("cluster.root"))
    # kazoo logs each attempt to connect; a tool says once what it did not reach.
    logging.getLogger("waltz.zookeeper.kazoo").setLevel(logging.CRITICAL)
    key = "zookeeper.sessionTimeout"
    session_timeout_ms = config.number(key) if key in config else SESSION_TIMEOUT_MS
    async with open_znode_client(
        config.text("zookeeper.connectString"),
        session_timeout_ms=session_timeout_ms,
        connect_timeout_ms=config.number("zookeeper.connectTimeout"),
        security=zookeeper_security(config),
    ) as client:
        yield client, paths


@asynccontextmanager
async def cluster_session(config: Config) -> AsyncIterator[tuple[ZnodeClient, ClusterPaths]]:
    """`open_cluster` for a command that ends: it shows what takes long."""
    async with AsyncExitStack() as stack:
        with waiting("connecting to ZooKeeper"):
            opened = await stack.enter_async_context(open_cluster(config))
        await stack.enter_async_context(interruptible())  # inside: the session with ZooKeeper is closed in order
        yield opened


def load_config(arguments: Arguments) -> Config:
    """The file of `--cli-config-path`; unknown keys are reported.

    Raises:
        ConfigError: it cannot be read or used.
    """
    config = Config.load(arguments.text("cli-config-path"))
    config.warn_unknown(lambda text: print(f"Warning: {text}", file=sys.stderr))
    return config


Work = Callable[[ZnodeClient, ClusterPaths, Arguments], Awaitable[int]]


def _in_session(work: Work, arguments: Arguments) -> int:
    config = load_config(arguments)

    async def run() -> int:
        async with cluster_session(config) as (client, paths):
            return await work(client, paths, arguments)

    return trio.run(run)


# ---- create, delete --------------------------------------------------------------------------


async def _create(zk: ZnodeClient, paths: ClusterPaths, arguments: Arguments) -> int:
    name, num_partitions = arguments.text("name"), arguments.number("partitions")
    if num_partitions < 0:
        raise UsageError("Number of partitions must be a non-negative integer")
    print("Verifying cluster does not already exist...")
    try:
        with audited(f"create cluster {name!r} with {num_partitions} partitions at {paths.root}"):
            await create_cluster(zk, paths, name, num_partitions)
    except ClusterExistsError:
        print("Cluster already exists. Aborting.")
        return 1
    print("Setting the cluster parameters...")
    print("The cluster parameters are set.")
    print(f"  name={name}")
    print(f"  numPartitions={num_partitions}")
    return 0


async def _delete(zk: ZnodeClient, paths: ClusterPaths, arguments: Arguments) -> int:
    name, force = arguments.text("name"), arguments.flag("force")
    print(f"Running deletion for cluster [{name}] ...")
    stored: str | None
    try:
        params = await read_cluster_params(zk, paths)
        stored = None if params is None else params.name
    except ClusterMissingError as problem:
        if not force or await zk.exists(paths.root) is None:
            print(problem)
            return 1
        stored = None
    if stored != name and not force:
        found = "no cluster parameters" if stored is None else f"[{stored}]"
        print(f"specified cluster name [{name}] does not match zookeeper value {found}")
        return 1
    servers = await _servers_or_none(zk, paths)
    if servers and not force:
        raise CommandError(f"servers are running ({_named(servers)}): stop them first, or give -f")
    confirm(
        f"This deletes everything below {paths.root}; without its cluster key the storage files of the cluster can "
        "not be used any more. Delete it?",
        given=force or arguments.flag("yes"),
    )
    with audited(f"delete cluster {name!r} at {paths.root}"):
        await delete_cluster(zk, paths)
    return 0


def _named(servers: Sequence[ServerDescriptor]) -> str:
    return "id " + ", ".join(f"{server.server_id} at {server.endpoint}" for server in servers)


async def _servers_or_none(zk: ZnodeClient, paths: ClusterPaths) -> Sequence[ServerDescriptor]:
    if await zk.exists(paths.servers) is None:
        return ()
    return (await read_servers(zk, paths))[0]


# ---- list, show-cluster-key ------------------------------------------------------------------


async def _list(zk: ZnodeClient, paths: ClusterPaths, arguments: Arguments) -> int:
    output = arguments.text_or_none("output")
    if output == "":
        raise UsageError("--output: expected the path of a file, found nothing")
    dump = await read_cluster(zk, paths)
    if output is not None:
        if dump.unreadable:  # the file may be the last good backup
            problems = "; ".join(f"{path}: {problem}" for path, problem in sorted(dump.unreadable.items()))
            raise CommandError(
                f"{output} was not written, as it would be no backup: cannot be read: {problems}; mend that first, "
                "waltz doctor says how"
            )
        text = json.dumps(dump_json(paths, dump), indent=2) + "\n"
        await trio.to_thread.run_sync(durable.replace_file, Path(output), text.encode())
        print(f"{output}: {dump.params.num_partitions} partitions, {len(dump.maps.groups.groups)} storage nodes")
    elif arguments.flag("json"):
        print(json.dumps(dump_json(paths, dump), indent=2))
    else:
        show(dump_text(paths, dump), logger_as_output=arguments.flag("logger-as-output"))
    return 0


def dump_text(paths: ClusterPaths, dump: ClusterDump) -> str:
    """The listing of the original; lines of equal rank are sorted."""
    lines = [
        f"cluster root [{paths.root}]:",
        f"  name={dump.params.name}",
        f"  numPartitions={dump.params.num_partitions}",
        f"cluster root [{paths.root}] has server descriptors:",
    ]
    for server in dump.servers:
        preferred = ",".join(map(str, server.preferred_partitions)) or "*"
        lines.append(f"  server={server.server_id}, endpoint={server.endpoint}, preferred partitions=[{preferred}]")
    lines += [f"  {name} cannot be read" for name in dump.undecodable]
    assignment = dump.assignment
    lines += [
        f"cluster root [{paths.root}] has partition assignment metadata:",
        f"  cversion={assignment.cversion}, endpoints={len(assignment.servers)}, "
        f"partitions={assignment.num_partitions}",
        f"cluster root [{paths.root}] has partition assignments:",
    ]
    if paths.servers in dump.unreadable:
        lines.append(f"  cannot be read: {dump.unreadable[paths.servers]}")
    for owner in sorted(assignment.servers, key=lambda found: found.server_id):
        for partition_id, generation in sorted(owner.partitions):
            lines.append(f"  server={owner.server_id}, partition={partition_id}, generation={generation}")
    lines += [
        f"store [{paths.store}] parameters:",
        f"  key={dump.store.key_text()}",
        f"  numPartitions={dump.store.num_partitions}",
        f"store [{paths.store}] replica and group assignments:",
    ]
    groups = dict(dump.maps.groups.groups)
    for storage, partitions in sorted(dump.maps.replicas.replicas):
        lines.append(f"  {storage} = {list(partitions)}, GroupId: {groups.get(storage, 'null')}")
    lines.append(f"store [{paths.store}] connections:")
    lines += [f"  {storage} has admin port: {port}" for storage, port in sorted(dump.maps.connections.connections)]
    for partition_id, metadata in enumerate(dump.partitions):
        path = paths.partition(partition_id)
        lines.append(f"store [{path}] replica states:")
        lines += [f"  cannot be read: {dump.unreadable[path]}"] if path in dump.unreadable else _state_lines(metadata)
    return "\n".join(lines)


def _state_lines(metadata: PartitionMetadata | None) -> list[str]:
    if metadata is None or not metadata.replica_states:
        return ["  No node found"]
    states = sorted(
        metadata.replica_states, key=lambda state: (state.replica_id.partition_id, state.replica_id.storage)
    )
    return [
        f"  ReplicaId({state.replica_id.partition_id},{state.replica_id.storage}), SessionId: {state.session_id}, "
        f"closingHighWaterMark: {'UNRESOLVED' if state.closing_mark == UNRESOLVED else state.closing_mark}"
        for state in states
    ]


def dump_json(paths: ClusterPaths, dump: ClusterDump) -> dict[str, Any]:
    """The listing for programs, and what `restore` takes."""
    output = {"root": paths.root, **backup_json(dump.backup())}
    output["assignment"]["in_force"] = dump.assignment.cversion == dump.assignment_cversion
    output["servers"] = [
        {
            "id": server.server_id,
            "endpoint": str(server.endpoint),
            "preferred_partitions": list(server.preferred_partitions),
        }
        for server in dump.servers
    ]
    output["undecodable_servers"] = list(dump.undecodable)
    output["unreadable"] = dict(dump.unreadable)
    return output


# ---- restore ---------------------------------------------------------------------------------


async def _restore(zk: ZnodeClient, paths: ClusterPaths, arguments: Arguments) -> int:
    file = trio.Path(arguments.text("input"))
    try:
        backup = parse_backup(json.loads(await file.read_text()))
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror}") from None
    except (ValueError, ClusterError) as error:
        raise CommandError(f"{file} is not what `waltz zookeeper list --json` prints: {error}") from None
    plan, operations = await plan_restoration(zk, paths, backup)
    if not plan.lines:
        print(f"nothing is missing below {paths.root}, and everything there can be read")
        return 0
    print("\n".join(plan.lines))
    servers = await _servers_or_none(zk, paths)
    if plan.stop and servers:
        raise CommandError(f"servers are running ({_named(servers)}): stop them first")
    confirm(f"Write that from the backup of cluster {backup.params.name!r}?", given=arguments.flag("yes"))
    with audited(f"restore cluster {backup.params.name!r} at {paths.root} from {file}"):
        await zk.multi(operations)
    print("done; look with `waltz doctor` whether partitions went on after the backup: it names the command for each")
    return 0


async def _show_cluster_key(zk: ZnodeClient, paths: ClusterPaths, arguments: Arguments) -> int:
    key = (await read_store_params(zk, paths)).key_text()
    print(json.dumps({"key": key}) if arguments.flag("json") else key)
    return 0


# ---- storage nodes ---------------------------------------------------------------------------


def on_wait(stat: ZkStat) -> None:
    """Say who holds the admin lock; a tool that was killed holds it until its session with ZooKeeper times out."""
    print(f"Waiting for the admin lock, held by ZooKeeper session {stat.ephemeral_owner:#x} ...", file=sys.stderr)


async def _change(
    make: Callable[[Arguments], Callable[[StoreMaps, int], StoreChange]],
    what: str,
    zk: ZnodeClient,
    paths: ClusterPaths,
    arguments: Arguments,
) -> int:
    change = make(arguments)
    given = (f"--{name} {arguments.text(name)}" for name in _CHANGE_OPTIONS if arguments.flag(name))
    with audited(f"{what} {' '.join(given)} at {paths.root}"):
        await change_store(zk, paths, change, on_wait)
    return 0


_CHANGE_OPTIONS = ("storage", "storage-admin-port", "group", "partition")


def _storage(arguments: Arguments) -> str:
    storage = arguments.text("storage")
    if len(storage.split(":")) != 2 or not all(storage.split(":")):
        raise UsageError("Storage must be in format of host:port")
    return storage


def _new_storage(arguments: Arguments) -> str:
    """The name of a node that is to be written: one that servers, nodes and tools can read."""
    storage = _storage(arguments)
    try:
        endpoint = parse_endpoint(storage)
    except ConfigError:
        endpoint = None
    if endpoint is None or endpoint.port == 0:
        raise UsageError(
            f"Storage must be in format of host:port, found {storage!r}: expected a host without blanks, slashes and "
            "quotes, and a port in 1..65535"
        )
    return str(endpoint)


def _add(arguments: Arguments) -> Callable[[StoreMaps, int], StoreChange]:
    storage, group, port = _new_storage(arguments), arguments.number("group", least=0), _admin_port(arguments)
    return lambda maps, _: store_metadata.add_storage_node(maps, storage, group, port)


def _admin_port(arguments: Arguments) -> int:
    port = arguments.number("storage-admin-port")
    if not 0 < port < 65536:
        raise UsageError(f"Admin port must be in 1..65535, found {port}")
    return port


def _set_admin_port(arguments: Arguments) -> Callable[[StoreMaps, int], StoreChange]:
    storage, port = _storage(arguments), _admin_port(arguments)
    return lambda maps, _: store_metadata.set_admin_port(maps, storage, port)


def _remove(arguments: Arguments) -> Callable[[StoreMaps, int], StoreChange]:
    storage = arguments.text("storage")
    return lambda maps, _: store_metadata.remove_storage_node(maps, storage)


def _assign(arguments: Arguments) -> Callable[[StoreMaps, int], StoreChange]:
    partitions, storage = arguments.partitions("partition"), arguments.text("storage")
    return lambda maps, count: store_metadata.assign_partitions(maps, count, partitions, storage)


def _unassign(arguments: Arguments) -> Callable[[StoreMaps, int], StoreChange]:
    partitions, storage = arguments.partitions("partition"), arguments.text("storage")
    return lambda maps, _: store_metadata.unassign_partitions(maps, partitions, storage)


def _auto_assign(arguments: Arguments) -> Callable[[StoreMaps, int], StoreChange]:
    group = arguments.number("group")
    return lambda maps, count: store_metadata.auto_assign(maps, count, group)


# ---- the table -------------------------------------------------------------------------------


def _command(name: str, meaning: str, work: Work, *options: Option) -> Command:
    return Command(name, meaning, (CONFIG, *options), partial(_in_session, work))


_RANGES = "multiple partitions as comma-separated int ranges such as 0-6,7,10-16"

COMMANDS = (
    _command(
        "list",
        "Displays server metadata.",
        _list,
        LOGGER_OUTPUT,
        JSON,
        Option("o", "output", "Write the JSON to a file, as a whole and durably, or leave what is there"),
    ),
    _command("show-cluster-key", "Displays the cluster key.", _show_cluster_key, JSON),
    _command(
        "create",
        "Creates Waltz server metadata.",
        _create,
        Option("n", "name", "Specify the name of the Waltz cluster", required=True),
        Option("p", "partitions", "Specify the number of partitions in the Waltz cluster", required=True),
    ),
    _command(
        "delete",
        "Deletes Waltz server metadata.",
        _delete,
        Option("n", "name", "Specify the name of the Waltz cluster", required=True),
        Option("f", "force", "Delete cluster even if cluster names don't match; do not ask", takes_value=False),
        YES,
    ),
    _command(
        "restore",
        "Writes what is missing or damaged of a cluster's metadata from a backup; what is good stays as it is.",
        _restore,
        Option("i", "input", "Specify the file that `list --json` printed", required=True),
        YES,
    ),
    _command(
        "add-storage-node",
        "Add a storage node to a group.",
        partial(_change, _add, "add-storage-node"),
        Option("s", "storage", "Specify the storage to add, in format of host:port", required=True),
        Option("a", "storage-admin-port", "Specify the admin port of the storage node to add.", required=True),
        Option("g", "group", "Specify the group to add to", required=True),
    ),
    _command(
        "set-admin-port",
        "Correct the admin port that ZooKeeper has for a storage node.",
        partial(_change, _set_admin_port, "set-admin-port"),
        Option("s", "storage", "Specify the storage node, in format of host:port", required=True),
        Option("a", "storage-admin-port", "Specify the admin port that the node listens on", required=True),
    ),
    _command(
        "remove-storage-node",
        "Remove a storage node from cluster.",
        partial(_change, _remove, "remove-storage-node"),
        Option("s", "storage", "Specify the storage to remove, in format of host:port", required=True),
    ),
    _command(
        "assign-partition",
        "Assign a partition or multiple partitions to a storage node.",
        partial(_change, _assign, "assign-partition"),
        Option("p", "partition", f"Specify the partition to assign or {_RANGES}", required=True),
        Option("s", "storage", "Specify the storage to be assigned to, in format of host:port", required=True),
    ),
    _command(
        "unassign-partition",
        "Un-assign a partition or multiple partitions from a storage node",
        partial(_change, _unassign, "unassign-partition"),
        Option("p", "partition", f"Specify the partition to un-assign or {_RANGES}", required=True),
        Option("s", "storage", "Specify the storage to be un-assigned from, in format of host:port", required=True),
    ),
    _command(
        "auto-assign",
        "Assign all partitions to the storage nodes of a group, round robin.",
        partial(_change, _auto_assign, "auto-assign"),
        Option("g", "group", "Specify the group to assign to", required=True),
    ),
)


def make_parser() -> Parser:
    """The sub-commands."""
    return parser_of("waltz zookeeper", COMMANDS, __doc__)
