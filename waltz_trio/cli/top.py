"""`waltz top -c CONFIG`: the cluster in a terminal, live. What the console shows, for where there is no browser."""

from __future__ import annotations

import os
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import trio
from rich.console import Console as Terminal
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from waltz_core.operations.page import Page
from waltz_trio.base.background import background_nursery
from waltz_trio.base.printable import printable
from waltz_trio.cli.console import watch_of
from waltz_trio.cli.help import Parser
from waltz_trio.cli.interruption import interruptible
from waltz_trio.cli.options import CONFIG, Arguments, Command, CommandError, Option, parser_of
from waltz_trio.cli.zookeeper import load_config
from waltz_trio.console.watch import Watch

_STYLES = {"ok": "green", "warn": "yellow", "bad": "bold red"}
_RANK = {"bad": 0, "warn": 1, "ok": 2}
_BARS = "▁▂▃▄▅▆▇█"
_FINDINGS_MAX = 4
_SORTS = ("state", "id", "rate", "lag")
_KEYS = {b"\x1b[A": "up", b"\x1b[B": "down", b"\x1b[5~": "page-up", b"\x1b[6~": "page-down", b"k": "up", b"j": "down"}
_HELP = "q end · s sort by {} · ↑ ↓ scroll"


class Screen:
    """What is drawn of a page, and what the keys do to it."""

    def __init__(self) -> None:
        self.sort = 0
        self.first = 0  # partition row at the top
        self.page: Page | None = None

    def show(self, page: Page | None) -> None:
        """Draw this page from now on; what in it are words of peers moves no cursor."""
        self.page = _shown(page)

    def press(self, key: bytes) -> bool:
        """Take a key; False if it ends the command."""
        match _KEYS.get(key, key.decode("latin-1")):
            case "q" | "Q" | "\x03" | "\x04":
                return False
            case "s":
                self.sort = (self.sort + 1) % len(_SORTS)
            case "up":
                self.first -= 1
            case "down":
                self.first += 1
            case "page-up":
                self.first -= 10
            case "page-down":
                self.first += 10
        return True

    def draw(self, width: int, height: int) -> RenderableType:
        """As many rows as fit."""
        page = self.page
        if page is None:
            return Text("looking at the cluster…", style="dim")
        parts: list[RenderableType] = [_head(page)]
        parts += _findings(page)
        nodes = _nodes(page)
        rows = self._sorted(page)
        hot = page["hot_locks"][:3]
        clients = [row for row in page["clients"] if row["lag"]][:3]
        lines = sum(_height(part, width) for part in parts)
        taken = lines + nodes.row_count + len(hot) + len(clients) + 5
        room = max(3, height - taken)
        self.first = max(0, min(self.first, len(rows) - room))
        shown = rows[self.first : self.first + room]
        parts += [nodes, _partitions(shown)]
        if len(shown) < len(rows):
            last = self.first + len(shown)
            parts.append(Text(f"partitions {self.first + 1} to {last} of {len(rows)}", style="dim"))
        parts += [
            _line("hot lock", f"{row['hash']} of partition {row['partition']}: {row['rate']} refused/s") for row in hot
        ]
        parts += [_line("behind", f"client {row['client']} at {row['server']}: {row['lag']:,}") for row in clients]
        parts.append(Text(_HELP.format(_SORTS[self.sort]), style="dim"))
        return Group(*parts)

    def _sorted(self, page: Page) -> list[Page]:
        rows: list[Page] = sorted(page["partitions"], key=lambda row: int(row["id"]))
        match _SORTS[self.sort]:
            case "state":
                rows.sort(key=lambda row: _RANK[row["level"]])
            case "rate":
                rows.sort(key=lambda row: -float(row["rate"]))
            case "lag":
                rows.sort(key=lambda row: -_lag(row))
        return rows


def _height(part: RenderableType, width: int) -> int:
    return 1 if not isinstance(part, Text) or part.no_wrap else 1 + len(part.plain) // width


def _head(page: Page) -> RenderableType:
    totals, history = page["totals"], page["history"]
    name = page["cluster"]["name"] or "no cluster seen"
    text = Text.assemble((name, "bold"), f" {page['cluster']['root']}  ", no_wrap=True, overflow="ellipsis")
    text.append(f"{totals['commits']:,} commits/s ")
    text.append(_spark(history["commits"]), style="cyan")
    text.append(f"  half {_ms(totals['p50_ms'])}  99 % {_ms(totals['p99_ms'])}  {totals['refused']:,} refused/s")
    return text


def _findings(page: Page) -> list[RenderableType]:
    if not page["findings"]:
        return [Text("nothing is wrong", style="green")]
    lines: list[RenderableType] = []
    for row in page["findings"][:_FINDINGS_MAX]:
        style = "yellow" if row["settles"] else "bold red"
        lines.append(_line(row["cause"], row["evidence"], style))
        lines.append(Text(f"  → {row['advice']}", style="dim"))
    if len(page["findings"]) > _FINDINGS_MAX:
        lines.append(Text(f"{len(page['findings']) - _FINDINGS_MAX} more findings: waltz doctor", style="dim"))
    return lines


def _line(head: str, text: str, style: str = "cyan") -> Text:
    return Text.assemble((head, style), " ", text, no_wrap=True, overflow="ellipsis")


def _nodes(page: Page) -> Table:
    table = _table("node", "", "state", "holds", "")
    for kind, rows in (("server", page["servers"]), ("storage node", page["storages"])):
        for row in rows:
            holds = f"{_count(len(row['partitions']), 'partition')}" if kind == "server" else _room(row)
            trouble = row["trouble"][0] if row["trouble"] else ""
            _add_row(
                table, row["name"], row.get("kind", kind), Text(row["state"], _STYLES[row["level"]]), holds, trouble
            )
    for row in page["gateways"]:
        trouble = row["trouble"][0] if row["trouble"] else ""
        _add_row(table, row["name"], "gateway", Text(row["state"], _STYLES[row["level"]]), "", trouble)
    zookeeper = page.get("zookeeper", {"level": "bad", "text": ""})
    _add_row(table, "ZooKeeper", "", Text(zookeeper["text"], _STYLES[zookeeper["level"]]), "", "")
    return table


def _room(row: Page) -> str:
    if row["replicas"] is None:
        return ""
    replicas = _count(row["replicas"], "replica")
    return replicas if row["disk_free"] is None else f"{replicas}, {row['disk_free'] / (1 << 30):,.1f} GiB free"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _partitions(rows: Sequence[Page]) -> Table:
    archived = any(row["archive"] is not None for row in rows)
    waiting = any(row["waits_for"] for row in rows)
    heads = ["part", "state", "owner", "session", "mark", "lag", "/s", "99 %", "refused", "repl"]
    table = _table(*heads, *["archive"] * archived, *["waits for"] * waiting)  # an empty column costs the others room
    for row in rows:
        _add_row(
            table,
            str(row["id"]),
            Text(row["state"], _STYLES[row["level"]]),
            row["owner"] or "none",
            _number(row["session"]),
            _number(row["mark"]),
            f"{_lag(row):,}",
            f"{row['rate']:,}",
            _ms(row["p99_ms"]),
            f"{row['refused']:,}",
            f"{row['sound_replicas']}/{len(row['replicas'])}",
            *[_archive(row["archive"])] * archived,
            *[row["waits_for"]] * waiting,
        )
    return table


def _table(*heads: str) -> Table:
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="dim", expand=False)
    for head in heads:
        right = head in ("part", "session", "mark", "lag", "/s", "99 %", "refused", "repl")
        table.add_column(head, no_wrap=True, overflow="ellipsis", justify="right" if right else "left")
    return table


def _add_row(table: Table, *cells: str | Text) -> None:
    """Cells as they are: names and reasons come from elsewhere, and `[...]` in text alone would be markup."""
    table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))


def _archive(row: Page | None) -> Text:
    """How many records wait to be archived."""
    if row is None:
        return Text("")
    return Text("trouble" if row["trouble"] else f"{row['lag']:,} wait", _STYLES[row["level"]])


def _lag(row: Page) -> int:
    return max((replica["lag"] or 0 for replica in row["replicas"]), default=0)


def _number(value: Any) -> str:
    return "–" if value is None else f"{value:,}"


def _ms(value: float | None) -> str:
    return "–" if value is None else f"≤{value:,.0f} ms"


def _spark(values: Sequence[float], width: int = 20) -> str:
    recent = values[-width:]
    top = max(recent, default=0)
    return "".join(_BARS[round(value / top * (len(_BARS) - 1))] if top else _BARS[0] for value in recent)


def _shown(part: Any) -> Any:
    """A page, or a part of it, without anything that moves a cursor or colours."""
    match part:
        case str():
            return printable(part)
        case dict():
            return {name: _shown(one) for name, one in part.items()}
        case list() | tuple():
            return [_shown(one) for one in part]
    return part


# ---- driver ----------------------------------------------------------------------------------


def _run(arguments: Arguments) -> int:
    config = load_config(arguments)
    once, as_json = arguments.flag("once"), arguments.flag("json")
    if not (once or as_json or sys.stdout.isatty()):
        raise CommandError("standard output is no terminal: give --once for one look, or --json for a line for each")
    if not (once or as_json) and Terminal().is_dumb_terminal:
        raise CommandError("this terminal cannot be drawn on (TERM=dumb): give --once for one look, or another TERM")
    watch = watch_of(config, arguments.text("cli-config-path"))
    if once or as_json:
        return trio.run(_print, watch, once, as_json)
    return trio.run(_live, watch)


async def _print(watch: Watch, once: bool, as_json: bool) -> int:
    """Pages one by one; with `once` a single one, of two looks, since rates need two."""
    page: Page = {}
    async with background_nursery() as nursery:
        nursery.start_soon(watch.run)
        with watch.viewing():
            seen = 0
            while True:
                text = await watch.after(seen)
                first, seen = seen == 0, watch.number
                assert watch.page is not None
                page = watch.page
                if once and first and not page["problem"]:
                    continue
                if as_json:
                    print(text, flush=True)
                if once:
                    break
    if not as_json:
        screen = Screen()
        screen.show(page)
        Terminal(highlight=False).print(screen.draw(80, 1_000_000))
    return 1 if page["problem"] else 0


async def _live(watch: Watch) -> int:
    screen, terminal = Screen(), Terminal(highlight=False)
    changed = trio.Event()

    def touch() -> None:
        nonlocal changed
        changed.set()
        changed = trio.Event()

    async def follow() -> None:
        with watch.viewing():
            while True:
                await watch.after(watch.number if screen.page is not None else 0)
                screen.show(watch.page)
                touch()

    async def listen(nursery: trio.Nursery) -> None:
        while True:
            await trio.lowlevel.wait_readable(sys.stdin.fileno())
            key = os.read(sys.stdin.fileno(), 16)
            if not key or not screen.press(key):
                nursery.cancel_scope.cancel()
            touch()

    async with interruptible():  # around what puts the terminal back
        with _raw(), Live(console=terminal, screen=True, auto_refresh=False) as live:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch.run)
                nursery.start_soon(follow)
                if sys.stdin.isatty():
                    nursery.start_soon(listen, nursery)
                while True:
                    live.update(screen.draw(terminal.size.width, terminal.size.height), refresh=True)
                    with trio.move_on_after(1):  # the window may have another size by then
                        await changed.wait()
    return 0


@contextmanager
def _raw() -> Iterator[None]:
    """Keys one by one and unechoed, as long as the block lasts."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


COMMAND = Command(
    "",
    "Shows the cluster in a terminal, live: findings, nodes, partitions with owner, marks, lag and rates, hot locks, "
    "clients that are behind. Changes nothing. Exit status of --once: 1 if the cluster could not be seen.",
    (
        CONFIG,
        Option("1", "once", "Print one look and end; rates are those between two looks", takes_value=False),
        Option("j", "json", "Print a JSON object on a line for each look; with --once a single one", takes_value=False),
    ),
    _run,
    example="-c tools.yml",
)


def make_parser() -> Parser:
    """The only command."""
    return parser_of("waltz top", (COMMAND,))
