"""A rolling restart or upgrade, node by node: the rules of `waltz restart-plan`.

Order: storage nodes first, since a newer one serves older servers; then servers, those with the fewest partitions
first, so that what is handed over moves as rarely as possible. One node at a time. Between two nodes the cluster must
be as whole as before: `next_move` lets the next one be stopped only if `may_stop` says yes, and until then names what
it waits for.

States of a step: open → begun (written down before the node is touched) → done (it is back: answers, and holds
everything that was committed). A walk that was interrupted finds a begun step: whether the node was stopped is not
known, so it is restarted again, under the same check.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterator, Mapping, Sequence

import attrs

from waltz_core.base.errors import ClusterError
from waltz_core.base.record import record
from waltz_core.operations.stopping import Answer, Verdict, may_stop, named_nodes, replica_problems
from waltz_core.operations.view import ClusterView
from waltz_core.wire.client_messages import ServedState


class Kind(enum.Enum):
    """What a node is."""

    STORAGE = "storage"
    SERVER = "server"


class Progress(enum.Enum):
    """Of one step."""

    OPEN = "open"
    BEGUN = "begun"
    DONE = "done"


@record
class Step:
    """One node of the walk."""

    kind: Kind
    name: str  # host:port, as in ZooKeeper
    progress: Progress = Progress.OPEN
    process: str = ""  # `process_of` before it was restarted

    @property
    def host(self) -> str:
        """Where the node runs."""
        return self.name.rpartition(":")[0]


class Move(enum.Enum):
    """What comes next."""

    RESTART = "restart"  # the step's node may be stopped now
    WAIT = "wait"  # the cluster is not whole enough
    UNKNOWN = "unknown"  # what would decide could not be looked at
    FINISHED = "finished"


@record
class Next:
    """The next move, of which step, and why."""

    move: Move
    step: Step | None = None
    reasons: tuple[str, ...] = ()
    answer: Answer | None = None


def plan(view: ClusterView, only: Sequence[str] = ()) -> tuple[Step, ...]:
    """Every node, or some, in the order of their restart.

    Args:
        view: of now.
        only: `host:port` of nodes, or hosts with everything on them; empty: all nodes.

    Raises:
        ClusterError: a node is not of this cluster, or there is none.
    """
    storages = {node.name for node in view.storages}
    servers = {server.name for server in view.servers}
    if only:
        storages, servers = named_nodes(view, only)
    if not storages and not servers:
        raise ClusterError("the cluster has no nodes")
    owned = {server.name: len(server.partitions or ()) for server in view.servers}
    groups = dict(view.maps.groups.groups)
    first = sorted(storages, key=lambda name: (groups.get(name, -1), name))
    then = sorted(servers, key=lambda name: (owned[name], name))
    return tuple(Step(Kind.STORAGE, name) for name in first) + tuple(Step(Kind.SERVER, name) for name in then)


def process_of(view: ClusterView, step: Step) -> str:
    """Which process a node is now; another one after a restart, empty if that is unknown."""
    if step.kind is Kind.SERVER:  # each start takes a new id
        return next((str(one.descriptor.server_id) for one in view.servers if one.name == step.name), "")
    node = view.storage(step.name)
    return node.process if node is not None else ""


def marked(steps: Sequence[Step], name: str, progress: Progress, process: str = "") -> tuple[Step, ...]:
    """The steps, that of one node in another progress; `process` is what it was before its restart.

    Raises:
        ClusterError: the plan has no such node.
    """
    if not any(step.name == name for step in steps):
        names = ", ".join(step.name for step in steps)
        raise ClusterError(f"{name!r} is no node of this plan; its nodes are {names}")
    return tuple(
        attrs.evolve(step, progress=progress, process=process) if step.name == name else step for step in steps
    )


def next_move(view: ClusterView, steps: Sequence[Step], marks: Mapping[int, int]) -> Next:
    """What comes next.

    Args:
        view: of now.
        steps: all of them.
        marks: `committed_marks` of an earlier look.
    """
    steps = tuple(step for step in steps if not has_left(view, step))
    missing = tuple(
        reason for step in steps if step.progress is Progress.DONE for reason in not_back(view, step, marks)
    )
    step = next((one for one in steps if one.progress is not Progress.DONE), None)
    if missing:
        return Next(Move.WAIT, step, missing)
    if step is None:
        return Next(Move.FINISHED)
    if step.kind is Kind.SERVER and all(server.name != step.name for server in view.servers):
        # It is down already (a walk that was interrupted): starting it takes nothing away.
        return Next(Move.RESTART, step, ("it is not registered: it seems to be down already",))
    answer = may_stop(view, (step.name,), marks)
    move = {Verdict.YES: Move.RESTART, Verdict.UNKNOWN: Move.UNKNOWN, Verdict.NO: Move.WAIT}[answer.verdict]
    return Next(move, step, tuple(answer.reasons()), answer)


def has_left(view: ClusterView, step: Step) -> bool:
    """Whether a step's node is none of the cluster any more, replaced for one: nothing is left to restart or await."""
    assigned = any(partitions for name, partitions in view.maps.replicas.replicas if name == step.name)
    return step.kind is Kind.STORAGE and view.storage(step.name) is None and not assigned


def not_back(view: ClusterView, step: Step, marks: Mapping[int, int]) -> Iterator[str]:
    """What is still missing of a node that was restarted; nothing if it is back with everything."""
    if step.process and process_of(view, step) == step.process:
        yield f"{step.kind.value} {step.name} is the same process as before: the command has not restarted it"
    if step.kind is Kind.SERVER:
        server = next((one for one in view.servers if one.name == step.name), None)
        if server is None:
            yield f"server {step.name} is not registered yet"
        elif server.problem or server.partitions is None:
            yield f"server {step.name} does not answer yet: {server.problem or 'no answer'}"
        else:
            for status in server.status or ():
                if status.state != ServedState.READY:
                    yield f"server {step.name} is opening partition {status.partition_id}: {status.reason or '…'}"
        return
    node = view.storage(step.name)
    if node is None:
        yield f"storage node {step.name} is not in ZooKeeper any more"
    elif node.data_problem or node.admin_problem:
        yield f"storage node {step.name} does not answer yet: {node.data_problem or node.admin_problem}"
    else:
        yield from replica_problems(view, step.name, marks)


def parse_steps(value: object) -> tuple[Step, ...]:
    """Steps as `steps_json` gave them.

    Raises:
        ClusterError: it is something else.
    """
    try:
        if not isinstance(value, list):
            raise TypeError(f"expected a list of steps, found {type(value).__name__}")
        return tuple(Step(Kind(row["kind"]), str(row["node"]), Progress(row["progress"])) for row in value)
    except (KeyError, TypeError, ValueError) as error:
        raise ClusterError(f"this is no plan of restarts: {error!r}") from None


def steps_json(steps: Collection[Step]) -> list[dict[str, str]]:
    """Steps as values that JSON can carry."""
    return [{"kind": step.kind.value, "node": step.name, "progress": step.progress.value} for step in steps]
