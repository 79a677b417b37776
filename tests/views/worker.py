"""A client process that tests kill: deposits by several callers on one view, a line for each receipt."""

from __future__ import annotations

import json
import sys
from typing import Any

import trio

import waltz_trio as waltz
from tests.views.bank import deposit, open_view


async def main(url: str, kind: str, where: Any, count: int, callers: int) -> None:
    async with waltz.open_client(url) as client, client.materialize(open_view(kind, where), [0, 1]) as bank:

        async def call(first: int) -> None:
            for number in range(first, count, callers):
                receipt = await bank.submit(deposit, number, partition=number % 2)
                assert receipt is not None
                print(receipt.partition, receipt.transaction_id, flush=True)

        async with trio.open_nursery() as nursery:
            for first in range(callers):
                nursery.start_soon(call, first)
        await bank.caught_up()
    print("done", flush=True)


if __name__ == "__main__":
    trio.run(main, sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
