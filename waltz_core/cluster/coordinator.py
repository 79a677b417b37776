"""The view that one process has of its cluster: members, assignment, and who writes it.

Every server and every client runs one. There is no elected leader: the coordinator is whichever process
manages the server with the smallest id it sees; several may believe it at once, and the conditional write
settles it. The machine is level-triggered: a watch, a new session or a timer only means "read again", so a
lost watch or a lost reply costs time, never correctness.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias, assert_never

from waltz_core.base.contract import Rng, Tickets, earliest
from waltz_core.base.edge import (
    Level,
    Report,
    ZkChanged,
    ZkChildren,
    ZkCreate,
    ZkDelete,
    ZkDone,
    ZkError,
    ZkEvent,
    ZkFailed,
    ZkGet,
    ZkRequest,
    ZkSet,
    ZkStat,
    ZkState,
    ZkStateChanged,
)
from waltz_core.base.errors import ProtocolError
from waltz_core.base.ids import Endpoint
from waltz_core.base.record import record
from waltz_core.base.rules import SAFE, SafetyRules
from waltz_core.cluster.assignment import (
    FewerPartitionsError,
    IncompleteAssignmentError,
    Member,
    assign,
    legacy_assignment_fails,
)
from waltz_core.zookeeper.paths import cluster_paths
from waltz_core.zookeeper.znodes import (
    PartitionAssignment,
    ReplicaAssignments,
    ServerDescriptor,
    decode_cluster_params,
    decode_id_counter,
    decode_partition_assignment,
    decode_replica_assignments,
    decode_server_descriptor,
    decode_store_params,
    encode_id_counter,
    encode_partition_assignment,
    encode_server_descriptor,
)

REQUEST_TIMEOUT_MS = 15_000
REFRESH_EVERY_MS = 30_000
RETRY_FIRST_MS = 100
RETRY_MAX_MS = 2_000
LEAVE_TIMEOUT_MS = 5_000
REPORTED_MAX = 1_000

OUR_MARK = b"waltz-log"
"""Behind our descriptors, where 0.13.2 ignores it: this server's policy is always complete (zk-D1)."""


@record
class ManagedServer:
    """The server that this process registers."""

    endpoint: Endpoint
    preferred_partitions: tuple[int, ...] = ()


@record
class Joined:
    """The cluster exists, fits together, and gave us our ids. Comes once; registration follows."""

    cluster_name: str
    num_partitions: int
    cluster_key: bytes  # 16 bytes; empty for an observer
    server_id: int | None
    client_id: int | None


@record
class Owned:
    """Everything our server owns now: (partition id, generation), sorted by partition id."""

    partitions: tuple[tuple[int, int], ...]


@record
class OwnershipDoubtful:
    """Another server may own our partitions by now: stop appending until `OwnershipConfirmed`."""


@record
class OwnershipConfirmed:
    """The last `Owned` was read in a live session and holds."""


@record
class EndpointsChanged:
    """All live servers and what they own, (partition id, generation) sorted by partition id."""

    endpoints: tuple[tuple[Endpoint, tuple[tuple[int, int], ...]], ...]
    revision: int = -1  # data version of the assignment, equal for all who look


@record
class PreferencesRegistered:
    """ZooKeeper holds the preferred partitions of the last `set_preferred`, and an assignment that heeds them."""


@record
class ReplicasChanged:
    """The assignment of replicas to storage nodes; servers only."""

    assignments: ReplicaAssignments


@record
class ClusterFailed:
    """This process cannot work with what ZooKeeper holds; final."""

    reason: str


@record
class Left:
    """The descriptor is gone, or will go with the session; final."""


Notification: TypeAlias = (
    Joined
    | Owned
    | OwnershipDoubtful
    | OwnershipConfirmed
    | EndpointsChanged
    | PreferencesRegistered
    | ReplicasChanged
    | ClusterFailed
    | Left
    | Report
)
CoordinatorEffect: TypeAlias = ZkRequest | Notification

_Answer: TypeAlias = ZkDone | ZkError
_Handler: TypeAlias = Callable[[int, _Answer, list[CoordinatorEffect]], None]


class Phase(enum.Enum):
    """Where a coordinator is in its life."""

    STARTING = "starting"  # cluster parameters or our ids are not known yet
    ACTIVE = "active"  # reads the view again and again, registers, coordinates
    LEAVING = "leaving"  # deletes its own descriptor
    ENDED = "ended"  # failed or left; does nothing any more


class _Round:
    """One reading of everything; complete when every request was answered."""

    def __init__(self) -> None:
        self.children: ZkDone | None = None
        self.data: ZkDone | None = None
        self.replicas: ZkDone | None = None
        self.descriptors: dict[str, ZkDone] = {}
        self.torn = False  # a child vanished while we read


class Coordinator:
    """Membership, assignment and registration for one process.

    STARTING → ACTIVE → LEAVING → ENDED; a contradiction in ZooKeeper leads to ENDED from anywhere. Within a
    phase it alternates: one reading round (all reads at once), then at most one kind of write, then the next
    round. Nothing is started while an answer is outstanding, and every answer has a deadline.
    """

    def __init__(
        self,
        root: str,
        *,
        tickets: Tickets,
        rng: Rng,
        manages: ManagedServer | None = None,
        allocate_client_id: bool = False,
        rules: SafetyRules = SAFE,
    ) -> None:
        self._paths = cluster_paths(root)
        self._tickets = tickets
        self._rng = rng
        self._manages = manages
        self._allocate_client_id = allocate_client_id
        self._rules = rules
        self._preferred = manages.preferred_partitions if manages else ()

        self._phase = Phase.STARTING
        self._online = False
        self._session_id = 0
        self._pending: dict[int, tuple[_Handler, int]] = {}
        self._retry_at: int | None = None
        self._retry_delay = RETRY_FIRST_MS
        self._refresh_at = 0
        self._leave_by = 0
        self._dirty = True
        self._round: _Round | None = None
        self._reassign = False
        self._registering = False  # `PreferencesRegistered` is due
        self._reported: set[str] = set()

        self._cluster: tuple[str, int] | None = None  # name, number of partitions
        self._cluster_key = b""
        self._start_answers: dict[str, ZkDone] = {}
        self.server_id: int | None = None
        self.client_id: int | None = None
        self._members: dict[int, ServerDescriptor] = {}
        self._owned: tuple[tuple[int, int], ...] | None = None
        self._endpoints: EndpointsChanged | None = None
        self._replicas: ReplicaAssignments | None = None
        self._doubtful = False

    @property
    def phase(self) -> Phase:
        """Where this coordinator is in its life."""
        return self._phase

    @property
    def is_coordinator(self) -> bool:
        """Whether our server has the smallest id in the last view."""
        return self.server_id is not None and min(self._members, default=None) == self.server_id

    def deadline(self) -> int | None:
        """When `step` must be called at the latest."""
        if self._phase is Phase.ENDED:
            return None
        leave_by = self._leave_by if self._phase is Phase.LEAVING else None
        if not self._online:
            return leave_by
        if self._pending:
            return earliest(leave_by, *(due for _, due in self._pending.values()))
        return earliest(leave_by, self._retry_at if self._dirty else self._refresh_at)

    def step(self, now: int, events: Sequence[ZkEvent], out: list[CoordinatorEffect]) -> None:
        """Handle events; answers to tickets of others and changes of other paths are ignored."""
        for event in events:
            if self._phase is Phase.ENDED:
                return
            match event:
                case ZkDone(ticket=ticket):
                    self._on_answer(now, ticket, event, out)
                case ZkFailed(ticket=ticket, error=error):
                    self._on_answer(now, ticket, error, out)
                case ZkChanged(path=path):
                    self._on_changed(path)
                case ZkStateChanged():
                    self._on_state(event, out)
                case _:
                    assert_never(event)
        self._expire(now, out)
        self._advance(now, out)

    # ---- what the parent asks ----------------------------------------------------------------

    def preference_problem(self, partitions: Sequence[int]) -> str | None:
        """Why these preferred partitions must be refused, or None.

        While a server of 0.13.2 may become coordinator, claims that make its policy throw would freeze the
        cluster (zk-D1).
        """
        if self.server_id is None or self._cluster is None:
            return "this server has not joined the cluster yet"
        others = {server_id: found for server_id, found in self._members.items() if server_id != self.server_id}
        if all(descriptor.extension == OUR_MARK for descriptor in others.values()):
            return None
        if not legacy_assignment_fails(self._cluster[1], self._with_self(others, tuple(partitions))):
            return None
        return (
            f"{len(others) + 1} servers, {self._cluster[1]} partitions and these preferences stop a coordinator of "
            "Waltz 0.13.2, which is in this cluster: choose fewer or more, or stop that server first"
        )

    def set_preferred(self, now: int, partitions: Sequence[int], out: list[CoordinatorEffect]) -> None:
        """Replace the preferred partitions of our server, rewrite its descriptor, then have it reassigned.

        `PreferencesRegistered` follows once a reading shows both.
        """
        assert self._manages is not None
        self._preferred = tuple(partitions)
        self._reassign = self._registering = True
        self._dirty = True
        self._advance(now, out)

    def leave(self, now: int, out: list[CoordinatorEffect]) -> None:
        """Delete our descriptor; `Left` follows, also when ZooKeeper cannot be reached."""
        if self._phase is Phase.ENDED:
            return
        if self._phase is Phase.STARTING or not self._online or self._manages is None:
            self._end(Left(), out)
            return
        self._phase = Phase.LEAVING
        self._leave_by = now + LEAVE_TIMEOUT_MS
        self._dirty = True
        self._advance(now, out)

    # ---- events ------------------------------------------------------------------------------

    def _on_answer(self, now: int, ticket: int, answer: _Answer, out: list[CoordinatorEffect]) -> None:
        pending = self._pending.pop(ticket, None)
        if pending is not None:
            pending[0](now, answer, out)

    def _on_changed(self, path: str) -> None:
        paths = self._paths
        if path in (paths.servers, paths.assignment, paths.root) or path.startswith(paths.servers + "/"):
            self._dirty = True

    def _on_state(self, event: ZkStateChanged, out: list[CoordinatorEffect]) -> None:
        # Whatever was under way is forgotten: its outcome shows in the next reading.
        self._pending.clear()
        self._round = None
        self._start_answers = {}
        self._dirty = True
        self._retry_at = None
        self._online = event.state is ZkState.CONNECTED
        if self._online:
            if event.session_id != self._session_id:
                self._doubt(out)
            self._session_id = event.session_id
            self._retry_delay = RETRY_FIRST_MS
            return
        if event.state is not ZkState.SUSPENDED:
            self._doubt(out)
        if self._phase is Phase.LEAVING:
            # The descriptor goes with the session, which this process is about to give up.
            self._end(Left(), out)

    def _doubt(self, out: list[CoordinatorEffect]) -> None:
        if self._owned is not None and not self._doubtful:
            self._doubtful = True
            out.append(OwnershipDoubtful())

    def _expire(self, now: int, out: list[CoordinatorEffect]) -> None:
        """Answers that did not come; the request may still be carried out later."""
        for ticket in [ticket for ticket, (_, due) in self._pending.items() if due <= now]:
            self._on_answer(now, ticket, ZkError.OUTCOME_UNKNOWN, out)
        if self._phase is Phase.LEAVING and now >= self._leave_by:
            self._end(Left(), out)

    # ---- flow --------------------------------------------------------------------------------

    def _advance(self, now: int, out: list[CoordinatorEffect]) -> None:
        while self._online and self._phase is not Phase.ENDED and not self._pending:
            if self._retry_at is not None and now < self._retry_at:
                return
            self._retry_at = None
            if self._phase is Phase.STARTING:
                self._start(now, out)
            elif self._round is not None:
                self._evaluate(now, self._round, out)
            elif self._dirty or now >= self._refresh_at:
                self._begin_round(now, out)
            else:
                return

    def _ask(self, now: int, request: ZkRequest, handler: _Handler, out: list[CoordinatorEffect]) -> None:
        self._pending[request.ticket] = handler, now + REQUEST_TIMEOUT_MS
        out.append(request)

    def _try_again(self, now: int) -> None:
        """Drop what is under way and read again after a pause."""
        self._pending.clear()
        self._round = None
        self._start_answers = {}
        self._dirty = True
        self._retry_at = now + self._rng.randint(self._retry_delay // 2, self._retry_delay)
        self._retry_delay = min(self._retry_delay * 2, RETRY_MAX_MS)

    def _end(self, last: ClusterFailed | Left, out: list[CoordinatorEffect]) -> None:
        self._phase = Phase.ENDED
        self._pending.clear()
        self._round = None
        out.append(last)

    def _fail(self, reason: str, out: list[CoordinatorEffect]) -> None:
        self._end(ClusterFailed(reason), out)

    def _broken(self, now: int, reason: str, out: list[CoordinatorEffect]) -> None:
        """Something that a cluster must have cannot be used: nobody starts on that, and nobody stops for it."""
        if self._cluster is None:
            self._fail(reason, out)
        else:
            self._report_once(Level.ERROR, f"{reason}; staying on what is known", out)
            self._try_again(now)

    def _report_once(self, level: Level, text: str, out: list[CoordinatorEffect]) -> None:
        if text not in self._reported:
            if len(self._reported) >= REPORTED_MAX:
                self._reported.clear()
            self._reported.add(text)
            out.append(Report(level, text))

    # ---- start: parameters, then ids ---------------------------------------------------------

    def _start(self, now: int, out: list[CoordinatorEffect]) -> None:
        paths = self._paths
        if self._start_answers:
            self._on_started(now, out)
            return
        wanted = [paths.root]
        if self._manages is not None:
            wanted.append(paths.store)
        counter = self._counter()
        if counter is not None:
            wanted.append(counter)
        for path in wanted:
            self._ask(now, ZkGet(self._tickets.take(), path), partial(self._on_start_answer, path), out)

    def _counter(self) -> str | None:
        """The id counter to take a number from next."""
        if self._manages is not None and self.server_id is None:
            return self._paths.server_ids
        if self._allocate_client_id and self.client_id is None:
            return self._paths.client_ids
        return None

    def _on_start_answer(self, path: str, now: int, answer: _Answer, out: list[CoordinatorEffect]) -> None:
        if isinstance(answer, ZkDone):
            self._start_answers[path] = answer
        elif answer is ZkError.NO_NODE and self._cluster is not None and path != self._paths.root:
            self._broken(now, f"znode {path} does not exist", out)
        elif answer is ZkError.NO_NODE:
            self._fail(
                f"znode {path} does not exist: there is no Waltz cluster at {self._paths.root}; check the ZooKeeper "
                "address and cluster.root, or create the cluster with `waltz zookeeper create`",
                out,
            )
        else:
            self._try_again(now)

    def _on_started(self, now: int, out: list[CoordinatorEffect]) -> None:
        answers, self._start_answers = self._start_answers, {}
        if not self._check_cluster(now, answers[self._paths.root], answers.get(self._paths.store), out):
            return
        counter = self._counter()
        if counter is None:
            self._on_ids_known(out)
            return
        taken = answers[counter]
        assert taken.stat is not None
        try:
            last = decode_id_counter(taken.data or b"")
        except ProtocolError as problem:
            self._fail(f"znode {counter}: {problem}; the cluster was not created completely", out)
            return
        # Java: ids wrap to negative ones after 2^31 - 1.
        number = (last + 1 + 2**31) % 2**32 - 2**31
        request = ZkSet(self._tickets.take(), counter, encode_id_counter(number), taken.stat.version)
        self._ask(now, request, partial(self._on_id, number), out)

    def _on_id(self, number: int, now: int, answer: _Answer, out: list[CoordinatorEffect]) -> None:
        if answer is ZkError.BAD_VERSION:
            return  # somebody else took it: `_advance` starts over at once
        if not isinstance(answer, ZkDone):
            self._try_again(now)  # an unknown outcome skips one id at worst
            return
        if self._manages is not None and self.server_id is None:
            self.server_id = number
        else:
            self.client_id = number
        if self._counter() is None:
            self._on_ids_known(out)

    def _on_ids_known(self, out: list[CoordinatorEffect]) -> None:
        assert self._cluster is not None
        self._phase = Phase.ACTIVE
        self._dirty = True
        out.append(Joined(*self._cluster, self._cluster_key, self.server_id, self.client_id))

    def _check_cluster(self, now: int, root: ZkDone, store: ZkDone | None, out: list[CoordinatorEffect]) -> bool:
        """Whether the parameters fit together, and are those that we started with."""
        paths = self._paths
        try:
            params = decode_cluster_params(root.data or b"")
        except ProtocolError as problem:
            text = f"znode {paths.root} does not hold cluster parameters: {problem}; was `create` interrupted?"
            self._broken(now, text, out)
            return False
        key = b""
        if store is not None:
            try:
                found = decode_store_params(store.data or b"")
            except ProtocolError as problem:
                text = f"znode {paths.store} does not hold store parameters: {problem}; was `create` interrupted?"
                self._broken(now, text, out)
                return False
            if found.num_partitions != params.num_partitions:
                self._fail(
                    f"znode {paths.root} says {params.num_partitions} partitions, {paths.store} says "
                    f"{found.num_partitions}: they must be equal; this cluster must not be served",
                    out,
                )
                return False
            key = found.key
        cluster = params.name, params.num_partitions
        if self._cluster is not None and (self._cluster, self._cluster_key) != (cluster, key):
            self._fail(
                f"the cluster at {paths.root} is another one than at our start ({self._cluster[0]!r} with "
                f"{self._cluster[1]} partitions then, {cluster[0]!r} with {cluster[1]} now): it was deleted and "
                "created again; restart this process",
                out,
            )
            return False
        self._cluster, self._cluster_key = cluster, key
        return True

    # ---- a reading round ---------------------------------------------------------------------

    def _begin_round(self, now: int, out: list[CoordinatorEffect]) -> None:
        """Arm all watches by reading: children first, then data, so that equal cversions make one view."""
        self._dirty = False
        self._round = found = _Round()
        paths, take = self._paths, self._tickets.take
        self._ask(now, ZkGet(take(), paths.root), partial(self._on_start_answer, paths.root), out)
        if self._manages is not None:
            self._ask(now, ZkGet(take(), paths.store), partial(self._on_start_answer, paths.store), out)
            self._ask(now, ZkGet(take(), paths.assignment, watch=True), partial(self._on_replicas, found), out)
        self._ask(now, ZkChildren(take(), paths.servers, watch=True), partial(self._on_children, found), out)
        self._ask(now, ZkGet(take(), paths.servers, watch=True), partial(self._on_servers_data, found), out)

    def _read(self, path: str, now: int, answer: _Answer, out: list[CoordinatorEffect]) -> ZkDone | None:
        """The answer, or None after having failed or retried."""
        if isinstance(answer, ZkDone):
            return answer
        self._on_start_answer(path, now, answer, out)
        return None

    def _on_replicas(self, found: _Round, now: int, answer: _Answer, out: list[CoordinatorEffect]) -> None:
        found.replicas = self._read(self._paths.assignment, now, answer, out)

    def _on_servers_data(self, found: _Round, now: int, answer: _Answer, out: list[CoordinatorEffect]) -> None:
        found.data = self._read(self._paths.servers, now, answer, out)

    def _on_children(self, found: _Round, now: int, answer: _Answer, out: list[CoordinatorEffect]) -> None:
        found.children = self._read(self._paths.servers, now, answer, out)
        if found.children is not None:
            for name in sorted(found.children.children):
                request = ZkGet(self._tickets.take(), f"{self._paths.servers}/{name}", watch=True)
                self._ask(now, request, partial(self._on_descriptor, found, name), out)

    def _on_descriptor(self, found: _Round, name: str, now: int, answer: _Answer, out: list[CoordinatorEffect]) -> None:
        if isinstance(answer, ZkDone):
            found.descriptors[name] = answer
        elif answer is ZkError.NO_NODE:
            found.torn = True
        else:
            self._try_again(now)

    # ---- what a complete round means ---------------------------------------------------------

    def _evaluate(self, now: int, found: _Round, out: list[CoordinatorEffect]) -> None:
        self._round = None
        answers, self._start_answers = self._start_answers, {}
        assert found.children is not None
        assert found.data is not None
        listed, data = found.children.stat, found.data.stat
        assert listed is not None
        assert data is not None
        if found.torn or listed.cversion != data.cversion:
            self._dirty = True  # somebody came or went between the reads: not one view
            return
        leaving = self._phase is Phase.LEAVING  # whatever cluster that is now, our descriptor goes
        root, store = answers[self._paths.root], answers.get(self._paths.store)
        if not leaving and not self._check_cluster(now, root, store, out):
            return
        self._retry_delay = RETRY_FIRST_MS
        self._refresh_at = now + REFRESH_EVERY_MS + self._rng.randint(0, REFRESH_EVERY_MS // 2)
        own = {
            name: answer
            for name, answer in found.descriptors.items()
            if answer.stat is not None and answer.stat.ephemeral_owner == self._session_id
        }
        if leaving:
            self._delete_own(now, sorted(own), out)
            return
        if found.replicas is not None:
            self._apply_replicas(found.replicas, out)
        members = self._decode_members(found, out)
        if members is None:
            return
        self._members = members
        assignment = self._decode_assignment(found.data, out)
        if self._phase is Phase.ENDED:
            return
        if assignment is not None:
            self._apply(assignment, data, registered=bool(own), out=out)
        if self._manages is not None and self._keep_registered(now, own, out):
            self._coordinate(now, assignment, data, out)
            if self._registering and not self._reassign:
                self._registering = False
                out.append(PreferencesRegistered())

    def _decode_members(self, found: _Round, out: list[CoordinatorEffect]) -> dict[int, ServerDescriptor] | None:
        members: dict[int, ServerDescriptor] = {}
        for name, answer in found.descriptors.items():
            try:
                descriptor = decode_server_descriptor(answer.data or b"")
            except ProtocolError as problem:
                self._report_once(
                    Level.ERROR,
                    f"znode {self._paths.servers}/{name} is no server descriptor ({problem}): servers and clients of "
                    "Waltz 0.13.2 stop following the cluster until it is deleted",
                    out,
                )
                if not self._rules.bad_children_skipped:
                    return None  # Java: the exception ends the handling of this and every later change (zk-D4).
                continue
            members[descriptor.server_id] = descriptor
        return members

    def _decode_assignment(self, data: ZkDone, out: list[CoordinatorEffect]) -> PartitionAssignment | None:
        try:
            return decode_partition_assignment(data.data or b"")
        except ProtocolError as problem:
            text = f"znode {self._paths.servers} does not hold a partition assignment: {problem}"
            if self._endpoints is None:
                self._fail(f"{text}; was `create` interrupted, or is this cluster of a newer version?", out)
            else:
                self._report_once(Level.ERROR, f"{text}; staying on the last one", out)
            return None

    def _apply_replicas(self, answer: ZkDone, out: list[CoordinatorEffect]) -> None:
        try:
            replicas = decode_replica_assignments(answer.data or b"")
        except ProtocolError as problem:
            text = f"znode {self._paths.assignment} does not hold replica assignments: {problem}"
            self._report_once(Level.ERROR, f"{text}; staying on the last ones", out)
            return
        if replicas != self._replicas:
            self._replicas = replicas
            out.append(ReplicasChanged(replicas))

    def _apply(
        self, assignment: PartitionAssignment, stat: ZkStat, *, registered: bool, out: list[CoordinatorEffect]
    ) -> None:
        """Tell the parent what the view says, if it is consistent: computed for exactly these members."""
        consistent = assignment.cversion == stat.cversion
        if self._manages is not None and consistent:
            assert self.server_id is not None
            owned = assignment.of_server(self.server_id) if registered else ()
            if owned != self._owned and (registered or self._owned is not None):
                self._owned = owned
                out.append(Owned(owned))
            if self._doubtful and registered:
                self._doubtful = False
                out.append(OwnershipConfirmed())
        # A first look at an assignment that lags behind is still the best guess where partitions are.
        if consistent or not self._members or self._endpoints is None:
            endpoints = _endpoints(assignment, self._members, stat.version)
            if endpoints != self._endpoints:
                self._endpoints = endpoints
                out.append(endpoints)

    # ---- writing -----------------------------------------------------------------------------

    def _descriptor(self) -> bytes:
        assert self._manages is not None
        assert self.server_id is not None
        mark = OUR_MARK if self._rules.assignment_complete else b""
        return encode_server_descriptor(ServerDescriptor(self.server_id, self._manages.endpoint, self._preferred, mark))

    def _keep_registered(self, now: int, own: dict[str, ZkDone], out: list[CoordinatorEffect]) -> bool:
        """Whether exactly one right descriptor of ours exists; else write towards it."""
        names = sorted(own)
        if not names:
            if self._may_join(out):
                request = ZkCreate(
                    self._tickets.take(), self._paths.server_prefix, self._descriptor(), ephemeral=True, sequential=True
                )
                self._ask(now, request, self._on_written, out)
            return False
        if len(names) > 1:
            # A create whose reply was lost was repeated and both were carried out (zk-D5).
            for name in names[1:]:
                self._ask(now, ZkDelete(self._tickets.take(), f"{self._paths.servers}/{name}"), self._on_written, out)
            return False
        answer = own[names[0]]
        if answer.data != self._descriptor():
            assert answer.stat is not None
            path = f"{self._paths.servers}/{names[0]}"
            request_set = ZkSet(self._tickets.take(), path, self._descriptor(), answer.stat.version)
            self._ask(now, request_set, self._on_written, out)
            return False
        return True

    def _may_join(self, out: list[CoordinatorEffect]) -> bool:
        """Not while our joining would make a coordinator of 0.13.2 throw (zk-D1)."""
        assert self._cluster is not None
        if not self._members:
            return True
        coordinator = self._members[min(self._members)]
        if coordinator.extension == OUR_MARK or not self._rules.assignment_complete:
            return True
        if not legacy_assignment_fails(self._cluster[1], self._with_self(self._members, self._preferred)):
            return True
        self._report_once(
            Level.WARNING,
            f"this server waits to join: with {len(self._members) + 1} servers and the preferred partitions in force "
            f"the coordinator, server {coordinator.server_id} of Waltz 0.13.2, would stop assigning partitions; remove "
            "preferred partitions, or restart that server",
            out,
        )
        return False

    def _with_self(self, others: dict[int, ServerDescriptor], preferred: tuple[int, ...]) -> list[Member]:
        assert self.server_id is not None
        members = {server_id: found.preferred_partitions for server_id, found in others.items()}
        members[self.server_id] = preferred
        return [Member(server_id, wanted) for server_id, wanted in sorted(members.items())]

    def _coordinate(
        self, now: int, assignment: PartitionAssignment | None, stat: ZkStat, out: list[CoordinatorEffect]
    ) -> None:
        """Write the assignment if it is ours to write: an outdated one as coordinator, or for new preferences."""
        if assignment is None:
            return
        assert self._cluster is not None
        outdated = assignment.cversion != stat.cversion
        if outdated and not self.is_coordinator:
            return
        if not outdated and not self._reassign:
            return
        members = [Member(server_id, found.preferred_partitions) for server_id, found in sorted(self._members.items())]
        try:
            wanted = assign(assignment, self._cluster[1], members, stat.cversion, self._rng, self._rules)
        except (FewerPartitionsError, IncompleteAssignmentError) as problem:
            self._reassign = False
            self._report_once(
                Level.ERROR,
                f"cannot assign {self._cluster[1]} partitions to servers {[m.server_id for m in members]}: {problem} "
                f"(cversion {stat.cversion}, version {stat.version})",
                out,
            )
            return
        if not outdated and _owners(wanted) == _owners(assignment):
            self._reassign = False
            return
        request = ZkSet(self._tickets.take(), self._paths.servers, encode_partition_assignment(wanted), stat.version)
        self._ask(now, request, self._on_written, out)

    def _on_written(self, now: int, answer: _Answer, out: list[CoordinatorEffect]) -> None:
        """Done or not, the next reading shows it."""
        if isinstance(answer, ZkDone) or answer in (ZkError.BAD_VERSION, ZkError.NO_NODE):
            self._dirty = True
        else:
            self._try_again(now)

    def _delete_own(self, now: int, names: list[str], out: list[CoordinatorEffect]) -> None:
        if not names:
            self._end(Left(), out)
        for name in names:
            self._ask(now, ZkDelete(self._tickets.take(), f"{self._paths.servers}/{name}"), self._on_written, out)


def _owners(assignment: PartitionAssignment) -> list[tuple[int, int, int]]:
    return sorted(
        (partition, s.server_id, generation) for s in assignment.servers for partition, generation in s.partitions
    )


def _endpoints(
    assignment: PartitionAssignment, members: dict[int, ServerDescriptor], revision: int
) -> EndpointsChanged:
    """Two servers with one address (a restart before the old session ended) share an entry (zk-D9)."""
    found: dict[Endpoint, set[tuple[int, int]]] = {}
    for server_id, descriptor in sorted(members.items()):
        found.setdefault(descriptor.endpoint, set()).update(assignment.of_server(server_id))
    endpoints = tuple((endpoint, tuple(sorted(owned))) for endpoint, owned in found.items())
    return EndpointsChanged(endpoints, revision)
