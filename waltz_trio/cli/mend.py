"""`waltz storage repair`, and the last resorts of an operator: they say what will be lost, ask, and record it."""

from __future__ import annotations

import json
import sys
import time

import trio

from waltz_core.base.edge import ZkError
from waltz_core.base.errors import ConfigError, ProtocolError, WaltzError
from waltz_core.base.ids import Endpoint, parse_endpoint
from waltz_core.store.last_resort import Plan, ReplicaReport, confirm_metadata, unsafe_recovery
from waltz_core.wire import admin_messages as admin
from waltz_core.wire.admin_messages import RepairOutcome
from waltz_core.wire.shared import Condition, name_of
from waltz_core.zookeeper.store_metadata import StoreMaps
from waltz_core.zookeeper.znodes import (
    EMPTY_METADATA,
    PartitionMetadata,
    decode_partition_metadata,
    encode_partition_metadata,
)
from waltz_trio.base.printable import printable
from waltz_trio.cli.audit import audited, operator
from waltz_trio.cli.interruption import advising
from waltz_trio.cli.options import Arguments, CommandError, confirm
from waltz_trio.cli.tool import endpoint_of, explained, named_admin
from waltz_trio.ports.admin import AdminClient
from waltz_trio.ports.tool import Tool
from waltz_trio.zk.admin import read_cluster
from waltz_trio.zk.client import ZnodeError

_STORAGE_FORM = "Storage must be in format of host:admin_port"
_REPAIR_MAX = 3600.0  # seconds
_GOES_ON = "The storage node goes on with it; the same command again says what is still damaged"
_LOOK_MAX = 10.0  # seconds for a node to report on its replica
_GOOD = (RepairOutcome.REPAIRED, RepairOutcome.NOT_SUSPECT)


async def _replicas(tool: Tool, partition_id: int) -> dict[str, Endpoint | None]:
    """Connect strings of a partition's replicas, and their admin ports where ZooKeeper knows them."""
    maps = (await read_cluster(tool.zk, tool.paths)).maps
    return {storage: _admin_of(maps, storage) for storage in maps.replicas.storages_of(partition_id)}


def _admin_of(maps: StoreMaps, storage: str) -> Endpoint | None:
    """None also for a name in ZooKeeper that cannot be read: nobody can reach such a node, others go on without it."""
    port = dict(maps.connections.connections).get(storage)
    try:
        return None if port is None else Endpoint(parse_endpoint(storage).host, port)
    except ConfigError:
        return None


def _one_partition(tool: Tool, partition_id: int) -> int:
    """A partition that the cluster has.

    Raises:
        CommandError: it has none of this id.
    """
    count = tool.store.num_partitions
    if not 0 <= partition_id < count:
        raise CommandError(f"partition {partition_id} does not exist: the cluster has {count} partitions, from 0")
    return partition_id


async def _record(tool: Tool, what: str, partition_id: int, lines: tuple[str, ...]) -> None:
    """Keep what an operator decided, for those who look for the missing transactions later."""
    parent = f"{tool.paths.root}/operator"
    try:
        await tool.zk.create(parent, b"")
    except ZnodeError as error:
        if error.error is not ZkError.NODE_EXISTS:
            raise
    entry = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": what,
        "partition": partition_id,
        "by": operator(),
        "details": list(lines),
    }
    path = await tool.zk.create(f"{parent}/decision-", json.dumps(entry).encode(), sequential=True)
    print(f"recorded in {path}")


# ---- repair ----------------------------------------------------------------------------------


async def repair(tool: Tool, arguments: Arguments) -> int:
    """Fetch good records for what is damaged on a node; exit status 1 if anything stays damaged."""
    target = endpoint_of(arguments.text("storage"), _STORAGE_FORM)
    given = arguments.text_or_none("sources")
    named = None if given is None else tuple(endpoint_of(one, _STORAGE_FORM) for one in given.split(","))
    left = False
    for partition_id in [_one_partition(tool, number) for number in arguments.partitions("partition")]:
        replicas = (await _replicas(tool, partition_id)).values() if named is None else ()
        sources = named or tuple(one for one in replicas if one is not None and one != target)
        what = f"Failed to repair partition {partition_id} of {target}. "
        async with explained(what, _REPAIR_MAX, _GOES_ON), named_admin(tool, target) as client:
            with advising(lambda: _GOES_ON):
                left = not await _repair(client, partition_id, sources) or left
    return 1 if left else 0


async def _repair(client: AdminClient, partition_id: int, sources: tuple[Endpoint, ...]) -> bool:
    if not client.version:
        raise CommandError(f"{client.endpoint} runs 0.13.2, which cannot be repaired")
    if not sources:
        raise CommandError("no other node holds the partition")
    answer = await client.expect(lambda seq: admin.RepairRequest(seq, partition_id, sources, ()), admin.RepairResponse)
    for span in answer.ranges:
        outcome = name_of(RepairOutcome, span.outcome)
        print(f"partition {partition_id}, transactions {span.first_id}..{span.last_id}: {outcome}")
    if not answer.ranges:
        print(f"partition {partition_id}: nothing is known to be damaged")
    if answer.message:
        print(printable(answer.message), file=sys.stderr)
    state = await _state(client, partition_id)
    if state.condition != Condition.SOUND:
        why = printable(state.reason or "see above")
        print(f"partition {partition_id} is {name_of(Condition, state.condition)}: {why}")
    return all(span.outcome in _GOOD for span in answer.ranges) and state.condition == Condition.SOUND


async def _state(client: AdminClient, partition_id: int) -> admin.ReplicaStateResponse:
    return await client.expect(lambda seq: admin.ReplicaStateRequest(seq, partition_id), admin.ReplicaStateResponse)


# ---- accept-limbo ----------------------------------------------------------------------------


async def accept_limbo(tool: Tool, arguments: Arguments) -> int:
    """Let the log of a replica in limbo end where its damage begins."""
    target = endpoint_of(arguments.text("storage"), _STORAGE_FORM)
    partition_id = _one_partition(tool, arguments.number("partition"))
    async with explained(f"Failed to accept the limbo of partition {partition_id} on {target}. "):
        async with named_admin(tool, target) as client:
            if not client.version:
                raise CommandError(f"{target} runs 0.13.2, which knows no limbo")
            state = await _state(client, partition_id)
        if state.condition != Condition.LIMBO:
            raise CommandError(f"the partition is not in limbo there: {name_of(Condition, state.condition)}")
    lines = (
        f"{target}, partition {partition_id}: {printable(state.reason or '')}",
        f"its log is good up to transaction {state.max_transaction_id}; what stands behind is put aside in "
        "*.given-up files",
        *(f"damaged or missing: transactions {one.first_id}..{one.last_id}" for one in state.suspects),
        f"given up on this node: every transaction after {state.max_transaction_id}. It has no say any more in where "
        "the log ends: the other replicas have, and what they hold is copied back. Should they be gone, "
        "unsafe-recover is next",
    )
    print("\n".join(lines))
    confirm("Let the log of this replica end there?", given=arguments.flag("yes"))
    async with explained(f"Failed to accept the limbo of partition {partition_id} on {target}. "):
        async with named_admin(tool, target) as client:
            seen = state.max_transaction_id
            await client.call(lambda seq: admin.AcceptLimboRequest(seq, partition_id, seen))
        await _record(tool, "accept-limbo", partition_id, lines)
    return 0


# ---- metadata --------------------------------------------------------------------------------


async def _metadata(tool: Tool, partition_id: int) -> tuple[PartitionMetadata, int | None]:
    """The partition's metadata and its version; None where there is no znode. What cannot be read is as none."""
    try:
        data, stat = await tool.zk.get(tool.paths.partition(partition_id))
    except ZnodeError as error:
        if error.error is ZkError.NO_NODE:
            return EMPTY_METADATA, None
        raise
    try:
        return decode_partition_metadata(data or b""), stat.version
    except ProtocolError as problem:
        print(f"what {tool.paths.partition(partition_id)} holds cannot be read: {problem}", file=sys.stderr)
        return EMPTY_METADATA, stat.version


async def _witnesses(
    tool: Tool, replicas: dict[str, Endpoint | None], partition_id: int, *, all_named: bool = True
) -> list[ReplicaReport]:
    """What the nodes that answer say; the others are named on standard error, unless they need not hold it."""
    reports: dict[str, ReplicaReport] = {}

    async def ask(replica: str, endpoint: Endpoint | None) -> None:
        try:
            if endpoint is None:
                raise CommandError("its admin port is not known")
            with trio.fail_after(_LOOK_MAX):
                async with tool.admin(endpoint) as client:
                    reports[replica] = await _report_of(client, replica, partition_id)
        except trio.TooSlowError:
            say(replica, f"nothing within {_LOOK_MAX:.0f} s")
        except (WaltzError, OSError) as error:
            say(replica, str(error))

    def say(replica: str, problem: str) -> None:
        if all_named:
            print(f"{replica} does not answer: {printable(problem)}", file=sys.stderr)

    # At once: of a large cluster whose nodes are dead, one after the other would take longer than the command may.
    async with trio.open_nursery() as nursery:
        for replica, endpoint in replicas.items():
            nursery.start_soon(ask, replica, endpoint)
    return [reports[replica] for replica in replicas if replica in reports]


async def _report_of(client: AdminClient, replica: str, partition_id: int) -> ReplicaReport:
    if client.version:
        state = await _state(client, partition_id)
        in_service = state.condition in (Condition.SOUND, Condition.SUSPECT)
        return ReplicaReport(replica, state.last_session_info, state.fence, state.max_transaction_id, in_service)
    answer = await client.expect(
        lambda seq: admin.LastSessionInfoRequest(seq, partition_id), admin.LastSessionInfoResponse
    )
    gauges = json.loads(await client.metrics())["gauges"]
    mark = gauges[f"waltz-storage.partition-{partition_id}.max-transaction-id"]["value"]
    return ReplicaReport(replica, answer.last_session_info, -1, int(mark), True)


async def _write(tool: Tool, what: str, partition_id: int, plan: Plan, version: int | None) -> None:
    path, data = tool.paths.partition(partition_id), encode_partition_metadata(plan.metadata)
    async with explained(f"Failed to write the metadata of partition {partition_id}. "):
        with audited(f"{what} partition {partition_id}: {'; '.join(plan.lines)}; at {tool.paths.root}"):
            if version is None:
                await tool.zk.create(path, data)
            else:
                await tool.zk.set(path, data, version)
        await _record(tool, what, partition_id, plan.lines)


async def confirm_partition(tool: Tool, arguments: Arguments) -> int:
    """Rebuild the metadata of a partition that is gone, or older than its replicas."""
    partition_id = _one_partition(tool, arguments.number("partition"))
    async with explained(f"Failed to confirm the metadata of partition {partition_id}. "):
        replicas = await _replicas(tool, partition_id)
        metadata, version = await _metadata(tool, partition_id)
        witnesses = await _witnesses(tool, replicas, partition_id)
        # A node that gave the partition away may still know a session that these have not seen.
        maps = (await read_cluster(tool.zk, tool.paths)).maps
        others = {name: _admin_of(maps, name) for name, _ in maps.replicas.replicas if name not in replicas}
        witnesses += await _witnesses(tool, others, partition_id, all_named=False)
        plan = confirm_metadata(partition_id, metadata, tuple(replicas), witnesses)
    print("\n".join(plan.lines))
    confirm("Is that the state of this partition?", given=arguments.flag("yes"))
    await _write(tool, "confirm-metadata", partition_id, plan, version)
    return 0


async def unsafe_recover(tool: Tool, arguments: Arguments) -> int:
    """Take the longest log that can be reached, though those that are gone may hold more."""
    partition_id = _one_partition(tool, arguments.number("partition"))
    async with explained(f"Failed to recover partition {partition_id}. "):
        if not arguments.flag("accept-data-loss"):
            raise CommandError("committed transactions may be lost: say so with --accept-data-loss")
        metadata, version = await _metadata(tool, partition_id)
        replicas = await _replicas(tool, partition_id)
        assigned = tuple(replicas)
        maps = (await read_cluster(tool.zk, tool.paths)).maps
        for state in metadata.replica_states:  # also those that are not assigned any more
            name = state.replica_id.storage
            replicas.setdefault(name, _admin_of(maps, name))
        witnesses = await _witnesses(tool, replicas, partition_id)
        plan = unsafe_recovery(partition_id, metadata, assigned, witnesses)
    print("\n".join(plan.lines))
    confirm("Give that up for good?", given=arguments.flag("yes"))
    await _write(tool, "unsafe-recover", partition_id, plan, version)
    return 0
