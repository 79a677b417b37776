"""The client process of `benchmarks.append`: keeps appends in flight, measures, or reads a log back.

python -m benchmarks.append_client JOB.json     lines of JSON on standard output: ready, warm, done, ended or read
"""

from __future__ import annotations

import gc
import json
import math
import random
import sys
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import attrs
import trio

import waltz_trio as waltz

_SLOT = 10_000  # ns: width of a bucket of the histogram, so that memory does not grow with the number of appends
_TICK = 0.001  # seconds between two looks at what is due
LOCK_COUNT = 100_000


@attrs.frozen
class Job:
    """What one client process does."""

    client: str  # configuration file
    role: str  # "append", "read", or "idle": greet, and say nothing until told to end
    partitions: int
    size: int = 200
    in_flight: int = 1000  # of this process, all partitions together
    locks: int = 0
    warm_up: float = 5.0
    seconds: float = 20.0
    count: int = 0  # appends after the warm-up; 0 = as `seconds` says
    seed: int = 0
    batch: int = 0  # appends of one `send_many`, or transactions of a batch; 0 = one by one
    prefetch: int = 1000  # payloads that a reader reads ahead; 0 = it reads none
    rate: float = 0  # appends a second by a schedule, all partitions together; 0 = as many as `in_flight` lets
    readers: int = 1  # clients that read, each with its own connections

    def write(self, path: Path) -> None:
        """As a file for the command line."""
        path.write_text(json.dumps(attrs.asdict(self)))


class Load:
    """Keeps a number of appends unresolved in each partition."""

    def __init__(self, job: Job, client: waltz.Client) -> None:
        self.job = job
        self.client = client
        self.buckets: defaultdict[int, int] = defaultdict(int)  # time in slots → how many took it
        self.measured = 0
        self.refused = 0
        self.measuring = False
        self.stopped = False
        self.acknowledged = 0
        self._enough = trio.Event()
        self._random = random.Random(job.seed)
        self._body = self._random.randbytes(job.size)

    async def run(self) -> None:
        """Warm up, measure, wait for what is in flight."""
        async with trio.open_nursery() as nursery:
            for partition in range(self.job.partitions):
                if self.job.rate:
                    nursery.start_soon(self._keep_pace, partition)
                    continue
                if not self.job.batch:
                    nursery.start_soon(self._keep, partition)
                    continue
                for _ in range(max(1, self.job.in_flight // self.job.partitions // self.job.batch)):
                    nursery.start_soon(self._keep_batches, partition)
            await trio.sleep(self.job.warm_up)
            self.measuring = True
            begin = time.monotonic()
            tell(event="warm")
            with trio.move_on_after(math.inf if self.job.count else self.job.seconds):
                await self._enough.wait()
            elapsed = time.monotonic() - begin
            self.measuring = False
            tell(
                event="done",
                seconds=elapsed,
                committed=self.measured,
                refused=self.refused,
                buckets=self.buckets,
            )
            self.stopped = True
        tell(event="ended", acknowledged=self.acknowledged)

    async def _keep(self, partition: int) -> None:
        window = max(1, self.job.in_flight // self.job.partitions)
        flying: deque[tuple[int, waltz.Pending]] = deque()
        now = time.monotonic_ns
        mark = await self.client.committed_mark(partition)
        while not self.stopped:
            while len(flying) < window:
                append = self._append()
                at = now()
                flying.append((at, await self.client.send(partition, append, based_on=mark if append.write else None)))
            mark = await self._land(flying, mark)
        while flying:
            mark = await self._land(flying, mark)

    async def _keep_pace(self, partition: int) -> None:
        """Send by a schedule, whatever is under way: an append is as old as the moment that it was due.

        Thereby who has to wait before his append is even sent counts as well, and a pause of the cluster counts for
        everybody who would have come meanwhile ("coordinated omission" leaves both out).
        """
        flying: deque[tuple[int, waltz.Pending]] = deque()
        now = time.monotonic_ns
        mark, sent, every = await self.client.committed_mark(partition), 0, 1e9 * self.job.partitions / self.job.rate

        async def land() -> None:
            nonlocal mark
            while flying or not self.stopped:
                if flying:
                    mark = await self._land(flying, mark)
                else:
                    await trio.sleep(_TICK)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(land)
            begin = now()
            while not self.stopped:
                while sent * every <= now() - begin and not self.stopped:
                    append = self._append()
                    pending = await self.client.send(partition, append, based_on=mark if append.write else None)
                    flying.append((begin + int(sent * every), pending))
                    sent += 1
                await trio.sleep(_TICK)

    async def _keep_batches(self, partition: int) -> None:
        """Append many at a time, one after the other; each is as old as the call it was made by."""
        now = time.monotonic_ns
        mark = await self.client.committed_mark(partition)
        while not self.stopped:
            appends = [self._append() if self.job.locks else self._body for _ in range(self.job.batch)]
            sent = now()
            based_on = mark if self.job.locks else None
            outcomes = await (await self.client.send_many(partition, appends, based_on=based_on)).outcomes()
            slot = (now() - sent) // _SLOT
            self.refused += len(outcomes.errors)
            self.acknowledged += outcomes.committed
            mark = max([mark, *(first + count - 1 for _, first, count in outcomes.runs())])
            if self.measuring:
                self.buckets[slot] += outcomes.committed
                self.measured += outcomes.committed
                if 0 < self.job.count <= self.measured:
                    self._enough.set()

    def _append(self) -> waltz.Append:
        if not self.job.locks:
            return waltz.Append(self._body)
        chance = self._random.random
        return waltz.Append(self._body, write=[("row", int(chance() * LOCK_COUNT)) for _ in range(self.job.locks)])

    async def _land(self, flying: deque[tuple[int, waltz.Pending]], mark: int) -> int:
        """Take the outcome of the oldest, and of all behind it that are known by now."""
        sent, pending = flying.popleft()
        now = time.monotonic_ns
        while True:
            try:
                mark = max(mark, (await pending.outcome()).transaction_id)
                self.acknowledged += 1
                if self.measuring:
                    self.buckets[(now() - sent) // _SLOT] += 1
                    self.measured += 1
                    if self.measured == self.job.count:
                        self._enough.set()
            except waltz.LockConflictError:
                self.refused += 1
            if not flying or not flying[0][1].done:
                return mark
            sent, pending = flying.popleft()


async def read(job: Job, readers: Sequence[waltz.Client]) -> None:
    """Read every partition from its start, by each client; ids must be dense and payloads of the right size."""
    begin = time.monotonic()
    counts: list[int] = []

    async def whole(client: waltz.Client) -> None:
        for partition in range(job.partitions):
            last = await client.committed_mark(partition)  # confirmed: no older than this question
            if last < 0:
                continue
            async with client.feed(partition, after=-1, prefetch=job.prefetch) as feed:
                counts.append(await (read_batches if job.batch else read_each)(job, feed, last))

    async with trio.open_nursery() as nursery:
        for client in readers:
            nursery.start_soon(whole, client)
    tell(event="read", count=sum(counts), seconds=time.monotonic() - begin)


async def read_batches(job: Job, feed: waltz.Feed, last: int) -> int:
    """Read up to `last`, in batches; the number of transactions."""
    expected = 0
    async for batch in feed.batches(job.batch):
        for txn in batch:
            assert txn.id == expected, f"partition {feed.partition}: read {txn.id}, expected {expected}"
            assert not job.prefetch or len(txn.load()) == job.size
            expected += 1
        if expected > last:
            break
    return expected


async def read_each(job: Job, feed: waltz.Feed, last: int) -> int:
    """The same, one by one."""
    expected = 0
    async for txn in feed:
        assert txn.id == expected, f"partition {feed.partition}: read {txn.id}, expected {expected}"
        assert not job.prefetch or len(txn.load()) == job.size
        expected += 1
        if expected > last:
            break
    return expected


def tell(**what: object) -> None:
    """One line for the parent."""
    print(json.dumps(what), flush=True)


async def main(job: Job) -> None:
    """Open the clients and do the job."""
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(waltz.open_client(job.client)) for _ in range(job.readers)]
        for client in opened:
            for partition in range(job.partitions):
                await client.committed_mark(partition)
        gc.collect()  # as docs/howto/many-at-once.md says of who appends much
        gc.freeze()
        gc.set_threshold(20_000, 20, 50)
        tell(event="ready")
        sys.stdin.readline()  # all clients begin together
        if job.role == "idle":
            await trio.to_thread.run_sync(sys.stdin.readline)
        elif job.role == "read":
            await read(job, opened)
        else:
            await Load(job, opened[0]).run()


if __name__ == "__main__":
    trio.run(main, Job(**json.loads(Path(sys.argv[1]).read_text())))
