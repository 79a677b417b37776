"""Whether storage nodes and servers may be stopped now: the rule of `waltz may-stop`.

A node may be stopped if each partition that it takes part in is served now, keeps a majority of replicas that hold
everything committed, and has servers left that reach that majority. A replica counts as one that is left only if every
question about it was answered well; one that was not asked, or did not answer, makes the answer *unknown* where it
would decide. So what was not looked at is never a yes.

Whether a replica is level is judged over two looks: it must hold now what was committed at the earlier one. One look
cannot decide that: nodes answer at different moments while transactions are committed.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from waltz_core.base.errors import ClusterError
from waltz_core.base.quorum import majority
from waltz_core.base.record import record
from waltz_core.operations.findings import ranges_text
from waltz_core.operations.view import ClusterView, ReplicaView, ServerView, StorageView
from waltz_core.wire.client_messages import ServedState
from waltz_core.wire.shared import name_of


class Verdict(enum.IntEnum):
    """An answer; of several, the greatest stands."""

    YES = 0
    UNKNOWN = 1
    NO = 2


@record
class PartitionAfter:
    """What is left of one partition."""

    partition_id: int
    verdict: Verdict
    loses_owner: bool
    replicas: int  # assigned
    needed: int  # replicas without which nothing is committed, or no session can be opened
    left: tuple[str, ...]  # storage nodes that hold everything and can vote
    missing: tuple[tuple[str, str], ...]  # the others, and why: stopped, or of no use now
    unknown: tuple[tuple[str, str], ...]  # those that could not be judged, and why
    reasons: tuple[str, ...]  # why it is not a yes


@record
class Answer:
    """What stopping nodes would mean."""

    verdict: Verdict
    storages: tuple[str, ...]  # that would be stopped
    servers: tuple[str, ...]
    servers_left: int
    partitions: tuple[PartitionAfter, ...]  # those that it concerns

    @property
    def losing_owner(self) -> tuple[int, ...]:
        """Partitions that another server would take over."""
        return tuple(after.partition_id for after in self.partitions if after.loses_owner)

    def reasons(self) -> Iterator[str]:
        """Why it is not a yes, partitions with the same reason together."""
        for text, numbers in _alike((reason, after) for after in self.partitions for reason in after.reasons):
            yield f"{_partitions(numbers)}: {text}"

    def quorums(self) -> Iterator[str]:
        """What is left, and what one more failure would mean."""
        for text, numbers in _alike((_quorum(after), after) for after in self.partitions):
            yield f"{_partitions(numbers)}: {text}"
        if self.servers and self.servers_left == 1:
            yield "one server is left: if it fails too, nothing is served until a server is back"


def committed_marks(view: ClusterView) -> Mapping[int, int]:
    """Marks that a replica must reach to be level; partitions without a known mark are left out."""
    marks: dict[int, int] = {}
    for partition_id in range(view.num_partitions):
        served = [
            status.high_water_mark
            for server in view.servers
            for status in server.status or ()
            if status.partition_id == partition_id and status.high_water_mark >= -1
        ]
        ends = [
            None if node is None or replica is None else replica.max_id
            for node, replica in (_copy(view, name, partition_id) for name in view.replicas_of(partition_id))
        ]
        known = [end for end in ends if end is not None]
        if served:
            marks[partition_id] = max(served)
        elif ends and len(known) == len(ends):  # 0.13.2 sends no mark: the longest replica is at least as long
            marks[partition_id] = max(known)
    return marks


def may_stop(view: ClusterView, nodes: Sequence[str], marks: Mapping[int, int]) -> Answer:
    """Judge.

    Args:
        view: of now.
        nodes: `host:port` of storage nodes (data or admin port) and servers; a host alone is everything on it. A node
            stops under all of its names.
        marks: `committed_marks` of an earlier look.

    Raises:
        ClusterError: a node is not of this cluster.
    """
    named, servers = named_nodes(view, nodes)
    storages = {name for one in named for name in view.names_of(one)}
    left = tuple(server for server in view.servers if server.name not in servers)
    concerned = (
        partition_id
        for partition_id in range(view.num_partitions)
        if storages & (view.named_in(partition_id) | {*view.replicas_of(partition_id)})
        or _served_by(view, partition_id, servers)
    )
    partitions = tuple(_after(view, number, storages, servers, left, marks) for number in concerned)
    verdict = max((after.verdict for after in partitions), default=Verdict.YES)
    return Answer(verdict, tuple(sorted(storages)), tuple(sorted(servers)), len(left), partitions)


def named_nodes(view: ClusterView, nodes: Sequence[str]) -> tuple[set[str], set[str]]:
    """Names of the storage nodes and of the servers that are meant; errors as `may_stop`."""
    storages: set[str] = set()
    servers: set[str] = set()
    for node in nodes:
        named = {one.name for one in view.storages if node in (one.name, one.admin, _host(one.name))}
        serving = {one.name for one in view.servers if node in (one.name, one.descriptor.endpoint.host)}
        if not named and not serving:
            known = [one.name for one in view.storages] + [one.name for one in view.servers]
            raise ClusterError(f"{node!r} is no node of this cluster; its nodes are {', '.join(known) or 'none'}")
        storages |= named
        servers |= serving
    return storages, servers


def replica_problems(view: ClusterView, name: str, marks: Mapping[int, int]) -> Iterator[str]:
    """What keeps replicas of a storage node from counting, partition by partition; nothing if all of them do."""
    for partition_id in range(view.num_partitions):
        if name in view.replicas_of(partition_id):
            hosts = [server for server in view.servers if _owns(view, server, partition_id)]
            verdict, why = _replica(view, partition_id, name, hosts, marks.get(partition_id))
            if verdict is not Verdict.YES:
                yield f"partition {partition_id} on {name}: {why}"


def _after(
    view: ClusterView,
    partition_id: int,
    storages: Collection[str],
    servers: Collection[str],
    servers_left: Sequence[ServerView],
    marks: Mapping[int, int],
) -> PartitionAfter:
    troubles = list(_serving(view, partition_id))
    loses_owner = _served_by(view, partition_id, servers)
    # Whoever may own it afterwards: the owner of now, or any that is left.
    hosts = servers_left if loses_owner else [one for one in servers_left if _owns(view, one, partition_id)]
    if not servers_left and loses_owner:
        troubles.append((Verdict.NO, "no server is left that could take it over"))
    for server in hosts:
        if server.problem or server.connectivity is None or server.key not in (None, view.key):
            why = server.problem or ("another cluster's key" if server.connectivity is not None else "no answer")
            troubles.append((Verdict.UNKNOWN, f"server {server.name} would have to serve it, and is in doubt: {why}"))

    names = view.replicas_of(partition_id)
    left, missing, unknown = _judged(view, partition_id, storages, hosts, marks.get(partition_id))
    # Where the log ends is decided among the replicas of the last session, of those that are still assigned.
    needed = majority(max(len(names), len(view.named_in(partition_id))))
    if len(left) < needed:
        verdict = Verdict.UNKNOWN if len(left) + len(unknown) >= needed else Verdict.NO
        doubts = "; ".join(f"{name}: {why}" for name, why in (*missing, *unknown))
        troubles.append(
            (verdict, f"{len(left)} of {len(names)} replicas would be left, {needed} are needed ({doubts})")
        )
    return PartitionAfter(
        partition_id,
        max((verdict for verdict, _ in troubles), default=Verdict.YES),
        loses_owner,
        len(names),
        needed,
        tuple(left),
        tuple(missing),
        tuple(unknown),
        tuple(dict.fromkeys(text for _, text in troubles)),
    )


def _judged(
    view: ClusterView, partition_id: int, storages: Collection[str], hosts: Sequence[ServerView], mark: int | None
) -> tuple[list[str], list[tuple[str, str]], list[tuple[str, str]]]:
    """Replicas that would be left, those that would not, and those that could not be judged."""
    left: list[str] = []
    missing: list[tuple[str, str]] = []
    unknown: list[tuple[str, str]] = []
    for name in view.replicas_of(partition_id):
        if name in storages:
            missing.append((name, "stopped"))
            continue
        verdict, why = _replica(view, partition_id, name, hosts, mark)
        twins = view.names_of(name).intersection(left)
        if verdict is Verdict.YES and twins:
            verdict, why = Verdict.NO, f"is {min(twins)} under another name, which counts once"
        if verdict is Verdict.YES:
            left.append(name)
        else:
            (missing if verdict is Verdict.NO else unknown).append((name, why))
    return left, missing, unknown


def _serving(view: ClusterView, partition_id: int) -> Iterator[tuple[Verdict, str]]:
    """What is wrong with the service of a partition now, which stopping nodes would prolong."""
    owners = view.owners_of(partition_id)
    if view.assignment.cversion != view.assignment_cversion:
        yield Verdict.NO, "the servers are just assigning partitions anew"
    if len(owners) != 1:
        yield Verdict.NO, "no server owns it now" if not owners else "more than one server owns it now"
        return
    others = [
        server.name
        for server in view.servers
        if partition_id in (server.partitions or ()) and server.descriptor.server_id != owners[0]
    ]
    if others:
        yield Verdict.NO, f"it is just moving: {', '.join(others)} still has it"
    owner = view.server(owners[0])
    if owner is None:
        yield Verdict.NO, f"its server (id {owners[0]}) is gone"
    elif owner.problem or owner.health is None:
        yield Verdict.UNKNOWN, f"its server {owner.name} did not answer: {owner.problem or 'no health'}"
    else:
        status = next((one for one in owner.status or () if one.partition_id == partition_id), None)
        if owner.status is not None and (status is None or status.state != ServedState.READY):
            state = "not open" if status is None else name_of(ServedState, status.state)
            yield (
                Verdict.NO,
                f"it is {state} at {owner.name}" + (f": {status.reason}" if status and status.reason else ""),
            )
        elif not owner.health.get(partition_id, False):
            yield Verdict.NO, f"nothing can be committed in it at {owner.name}"


def _replica(
    view: ClusterView, partition_id: int, name: str, hosts: Sequence[ServerView], mark: int | None
) -> tuple[Verdict, str]:
    """Whether a replica is one to go on with; if not, why."""
    reached = [None if server.connectivity is None else server.connectivity.get(name) for server in hosts]
    refusing = [server.name for server, usable in zip(hosts, reached, strict=True) if usable is False]
    if refusing:
        return Verdict.NO, f"not reached by {', '.join(refusing)}"
    node, replica = _copy(view, name, partition_id)
    if node is None:
        return Verdict.UNKNOWN, "not looked at"
    wrong = _unfit(view, node, replica, partition_id)
    if wrong:
        return Verdict.NO, wrong
    metadata = view.partitions[partition_id]
    if metadata is None:
        return Verdict.UNKNOWN, "the metadata of the partition cannot be read"
    if not view.is_level(partition_id, name):
        return Verdict.NO, "takes no part in the session yet"
    if node.data_problem or node.admin_problem or replica is None:
        return Verdict.UNKNOWN, node.data_problem or node.admin_problem or "did not say what it holds"
    if None in reached:
        return Verdict.UNKNOWN, "whether the servers reach it is not known"
    if mark is None or replica.max_id is None:
        return Verdict.UNKNOWN, "how far it is, is not known"
    if replica.max_id < mark:
        return Verdict.NO, f"{mark - replica.max_id:,} transactions behind"
    return Verdict.YES, ""


def _unfit(view: ClusterView, node: StorageView, replica: ReplicaView | None, partition_id: int) -> str:
    """What a node itself says against its replica; empty if nothing."""
    if node.foreign_key:
        return "refuses the key of this cluster"
    if node.disk_free is not None and node.disk_free <= (node.disk_reserve or 0):
        return "its disk is full"
    if replica is None:
        return "does not hold the partition" if node.replicas is not None else ""
    if not replica.available:
        return "taken out of service"
    if replica.state not in (None, "open"):
        return f"{replica.state}: {replica.reason}" if replica.reason else str(replica.state)
    return f"{replica.damaged} damaged records" if replica.damaged else ""


def _copy(view: ClusterView, name: str, partition_id: int) -> tuple[StorageView | None, ReplicaView | None]:
    node = view.storage(name)
    return node, None if node is None or node.replicas is None else node.replicas.get(partition_id)


def _owns(view: ClusterView, server: ServerView, partition_id: int) -> bool:
    return server.descriptor.server_id in view.owners_of(partition_id)


def _served_by(view: ClusterView, partition_id: int, servers: Collection[str]) -> bool:
    """Whether one of `servers` owns a partition, or has it still."""
    return any(
        server.name in servers and (_owns(view, server, partition_id) or partition_id in (server.partitions or ()))
        for server in view.servers
    )


def _host(name: str) -> str:
    return name.rpartition(":")[0]


def _alike(texts: Iterable[tuple[str, PartitionAfter]]) -> Iterator[tuple[str, list[int]]]:
    alike: dict[str, list[int]] = {}
    for text, after in texts:
        alike.setdefault(text, []).append(after.partition_id)
    yield from alike.items()


def _partitions(numbers: Sequence[int]) -> str:
    return f"partition{'s' if len(numbers) > 1 else ''} {ranges_text(numbers)}"


def _quorum(after: PartitionAfter) -> str:
    spare = len(after.left) - after.needed
    text = f"{len(after.left)} of {after.replicas} replicas left, {after.needed} needed"
    if spare < 0:
        return f"{text}: nothing could be committed"
    if spare == 0:
        return f"{text}: one more failure stops commits until a replica is back, nothing committed is lost"
    return f"{text}: {spare} more may fail"
