"""The view that one process has of its cluster: members, assignment, and who writes it.

```
            parameters fit, ids taken                    leave()                  descriptor deleted, or time is up
STARTING ───────────────────────────► ACTIVE ───────────────────────► LEAVING ──────────────────────────────────► ENDED
    │                                   │  ▲
    │ no cluster here, or it            │  └─ reading round ─► evaluation ─► at most one kind of write ─┐
    │ contradicts itself                │          ▲                                                    │
    └────────────► ENDED ◄──────────────┘          └────────────── watch, timer, new session ◄──────────┘
                             it is another cluster now
```

Every server and every client runs one. There is no elected leader: the coordinator is the process whose server has the
smallest id in its view; several may believe that they are, and the conditional write decides.

The machine is level-triggered: a watch, a new session, a timer or the outcome of a write only mean "read again", so a
lost watch or a lost reply costs time, never correctness. Each reading asks for everything at once (`view.Round`); from
a complete and consistent reading it reports what changed, and then compares what ZooKeeper holds with what it should
hold: our descriptor, the assignment. What differs is written, provided the version is still the one that was read. So
no write need be remembered: whether it was done, refused or lost, the next reading shows it. Nothing starts while an
answer is outstanding, and every answer has a deadline. Ids come from a counter in the same way: read, write, and read
again if another process was first; an unknown outcome skips an id.

ZooKeeper owns all of it; this process only remembers its last notifications. While the session is in doubt the server
may have lost its partitions to another one: `OwnershipDoubtful` stops its appends until a reading in a live session
confirms them.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import ClassVar, TypeAlias, assert_never

import attrs

from waltz_core.base.contract import Rng, Tickets, earliest
from waltz_core.base.edge import (
    Level,
    ZkChanged,
    ZkChildren,
    ZkCreate,
    ZkDelete,
    ZkDone,
    ZkError,
    ZkEvent,
    ZkFailed,
    ZkGet,
    ZkSet,
    ZkState,
    ZkStateChanged,
)
from waltz_core.base.errors import ProtocolError
from waltz_core.cluster.identity import Ids, next_id
from waltz_core.cluster.notifications import (
    ClusterFailed,
    CoordinatorEffect,
    Joined,
    Left,
    ManagedServer,
)
from waltz_core.cluster.published import Published
from waltz_core.cluster.questions import (
    ListServers,
    Questions,
    ReadDescriptor,
    ReadParameters,
    ReadReplicas,
    ReadServers,
    TakeId,
    WriteView,
)
from waltz_core.cluster.registration import Registration, View, deletions, preference_problem
from waltz_core.cluster.view import (
    ClusterParameters,
    ContradictionError,
    Round,
    UnreadableError,
    descriptors_of,
    own_descriptors,
    parameters_of,
    same_cluster,
)
from waltz_core.zookeeper.paths import cluster_paths
from waltz_core.zookeeper.znodes import (
    PartitionAssignment,
    ServerDescriptor,
    decode_partition_assignment,
    encode_id_counter,
)

REFRESH_EVERY_MS = 30_000
LEAVE_TIMEOUT_MS = 5_000
_NO_CLUSTER = (
    "znode {path} does not exist: there is no Waltz cluster at {root}; check the ZooKeeper address and cluster.root, "
    "or create the cluster with `waltz zookeeper create`"
)

_Answer: TypeAlias = ZkDone | ZkError


class CoordinatorState(enum.Enum):
    """Where a coordinator is in its life."""

    STARTING = "starting"  # cluster parameters or our ids are not known yet
    ACTIVE = "active"  # reads the view again and again, registers, coordinates
    LEAVING = "leaving"  # deletes its own descriptor
    ENDED = "ended"  # failed or left; does nothing any more


class Coordinator:
    """Membership, assignment and registration for one process.

    The states are drawn above. Notifications and requests leave through `out`, in order.
    """

    make_registration: ClassVar[type[Registration]] = Registration

    def __init__(
        self,
        root: str,
        *,
        tickets: Tickets,
        rng: Rng,
        manages: ManagedServer | None = None,
        allocate_client_id: bool = False,
    ) -> None:
        self._paths = cluster_paths(root)
        self._rng = rng
        self._published = Published(self._paths)
        self._ids = Ids(self._paths, server=manages is not None, client=allocate_client_id)
        self._registration = (
            None if manages is None else self.make_registration(self._paths, manages, self._published, rng)
        )

        self._state = CoordinatorState.STARTING
        self._online = False
        self._session_id = 0
        self._questions = Questions(tickets, rng)
        self._refresh_at = 0
        self._leave_by = 0
        self._dirty = True
        self._round: Round | None = None

        self._cluster: ClusterParameters | None = None
        self._start_answers: dict[str, ZkDone] = {}
        self._members: dict[int, ServerDescriptor] = {}

    @property
    def server_id(self) -> int | None:
        """Id of the server that we register, once it has one."""
        return self._ids.server_id

    @property
    def client_id(self) -> int | None:
        """Our id as a client, once it was taken."""
        return self._ids.client_id

    @property
    def is_coordinator(self) -> bool:
        """Whether our server has the smallest id in the last view."""
        return self.server_id is not None and min(self._members, default=None) == self.server_id

    def deadline(self) -> int | None:
        """When `step` must be called at the latest."""
        if self._state is CoordinatorState.ENDED:
            return None
        leave_by = self._leave_by if self._state is CoordinatorState.LEAVING else None
        if not self._online:
            return leave_by
        if self._questions:
            return earliest(leave_by, self._questions.due)
        return earliest(leave_by, self._questions.retry_at if self._dirty else self._refresh_at)

    def step(self, now: int, events: Sequence[ZkEvent], out: list[CoordinatorEffect]) -> None:
        """Handle events; answers to tickets of others and changes of other paths are ignored."""
        for event in events:
            if self._state is CoordinatorState.ENDED:
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
        """Why these preferred partitions must be refused, or None."""
        if self.server_id is None or self._cluster is None:
            return "this server has not joined the cluster yet"
        others = {server_id: member for server_id, member in self._members.items() if server_id != self.server_id}
        return preference_problem(self._cluster.num_partitions, others, self.server_id, partitions)

    def set_preferred(self, now: int, partitions: Sequence[int], out: list[CoordinatorEffect]) -> None:
        """Replace the preferred partitions of our server: rewrite its descriptor, then reassign.

        `PreferencesRegistered` follows once a reading shows both.
        """
        assert self._registration is not None
        self._registration.prefer(partitions)
        self._dirty = True
        self._advance(now, out)

    def gone(self, now: int, name: str, out: list[CoordinatorEffect]) -> None:
        """The server that wrote the descriptor of this name has ended: see `Registration.gone`."""
        assert self._registration is not None
        self._registration.gone(name)
        self._dirty = True
        self._advance(now, out)

    def leave(self, now: int, out: list[CoordinatorEffect]) -> None:
        """Delete our descriptor; `Left` follows, also when ZooKeeper cannot be reached."""
        if self._state is CoordinatorState.ENDED:
            return
        if self._state is CoordinatorState.STARTING or not self._online or self._registration is None:
            self._end(Left(), out)
            return
        self._state = CoordinatorState.LEAVING
        self._leave_by = now + LEAVE_TIMEOUT_MS
        self._dirty = True
        self._advance(now, out)

    # ---- events ------------------------------------------------------------------------------

    def _on_answer(self, now: int, ticket: int, answer: _Answer, out: list[CoordinatorEffect]) -> None:
        match self._questions.take(ticket):
            case ReadParameters(path):
                self._on_parameters(path, now, answer, out)
            case ReadReplicas():
                if (done := self._read(self._paths.assignment, now, answer, out)) is not None:
                    self._reading.replicas = done
            case ReadServers():
                if (done := self._read(self._paths.servers, now, answer, out)) is not None:
                    self._reading.data = done
            case ListServers():
                self._on_children(now, answer, out)
            case ReadDescriptor(name):
                self._on_descriptor(name, now, answer, out)
            case TakeId(number):
                self._on_id(number, now, answer, out)
            case WriteView(path):
                self._on_written(path, now, answer, out)
            case None:
                pass

    def _on_changed(self, path: str) -> None:
        paths = self._paths
        if path in (paths.servers, paths.assignment, paths.root) or path.startswith(paths.servers + "/"):
            self._dirty = True

    def _on_state(self, event: ZkStateChanged, out: list[CoordinatorEffect]) -> None:
        # The next reading shows the outcome of what was under way.
        self._online = event.state is ZkState.CONNECTED
        self._questions.connected(self._online)
        self._read_again()
        if self._online:
            if event.session_id != self._session_id:
                self._published.doubt(out)
            self._session_id = event.session_id
            return
        if event.state is not ZkState.SUSPENDED:
            self._published.doubt(out)
        if self._state is CoordinatorState.LEAVING:
            # The descriptor ends with the session, which this process is about to close.
            self._end(Left(), out)

    def _expire(self, now: int, out: list[CoordinatorEffect]) -> None:
        """Handle overdue answers; the requests may still be carried out later."""
        if self._questions.overdue(now):
            self._try_again(now)
        if self._state is CoordinatorState.LEAVING and now >= self._leave_by:
            self._end(Left(), out)

    # ---- flow --------------------------------------------------------------------------------

    def _advance(self, now: int, out: list[CoordinatorEffect]) -> None:
        while self._online and self._state is not CoordinatorState.ENDED and not self._questions:
            if self._questions.pausing(now):
                return
            if self._state is CoordinatorState.STARTING:
                self._start(now, out)
            elif self._round is not None:
                self._evaluate(now, self._round, out)
            elif self._dirty or now >= self._refresh_at:
                self._begin_round(now, out)
            else:
                return

    def _write(self, now: int, requests: Sequence[ZkCreate | ZkSet | ZkDelete], out: list[CoordinatorEffect]) -> None:
        out += [attrs.evolve(request, ticket=self._questions.ask(now, WriteView(request.path))) for request in requests]

    def _read_again(self) -> None:
        """The reading so far is not one view."""
        self._round = None
        self._start_answers = {}
        self._dirty = True

    def _try_again(self, now: int) -> None:
        """Drop what is under way and read again after a pause."""
        self._questions.drop()
        self._questions.failed(now)
        self._read_again()

    def _not_done(self, path: str, now: int, error: ZkError, out: list[CoordinatorEffect]) -> None:
        """ZooKeeper did not answer a question about a znode; why is told, unless it is merely away."""
        self._published.refused(path, error, out)
        self._try_again(now)

    def _end(self, last: ClusterFailed | Left, out: list[CoordinatorEffect]) -> None:
        self._state = CoordinatorState.ENDED
        self._questions.drop()
        self._round = None
        out.append(last)

    def _fail(self, reason: str, out: list[CoordinatorEffect]) -> None:
        self._end(ClusterFailed(reason), out)

    def _broken(self, now: int, reason: str, out: list[CoordinatorEffect]) -> None:
        """A znode that a cluster needs cannot be used: no process starts on that, and none stops because of it."""
        if self._cluster is None:
            self._fail(reason, out)
        else:
            self._published.report_once(Level.ERROR, f"{reason}; staying on what is known", out)
            self._try_again(now)

    # ---- start: parameters, then ids ---------------------------------------------------------

    def _start(self, now: int, out: list[CoordinatorEffect]) -> None:
        paths = self._paths
        if self._start_answers:
            self._on_started(now, out)
            return
        others = None if self._registration is None else paths.store, self._ids.counter
        wanted = [paths.root, *(path for path in others if path is not None)]
        out += [ZkGet(self._questions.ask(now, ReadParameters(path)), path) for path in wanted]

    def _on_parameters(self, path: str, now: int, answer: _Answer, out: list[CoordinatorEffect]) -> None:
        if isinstance(answer, ZkDone):
            self._start_answers[path] = answer
        elif answer is ZkError.NO_NODE and self._cluster is not None and path != self._paths.root:
            self._broken(now, f"znode {path} does not exist", out)
        elif answer is ZkError.NO_NODE:
            self._fail(_NO_CLUSTER.format(path=path, root=self._paths.root), out)
        else:
            self._not_done(path, now, answer, out)

    def _on_started(self, now: int, out: list[CoordinatorEffect]) -> None:
        answers, self._start_answers = self._start_answers, {}
        if not self._check_cluster(now, answers[self._paths.root], answers.get(self._paths.store), out):
            return
        counter = self._ids.counter
        if counter is None:
            self._on_ids_known(out)
            return
        try:
            number, version = next_id(answers[counter])
        except ProtocolError as problem:
            self._fail(f"znode {counter}: {problem}; the cluster was not created completely", out)
            return
        out.append(ZkSet(self._questions.ask(now, TakeId(number)), counter, encode_id_counter(number), version))

    def _on_id(self, number: int, now: int, answer: _Answer, out: list[CoordinatorEffect]) -> None:
        if answer is ZkError.BAD_VERSION:
            return  # another process took it: `_advance` starts over at once
        if not isinstance(answer, ZkDone):
            self._not_done(self._ids.counter or "", now, answer, out)  # an unknown outcome skips one id at worst
            return
        self._ids.taken(number)
        if self._ids.counter is None:
            self._on_ids_known(out)

    def _on_ids_known(self, out: list[CoordinatorEffect]) -> None:
        known, self._state, self._dirty = self._cluster, CoordinatorState.ACTIVE, True
        assert known is not None
        out.append(Joined(known.name, known.num_partitions, known.key, self.server_id, self.client_id))

    def _check_cluster(self, now: int, root: ZkDone, store: ZkDone | None, out: list[CoordinatorEffect]) -> bool:
        """Whether the parameters fit together, and are those that we started with."""
        try:
            present = parameters_of(self._paths, root, store)
            self._cluster = same_cluster(self._paths.root, self._cluster, present)
        except UnreadableError as problem:
            self._broken(now, str(problem), out)
            return False
        except ContradictionError as problem:
            self._fail(str(problem), out)
            return False
        return True

    # ---- a reading round ---------------------------------------------------------------------

    def _begin_round(self, now: int, out: list[CoordinatorEffect]) -> None:
        """Arm all watches by reading: children first, then data, so that equal cversions make one view."""
        self._dirty = False
        self._round = Round()
        paths = self._paths
        out.append(ZkGet(self._questions.ask(now, ReadParameters(paths.root)), paths.root))
        if self._registration is not None:
            out.append(ZkGet(self._questions.ask(now, ReadParameters(paths.store)), paths.store))
            out.append(ZkGet(self._questions.ask(now, ReadReplicas()), paths.assignment, watch=True))
        out.append(ZkChildren(self._questions.ask(now, ListServers()), paths.servers, watch=True))
        out.append(ZkGet(self._questions.ask(now, ReadServers()), paths.servers, watch=True))

    @property
    def _reading(self) -> Round:
        """The round under way; questions that were dropped with it are not awaited any more."""
        assert self._round is not None
        return self._round

    def _read(self, path: str, now: int, answer: _Answer, out: list[CoordinatorEffect]) -> ZkDone | None:
        """The answer, or None after having failed or retried."""
        if isinstance(answer, ZkDone):
            return answer
        self._on_parameters(path, now, answer, out)
        return None

    def _on_children(self, now: int, answer: _Answer, out: list[CoordinatorEffect]) -> None:
        listed = self._read(self._paths.servers, now, answer, out)
        if listed is not None:
            self._reading.children = listed
            for name in sorted(listed.children):
                ticket = self._questions.ask(now, ReadDescriptor(name))
                out.append(ZkGet(ticket, f"{self._paths.servers}/{name}", watch=True))

    def _on_descriptor(self, name: str, now: int, answer: _Answer, out: list[CoordinatorEffect]) -> None:
        if isinstance(answer, ZkDone):
            self._reading.descriptors[name] = answer
        elif answer is ZkError.NO_NODE:
            self._reading.torn = True
        else:
            self._not_done(f"{self._paths.servers}/{name}", now, answer, out)

    # ---- what a complete round means ---------------------------------------------------------

    def _evaluate(self, now: int, reading: Round, out: list[CoordinatorEffect]) -> None:
        self._round = None
        answers, self._start_answers = self._start_answers, {}
        agreed = reading.agreed()
        if agreed is None:
            self._dirty = True
            return
        data, stat = agreed
        leaving = self._state is CoordinatorState.LEAVING  # our descriptor goes, even if that is another cluster now
        if not leaving and not self._check_cluster(now, answers[self._paths.root], answers.get(self._paths.store), out):
            return
        self._questions.succeeded()
        self._refresh_at = now + REFRESH_EVERY_MS + self._rng.randint(0, REFRESH_EVERY_MS // 2)
        own = own_descriptors(reading, self._session_id)
        if leaving:
            if not own:
                self._end(Left(), out)
            self._write(now, deletions(self._paths, sorted(own)), out)
            return
        if reading.replicas is not None:
            self._published.replicas(reading.replicas, out)
        descriptors = self._read_descriptors(reading, out)
        self._members = members = {one.server_id: one for one in descriptors.values()}
        assignment = self._decode_assignment(data, out)
        if self._state is CoordinatorState.ENDED:
            return
        if assignment is not None:
            self._published.view(assignment, stat, members, self.server_id, registered=bool(own), out=out)
        if self._registration is not None:
            assert self._cluster is not None
            assert self.server_id is not None
            view = View(
                self._cluster.num_partitions,
                self.server_id,
                self.is_coordinator,
                members,
                own,
                {name: descriptor for name, descriptor in sorted(descriptors.items()) if name not in own},
                assignment,
                stat,
            )
            self._write(now, self._registration.writes(view, out), out)

    def _read_descriptors(self, reading: Round, out: list[CoordinatorEffect]) -> dict[str, ServerDescriptor]:
        """By the names of their znodes; one that cannot be read is skipped, and reported."""
        descriptors, problems = descriptors_of(reading)
        self._published.spoilt(problems, out)
        return descriptors

    def _decode_assignment(self, data: ZkDone, out: list[CoordinatorEffect]) -> PartitionAssignment | None:
        try:
            return decode_partition_assignment(data.data or b"")
        except ProtocolError as problem:
            text = f"znode {self._paths.servers} does not hold a partition assignment: {problem}"
            if not self._published.knows_endpoints:
                self._fail(f"{text}; was `create` interrupted, or is this cluster of a newer version?", out)
            else:
                self._published.report_once(Level.ERROR, f"{text}; staying on the last one", out)
            return None

    def _on_written(self, path: str, now: int, answer: _Answer, out: list[CoordinatorEffect]) -> None:
        """Done or not, the next reading shows it."""
        if isinstance(answer, ZkDone) or answer in (ZkError.BAD_VERSION, ZkError.NO_NODE):
            self._dirty = True
        else:
            self._not_done(path, now, answer, out)
