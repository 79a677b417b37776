"""The bank behind Celery: `python -m examples.bank.with_celery [--url URL] [--database bank.db]`.

Without `--url` on a cluster of its own. It starts a worker with two processes on a broker made of files, and sends it
20 orders, each of them twice, as brokers that deliver at least once do. In the end each was carried out once.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from sqlite3 import Cursor
from typing import Any

from celery import Celery
from celery.signals import worker_process_init, worker_process_shutdown

import waltz_sync as waltz
from examples.bank.model import balance, open_view, transfer
from examples.bank.options import options_of

PATIENCE = 60.0
PARTITION = 0
FOLDER = os.environ.get("BANK_FOLDER", "")  # of the broker
app = Celery(broker="filesystem://", backend=f"file://{FOLDER}/results")
app.conf.update(
    broker_transport_options=dict.fromkeys(("data_folder_in", "data_folder_out"), f"{FOLDER}/queue")
    | {"control_folder": f"{FOLDER}/control"},
    task_acks_late=True,  # a task whose worker dies comes again, and its key keeps it from paying twice
    task_reject_on_worker_lost=True,  # also where a process of the pool alone dies, which would count as done
)
bank: waltz.Application[Cursor] | None = None  # of this process
_opened = ExitStack()


@worker_process_init.connect
def open_bank(**_: Any) -> None:
    """A client belongs to one process, so each process of the pool opens its own."""
    global bank
    client = _opened.enter_context(waltz.open_client(os.environ["BANK_URL"]))
    view = open_view(os.environ["BANK_DATABASE"])  # one database for all of them
    bank = _opened.enter_context(client.materialize(view, [PARTITION], timeout=PATIENCE))


@worker_process_shutdown.connect
def close_bank(**_: Any) -> None:
    """Let go of the client before the process ends."""
    _opened.close()


@app.task(name="order_transfer", autoretry_for=(TimeoutError,), max_retries=5)
def order_transfer(source: int, target: int, amount: int, order: str) -> int | None:
    """Carry an order out, once; the transaction, or None if the source has too little. A ValueError is final."""
    assert bank is not None
    receipt = bank.submit(transfer, source, target, amount, order, partition=PARTITION, key=order, timeout=PATIENCE)
    return None if receipt is None else int(receipt)


@contextmanager
def worker(folder: str) -> Iterator[None]:
    """A worker with two processes, for the block."""
    for name in ("queue", "control", "results"):
        (Path(folder) / name).mkdir()
    command = [sys.executable, "-m", "celery", "-A", __spec__.name, "worker", "--concurrency=2", "--loglevel=warning"]
    with subprocess.Popen([*command, "--without-gossip", "--without-mingle"], env=dict(os.environ)) as process:
        try:
            yield
        finally:
            process.terminate()  # it finishes what it has begun


def main() -> None:
    """The command line. What names the broker must be in the environment before this file is loaded."""
    with options_of(sys.argv[1:], __doc__) as options, tempfile.TemporaryDirectory() as folder:
        os.environ.update(BANK_URL=options.url, BANK_DATABASE=options.database, BANK_FOLDER=folder)
        done = subprocess.run([sys.executable, "-m", __spec__.name], env=dict(os.environ), check=False)
        raise SystemExit(done.returncode)


def send_orders() -> None:
    """Give the worker its orders, and look at the accounts."""
    with worker(FOLDER):
        results = [order_transfer.delay(0, 7, 10, f"order-{number}") for number in range(20) for _ in range(2)]
        transactions = [result.get(timeout=PATIENCE) for result in results]
    with (
        waltz.open_client(os.environ["BANK_URL"]) as client,
        client.materialize(open_view(os.environ["BANK_DATABASE"]), [PARTITION]) as accounts,
    ):
        held, _ = accounts.read(balance, 7, partition=PARTITION, fresh=True, timeout=PATIENCE)
    print(f"{len(results)} tasks, {len(set(transactions))} transactions, account 7 holds {held}")


if __name__ == "__main__":
    if FOLDER:
        send_orders()
    else:
        main()
