"""The bank in a plain script: `python -m examples.bank.script [--url URL] [--database bank.db]`.

Without `--url` on a cluster of its own. Eight threads move money between ten accounts as fast as they can; in the end
none is overdrawn, and all of the money is there.
"""

from __future__ import annotations

import random
import sys
from concurrent.futures import ThreadPoolExecutor

import waltz_sync as waltz
from examples.bank.model import balance, open_view, transfer
from examples.bank.options import options_of

ACCOUNTS = range(1, 11)
PARTITION = 0
PATIENCE = 60.0


def main() -> None:
    """The command line."""
    with (
        options_of(sys.argv[1:], __doc__) as options,
        waltz.open_client(options.url) as client,
        client.materialize(open_view(options.database), [PARTITION]) as bank,
    ):

        def move(source: int, target: int, amount: int) -> bool:
            receipt = bank.submit(
                transfer, source, target, amount, None, partition=PARTITION, timeout=PATIENCE, until="applied"
            )
            return receipt is not None

        def work(seed: int) -> int:
            rng = random.Random(seed)
            pairs = (rng.sample(ACCOUNTS, 2) for _ in range(25))
            return sum(move(source, target, rng.randint(1, 80)) for source, target in pairs)

        for account in ACCOUNTS:
            move(0, account, 100)
        with ThreadPoolExecutor(8) as pool:
            moved = sum(pool.map(work, range(8)))
        held, mark = bank.read(
            lambda db: [balance(db, account) for account in ACCOUNTS], partition=PARTITION, fresh=True, timeout=PATIENCE
        )
        assert min(held) >= 0
        assert mark + 1 >= len(ACCOUNTS) + moved
        print(f"{moved} of 200 transfers carried out, {200 - moved} declined; {sum(held)} in {len(held)} accounts")


if __name__ == "__main__":
    main()
