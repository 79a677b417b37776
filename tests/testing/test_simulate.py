"""`simulate`: it finds what is wrong, shows it, and finds nothing where nothing is wrong."""

from __future__ import annotations

import importlib
import os
import random
import re
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, cast

import attrs
import pytest
import trio
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.docs.blocks import blocks_of
from waltz_testing import Fault, Plan, Simulated, SimulationError, Step, Submit, check_plan, simulate
from waltz_testing.simulation.plan import FAULTS
from waltz_testing.simulation.virtual import tasks_ordered_by
from waltz_testing.strategies import plans
from waltz_trio import Append, DictView, Json, Key, Keys, SqliteView, Transaction

ROOT = Path(__file__).parents[2]
OPENED = 100
NAMES = ("ann", "bob", "cid")
Balances = dict[str, int]


@attrs.frozen
class Transfer:
    """Money from one account to another."""

    source: str
    target: str
    amount: int
    order: str = ""


TRANSFER = Json(Transfer)


def apply(txn: Transaction, balances: Balances) -> None:
    moved = txn.load(TRANSFER)
    balances[moved.source] = balances.get(moved.source, OPENED) - moved.amount
    balances[moved.target] = balances.get(moved.target, OPENED) + moved.amount


def lock(name: str) -> tuple[str, int]:
    return "account", NAMES.index(name)


def transfer(balances: Balances, source: str, target: str, amount: int, order: str = "") -> Append | None:
    if balances.get(source, OPENED) < amount:
        return None
    return Append(Transfer(source, target, amount, order), TRANSFER, write=[lock(source), lock(target)])


def careless(balances: Balances, source: str, target: str, amount: int) -> Append | None:
    """Locks the account that it adds to, and not the one that it looked at."""
    append = transfer(balances, source, target, amount)
    return None if append is None else attrs.evolve(append, write=[lock(target)])


def nobody_is_overdrawn(balances: Balances) -> bool:
    return all(balance >= 0 for balance in balances.values())


BANK = Simulated(view=lambda directory: DictView(apply), invariants=[nobody_is_overdrawn])


def workload(decide: Callable[..., Append | None]) -> Callable[[random.Random], Submit]:
    def draw(rng: random.Random) -> Submit:
        return Submit(decide, *rng.sample(NAMES, 2), rng.randint(1, 100))

    return draw


def test_a_decision_on_what_no_lock_covers_is_found_and_made_small() -> None:
    with pytest.raises(SimulationError) as raised:
        simulate(BANK, workload(careless), seeds=range(20))
    played = raised.value.played
    assert played.failure is not None
    assert played.failure.name == "nobody_is_overdrawn"
    assert len(played.plan.steps) == 2, "two decisions on one state"
    text = str(raised.value)
    assert re.search(r"ms  a     careless\('\w+', '\w+', \d+\) sees \{.*\}, wants Transfer\(", text)
    assert f"seeds=[{raised.value.seed}]" in text


def test_a_sound_bank_stands_every_fault() -> None:
    summary = simulate(BANK, workload(transfer), seeds=range(6), calls=25)
    assert summary.counts["committed"] > 50
    assert summary.counts["declined"] > 10
    assert summary.counts["conflicts"] > 10
    assert summary.counts["faults"] > 3


@pytest.mark.parametrize("kind", FAULTS)
def test_every_kind_of_fault_strikes_and_passes(kind: str) -> None:
    steps = [Step(10 * at, Submit(transfer, "ann", "bob", 1), at % 2) for at in range(20)]
    steps[10:10] = [Step(100, Fault(kind, 3_000, whom)) for whom in (0, 1)]
    played = check_plan(BANK, Plan(3, tuple(steps)))
    assert played.counts["faults"] >= 1
    assert any(f"fault: {kind}: " in line for line in played.lines)
    assert played.counts["committed"] + played.counts["unknown"] == 20


def key_of(txn: Transaction) -> Key | None:
    order = txn.load(TRANSFER).order
    return Key(order, "request") if order else None


def test_a_keyed_call_that_died_with_its_process_is_made_again_and_pays_once() -> None:
    seen: list[Balances] = []

    def observe(balances: Balances) -> Balances:
        seen.append(dict(balances))
        return seen[-1]

    bank = Simulated(lambda directory: DictView(apply, keys=Keys(key_of)), observe=observe)
    pay = [Submit(transfer, "ann", "bob", 1, f"order-{n}", key=Key(f"order-{n}", "request")) for n in range(20)]
    steps = [Step(5 * at, submit) for at, submit in enumerate(pay)]
    steps[10:10] = [Step(at, Fault("kill member", 50)) for at in (47, 48)]
    played = check_plan(bank, Plan(5, tuple(steps), members=1))
    assert played.counts["committed"] == 20
    assert sum("starts again" in line for line in played.lines) == 1
    assert seen[-1] == {"ann": OPENED - 20, "bob": OPENED + 20}


def test_an_error_names_the_view_that_was_given() -> None:
    pay = Step(5, Submit(transfer, "ann", "bob", 1, "order-1", key=Key("order-1", "request")))
    with pytest.raises(SimulationError, match=r"needs a view that remembers keys: DictView\(\.\.\., keys="):
        check_plan(BANK, Plan(5, (pay,), members=1))


def put(txn: Transaction, db: sqlite3.Cursor) -> None:
    moved = txn.load(TRANSFER)
    for name, amount in ((moved.source, -moved.amount), (moved.target, moved.amount)):
        db.execute("INSERT OR IGNORE INTO balance VALUES (?, ?)", (name, OPENED))
        db.execute("UPDATE balance SET amount = amount + ? WHERE name = ?", (amount, name))


def balances_of(db: sqlite3.Cursor) -> Balances:
    return dict(db.execute("SELECT name, amount FROM balance ORDER BY name").fetchall())


def pay_from_rows(db: sqlite3.Cursor, source: str, target: str, amount: int) -> Append | None:
    return transfer(balances_of(db), source, target, amount)


def test_views_on_databases_keep_their_state_when_a_member_dies() -> None:
    schema = "CREATE TABLE IF NOT EXISTS balance (name TEXT PRIMARY KEY, amount INTEGER)"
    bank = Simulated(
        view=lambda directory: SqliteView(directory / "bank.db", put, schema=schema, name="bank", version=1),
        invariants=[lambda db: nobody_is_overdrawn(balances_of(db))],
        observe=balances_of,
    )
    summary = simulate(bank, workload(pay_from_rows), seeds=range(3), calls=15, faults=["kill member"])
    assert summary.counts["committed"] > 10


def test_an_apply_that_is_not_a_function_of_the_log_is_found() -> None:
    applied = [0]

    def counting(txn: Transaction, balances: Balances) -> None:
        apply(txn, balances)
        applied[0] += 1
        balances["ann"] += applied[0] % 7

    bank = Simulated(view=lambda directory: DictView(counting))
    with pytest.raises(SimulationError, match="all views agree"):
        simulate(bank, workload(transfer), seeds=range(3), calls=10)


def test_an_apply_many_that_differs_from_apply_is_found() -> None:
    """Views get the log in different batches, so they come to different states."""

    def last_only(txns: Sequence[Transaction], balances: Balances) -> None:
        apply(txns[-1], balances)

    def each(txns: Sequence[Transaction], balances: Balances) -> None:
        for txn in txns:
            apply(txn, balances)

    bank = Simulated(view=lambda directory: DictView(apply, apply_many=last_only))
    with pytest.raises(SimulationError, match="all views agree"):
        simulate(bank, workload(transfer), seeds=range(5), calls=15)
    simulate(Simulated(view=lambda directory: DictView(apply, apply_many=each)), workload(transfer), seeds=range(3))


def test_what_apply_and_decide_raise_is_a_failure() -> None:
    def broken(txn: Transaction, balances: Balances) -> None:
        raise ZeroDivisionError("apply")

    with pytest.raises(SimulationError, match=r"the application goes on: a ended by ApplyFailedError.*ZeroDivision"):
        simulate(Simulated(view=lambda directory: DictView(broken)), workload(transfer), seeds=[1], calls=2)

    def confused(balances: Balances, source: str, target: str, amount: int) -> Append | None:
        raise KeyError(source)

    with pytest.raises(SimulationError, match=r"decide raises nothing: confused\('\w+', .*KeyError"):
        simulate(BANK, workload(confused), seeds=[1], calls=2)


def test_an_application_that_looks_at_something_else_is_said_to() -> None:
    calls = [0]

    def moody(balances: Balances, source: str, target: str, amount: int) -> Append | None:
        calls[0] += 1
        return careless(balances, source, target, amount + calls[0])

    with pytest.raises(SimulationError, match="The second run of this seed differs"):
        simulate(BANK, workload(moody), seeds=range(20))


def test_a_seed_is_the_same_run_in_every_process() -> None:
    program = (
        "from tests.testing.test_simulate import *\n"
        "from waltz_testing.simulation.play import play\n"
        "from waltz_testing.simulation.plan import draw_plan\n"
        "plan = draw_plan(4, workload(transfer), calls=30, partitions=1, faults=FAULTS)\n"
        "print('\\n'.join(play(BANK, plan).lines))\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": number, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for number in ("1", "2")
    }
    assert len(outputs) == 1
    assert len(outputs.pop().splitlines()) > 60


def order_of_tasks(beside: Callable[[], object]) -> list[int]:
    """How three tasks take turns by a seed, with something else done between their steps."""
    turns: list[int] = []

    async def take_turns(number: int) -> None:
        for _ in range(20):
            turns.append(number)
            beside()
            await trio.lowlevel.checkpoint()

    with tasks_ordered_by(random.Random(1)):
        trio.run(at_once, take_turns, 3)
    return turns


async def at_once(task: Callable[[int], Awaitable[object]], count: int) -> None:
    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(task, number)


def test_trio_in_another_thread_changes_nothing_of_a_run() -> None:
    """As a client of `waltz_sync` has it, which such a process may well use beside."""

    async def pass_on(number: int) -> None:
        await trio.lowlevel.checkpoint()

    def run_others() -> None:
        thread = threading.Thread(target=trio.run, args=(at_once, pass_on, 5))
        thread.start()
        thread.join()

    assert order_of_tasks(run_others) == order_of_tasks(lambda: None)
    assert len({tuple(order_of_tasks(lambda: None)[at : at + 3]) for at in range(0, 60, 3)}) > 3


def test_hypothesis_draws_plans() -> None:
    names = st.sampled_from(NAMES)
    submits = st.builds(Submit, st.just(careless), names, names, st.integers(50, 100))
    failed: list[SimulationError] = []

    @settings(max_examples=30, derandomize=True, database=None, deadline=None, phases=[Phase.generate])
    @given(plans(submits, steps_max=12, faults=()))
    def overdraws_nobody(plan: Plan) -> None:
        if not failed:
            try:
                check_plan(BANK, plan)
            except SimulationError as error:
                failed.append(error)

    overdraws_nobody()
    assert failed
    assert "nobody_is_overdrawn" in str(failed[0])


def test_what_cannot_be_simulated_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown fault 'earthquake'; known: kill member"):
        simulate(BANK, workload(transfer), faults=["earthquake"])
    with pytest.raises(TypeError, match=r"a workload returns Submit\(decide, \*args\), found None"):
        simulate(BANK, lambda rng: None)  # type: ignore[arg-type, return-value]

    async def slow(balances: Balances) -> None: ...

    with pytest.raises(TypeError, match="plain `decide` functions"):
        simulate(BANK, lambda rng: Submit(slow))
    with pytest.raises(ValueError, match=r"is for partition 2, and the simulated cluster has partitions 0 to 1; write"):
        simulate(BANK, lambda rng: Submit(transfer, partition=2), partitions=2)
    with pytest.raises(TypeError, match="expected a function that gets the state and decides, found None"):
        simulate(BANK, lambda rng: Submit(cast(Any, None)))
    with pytest.raises(TypeError, match=r"faults are a collection of texts, .* write faults=\['pause'\]"):
        simulate(BANK, workload(transfer), faults="pause")
    with pytest.raises(ValueError, match=r"seeds is empty: nothing would be tried"):
        simulate(BANK, workload(transfer), seeds=())
    with pytest.raises(TypeError, match=r"a seed is a whole number, found 'a'"):
        simulate(BANK, workload(transfer), seeds=cast(Any, ["a"]))
    with pytest.raises(TypeError, match=r"view is a function that opens the view of one member, found"):
        Simulated(view=cast(Any, DictView(apply)))
    with pytest.raises(TypeError, match=r"expects a function that opens a view, it returned None"):
        simulate(Simulated(view=lambda directory: cast(Any, None)), workload(transfer), seeds=[1], calls=1)
    with pytest.raises(TypeError, match=r"invariants are a list of functions, .*; write invariants=\[FUNCTION\]"):
        Simulated(view=lambda directory: DictView(apply), invariants=cast(Any, lambda state: True))
    with pytest.raises(TypeError, match=r"an invariant is a function of the state, found 'x'"):
        Simulated(view=lambda directory: DictView(apply), invariants=cast(Any, ["x"]))
    with pytest.raises(TypeError, match=r"expected a strategy of calls, found .*; write st.builds\(Submit, ...\)"):
        plans(cast(Any, Submit(transfer)))


def test_a_decide_that_returns_something_else_is_told_as_that() -> None:
    with pytest.raises(SimulationError, match="decide must return an Append or None, not 'yes'"):
        simulate(BANK, lambda rng: Submit(cast(Any, lambda state: "yes")), seeds=[1], calls=1)


async def test_simulate_says_that_it_runs_trio_itself() -> None:
    with pytest.raises(RuntimeError, match="call it from a plain test, not from an async function"):
        simulate(BANK, workload(transfer))


def test_the_page_shows_what_its_program_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`docs/howto/seeds.md`: names, amounts and times may differ, for they change with the product; nothing else."""
    program, _, transcript, _ = (block.text for block in blocks_of("docs/howto/seeds.md"))
    (tmp_path / "test_bank_by_seed.py").write_text(program)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SimulationError) as raised:
        importlib.import_module("test_bank_by_seed").test_bank()
    assert _kinds(transcript) == _kinds(str(raised.value)), raised.value


def _kinds(transcript: str) -> Counter[str]:
    plain = re.sub(r"\{.*?\}", "{}", re.sub(r"'\w+'", "NAME", transcript))
    lines = re.sub(r"transaction \d+|committed as \d+|seeds?=?[\[ ]\d+\]?|-?\b\d+\b", "N", plain).splitlines()
    return Counter(re.sub(r"\s+", " ", line).strip() for line in lines if line.strip())
