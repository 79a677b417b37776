"""Where tasks run: in this process, in several, or in the executors of a Spark session."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from multiprocessing.connection import Connection
from typing import Any, Protocol, TypeVar

from waltz_spark.base.errors import PipelineError

T = TypeVar("T")
R = TypeVar("R")

OnProgress = Callable[[int, int], None]
"""Gets the records done and the records in all."""


class Runner(Protocol):
    """Runs a function of a module over tasks; both travel as pickles."""

    width: int  # tasks that run at once

    def run(self, work: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
        """Results in the order of the tasks; the first failure is raised."""
        ...


class Here:
    """In this process, one after the other, or in `jobs` processes of their own, which are started once."""

    def __init__(self, jobs: int = 1) -> None:
        self.width = jobs
        self._pool: ProcessPoolExecutor | None = None
        self._lifeline: Connection | None = None  # nothing goes over it: its end is the end of the processes

    def close(self) -> None:
        """End the processes, once they have done what they are at; the next run would start others."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()
            self._let_go()

    def _let_go(self) -> None:
        """End the processes at once, in the middle of what they do."""
        lifeline, self._lifeline = self._lifeline, None
        if lifeline is not None:
            lifeline.close()

    def run(self, work: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
        """See `Runner`."""
        if self.width == 1 or len(tasks) < 2:
            return [work(task) for task in tasks]
        if self._pool is None:
            # Not forked: the parent may have threads, of Arrow at least.
            spawn = multiprocessing.get_context("spawn")
            theirs, self._lifeline = spawn.Pipe(duplex=False)
            self._pool = ProcessPoolExecutor(self.width, spawn, _end_with, (theirs,))
        try:
            return list(self._pool.map(work, tasks))
        except BrokenExecutor:
            self.close()  # a process was killed: the others end too
            raise
        except KeyboardInterrupt:
            self._let_go()  # nobody wants to wait for what they are at
            self.close()
            raise


def _end_with(lifeline: Connection) -> None:
    """End this process when the one that started it lets go of the other end, or has ended in whatever way.

    A pool ends its processes by a message. After SIGTERM or SIGKILL of their parent nobody sends it, and none of them
    sees the end of the queue, since each holds both of its ends. Ctrl-C of a terminal, which reaches them too, is the
    parent's to answer.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def wait() -> None:
        lifeline.poll(None)
        os._exit(1)

    threading.Thread(target=wait, name="waltz parent", daemon=True).start()


class OnSpark:
    """In the executors of a session, classic or Connect; each task is a Spark task of its own."""

    def __init__(self, spark: Any, width: int | None = None) -> None:
        self.session = spark
        self.width = width if width is not None else _slots(spark)

    def run(self, work: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
        """See `Runner`. Failures of ours are raised as they are, others as Spark reports them."""
        if not tasks:
            return []
        packed = [pickle.dumps(task) for task in tasks]

        def perform(batches: Iterator[Any]) -> Iterator[Any]:
            import pyarrow as pa

            for batch in batches:
                for at in batch.column(0).to_pylist():
                    result: tuple[bool, Any]
                    try:
                        result = True, work(pickle.loads(packed[at]))
                    except PipelineError as error:
                        result = False, error
                    yield pa.RecordBatch.from_pydict({"at": [at], "result": [pickle.dumps(result)]})

        numbers = self.session.range(0, len(tasks), 1, len(tasks))
        try:
            rows = numbers.mapInArrow(perform, "at bigint, result binary").collect()
        except Exception as error:
            if _interrupted(error):
                raise KeyboardInterrupt from error
            raise
        outcomes: dict[int, tuple[bool, Any]] = {row["at"]: pickle.loads(row["result"]) for row in rows}
        results: list[R] = []
        for at in range(len(tasks)):
            fine, value = outcomes[at]
            if not fine:
                raise value
            results.append(value)
        return results


def _interrupted(error: BaseException | None) -> bool:
    """Whether a Ctrl-C led to an error: PySpark talks to its JVM once more on the way out, which may have ended."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _slots(spark: Any) -> int:
    try:
        return int(spark.sparkContext.defaultParallelism)
    except Exception:  # a Connect session does not say
        return 8
