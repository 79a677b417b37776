"""A client process whose calls make a history: registers and lists on one view, through a front of the library.

python -m tests.histories.worker JOB.json     ends in order on SIGTERM
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import attrs
import trio

import waltz_asyncio
import waltz_sync
import waltz_trio as waltz
from tests.histories.history import Recorder

FRONTS = ("trio", "sync", "asyncio")
VIEWS = ("dict", "sqlite", "postgres", "mysql")
BROKEN = ("", "locks", "reads")
_KEYS = 4  # in use at a time, of registers and of lists each
_SCHEMA = """CREATE TABLE IF NOT EXISTS registers (register BIGINT NOT NULL PRIMARY KEY, value BIGINT NOT NULL);
    CREATE TABLE IF NOT EXISTS elements (
        id BIGINT NOT NULL PRIMARY KEY, list BIGINT NOT NULL, element BIGINT NOT NULL
    )"""


@attrs.frozen
class Job:
    """What one process does."""

    name: str  # unique for each start
    number: int  # likewise
    client: str  # configuration file
    database: Any  # what the view takes
    history: str
    front: str = "trio"
    view: str = "dict"
    broken: str = ""  # "locks": appends carry none; "reads": answered from the view as it stands
    tasks: int = 4
    seed: int = 0


class Calls:
    """What the tasks of a process call: the next operation, and how it is carried out on a state."""

    def __init__(self, job: Job, recorder: Recorder) -> None:
        self.job = job
        self.recorder = recorder
        self.random = random.Random(job.seed)
        self._value = job.number * 1_000_000
        self._lock = threading.Lock()

    def called(self, task: int, kind: str, key: int, argument: Any) -> None:
        """Write down a call, before it is made."""
        self.recorder.event(str(task), "call", time.monotonic_ns(), kind=kind, key=key, argument=argument)

    def answered(self, task: int, result: Any) -> None:
        """Write down what came back."""
        self.recorder.event(str(task), "ok", time.monotonic_ns(), result=result)

    def draw(self) -> tuple[str, int, Any]:
        """Kind, key and argument of a call."""
        with self._lock:
            self._value += 1
            value, rng = self._value, self.random
            # All processes move on with the clock, so that keys are shared and each history stays short.
            epoch = int(time.monotonic() / 4) * _KEYS
            key = epoch + rng.randrange(_KEYS)
            kind = rng.choices(("read", "write", "cas", "txn"), (4, 2, 3, 4))[0]
            if kind == "txn":
                other = epoch + rng.randrange(_KEYS)
                if rng.random() < 0.25:  # only reads, two lists in one transaction of the view
                    return kind, key, [["r", other, None], ["r", key, None]]
                return kind, key, [["r", other, None], ["append", key, value]]
            return kind, key, {"read": None, "write": value, "cas": [0, value]}[kind]

    def append(self, kind: str, key: int, value: int, other: int | None = None) -> waltz.Append:
        """A transaction that changes a register, or a list having read another one."""
        payload = json.dumps([kind, key, value]).encode()
        if self.job.broken == "locks":
            return waltz.Append(payload)
        read = ((kind, other),) if other is not None and other != key else ()
        return waltz.Append(payload, write=((kind, key),), read=read)

    def decide(self, state: Any, kind: str, key: int, argument: Any, seen: dict[str, Any]) -> waltz.Append | None:
        """Of a write, a compare-and-set or a transaction; what it read is kept in `seen`."""
        if kind == "txn":
            (_, other, _), (_, _, value) = argument
            seen["read"] = _list(state, other)
            return self.append("list", key, value, other)
        if kind == "cas" and _register(state, key) != argument[0]:
            return None
        return self.append("register", key, argument[1] if kind == "cas" else argument)


def apply(txn: Any, state: Any) -> None:
    """One transaction, in a dict or a database."""
    kind, key, value = json.loads(txn.load())
    if not hasattr(state, "execute"):
        if kind == "register":
            state[f"r{key}"] = value
        else:
            state[f"l{key}"] = [*state.get(f"l{key}", ()), value]
    elif kind == "list":
        state.execute(f"INSERT INTO elements VALUES ({txn.id}, {key}, {value})")
    else:
        state.execute(f"DELETE FROM registers WHERE register = {key}")
        state.execute(f"INSERT INTO registers VALUES ({key}, {value})")


def _register(state: Any, key: int) -> int | None:
    if not hasattr(state, "execute"):
        return state.get(f"r{key}")  # type: ignore[no-any-return]
    state.execute(f"SELECT value FROM registers WHERE register = {key}")
    row = state.fetchone()
    return int(row[0]) if row else None


def _list(state: Any, key: int) -> list[int]:
    if not hasattr(state, "execute"):
        return list(state.get(f"l{key}", ()))
    state.execute(f"SELECT element FROM elements WHERE list = {key} ORDER BY id")
    return [int(row[0]) for row in state.fetchall()]


def _lists(state: Any, keys: list[int]) -> list[list[int]]:
    return [_list(state, key) for key in keys]


def reads_only(argument: Any) -> bool:
    """Whether a transaction appends nothing."""
    return all(what == "r" for what, _, _ in argument)


def view_of(job: Job, module: Any) -> Any:
    """The view of a process."""
    if job.view == "dict":
        return module.DictView(apply)
    make = {"sqlite": module.SqliteView, "postgres": module.PostgresView, "mysql": module.MySqlView}[job.view]
    return make(job.database, apply, schema=_SCHEMA)


def answer(kind: str, argument: Any, receipt: Any, seen: dict[str, Any]) -> Any:
    """What a call returned."""
    if kind == "cas":
        return receipt is not None
    if kind == "txn":
        (_, other, _), append = argument
        return [["r", other, seen["read"]], append]
    return None


def with_lists(argument: Any, lists: list[list[int]]) -> Any:
    """What a transaction returned that only reads."""
    return [["r", key, elements] for (_, key, _), elements in zip(argument, lists, strict=True)]


# ---- fronts ----------------------------------------------------------------------------------------


async def by_trio(job: Job, calls: Calls) -> None:
    """Tasks of `waltz_trio`, until SIGTERM."""
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        print("heeds signals", flush=True)
        async with (
            waltz.open_client(job.client) as client,
            client.materialize(view_of(job, waltz)) as app,
            trio.open_nursery() as nursery,
        ):
            stopped = trio.Event()
            for number in range(job.tasks):
                nursery.start_soon(_calls, app, calls, number, stopped)
            async for _ in signals:
                stopped.set()
                break


async def _calls(app: Any, calls: Calls, number: int, stopped: trio.Event | asyncio.Event) -> None:
    """One call after the other, of Trio's and asyncio's front alike."""
    while not stopped.is_set():
        kind, key, argument = calls.draw()
        if kind == "cas":
            argument[0] = (await app.read(_register, key, partition=0))[0]
        seen: dict[str, Any] = {}
        calls.called(number, kind, key, argument)
        fresh = calls.job.broken != "reads"
        if kind == "read":
            result: Any = (await app.read(_register, key, partition=0, fresh=fresh))[0]
        elif kind == "txn" and reads_only(argument):
            keys = [micro[1] for micro in argument]
            result = with_lists(argument, (await app.read(_lists, keys, partition=0, fresh=fresh))[0])
        else:
            receipt = await app.submit(calls.decide, kind, key, argument, seen, partition=0)
            result = answer(kind, argument, receipt, seen)
        calls.answered(number, result)


async def by_asyncio(job: Job, calls: Calls) -> None:
    """Tasks of `waltz_asyncio`, until SIGTERM."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    print("heeds signals", flush=True)
    async with (
        waltz_asyncio.open_client(job.client) as client,
        client.materialize(view_of(job, waltz_asyncio)) as app,
        asyncio.TaskGroup() as group,
    ):
        for number in range(job.tasks):
            group.create_task(_calls(app, calls, number, stopped))


def by_sync(job: Job, calls: Calls) -> None:
    """Threads of `waltz_sync`, until SIGTERM."""
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    print("heeds signals", flush=True)
    with waltz_sync.open_client(job.client) as client, client.materialize(view_of(job, waltz_sync)) as app:

        def task(number: int) -> None:
            while not stopped.is_set():
                kind, key, argument = calls.draw()
                if kind == "cas":
                    argument[0] = app.read(_register, key, partition=0)[0]
                seen: dict[str, Any] = {}
                calls.called(number, kind, key, argument)
                fresh = job.broken != "reads"
                if kind == "read":
                    result: Any = app.read(_register, key, partition=0, fresh=fresh)[0]
                elif kind == "txn" and reads_only(argument):
                    keys = [micro[1] for micro in argument]
                    result = with_lists(argument, app.read(_lists, keys, partition=0, fresh=fresh)[0])
                else:
                    receipt = app.submit(calls.decide, kind, key, argument, seen, partition=0)
                    result = answer(kind, argument, receipt, seen)
                calls.answered(number, result)

        threads = [threading.Thread(target=task, args=(number,)) for number in range(job.tasks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    made = Job(**json.loads(Path(sys.argv[1]).read_text()))
    with Recorder(Path(made.history), made.name) as written:
        if made.front == "trio":
            trio.run(by_trio, made, Calls(made, written))
        elif made.front == "asyncio":
            asyncio.run(by_asyncio(made, Calls(made, written)))
        else:
            by_sync(made, Calls(made, written))
