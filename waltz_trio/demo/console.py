"""`waltz demo bank`: the bank of 0.13.2's demonstration, to try by hand or to feed with commands.

Commands, texts, locks and tables are the original's. Different: the accounts are kept from one run to the
next, piped commands are not lost, what is not a number is answered, amounts cannot be negative.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import trio

import waltz_trio as waltz
from waltz_core.base.errors import ConfigError, WaltzError
from waltz_trio.base import log
from waltz_trio.base.background import background
from waltz_trio.cli.interruption import interruptible
from waltz_trio.config.config import Config
from waltz_trio.demo import bank
from waltz_trio.demo.bank import Order
from waltz_trio.node.embedded import embedded_cluster

PROMPT = (
    "\nEnter [deposit <accountId> <amount>, withdraw <accountId> <amount>, balance <accountId>, "
    "deactivate <accountId>, quit] \n"
)
MODE_QUESTION = "Choose run mode number: 1-[interactive] 2-[automatic]\n"

_INT = range(-(1 << 31), 1 << 31)  # what 0.13.2 can read
_AUTOMATIC_ACCOUNT = 1_000_000_001
_AUTOMATIC_AMOUNT_MAX = 10
_DATABASE = Path("bank.db")
_HINT_AFTER = 3.0  # seconds until a wait is explained
_SQLITE = "jdbc:sqlite:"

ReadLine = Callable[[], Awaitable[str]]
"""The next line; empty at the end of the input."""
Write = Callable[[str], None]

# Command → action of the order, what stands before `completed` and `failed`, and these words.
_ORDERS = {
    "deposit": ("deposit", "Deposit completed", "Deposit failed"),
    "withdraw": ("withdrawal", "Withdrawal completed", "Withdrawal failed"),
    "deactivate": ("deactivate", "Account deactivated", "Account deactivate failed"),
}


def run(where: str | None, database: Path | None, mode: str | None) -> int:
    """Talk to the person at the terminal; `where` is a configuration file, a URL, or None for a cluster of its own."""
    log.set_up("error")
    return trio.run(_session, where, database, mode)


async def _session(where: str | None, database: Path | None, mode: str | None) -> int:
    try:
        async with interruptible():  # a cluster of its own is taken down, and its files are removed
            await _talk(where, database, mode)
    except ConfigError:
        raise
    except WaltzError as error:
        print(f"waltz demo: {error}", file=sys.stderr)
        return 1
    return 0


async def _talk(where: str | None, database: Path | None, mode: str | None) -> None:
    hints = Hints(_write)
    async with background("the dialogue") as tasks, AsyncExitStack() as stack:
        tasks.start_soon(hints.run)
        if where is None:
            _write("Starting a cluster of three storage nodes and a server; it is gone when you quit.\n")
            cluster = await stack.enter_async_context(embedded_cluster())
            where = cluster.url
            database = database or cluster.directory / "bank.db"
        path = database or _database_of(where)
        with hints.waiting(f"no answer from {where} yet"):
            client = await stack.enter_async_context(waltz.open_client(where))
        view = waltz.SqliteView(path, bank.apply, schema=bank.SCHEMA, table=bank.MARK_TABLE)
        application = await stack.enter_async_context(client.materialize(view))
        with hints.waiting("the partitions are not served yet"):
            await application.caught_up()
        await converse(Bank(client, application, _write, hints), _read_line, _write, mode)


def _database_of(where: str) -> Path:
    """The file that a configuration names the original's way, or the one of the current directory."""
    if where.startswith("waltz://"):
        return _DATABASE
    connect = Config.load(where).text_or_none("DataSource.ConnectString")
    if connect is None:
        return _DATABASE
    if not connect.startswith(_SQLITE):
        raise ConfigError(
            f"{where}: DataSource.ConnectString is {connect!r}, expected {_SQLITE}FILE; or name a file with --database"
        )
    return Path(connect.removeprefix(_SQLITE))


async def _read_line() -> str:
    return await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


class Hints:
    """Tells a person who waits why."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._why: str | None = None
        self._since = 0.0

    @contextlib.contextmanager
    def waiting(self, why: str) -> Iterator[None]:
        """The block may take long."""
        self._why, self._since = why, trio.current_time()
        try:
            yield
        finally:
            self._why = None

    async def run(self) -> None:
        """Look from time to time."""
        while True:
            await trio.sleep(_HINT_AFTER / 4)
            if self._why is not None and trio.current_time() - self._since > _HINT_AFTER:
                self._write(f"({self._why}; waiting, Ctrl-C ends)\n")
                self._why = None


# ---- the dialogue ----------------------------------------------------------------------------------


class Bank:
    """Carries out commands and says what became of them."""

    def __init__(
        self, client: waltz.Client, application: waltz.Application[Any], write: Write, hints: Hints | None = None
    ) -> None:
        self._hints = hints or Hints(write)
        self._client = client
        self._application = application
        self._write = write

    async def command(self, words: list[str]) -> bool:
        """Carry out one line; False ends the dialogue."""
        match words:
            case ["quit", *_]:
                return False
            case [("deposit" | "withdraw") as name, account, amount]:
                numbers = self._numbers(account, amount)
                if numbers is not None:
                    await self.order(name, *numbers)
            case ["deactivate", account]:
                numbers = self._numbers(account)
                if numbers is not None:
                    await self.order("deactivate", *numbers)
            case ["balance", account]:
                numbers = self._numbers(account)
                if numbers is not None:
                    await self.balance(*numbers)
            case [("deposit" | "withdraw" | "balance" | "deactivate"), *_]:
                self._write("not enough parameters\n")
            case [name, *_]:
                self._write(f"unknown command: {name}\n")
        return True

    async def order(self, name: str, account: int, amount: int = 0) -> None:
        """Deposit, withdraw or deactivate."""
        action, completed, failed = _ORDERS[name]
        refusals: list[str] = []
        partition = self._client.partition_of(account)
        with self._hints.waiting(f"partition {partition} does not take transactions now"):
            receipt = await self._application.submit(
                bank.decide, Order(action, account, amount), refusals, partition=partition, until="applied"
            )
        for reason in refusals:
            if reason:
                self._write(f"\t{reason}\n")
        details = f"[accountId={account}]" if action == "deactivate" else f"[accountId={account} amount={amount}]"
        self._write(f"\t{completed if receipt is not None else failed} {details}\n")

    async def balance(self, account: int) -> None:
        """Show an account."""
        shown, _ = await self._application.read(bank.account, account, partition=self._client.partition_of(account))
        if shown is None:
            self._write(f"\tBalance [accountId={account} amount=NO_DATA]\n")
        else:
            active = "Y" if shown.active else "N"
            self._write(f"\tBalance [accountId={account} active={active} amount={shown.balance}]\n")

    def _numbers(self, *texts: str) -> list[int] | None:
        """Account and, if given, amount; None after a complaint."""
        numbers = []
        for text in texts:
            try:
                number = int(text)
            except ValueError:
                number = 1 << 31
            if number not in _INT:
                self._write(f'"{text}" is not a valid number, try again\n')
                return None
            numbers.append(number)
        if len(numbers) > 1 and numbers[1] < 0:
            self._write(f'"{texts[1]}" is not a valid amount, try again\n')
            return None
        return numbers


async def converse(bank_: Bank, read_line: ReadLine, write: Write, mode: str | None = None) -> None:
    """Ask for the mode unless it is given; then continue until `quit` or the end of the input."""
    chosen = mode or await _ask_mode(read_line, write)
    if chosen == "automatic":
        await _automatic(bank_)
    going = chosen == "interactive"
    while going:
        write(PROMPT)
        line = await read_line()
        going = bool(line) and await bank_.command(line.split())


async def _ask_mode(read_line: ReadLine, write: Write) -> str | None:
    write(MODE_QUESTION)
    while line := await read_line():
        for word in line.split():
            match word:
                case "1":
                    return "interactive"
                case "2":
                    return "automatic"
                case _ if word.lstrip("+-").isdecimal():
                    write("Invalid mode number, try again\n")
                case _:
                    write(f'"{word}" is not a valid number, try again\n')
            write(MODE_QUESTION)
    return None


async def _automatic(bank_: Bank) -> None:
    """Deposits and withdrawals of one account, without end."""
    while True:
        amount = round(random.random() * _AUTOMATIC_AMOUNT_MAX)
        await bank_.order(random.choice(("deposit", "withdraw")), _AUTOMATIC_ACCOUNT, amount)
