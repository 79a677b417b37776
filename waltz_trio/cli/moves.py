"""`waltz storage move-partition|drain|add-node|replace-node`: plans of steps, shown first, resumable at any time."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import attrs
import trio

from waltz_core.base.errors import WaltzError
from waltz_core.base.ids import Endpoint, parse_endpoint
from waltz_core.operations import moves
from waltz_core.operations.moves import Step, describe
from waltz_core.operations.view import ClusterView, StorageView
from waltz_trio.cli.audit import audited
from waltz_trio.cli.help import PORT_MAX
from waltz_trio.cli.interruption import advising
from waltz_trio.cli.options import CONFIG, YES, Arguments, Command, CommandError, Option, confirm
from waltz_trio.cli.tool import endpoint_of, in_session
from waltz_trio.cli.zookeeper import on_wait
from waltz_trio.ports.gather import addresses_of, gather
from waltz_trio.ports.tool import Tool
from waltz_trio.zk.admin import change_store, read_cluster

_LOOK_EVERY = 1.0  # seconds between looks at what is waited for
_PATIENCE = 3600  # seconds that one wait may take

_LEFT = "What was done stays done; the same command again goes on from here, and with --dry-run shows what is left"

_FORM = "Storage must be in format of host:port"

_TAKING = (moves.Swap, moves.Unassign, moves.Release, moves.RemoveNode)  # after which something is not there any more

Plan = Callable[[ClusterView], tuple[Step, ...]]


async def _carry_out(plan: Plan, tool: Tool, arguments: Arguments, entering: Endpoint | None = None) -> int:
    """Show the plan, ask, and go through it; `entering` is a data port that may be new in the cluster."""
    patience = arguments.number("timeout", _PATIENCE, least=1)
    view = await gather(tool, certificates=False)
    if entering is not None and view.storage(str(entering)) is None:
        new = StorageView(str(entering), addresses=await addresses_of(entering))
        with_new = attrs.evolve(view, storages=(*view.storages, new))
        for node in view.storages:
            moves.check_other_node(with_new, node.name, new.name)
    steps = plan(view)
    _show(steps, arguments)
    if arguments.flag("dry-run") or not steps:
        return 0
    told = sys.stderr if arguments.flag("json") else sys.stdout  # for a program, standard output has the plan
    taking = any(isinstance(step, _TAKING) for step in steps)
    confirm(f"Go through these {len(steps)} steps?", given=arguments.flag("yes") or not taking)
    with advising(lambda: _LEFT):
        for number, step in enumerate(steps, start=1):
            print(f"[{number}/{len(steps)}] {describe(step)} ...", file=told, flush=True)
            try:
                if isinstance(step, _TAKING):  # an hour may have passed since the plan was made
                    _check_still_planned(step, plan(await gather(tool, certificates=False)))
                await _audited(tool, step, patience, delete=arguments.flag("delete-storage-files"))
            except (WaltzError, OSError) as error:
                raise CommandError(f"{describe(step)}: {error}\n{_LEFT}") from error
    print("done", file=told)
    return 0


def _check_still_planned(step: Step, steps: Sequence[Step]) -> None:
    """See that a replica, its files, or a node, can still be done without.

    Raises:
        CommandError: it is not to be taken away any more.
    """
    again = isinstance(step, moves.Release) and moves.Unassign(step.storage, step.partition_id) in steps
    if again or step not in steps:
        raise CommandError("the cluster is not as it was when this was planned: nothing was taken away")


def _show(steps: Sequence[Step], arguments: Arguments) -> None:
    if arguments.flag("json"):
        print(json.dumps([describe(step) for step in steps], indent=2))
        return
    for number, step in enumerate(steps, start=1):
        print(f"{number:>3}. {describe(step)}")
    if not steps:
        print("nothing is left to do")


async def _audited(tool: Tool, step: Step, patience: int, *, delete: bool) -> None:
    if isinstance(step, (moves.AwaitLevel, moves.AwaitWithout)):  # changes nothing
        await _do(tool, step, patience, delete=delete)
        return
    with audited(f"{describe(step)} at {tool.paths.root}"):
        await _do(tool, step, patience, delete=delete)


async def _do(tool: Tool, step: Step, patience: int, *, delete: bool) -> None:
    match step:
        case moves.Take(storage, partition_id):
            async with tool.admin(await _admin(tool, storage)) as client:
                await client.assign([partition_id])
        case moves.Release(storage, partition_id):
            async with tool.admin(await _admin(tool, storage)) as client:
                await client.unassign([partition_id], delete_files=delete)
        case moves.AwaitLevel(storage, partition_id):
            await _wait(tool, patience, partial(_is_level, partition_id, storage))
        case moves.AwaitWithout(storage, partition_id):
            await _wait(tool, patience, lambda view: moves.is_without(view, partition_id, storage))
        case _:
            await change_store(tool.zk, tool.paths, moves.change_of(step), on_wait)


async def _wait(tool: Tool, patience: int, reached: Callable[[ClusterView], bool]) -> None:
    begin = time.monotonic()
    while not reached(await gather(tool, certificates=False)):
        if time.monotonic() - begin > patience:
            raise CommandError(f"not reached within {patience} s (--timeout); waltz doctor may know why")
        await trio.sleep(_LOOK_EVERY)


def _is_level(partition_id: int, storage: str, view: ClusterView) -> bool:
    node = view.storage(storage)
    if node is not None and node.replicas is not None and partition_id not in node.replicas:
        raise CommandError(
            f"{storage} does not hold partition {partition_id} any more: somebody took it away meanwhile, for one "
            "`waltz storage sync-partitions`"
        )
    return view.is_level(partition_id, storage)


async def _admin(tool: Tool, storage: str) -> Endpoint:
    ports = dict((await read_cluster(tool.zk, tool.paths)).maps.connections.connections)
    if storage not in ports:
        raise CommandError(f"the admin port of {storage} is not in ZooKeeper")
    return Endpoint(parse_endpoint(storage).host, ports[storage])


# ---- the commands ----------------------------------------------------------------------------


async def _move(tool: Tool, arguments: Arguments) -> int:
    source, target = arguments.text("from"), arguments.text("to")
    partitions = arguments.partitions("partition")
    return await _carry_out(lambda view: moves.move(view, partitions, source, target), tool, arguments)


async def _drain(tool: Tool, arguments: Arguments) -> int:
    source = arguments.text("storage")
    return await _carry_out(lambda view: moves.drain(view, source), tool, arguments)


async def _add(tool: Tool, arguments: Arguments) -> int:
    entering = endpoint_of(arguments.text("storage"), _FORM)
    storage = str(entering)
    partitions: tuple[int, ...] = ()
    port, group = arguments.number("storage-admin-port", least=1, most=PORT_MAX), arguments.number("group", least=0)
    if arguments.flag("partition"):
        partitions = arguments.partitions("partition")
    await _reached(tool, Endpoint(entering.host, port))
    return await _carry_out(lambda view: moves.add(view, storage, port, group, partitions), tool, arguments, entering)


async def _replace(tool: Tool, arguments: Arguments) -> int:
    source, target = arguments.text("from"), arguments.text("to")
    port, entering = None, None
    if arguments.flag("storage-admin-port"):
        port = arguments.number("storage-admin-port", least=1, most=PORT_MAX)
        entering = endpoint_of(target, _FORM)  # it may be new in the cluster: its name must be one that can be read
        target = str(entering)
        await _reached(tool, Endpoint(entering.host, port))

    def plan(view: ClusterView) -> tuple[Step, ...]:
        if source not in dict(view.maps.groups.groups):
            print(f"{source} is not in ZooKeeper: it was replaced before, or has another name", file=sys.stderr)
        return moves.replace(view, source, target, port)

    return await _carry_out(plan, tool, arguments, entering)


async def _reached(tool: Tool, endpoint: Endpoint) -> None:
    """A node must answer, with the key of this cluster, before ZooKeeper hears of it."""
    try:
        async with tool.admin(endpoint):
            pass
    except (WaltzError, OSError) as error:
        raise CommandError(f"{endpoint} is no storage node of this cluster: {error}; start it first") from error


_DRY = Option("n", "dry-run", "Show the steps and do nothing", takes_value=False)
_DELETE = Option("x", "delete-storage-files", "Delete the files that are left on the old node", takes_value=False)
_TIMEOUT = Option("w", "timeout", f"Seconds that one wait may take (default {_PATIENCE})")
_JSON = Option("j", "json", "Print the steps as one JSON list; what happens goes to standard error", takes_value=False)
_SHARED = (_DRY, _TIMEOUT, YES, _JSON)
_FROM = Option("s", "from", "Specify the storage node to leave, in format of host:port", required=True)
_TO = Option("d", "to", "Specify the storage node to go to, in format of host:port", required=True)


def _command(name: str, meaning: str, work: Callable[[Tool, Arguments], Awaitable[int]], *options: Option) -> Command:
    return Command(name, meaning, (CONFIG, *options, *_SHARED), partial(in_session, work))


COMMANDS = (
    _command(
        "move-partition",
        "Move partitions from one storage node to another of the same group, while the cluster runs",
        _move,
        _FROM,
        _TO,
        Option("p", "partition", "Specify the partitions, such as 0-6,7,10-16", required=True),
        _DELETE,
    ),
    _command(
        "drain",
        "Move all partitions of a storage node to the others of its group",
        _drain,
        Option("s", "storage", "Specify the storage node, in format of host:port", required=True),
        _DELETE,
    ),
    _command(
        "add-node",
        "Add a storage node that runs to the cluster, as one more replica of partitions if some are given",
        _add,
        Option("s", "storage", "Specify the storage node, in format of host:port", required=True),
        Option("a", "storage-admin-port", "Specify its admin port", required=True),
        Option("g", "group", "Specify its group", required=True),
        Option("p", "partition", "Specify partitions that it is to hold, such as 0-6,7,10-16"),
    ),
    _command(
        "replace-node",
        "Put a storage node in the place of another, which may be dead",
        _replace,
        _FROM,
        _TO,
        Option("a", "storage-admin-port", "Specify the admin port of a node that is new in the cluster"),
        _DELETE,
    ),
)
