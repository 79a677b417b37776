"""`waltz client ...`: marks of partitions, and whether locking really works, by the public client."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Awaitable, Callable
from functools import partial

import trio

import waltz_trio as waltz
from waltz_core.base.errors import WaltzError
from waltz_trio.base.background import first_of
from waltz_trio.cli.help import Parser
from waltz_trio.cli.options import (
    JSON,
    Arguments,
    Command,
    CommandError,
    Option,
    parser_of,
)
from waltz_trio.cli.progress import Counted, counted

LOCK = ("validate-lock", 0)
_PAYLOAD = struct.Struct(">q")
_SILENCE_MAX = 60  # seconds without any progress after which a check is given up


# ---- high-water-mark -------------------------------------------------------------------------


async def _high_water_mark(client: waltz.Client, arguments: Arguments) -> int:
    partition = arguments.number("partition")
    try:
        mark = await client.committed_mark(partition)
    except WaltzError as error:
        raise CommandError(f"Failed to get high watermark of partition {partition}. {error}") from error
    if arguments.flag("json"):
        print(json.dumps({"partition": partition, "high_water_mark": mark}))
    else:
        print(f"Partition {partition} current high watermark: {mark}")
    return 0


# ---- producers and consumers -----------------------------------------------------------------


def _apply(txn: waltz.Transaction, state: dict[int, int]) -> None:
    state[txn.partition] = txn.id


async def produce(config: str, count: int, interval_ms: float, partitions: int, progress: Counted) -> None:
    """One client appends `count` transactions to random ones of the first partitions, under one lock.

    Each payload is the mark of the decision plus 1: with locks that work, the id of the transaction.
    """
    async with waltz.open_client(config) as client:
        _check_partitions(client, partitions)
        view: waltz.DictView[dict[int, int]] = waltz.DictView(_apply)
        async with client.materialize(view, range(partitions)) as application:
            chance = random.Random()
            for _ in range(count):
                partition = chance.randrange(partitions)
                await application.submit(_decide, partition, partition=partition)
                progress.advance()
                await trio.sleep(chance.expovariate(1 / interval_ms) / 1000 if interval_ms > 0 else 0)


def _decide(state: dict[int, int], partition: int) -> waltz.Append:
    return waltz.Append(_PAYLOAD.pack(state.get(partition, -1) + 1), write=[LOCK])


async def consume(config: str, count: int, partitions: int, progress: Counted) -> None:
    """One client reads `count` transactions of the first partitions from the start, and checks every one.

    Raises:
        CommandError: one was accepted though what it was decided on had changed.
    """
    async with waltz.open_client(config) as client, trio.open_nursery() as nursery:
        _check_partitions(client, partitions)
        left = count

        async def read(partition: int) -> None:
            nonlocal left
            async with client.feed(partition, after=-1) as feed:
                async for txn in feed:
                    _check(txn)
                    progress.advance()
                    left -= 1
                    if left <= 0:
                        nursery.cancel_scope.cancel()
                        return  # what has arrived already would still be taken

        for partition in range(partitions):
            nursery.start_soon(read, partition)


async def _marks(config: str, partitions: int) -> dict[int, int]:
    """The committed mark of each of the first partitions that holds anything."""
    async with waltz.open_client(config) as client:
        marks = {partition: await client.committed_mark(partition) for partition in range(partitions)}
    return {partition: mark for partition, mark in marks.items() if mark >= 0}


async def _consume_all(config: str, marks: dict[int, int], progress: Counted) -> None:
    """One client reads every partition from the start to its mark, and checks every transaction.

    Raises:
        CommandError: one was accepted though what it was decided on had changed.
    """
    async with waltz.open_client(config) as client, trio.open_nursery() as nursery:

        async def read(partition: int, mark: int) -> None:
            async with client.feed(partition, after=-1) as feed:
                async for txn in feed:
                    _check(txn)
                    progress.advance()
                    if txn.id >= mark:
                        return

        for partition, mark in marks.items():
            nursery.start_soon(read, partition, mark)


def _check(txn: waltz.Transaction) -> None:
    data: bytes = txn.load()
    if len(data) != _PAYLOAD.size:
        raise CommandError(
            f"transaction {txn.id} of partition {txn.partition} was not written by this tool ({len(data)} bytes): "
            "the check needs partitions that nobody else writes to"
        )
    (decided,) = _PAYLOAD.unpack(data)
    if decided != txn.id:
        raise CommandError(
            f"optimistic locking validation failed: transaction {txn.id} of partition {txn.partition} was decided "
            f"at mark {decided - 1}, and accepted though {txn.id - decided} transactions had taken its lock since"
        )


def _check_partitions(client: waltz.Client, partitions: int) -> None:
    if partitions > client.num_partitions:
        raise CommandError(
            f"the cluster has {client.num_partitions} partitions, --num-active-partitions is {partitions}"
        )


async def _guarded(what: str, total: int, work: Callable[[Counted], Awaitable[None]], silence: int) -> None:
    """Run until done, failed, or without progress for too long (tools-T8)."""
    failure: BaseException | None = None
    with counted(what, total) as progress:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_give_up, progress, silence)
                await work(progress)
                nursery.cancel_scope.cancel()
        except* WaltzError as errors:
            failure = first_of(errors)
    if failure is not None:
        raise CommandError(f"Transaction validation failed: {failure}")


async def _give_up(progress: Counted, silence: int) -> None:
    done = -1
    while progress.done > done:
        done = progress.done
        await trio.sleep(silence)
    raise CommandError(f"no transaction for {silence} s after {progress.done} of {progress.total}")


def _validate(arguments: Arguments) -> int:
    each, clients = arguments.number("txn-per-client", least=1), arguments.number("num-clients", least=1)
    interval, partitions = arguments.number("interval", least=0), arguments.number("num-active-partitions", 1, least=1)
    config, silence = arguments.text("cli-config-path"), arguments.number("timeout", _SILENCE_MAX, least=1)

    async def run() -> None:
        async def write(progress: Counted) -> None:
            async with trio.open_nursery() as nursery:
                for _ in range(clients):
                    nursery.start_soon(produce, config, each, interval, partitions, progress)

        await _guarded("appending", each * clients, write, silence)
        # As many as were appended just now would be others, where the log held any before.
        marks = await _marks(config, partitions)
        total = sum(mark + 1 for mark in marks.values())
        await _guarded("reading", total, lambda progress: _consume_all(config, marks, progress), silence)

    trio.run(run)
    return 0


def _create_producer(arguments: Arguments) -> int:
    each, partitions = (
        arguments.number("txn-per-client", least=1),
        arguments.number("num-active-partitions", 1, least=1),
    )
    interval, config = arguments.number("interval", least=0), arguments.text("cli-config-path")
    silence = arguments.number("timeout", _SILENCE_MAX, least=1)

    async def run() -> None:
        await _guarded(
            "appending", each, lambda progress: produce(config, each, interval, partitions, progress), silence
        )

    trio.run(run)
    return 0


def _create_consumer(arguments: Arguments) -> int:
    each, partitions = (
        arguments.number("txn-per-client", least=1),
        arguments.number("num-active-partitions", 1, least=1),
    )
    config, silence = arguments.text("cli-config-path"), arguments.number("timeout", _SILENCE_MAX, least=1)

    async def run() -> None:
        await _guarded("reading", each, lambda progress: consume(config, each, partitions, progress), silence)

    trio.run(run)
    return 0


def _with_client(work: Callable[[waltz.Client, Arguments], Awaitable[int]], arguments: Arguments) -> int:
    async def run() -> int:
        async with waltz.open_client(arguments.text("cli-config-path")) as client:
            return await work(client, arguments)

    return trio.run(run)


# ---- the table -------------------------------------------------------------------------------

CLIENT_CONFIG = Option(
    "c", "cli-config-path", "Specify the client configuration file", required=True, sample="client.yml"
)
ACTIVE = Option("ap", "num-active-partitions", "Use partitions 0 to this minus 1 (default 1)")
_EACH = Option("tpc", "txn-per-client", "Specify the number of transactions for each client", required=True)
_INTERVAL = Option("i", "interval", "Specify the mean pause between transactions in milliseconds", required=True)
_TIMEOUT = Option("t", "timeout", f"Seconds without progress after which it fails (default {_SILENCE_MAX})")

COMMANDS = (
    Command(
        "high-water-mark",
        "Displays the committed mark of a partition",
        (CLIENT_CONFIG, Option("p", "partition", "Specify the partition", required=True), JSON),
        partial(_with_client, _high_water_mark),
    ),
    Command(
        "validate",
        "Clients append under one lock, then everything is read and checked; needs partitions that nobody else uses",
        (
            CLIENT_CONFIG,
            _EACH,
            Option("nc", "num-clients", "Specify the number of clients", required=True),
            _INTERVAL,
            ACTIVE,
            _TIMEOUT,
        ),
        _validate,
    ),
    Command(
        "create-producer",
        "One client appends as in validate",
        (CLIENT_CONFIG, _EACH, _INTERVAL, ACTIVE, _TIMEOUT),
        _create_producer,
    ),
    Command(
        "create-consumer",
        "One client reads and checks as in validate",
        (CLIENT_CONFIG, _EACH, ACTIVE, _TIMEOUT),
        _create_consumer,
    ),
)


def make_parser() -> Parser:
    """The sub-commands."""
    return parser_of("waltz client", COMMANDS, __doc__)
