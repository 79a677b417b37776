"""The application layer by seed: real machines and key tables, real `apply` and `decide` functions, and a
simulated view that crashes between any two steps, is put back, locked, slow, or shared by two members.

The cluster is reduced to what an application can tell of it: a log with locks that grows, appends that are lost or
judged late, answers about the committed mark that come late. `tests/model/run.py` has the rest of the cluster.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import attrs

from tests.model.invariants.application import check_call, check_end, check_paused, check_sent
from waltz_core.base.lock import key_lock
from waltz_core.client.applier import (
    Applied,
    ApplyFailed,
    BatchArrived,
    Commit,
    Poisoned,
    TakeNext,
    ViewDown,
)
from waltz_core.client.calls import Failed, Reason
from waltz_core.client.keys import KeyEntry, KeyTable, request_hash
from waltz_core.client.materialized import MaterializedPartition
from waltz_core.client.retry import Retry
from waltz_core.client.submit_calls import (
    AppendsCommitted,
    AskMark,
    Decide,
    Decided,
    DecisionDeclined,
    GaveUp,
    KeyFound,
    KeyReused,
    MarkAnswered,
    MarkReached,
    MarkWanted,
    OutcomeUnknown,
    Send,
    StateUnreadable,
    SubmitBegun,
    SubmitDone,
    Unavailable,
    Withdrawn,
    judge,
)

ACCOUNTS = 3


@attrs.frozen
class Move:
    """A transaction: money for an account, or from it."""

    account: int
    amount: int
    call: int  # whose append it was
    key: str | None
    hashed: bytes


State = dict[int, int]


def apply(move: Move, state: State) -> None:
    """What a transaction does."""
    state[move.account] = state.get(move.account, 0) + move.amount


def decide(state: State, account: int, amount: int) -> int | None:
    """A deposit, or a withdrawal that is covered."""
    return amount if state.get(account, 0) + amount >= 0 else None


@attrs.define(eq=False)
class Call:
    """One submit, or one wait for the mark."""

    number: int
    account: int = 0
    amount: int = 0
    key: str | None = None
    retry: Retry = attrs.field(factory=Retry)
    confirm: bool = True
    until_applied: bool = False
    member: Member | None = None
    began_at: int = -1  # the committed mark
    declined_at: int = -1  # the mark of the state that it was declined on last
    wanted: int = -1  # a mark
    attempts: int = 0
    outcome: object = None  # an effect, or "crashed", "left"

    @property
    def locks(self) -> tuple[int, ...]:
        """That its append writes."""
        return (self.account,) if self.key is None else (self.account, 1000 + key_lock(self.key).id % 64)

    @property
    def hashed(self) -> bytes:
        """Of its request."""
        return request_hash((self.account, self.amount))


@attrs.define
class Database:
    """What survives: state, mark and keys, which change together."""

    window: int
    mark: int = -1
    state: State = attrs.field(factory=dict)
    keys: KeyTable = attrs.field(init=False)
    locked: bool = False
    saved: tuple[int, State, list[tuple[int, str | None, bytes]]] = (-1, {}, [])
    applied: list[tuple[int, str | None, bytes]] = attrs.field(factory=list)  # in this order, since the beginning

    def __attrs_post_init__(self) -> None:
        self.keys = KeyTable(self.window)

    def save(self) -> None:
        """A backup."""
        self.saved = self.mark, dict(self.state), list(self.applied)

    def restore(self) -> None:
        """The backup is put back."""
        self.mark, state, applied = self.saved
        self.state, self.applied = dict(state), list(applied)
        self.keys = KeyTable(self.window)
        for transaction_id, key, hashed in self.applied:
            self.keys.apply(transaction_id, key, hashed)


@attrs.define(eq=False)
class InFlight:
    """An append on its way to the server, or its outcome on the way back."""

    call: Call
    member: Member
    move: Move
    based_on: int
    locks: tuple[int, ...]  # write locks
    judged: int | Failed | None = None


class Member:
    """One process: the machine, and what is under way between it and everything else."""

    def __init__(self, world: ApplicationWorld, database: Database) -> None:
        self.world, self.database = world, database
        self.expected = database.mark  # what this process has seen stored
        self.machine = MaterializedPartition(
            database.mark, world.rng.randint(1, 5), world.rng, Retry(cap=0.2), pauses=world.pauses
        )
        self.deciding: list[Call] = []
        self.decided: dict[Call, InFlight] = {}  # what waits to be sent, or waited in vain
        self.heard: dict[int, int] = {}  # lock → the last transaction of this process that took it
        self.seen = -1  # the highest mark of a state that it has decided on
        self.asked: list[int] = []  # questions for the committed mark: what it was when each left
        self.commit: Commit | None = None  # to be run
        self.answer: Applied | ApplyFailed | ViewDown | None = None  # of the view, on its way
        self.batch = (-1, -2)
        self.idle = True
        self.poison: set[int] = set()  # what this process can never apply
        self.paused = False  # by it
        self.dead = False

    # ---- the machine ---------------------------------------------------------------------------------

    def tell(self, *events: Any) -> None:
        """Step it, and take up what it says."""
        out: list[Any] = []
        self.machine.step(self.world.now, events, out)
        for effect in out:
            match effect:
                case AskMark():
                    self.asked.append(len(self.world.log) - 1)
                case Decide(call):
                    assert isinstance(call, Call)
                    self.deciding.append(call)
                case Send(call):
                    assert isinstance(call, Call)
                    call.attempts += 1
                    check_sent(self.world, self.decided[call])
                    self.world.flying.append(self.decided.pop(call))
                case Commit():
                    assert self.commit is None
                    self.commit = effect
                case TakeNext():
                    self.idle = True
                case Poisoned(transaction_id):
                    assert self.expected == transaction_id - 1, "everything before it was kept"
                    if not self.machine.pauses:
                        self.crash("cannot apply")  # the block ends, and somebody starts the program again
                        return
                    self.paused = True
                    self.world.counts["paused"] += 1
                case _:
                    self.world.ended(effect.token, effect)
        if self.paused:
            check_paused(self.world, self)

    # ---- what may happen to it -----------------------------------------------------------------------

    def choices(self) -> list[Callable[[], None]]:
        """Everything that can go on."""
        found: list[Callable[[], None]] = []
        if self.deciding:
            found.append(self._decide)
        if self.asked:
            found.append(self._answer_mark)
        if self.commit is not None:
            found.append(self._run_commit)
        if self.answer is not None:
            found.append(self._hear_view)
        if self.idle and self.expected < len(self.world.log) - 1:
            found.append(self._take_batch)
        return found

    def _take_batch(self) -> None:
        first = self.expected + 1
        last = min(len(self.world.log) - 1, first + self.world.rng.randrange(6))
        self.idle, self.batch = False, (first, last)
        self.tell(BatchArrived(first, last))

    def _run_commit(self) -> None:
        """The view's own transaction: all or nothing, and a process that dies in it leaves nothing."""
        world, database = self.world, self.database
        assert self.commit is not None
        commit, self.commit = self.commit, None
        if database.locked:
            self.answer = ViewDown()
            return
        if database.mark < self.expected:
            self.crash("view regressed")  # ViewRegressedError ends the application
            return
        state, first = dict(database.state), max(self.batch[0], database.mark + 1)
        added = []
        for transaction_id in range(first, commit.last_id + 1):
            if world.chance(0.01):
                self.crash("in a commit")
                return
            if transaction_id in self.poison or world.chance(0.04):
                if world.stubborn.random() < 0.3:
                    self.poison.add(transaction_id)
                self.answer = ApplyFailed(transaction_id)
                return
            move = world.log[transaction_id]
            apply(move, state)
            added.append((transaction_id, move.key, move.hashed))
        if added:
            database.state, database.mark = state, commit.last_id
            for transaction_id, key, hashed in added:
                database.keys.apply(transaction_id, key, hashed)
            database.applied += added
            world.counts["applied"] += len(added)
        self.answer = Applied(max(database.mark, commit.last_id))
        if world.chance(0.02):
            self.crash("behind a commit")

    def _hear_view(self) -> None:
        answer, self.answer = self.answer, None
        if isinstance(answer, Applied):
            self.expected = max(self.expected, answer.mark)
        self.tell(answer)

    def _decide(self) -> None:
        """One snapshot: the mark, who carries the key, and the decision."""
        world, database = self.world, self.database
        call = self.deciding.pop(world.rng.randrange(len(self.deciding)))
        if database.locked:
            self.tell(StateUnreadable(call))
            return
        if database.mark < self.expected:
            self.crash("view regressed")
            return
        entry = None if call.key is None else database.keys.find(call.key, database.mark)
        amount = decide(database.state, call.account, call.amount)
        if entry is not None:
            world.counts["keys found"] += 1
            self.tell(KeyFound(call, KeyEntry(entry.transaction_id, entry.request_hash)))
        elif amount is None:
            call.declined_at = database.mark
            self.tell(DecisionDeclined(call, database.mark))
        else:
            move = Move(call.account, amount, call.number, call.key, call.hashed)
            self.decided[call] = InFlight(call, self, move, database.mark, call.locks)
            self.seen = max(self.seen, database.mark)
            self.tell(Decided(call, database.mark, call.locks))

    def _answer_mark(self) -> None:
        """The mark at some moment between the question and the answer."""
        self.tell(MarkAnswered(self.world.rng.randint(self.asked.pop(0), len(self.world.log) - 1)))

    def crash(self, why: str) -> None:
        """The process dies: what it knew is gone, what it sent is not."""
        self.dead = True
        self.world.counts[f"crashes: {why}"] += 1
        self.world.died(self)


class ApplicationWorld:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(f"{seed}/application")
        self.now = 0
        self.counts: Counter[str] = Counter()
        self.log: list[Move] = []
        self.taken: dict[int, int] = {}  # lock → who took it last
        self.flying: list[InFlight] = []
        self.calls: list[Call] = []
        self.window = rng.choice((5, 40, 10_000))
        self.faulty = True
        self.stubborn = Random(f"{seed}/poison")
        self.pauses = self.stubborn.random() < 0.5
        self.guesses = Random(f"{seed}/expects")
        self.expecting = self.guesses.choice((0.0, 0.5, 1.0))  # how many submits say which locks they will want
        self.loss = rng.choice((0.0, 0.05, 0.3))
        self.crashes = rng.choice((0.0, 0.002, 0.01))
        self.databases = [Database(self.window)]
        self.members: list[Member] = []
        for _ in range(rng.randint(1, 2)):
            if self.members and rng.random() < 0.4:
                self.databases.append(Database(self.window))
            self.members.append(Member(self, self.databases[-1]))
        self._numbers = itertools.count()

    def chance(self, likely: float) -> bool:
        """Whether a fault happens now."""
        return self.faulty and self.rng.random() < likely

    def run(self, steps: int = 600) -> None:
        """Load and faults, then peace: everything must end, and be true.

        Raises:
            InvariantError: it is not.
        """
        for _ in range(steps):
            if self.rng.random() < 0.2:
                self._load()
            self._fault()
            self._go_on()
        self.faulty = False
        for database in self.databases:
            database.locked = False
        # A database that was put back while there was nothing to commit is noticed at the next commit.
        self.log.append(Move(0, 0, next(self._numbers), None, b""))
        for _ in range(200_000):
            if self._quiet():
                break
            self._go_on()
        check_end(self)

    # ---- load ----------------------------------------------------------------------------------------

    def _load(self) -> None:
        rng, member = self.rng, self.rng.choice(self.members)
        call = Call(next(self._numbers))
        kind = rng.random()
        if kind < 0.1:
            call.wanted = rng.choice((-1, len(self.log) - 1))
            self._begin(call, member, MarkWanted(call, None if call.wanted < 0 else call.wanted))
            return
        if kind < 0.2 and self.calls:
            self._leave(rng.choice(self.calls))
            return
        call.account, call.amount = rng.randrange(ACCOUNTS), rng.choice((-7, -3, 2, 5))
        call.retry = Retry(attempts=rng.choice((1, 3, float("inf"))), cap=0.1)
        call.until_applied = rng.random() < 0.3
        if rng.random() < 0.4:
            call.key = f"order-{rng.randrange(1 + len(self.calls) // 2)}"
            if rng.random() < 0.8:  # the same key is the same request, mostly
                twins = [other for other in self.calls if other.key == call.key]
                if twins:
                    call.account, call.amount = twins[0].account, twins[0].amount
        else:
            call.confirm = rng.random() < 0.8
        self.submit(call, member)

    def submit(self, call: Call, member: Member) -> None:
        """A call begins."""
        hashed = None if call.key is None else call.hashed
        expects = self._expects(call)
        self._begin(call, member, SubmitBegun(call, call.retry, call.confirm, call.until_applied, hashed, expects))

    def _expects(self, call: Call) -> tuple[int, ...]:
        """What a submit says beforehand: nothing, what it will want, a part of that, or something else."""
        guesses = self.guesses
        if guesses.random() >= self.expecting:
            return ()
        if guesses.random() < 0.3:
            self.counts["wrong expectations"] += 1
            return tuple(guesses.sample(range(ACCOUNTS), guesses.randint(1, ACCOUNTS)))
        self.counts["right expectations"] += 1
        return call.locks if guesses.random() < 0.8 else call.locks[:1]

    def _begin(self, call: Call, member: Member, event: Any) -> None:
        call.member, call.began_at = member, len(self.log) - 1
        self.calls.append(call)
        member.tell(event)

    def _leave(self, call: Call) -> None:
        if call.outcome is None and call.member is not None:
            call.outcome = "left"
            if call in call.member.deciding:
                call.member.deciding.remove(call)
            call.member.tell(Withdrawn(call))

    def ended(self, call: object, effect: Any) -> None:
        """A machine says what became of a call."""
        assert isinstance(call, Call)
        assert call.outcome is None, f"call {call.number} ended twice: {call.outcome}, {effect}"
        call.outcome = effect
        match effect:
            case SubmitDone(transaction_id=None):
                self.counts["declined"] += 1
            case SubmitDone():
                self.counts["submitted"] += 1
                self.counts["keyed"] += call.key is not None
            case GaveUp() | KeyReused() | MarkReached() | OutcomeUnknown() | Unavailable():
                self.counts[type(effect).__name__] += 1
        check_call(self, call)

    # ---- everything else -----------------------------------------------------------------------------

    def _fault(self) -> None:
        rng = self.rng
        if self.chance(self.crashes):
            rng.choice(self.members).crash("between two steps")
        if self.chance(0.02):
            database = rng.choice(self.databases)
            database.locked = not database.locked
        if self.chance(0.02):
            rng.choice(self.databases).save()
        if self.chance(self.crashes / 2):
            rng.choice(self.databases).restore()
            self.counts["restored"] += 1

    def died(self, member: Member) -> None:
        """Its callers never hear; those with a key ask again in the next life."""
        at = self.members.index(member)
        self.members[at] = reborn = Member(self, member.database)
        for call in self.calls[:]:
            if call.member is member and call.outcome is None:
                call.outcome = "crashed"
                if call.key is not None:
                    again = attrs.evolve(call, number=next(self._numbers), outcome=None, attempts=0)
                    self.counts["keyed again"] += 1
                    self.submit(again, reborn)

    def _go_on(self) -> None:
        for member in self.members[:]:
            if member.paused and (not self.faulty or self.rng.random() < 0.02):
                member.crash("paused")  # somebody has mended `apply`, and starts the program again
        choices: list[Callable[[], None]] = [choice for member in self.members for choice in member.choices()]
        choices += [self._fly] * bool(self.flying)
        if choices and self.rng.random() < 0.9:
            self.rng.choice(choices)()
            return
        self.now += self.rng.randrange(20)
        for member in self.members:
            member.tell()

    def _fly(self) -> None:
        """An append is judged, or its outcome arrives; those of one member keep their order."""
        first: dict[tuple[int, bool], InFlight] = {}
        for each in self.flying:
            first.setdefault((id(each.member), each.judged is None), each)
        chosen = self.rng.choice(list(first.values()))
        if chosen.judged is None:
            chosen.judged = self._judge(chosen)
            return
        run = self._committed_from(chosen)
        for each in run or [chosen]:
            self.flying.remove(each)
        if chosen.member.dead:
            return
        outcomes: list[tuple[object, int]] = []
        for each in run:
            assert isinstance(each.judged, int)
            chosen.member.heard |= dict.fromkeys(each.locks, each.judged)
            outcomes.append((each.call, each.judged))
        if len(run) > 1:
            self.counts["runs of outcomes"] += 1
            chosen.member.tell(AppendsCommitted(outcomes))
        else:
            assert chosen.judged is not None
            chosen.member.tell(judge(chosen.call, chosen.judged))

    def _committed_from(self, first: InFlight) -> list[InFlight]:
        """The appends of its member that have committed, from the first judged one on; none if that one has not."""
        judged = [each for each in self.flying if each.member is first.member and each.judged is not None]
        return list(itertools.takewhile(lambda each: isinstance(each.judged, int), judged))

    def _judge(self, append: InFlight) -> int | Failed:
        if self.chance(self.loss):
            reason = self.rng.choices((Reason.OVERTAKEN, Reason.NOT_NOW, Reason.REFUSED), (8, 1, 1))[0]
            if reason is Reason.REFUSED:
                self.counts["refused"] += 1
            return Failed(0, append, reason)
        blocking = max((self.taken.get(lock, -1) for lock in append.locks), default=-1)
        if blocking > append.based_on:
            self.counts["conflicts"] += 1
            return Failed(0, append, Reason.LOCK, blocking)
        self.log.append(append.move)
        for lock in append.locks:
            self.taken[lock] = len(self.log) - 1
        return len(self.log) - 1

    def _quiet(self) -> bool:
        return not self.flying and all(
            member.machine.submitter.waiting == 0 and not member.choices() and member.expected == len(self.log) - 1
            for member in self.members
        )
