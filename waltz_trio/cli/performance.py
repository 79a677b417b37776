"""`waltz performance ...`: how fast a cluster takes and gives transactions, by the public client."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TypeVar

import trio

import waltz_trio as waltz
from waltz_core.base.errors import WaltzError
from waltz_trio.base.background import first_of
from waltz_trio.cli.client import ACTIVE, CLIENT_CONFIG
from waltz_trio.cli.help import Parser
from waltz_trio.cli.options import JSON, Arguments, Command, CommandError, Option, parser_of
from waltz_trio.cli.progress import Counted, counted

_LOCK = "performance_analysis_lock"
_PRODUCERS_MAX = 100  # of test-consumers
_MEBIBYTE = 1 << 20

T = TypeVar("T")


class Load:
    """The options that all producers share."""

    def __init__(self, arguments: Arguments, *, interval_ms: int, locks: int) -> None:
        self.config = arguments.text("cli-config-path")
        self.size = arguments.number("txn-size", least=0)
        self.partitions = arguments.number("num-active-partitions", 1, least=1)
        self.from_latest = arguments.flag("mount_from_latest")
        self.interval_ms = interval_ms
        self.locks = locks
        self.retries = 0
        self.waited = 0.0  # seconds from `send` to the outcome, of all transactions together


class Producer:
    """One client that appends; its feeds bring what a refused transaction has to wait for."""

    def __init__(self, load: Load, client: waltz.Client) -> None:
        self.load = load
        self.client = client
        self.random = random.Random()
        self.marks: dict[int, int] = {}
        self._moved = trio.Event()

    async def follow(self, nursery: trio.Nursery) -> None:
        """Read the feed of every partition, without payloads; ready when all are where they begin."""
        if self.load.partitions > self.client.num_partitions:
            raise CommandError(
                f"--num-active-partitions is {self.load.partitions}, the cluster has {self.client.num_partitions}"
            )
        for partition in range(self.load.partitions):
            self.marks[partition] = await self.client.committed_mark(partition) if self.load.from_latest else -1
            nursery.start_soon(self._follow, partition)

    async def _follow(self, partition: int) -> None:
        feed = self.client.feed(partition, after=self.marks[partition], prefetch=0, select=lambda header: False)
        async with feed as transactions:
            async for batch in transactions.batches(1000):
                self.marks[partition] = batch.last_id
                self._moved.set()
                self._moved = trio.Event()

    async def append(self) -> None:
        """One transaction, tried until it is committed."""
        partition = self.random.randrange(self.load.partitions)
        lock = [(_LOCK, self.random.randrange(self.load.locks))] if self.load.locks else []
        data = self.random.randbytes(self.load.size)
        while True:
            append = waltz.Append(data, write=lock)
            try:
                pending = await self.client.send(partition, append, based_on=self.marks[partition])
            except ValueError as error:
                raise CommandError(f"--txn-size is {self.load.size}: {error}") from error
            begin = time.monotonic()
            try:
                await pending.outcome()
            except waltz.LockConflictError as error:
                self.load.retries += 1
                while self.marks[partition] < error.blocking_id:
                    await self._moved.wait()
            except waltz.NotCommittedError as error:
                if error.refused:
                    raise
                self.load.retries += 1
            else:
                self.load.waited += time.monotonic() - begin
                return

    async def run(self, count: int, progress: Counted) -> None:
        """So many transactions, each started after a random pause, however long the others take."""
        async with trio.open_nursery() as nursery:

            async def append() -> None:
                await self.append()
                progress.advance()

            for number in range(count):
                if self.load.interval_ms:
                    await trio.sleep(self.random.expovariate(1 / self.load.interval_ms) / 1000)
                elif number % 64 == 63:
                    await trio.lowlevel.checkpoint()  # lets outcomes in
                nursery.start_soon(append)


# ---- test-producers --------------------------------------------------------------------------


async def _produce(load: Load, threads: int, count: int) -> float:
    """Seconds that `threads` clients take for `count` transactions each, the first one of each apart."""
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(waltz.open_client(load.config)) for _ in range(threads)]
        producers = [Producer(load, client) for client in clients]
        async with trio.open_nursery() as feeds:
            for producer in producers:
                await producer.follow(feeds)
            async with trio.open_nursery() as nursery:
                for producer in producers:
                    nursery.start_soon(producer.append)
            load.retries, load.waited = 0, 0.0
            begin = time.monotonic()
            with counted("appending", threads * count) as progress:
                async with trio.open_nursery() as nursery:
                    for producer in producers:
                        nursery.start_soon(producer.run, count, progress)
            lasted = time.monotonic() - begin
            feeds.cancel_scope.cancel()
    return lasted


def _test_producers(arguments: Arguments) -> int:
    threads, count = arguments.number("num-thread", least=1), arguments.number("txn-per-thread", least=1)
    interval, locks = arguments.number("interval", least=0), arguments.number("lock-pool-size", 0, least=0)
    load = Load(arguments, interval_ms=interval, locks=locks)
    lasted = _run(lambda: _produce(load, threads, count))
    total = threads * count
    output = {
        "transactions": total,
        "megabytes": total * load.size / _MEBIBYTE,
        "seconds": lasted,
        "transactions_per_s": total / lasted,
        "megabytes_per_s": total * load.size / _MEBIBYTE / lasted,
        "retries_per_transaction": load.retries / total,
        "ms_per_transaction": 1000 * load.waited / total,
    }
    if arguments.flag("json"):
        print(json.dumps(output, indent=2))
        return 0
    print(f"Appended {total} transactions, with total {output['megabytes']:.4f} MB, in {lasted:.2f} secs")
    print(f"Transaction/sec: {output['transactions_per_s']:.4f}")
    print(f"MB/sec: {output['megabytes_per_s']:.4f}")
    print(f"Retry/Transaction: {output['retries_per_transaction']:.4f}")
    print(f"MilliSec/Transaction(client side congestion excluded): {output['ms_per_transaction']:.4f}")
    return 0


# ---- test-consumers --------------------------------------------------------------------------


async def _consume(load: Load, count: int) -> tuple[float, int]:
    """Seconds from the first to the last of `count` transactions that one client reads, and their bytes."""
    async with waltz.open_client(load.config) as client, trio.open_nursery() as feeds:
        producer = Producer(load, client)
        await producer.follow(feeds)
        # What the log held before is not what is measured, wherever the producer begins.
        marks = {partition: await client.committed_mark(partition) for partition in producer.marks}
        with counted("appending", count) as progress:
            await append_all(producer.append, count, progress)
        feeds.cancel_scope.cancel()
    with counted("reading", count) as progress:
        return await _read(load.config, marks, count, progress)


async def append_all(append: Callable[[], Awaitable[None]], count: int, progress: Counted) -> None:
    """So many transactions, some at a time: a task for each at once would be all memory there is."""
    left = count

    async def work() -> None:
        nonlocal left
        while left:
            left -= 1
            await append()
            progress.advance()

    async with trio.open_nursery() as nursery:
        for _ in range(min(_PRODUCERS_MAX, count)):
            nursery.start_soon(work)


async def _read(config: str, marks: dict[int, int], count: int, progress: Counted) -> tuple[float, int]:
    """Seconds from the first to the last of `count` transactions behind the marks, and their bytes."""
    left, size, begin = count, 0, 0.0
    async with waltz.open_client(config) as reader, trio.open_nursery() as nursery:

        async def read(partition: int) -> None:
            nonlocal left, size, begin
            async with reader.feed(partition, after=marks[partition]) as feed:
                async for txn in feed:
                    begin = begin or time.monotonic()
                    data: bytes = txn.load()
                    size += len(data)
                    left -= 1
                    progress.advance()
                    if left <= 0:
                        nursery.cancel_scope.cancel()
                        return  # what has arrived already would still be taken

        for partition in marks:
            nursery.start_soon(read, partition)
    return time.monotonic() - begin, size


def _test_consumers(arguments: Arguments) -> int:
    count = arguments.number("num-txn", least=1)
    load = Load(arguments, interval_ms=0, locks=0)
    lasted, size = _run(lambda: _consume(load, count))
    output = {
        "transactions": count,
        "megabytes": size / _MEBIBYTE,
        "seconds": lasted,
        "transactions_per_s": count / lasted,
        "megabytes_per_s": size / _MEBIBYTE / lasted,
    }
    if arguments.flag("json"):
        print(json.dumps(output, indent=2))
        return 0
    print(f"Read {count} transactions, with total {output['megabytes']:.4f} MB, in {lasted:.2f} secs")
    print(f"Transaction/sec: {output['transactions_per_s']:.4f}")
    print(f"MB/sec: {output['megabytes_per_s']:.4f}")
    return 0


def _run(work: Callable[[], Awaitable[T]]) -> T:
    """Run to the end; the first error of a group comes out alone."""
    failure: BaseException | None = None
    try:
        return trio.run(work)
    except* WaltzError as errors:
        failure = first_of(errors)
    raise CommandError(str(failure))


# ---- the table -------------------------------------------------------------------------------

_SIZE = Option("s", "txn-size", "Specify the size of each transaction in bytes", required=True)
_LATEST = Option("ml", "mount_from_latest", "Begin at the end of the log instead of reading it", takes_value=False)

COMMANDS = (
    Command(
        "test-producers",
        "Clients append; tells the rate, retries and the time of a transaction",
        (
            CLIENT_CONFIG,
            _SIZE,
            Option("p", "txn-per-thread", "Specify the number of transactions for each client", required=True),
            Option("t", "num-thread", "Specify the number of clients", required=True),
            Option("i", "interval", "Specify the mean pause between transactions in milliseconds", required=True),
            ACTIVE,
            Option("l", "lock-pool-size", "Each transaction takes one of so many write locks (default 0: none)"),
            _LATEST,
            JSON,
        ),
        _test_producers,
    ),
    Command(
        "test-consumers",
        "Transactions are appended, then one client reads them; tells the rate",
        (
            CLIENT_CONFIG,
            _SIZE,
            Option("t", "num-txn", "Specify the number of transactions", required=True),
            ACTIVE,
            _LATEST,
            JSON,
        ),
        _test_consumers,
    ),
)


def make_parser() -> Parser:
    """The sub-commands."""
    return parser_of("waltz performance", COMMANDS, __doc__)
