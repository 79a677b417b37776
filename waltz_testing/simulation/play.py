"""One run of a plan: members with the user's view, `apply` and `decide` on a simulated cluster, and what is judged.

The members are the product's own client and application (`waltz_trio`), in virtual time; servers and storage nodes are
the product's machines, on simulated disks and a simulated network. Every state that a view reaches is checked with the
invariants of the application; when the faults are over every call must end, and all views must agree, with each other
and with one that is built anew from the log.
"""

from __future__ import annotations

import copy
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from functools import partial
from inspect import iscoroutinefunction
from pathlib import Path
from random import Random
from typing import Any, cast

import attrs
import trio

from waltz_core.base.contract import Tickets
from waltz_core.base.edge import Level, Report
from waltz_core.base.errors import ClientError, KeyReusedError, RetriesExhaustedError
from waltz_core.client.membership import ZkMembership
from waltz_core.client.settings import ClientSettings
from waltz_testing.simulation.cluster import ROOT, SimCluster
from waltz_testing.simulation.plan import Fault, Plan, Submit
from waltz_testing.simulation.virtual import VirtualDriver, run_virtually
from waltz_testing.simulation.watch import WatchedView, watched
from waltz_testing.simulation.world import SimNode
from waltz_trio import Append, Application, Receipt, View
from waltz_trio.client.arguments import check_decide, whole
from waltz_trio.client.client import Client
from waltz_trio.client.connect import client_on
from waltz_trio.client.encoding import ClientLimits
from waltz_trio.client.shown import shown

_RESTART_MS = 200
_PATIENCE_S = 300.0  # simulated, after the last fault: a task that still waits then would never end
_SHOWN_MAX = 300  # characters of a state
_NAMES = "abcdefghijklmnopqrstuvwxyz"


def _all(invariants: Iterable[Callable[[Any], object]]) -> tuple[Callable[[Any], object], ...]:
    if not isinstance(invariants, Iterable):
        raise TypeError(f"invariants are a list of functions, found {shown(invariants)}; write invariants=[FUNCTION]")
    every = tuple(invariants)
    for invariant in every:
        if not callable(invariant):
            raise TypeError(f"an invariant is a function of the state, found {shown(invariant)}")
    return every


def _opens(_: object, field: object, view: Any) -> None:
    if not callable(view):
        raise TypeError(
            f"view is a function that opens the view of one member, found {shown(view)}; write "
            "Simulated(view=lambda directory: DictView(apply))"
        )


@attrs.frozen
class Simulated:
    """An application to be simulated.

    Args:
        view: opens the view of one member. Its directory is empty at first, and outlives the crashes of this member.
        invariants: functions of the state that raise, or return False, where it must not be so.
        observe: makes of the state what transcripts show, and what must be the same in all views at the end. A
            state in memory is taken as it is; of a database nothing is compared without it.
    """

    view: Callable[[Path], View[Any]] = attrs.field(validator=_opens)
    invariants: tuple[Callable[[Any], object], ...] = attrs.field(default=(), converter=_all)
    observe: Callable[[Any], object] | None = None


@attrs.frozen
class Failure:
    """What is wrong."""

    name: str  # of an invariant, or of what else was promised
    text: str


@attrs.define
class Played:
    """A run that is over."""

    plan: Plan
    failure: Failure | None = None
    lines: list[str] = attrs.field(factory=list)  # the transcript
    counts: Counter[str] = attrs.field(factory=Counter)
    simulated_ms: int = 0


def play(application: Simulated, plan: Plan) -> Played:
    """Run a plan; the same plan gives the same run, if the application is deterministic."""
    played = Played(plan)
    directory = Path(tempfile.mkdtemp(prefix="waltz-simulation-"))
    try:
        _Run(application, plan, played, directory).go()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return played


class _Call:
    """One submit of the plan."""

    def __init__(self, submit: Submit) -> None:
        self.submit = submit
        self.over = trio.Event()


class _Member:
    """One process with a view, through all its lives."""

    def __init__(self, run: _Run, name: str) -> None:
        self.run, self.name = run, name
        self.directory = run.directory / name
        self.directory.mkdir()
        self.up = trio.Event()  # set while `application` is there
        self.application: Application[Any] | None = None
        self.view: WatchedView | None = None
        self.waiting: list[_Call] = []  # calls that came while it was down, or died with it and have a key
        self.resumes_at = 0.0
        self.scope = trio.CancelScope()
        self._client: Client | None = None
        self._tasks: trio.Nursery | None = None
        self._node = SimNode(run.world, name, lambda: self._client._node if self._client is not None else None)

    async def live(self) -> None:
        """One life after the other, until cancelled."""
        life = 0
        while True:
            life += 1
            with trio.CancelScope() as self.scope:
                await self._one_life(life)
            await trio.sleep_until(self.resumes_at)
            self.run.note(self.name, "starts again")

    def kill(self, for_ms: int) -> None:
        """End the process as a crash would: connections break, nothing more is said or written."""
        self.resumes_at = max(self.resumes_at, trio.current_time() + (for_ms + _RESTART_MS) / 1000)
        self._down()
        self._node.crash()
        self.scope.cancel()

    @property
    def node(self) -> SimNode:
        """The process, as the network sees it."""
        return self._node

    async def _one_life(self, life: int) -> None:
        rng = Random(f"{self.run.plan.seed}/{self.name}/{life}")
        client = self._client = Client(
            ZkMembership(ROOT, Tickets(), rng), ClientSettings(), ClientLimits(max_in_flight=20), None, rng
        )
        client._life.report = partial(self.run.reported, self.name)
        try:
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(client_on(VirtualDriver(self._node, client), client, 0.0))
                self.view = watched(_opened(self.run.application, self.directory), partial(self.run.applied, self))
                app = await stack.enter_async_context(client.materialize(self.view))
                async with trio.open_nursery() as self._tasks:
                    self.application = app
                    self.up.set()
                    waiting, self.waiting = self.waiting, []
                    for call in waiting:
                        self.begin(call)
                    await trio.sleep_forever()
        except ClientError as error:
            cause = f": {error.__cause__!r}" if error.__cause__ is not None else ""
            self.run.fail("the application goes on", f"{self.name} ended by {type(error).__name__}: {error}{cause}")
        finally:
            self._down()

    def _down(self) -> None:
        if self.application is not None:
            self.application, self.up = None, trio.Event()

    def begin(self, call: _Call) -> None:
        """Call submit, now or when the process is there again."""
        if self.application is None or self._tasks is None:
            self.waiting.append(call)
        else:
            self._tasks.start_soon(self._submit, self.application, call)

    async def _submit(self, app: Application[Any], call: _Call) -> None:
        run, submit = self.run, call.submit
        run.note(self.name, f"calls {submit}")
        receipt: Receipt | None = None
        try:
            receipt = await app.submit(
                partial(run.decide, self.name, call),
                *submit.args,
                partition=submit.partition,
                key=submit.key,
                until=submit.until,  # type: ignore[arg-type]  # as the user gave it
                retry=submit.retry,
            )
        except trio.Cancelled:
            self._died_with(call)
            raise
        except (RetriesExhaustedError, KeyReusedError) as error:
            outcome, counted = f"{type(error).__name__}: {error}", "gave up"
        except ClientError as error:
            outcome, counted = f"unknown: {error}", "unknown"
        except Exception as error:
            run.fail("decide raises nothing", f"{submit} raised {error!r}")
            return
        else:
            counted = "declined" if receipt is None else "committed"
            outcome = counted if receipt is None else f"committed as {run.id_of(receipt)}"
        if receipt is not None:
            run.played.counts["conflicts"] += receipt.conflicts
        self._over(call, counted, outcome)

    def _died_with(self, call: _Call) -> None:
        if call.submit.key is not None and not self.run.over.is_set():
            self.waiting.append(call)  # who has a key asks again
        else:
            self._over(call, "unknown", "unknown: its process died")

    def _over(self, call: _Call, counted: str, outcome: str) -> None:
        call.over.set()
        self.run.played.counts[counted] += 1
        self.run.note(self.name, f"{call.submit}: {outcome}")


class _Run:
    """Everybody in one run."""

    def __init__(self, application: Simulated, plan: Plan, played: Played, directory: Path) -> None:
        self.application, self.plan, self.played, self.directory = application, plan, played, directory
        self.over = trio.Event()
        self.cluster = SimCluster(plan.seed, partitions=plan.partitions, servers=plan.servers)
        self.world = self.cluster.world
        self.world.tolerates = lambda text: True
        self.world.on_rare = self._hear
        self.members: list[_Member] = []
        self._start_ms = 0
        self._strikes = _Strikes(self)
        self._calls = [_Call(step.what) for step in plan.steps if isinstance(step.what, Submit)]

    def go(self) -> None:
        """Set up, run, judge."""
        self.cluster.start()
        self.cluster.until_open()
        try:
            run_virtually(self.world, self._main)
        except RuntimeError as error:
            if "never comes" not in str(error):
                raise
            self.fail("everything ends", str(error))
        self.played.simulated_ms = self.world.now - self._start_ms

    async def _main(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._judge, nursery)
            await self.over.wait()
            nursery.cancel_scope.cancel()

    async def _judge(self, nursery: trio.Nursery) -> None:
        await self._begin(nursery)
        calls = iter(self._calls)
        start = trio.current_time()
        for step in self.plan.steps:
            await trio.sleep_until(start + step.at_ms / 1000)
            if isinstance(step.what, Fault):
                self._strikes.strike(step.what)
            else:
                self.members[step.member % len(self.members)].begin(next(calls))
        await trio.sleep_until(max(trio.current_time(), self._strikes.over_at))
        with trio.move_on_after(_PATIENCE_S) as patience:
            await self._settle(nursery)
        if patience.cancelled_caught:
            waiting = [str(call.submit) for call in self._calls if not call.over.is_set()]
            self.fail("every call ends", f"waiting {_PATIENCE_S:.0f} s after the last fault: {', '.join(waiting)}")
        self.over.set()

    async def _begin(self, nursery: trio.Nursery) -> None:
        for number in range(self.plan.members):
            await self._add_member(nursery, _NAMES[number % len(_NAMES)])
        self._start_ms = self.world.now

    async def _add_member(self, nursery: trio.Nursery, name: str) -> _Member:
        member = _Member(self, name)
        self.members.append(member)
        nursery.start_soon(member.live)
        await self._until_up(member)
        return member

    async def _until_up(self, member: _Member) -> Application[Any]:
        await member.up.wait()
        assert member.application is not None
        return member.application

    async def _settle(self, nursery: trio.Nursery) -> None:
        """Every call ends, and all views come to the same state."""
        for call in self._calls:
            await call.over.wait()
        fresh = await self._add_member(nursery, "anew")
        seen: dict[str, object] = {}
        for member in self.members:
            app = await self._until_up(member)
            await app.caught_up()
            assert member.view is not None
            for partition in range(self.plan.partitions):
                state, _ = member.view.inner.read(partition, self.observed, ())
                seen[member.name] = state
        differing = [name for name, state in seen.items() if state != seen[fresh.name]]
        if differing:
            name = differing[0]
            self.fail(
                "all views agree",
                f"the view of {name} has {_shown(seen[name])}, a view built anew from the log {_shown(seen['anew'])}",
            )

    # ---- what is seen --------------------------------------------------------------------------------

    def applied(self, member: _Member, partition: int, transaction_id: int) -> None:
        """A view has applied a transaction: look at its state."""
        self.played.counts["applied"] += 1
        assert member.view is not None
        for check in self.application.invariants:
            verdict = member.view.inner.read(partition, _judged, (check,))[0]
            if verdict is not None:
                state, _ = member.view.inner.read(partition, self.observed, ())
                name = getattr(check, "__name__", repr(check))
                where = f" of partition {partition}" if self.plan.partitions > 1 else ""
                shown = "" if state is None else f": {_shown(state)}"
                self.fail(name, f"transaction {transaction_id}{where} breaks it{shown}{verdict}")
                return

    def observed(self, state: Any) -> object:
        """What a state looks like from outside."""
        if self.application.observe is not None:
            return self.application.observe(state)
        try:
            return copy.deepcopy(state)
        except Exception:  # a cursor, or something else that is no value
            return None

    def decide(self, name: str, call: _Call, state: Any, *args: Any) -> Append | None:
        """The user's own function, with a note of what it saw."""
        append: Append | None = call.submit.decide(state, *args)
        seen = self.observed(state)
        on = "" if seen is None else f" sees {_shown(seen)},"
        self.note(name, f"{call.submit}{on} {_wanted(append)}")
        return append

    def id_of(self, receipt: Receipt) -> str:
        """A transaction, as transcripts name it."""
        return str(int(receipt)) if self.plan.partitions == 1 else f"{receipt.partition}/{int(receipt)}"

    def note(self, who: str, text: str) -> None:
        """A line of the transcript."""
        if self.over.is_set():
            return
        at = f"{self.world.now - self._start_ms:>6} ms" if self._start_ms else "   start"
        self.played.lines.append(f"{at}  {who:<4}  {text}")

    def reported(self, who: str, level: Level, text: str) -> None:
        """A client complains."""
        if level >= Level.WARNING:
            self.note(who, f"{level.name}: {text}")

    def _hear(self, node: SimNode, effect: Any) -> None:
        if isinstance(effect, Report) and effect.level >= Level.ERROR:
            self.note(node.name, f"{effect.level.name}: {effect.text}")

    def fail(self, name: str, text: str) -> None:
        """Something is wrong; the first of it counts."""
        if self.played.failure is None:
            self.played.failure = Failure(name, text)
            self.note("", f"WRONG: {name}: {text}")
        self.over.set()


class _Strikes:
    """Carries out the faults of a plan."""

    def __init__(self, run: _Run) -> None:
        self._run = run
        self.over_at = 0.0  # when the last one is over
        self._storage_down = False

    def strike(self, fault: Fault) -> None:
        """Let it happen, and end after its time."""
        self.over_at = max(self.over_at, trio.current_time() + fault.for_ms / 1000)
        what = getattr(self, "_" + fault.kind.replace(" ", "_").lower())(fault)
        if what:
            self._run.played.counts["faults"] += 1
            self._run.note("", f"fault: {fault.kind}: {what}, for {fault.for_ms} ms")

    def _later(self, fault: Fault, action: Callable[[], None]) -> None:
        self._run.world.after(fault.for_ms, action)

    def _member(self, fault: Fault) -> _Member:
        return self._run.members[fault.whom % len(self._run.members)]

    def _server(self, fault: Fault) -> SimNode:
        servers = self._run.cluster.servers
        return servers[fault.whom % len(servers)]

    def _process(self, fault: Fault) -> SimNode:
        """A member or a server."""
        return self._member(fault).node if fault.whom % 2 else self._server(fault)

    def _kill_member(self, fault: Fault) -> str:
        member = self._member(fault)
        if member.application is None:
            return ""
        member.kill(fault.for_ms)
        return member.name

    def _kill_server(self, fault: Fault) -> str:
        server = self._server(fault)
        if not server.alive:
            return ""
        server.crash()
        self._later(fault, server.start)
        return server.name

    def _kill_storage_node(self, fault: Fault) -> str:
        storages = self._run.cluster.storages
        storage = storages[fault.whom % len(storages)]
        if self._storage_down or not storage.node.alive:
            return ""
        self._storage_down = True

        def restart() -> None:
            self._storage_down = False
            storage.start()

        storage.crash(power=fault.whom % 2 == 0)
        self._later(fault, restart)
        return storage.node.name

    def _cut_off(self, fault: Fault) -> str:
        node, network = self._process(fault), self._run.world.network
        others = [name for name in self._run.world.nodes if name != node.name]
        pairs = {(node.name, other) for other in others} | {(other, node.name) for other in others}
        network.cut |= pairs
        self._later(fault, lambda: network.heal(pairs))
        return node.name

    def _pause(self, fault: Fault) -> str:
        server = self._server(fault)
        if not server.alive or server.frozen:
            return ""
        server.freeze()
        self._later(fault, server.thaw)
        return server.name

    def _break_connections(self, fault: Fault) -> str:
        node = self._process(fault)
        for peer in sorted({way.target.name for way in node.conns.values()}):
            self._run.world.network.reset_between(node.name, peer)
        return node.name

    def _lose_zookeeper(self, fault: Fault) -> str:
        node = self._process(fault)
        if not node.alive or node.frozen:
            return ""
        self._run.world.zookeeper.suspend(node, max(1, fault.for_ms))
        return node.name

    def _slow_network(self, fault: Fault) -> str:
        network = self._run.world.network
        network.latency = (0, 100)
        self._later(fault, lambda: setattr(network, "latency", (0, 2)))
        return "everybody"

    def _lock_view(self, fault: Fault) -> str:
        member = self._member(fault)
        view = member.view
        if view is None or view.locked:
            return ""
        view.locked = True
        self._later(fault, lambda: setattr(view, "locked", False))
        return member.name


def _judged(state: Any, check: Callable[[Any], object]) -> str | None:
    """What an invariant says against a state; None = nothing."""
    try:
        return "" if check(state) is False else None
    except Exception as error:
        return f" ({str(error) or repr(error)})"


def _wanted(decision: object) -> str:
    if isinstance(decision, Append):
        return f"wants {decision.value!r}"
    return "declines" if decision is None else f"returns {decision!r}"


def _shown(state: object) -> str:
    text = repr(state)
    return text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 1] + "…"


def check_submit(submit: object, partitions: int) -> Submit:
    """See that a workload gives calls that can be simulated.

    Raises:
        TypeError: it does not.
        ValueError: a call is for a partition that there is not.
    """
    if not isinstance(submit, Submit):
        raise TypeError(f"a workload returns Submit(decide, *args), found {submit!r}")
    if iscoroutinefunction(submit.decide):
        raise TypeError("simulate runs plain `decide` functions, found `async def`")
    check_decide(submit.decide)
    if not 0 <= whole(submit.partition, "partition") < partitions:
        there = f"the simulated cluster has partitions 0 to {partitions - 1}"
        raise ValueError(
            f"{submit} is for partition {submit.partition}, and {there}; write simulate(..., partitions=N)"
        )
    return submit


def _opened(application: Simulated, directory: Path) -> View[Any]:
    view: Any = application.view(directory)
    if not callable(getattr(view, "load_mark", None)):
        raise TypeError(f"Simulated(view=...) expects a function that opens a view, it returned {shown(view)}")
    return cast(View[Any], view)
