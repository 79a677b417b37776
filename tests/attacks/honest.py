"""The honest client beside an attack, as a process: `python -m tests.attacks.honest CLIENT PARTITION JOURNAL`.

It keeps appends under way, and writes down which were acknowledged: a line of fixed size each, so that the size of the
file counts them. It ends in order on SIGTERM.
"""

from __future__ import annotations

import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import trio

import waltz_trio as waltz

_WINDOW = 20  # appends under way
_LINE = 24  # bytes: the transaction id, a blank, the number of the append, a line feed


class Honest:
    """One client."""

    def __init__(self, partition: int, journal: Path) -> None:
        self.partition = partition
        self.stopped = False
        self._journal = journal

    async def watch(self, signals: AsyncIterator[int]) -> None:
        """Stop at the first signal."""
        async for _ in signals:
            self.stopped = True

    async def run(self, client: waltz.Client) -> None:
        """Append until stopped."""
        flying: deque[tuple[int, waltz.Pending]] = deque()
        number = 0
        with self._journal.open("ab", buffering=0) as journal:
            while flying or not self.stopped:
                while not self.stopped and len(flying) < _WINDOW:
                    append = waltz.Append(b"honest %d" % number, waltz.Raw())
                    flying.append((number, await client.send(self.partition, append)))
                    number += 1
                one, pending = flying.popleft()
                try:
                    transaction_id = await pending.outcome()
                except waltz.NotCommittedError:
                    continue  # refused, or lost with a connection: nothing was promised
                journal.write(b"%011d %011d\n" % (transaction_id, one))


def acknowledged(journal: Path) -> int:
    """How many appends have been acknowledged so far."""
    return journal.stat().st_size // _LINE if journal.exists() else 0


def last_id(journal: Path) -> int:
    """Transaction id of the last one that was acknowledged; -1 before."""
    data = journal.read_bytes()[-_LINE:] if journal.exists() else b""
    return int(data.split()[0]) if data else -1


def missing(journal: Path, log: Iterable[tuple[int, bytes]]) -> list[str]:
    """What was acknowledged and is not in a log, as (transaction id, data)."""
    held = dict(log)
    promised = [line.split() for line in journal.read_bytes().splitlines()]
    return [
        f"append {int(number)} was acknowledged as {int(transaction_id)}, which is {held.get(int(transaction_id))!r}"
        for transaction_id, number in promised
        if held.get(int(transaction_id)) != b"honest %d" % int(number)
    ]


async def main(client: str, partition: int, journal: Path) -> None:
    """Connect, append, close."""
    honest = Honest(partition, journal)
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with waltz.open_client(client) as opened, trio.open_nursery() as nursery:
            nursery.start_soon(honest.watch, signals)
            await honest.run(opened)
            nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main, sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
