"""What the demonstration shows: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

import attrs
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from waltz_trio.demo.proof import Finding

_EVENTS_SHOWN = 8
_LINE_EVERY = 3.0  # seconds between lines where there is no terminal


@attrs.define
class ClientRow:
    """One client, as it reported last; counts include those of processes that were killed."""

    alive: bool = False
    committed: int = 0
    declined: int = 0
    unknown: int = 0
    conflicts: int = 0
    retries: int = 0  # attempts after the first, conflicts included
    lag: int = 0  # transactions seen and not applied to the database yet
    rate: float = 0.0  # commits a second


@attrs.define
class Progress:
    """Everything that is shown while the demonstration runs."""

    seconds: float
    clients: list[ClientRow]
    nodes: dict[str, bool] = attrs.field(factory=dict)  # name → up
    clock: float = 0.0  # seconds since the demonstration began
    elapsed: float = 0.0  # of the time under fire
    phase: str = "starting"
    kills: int = 0
    failovers: int = 0
    outage: float = 0.0  # seconds since anything was committed

    def total(self, field: str) -> int:
        """Sum over the clients."""
        return sum(getattr(row, field) for row in self.clients)


class Screen:
    """Shows progress until left."""

    def __init__(self, console: Console, progress: Progress) -> None:
        self.console = console
        self.progress = progress
        self._events: deque[tuple[float, str, str]] = deque(maxlen=_EVENTS_SHOWN)
        self._live = Live(console=console, get_renderable=self.__rich__, refresh_per_second=5, transient=True)
        self._last_line = 0.0

    def __enter__(self) -> Screen:
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self._live.stop()

    def event(self, text: str, style: str = "") -> None:
        """Something happened."""
        self._events.append((self.progress.clock, text, style))
        if not self.console.is_terminal:
            self._line(text)

    def tick(self) -> None:
        """Some time has passed."""
        if not self.console.is_terminal and time.monotonic() - self._last_line >= _LINE_EVERY:
            self._last_line = time.monotonic()
            p = self.progress
            rate = sum(row.rate for row in p.clients)
            self._line(
                f"{p.total('committed')} committed ({rate:.0f}/s), {p.total('conflicts')} conflicts, "
                f"{p.total('retries')} retries, {p.total('unknown')} unknown, lag {p.total('lag')}, "
                f"{p.kills} kills, {p.failovers} fail-overs"
            )

    def _line(self, text: str) -> None:
        self.console.print(f"{self.progress.clock:6.1f} s  {text}", highlight=False, markup=False, soft_wrap=True)

    # ---- the live table --------------------------------------------------------------------------

    def __rich__(self) -> RenderableType:
        """The whole table."""
        return Padding(Group(self._head(), "", self._nodes(), "", self._clients(), "", self._log()), (1, 2))

    def _head(self) -> RenderableType:
        p = self.progress
        head = Table.grid(padding=(0, 2))
        head.add_row(
            Text("Waltz: a bank under fire", style="bold"),
            ProgressBar(total=p.seconds, completed=min(p.elapsed, p.seconds), width=30),
            f"{min(p.elapsed, p.seconds):.0f} of {p.seconds:.0f} s",
            Text(p.phase, style="cyan"),
        )
        return head

    def _nodes(self) -> RenderableType:
        p = self.progress
        line = Text()
        for name, up in p.nodes.items():
            line.append(f"{'●' if up else '✗'} {name}   ", style="green" if up else "bold red")
        line.append(f"\n{p.kills} kills   {p.failovers} fail-overs   ")
        waiting = p.outage >= 0.5
        line.append(
            f"last commit {p.outage:.1f} s ago" if waiting else "committing", style="yellow" if waiting else "green"
        )
        return line

    def _clients(self) -> RenderableType:
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("client")
        for name in ("committed", "per second", "declined", "conflicts", "retries", "unknown", "lag"):
            table.add_column(name, justify="right", min_width=10)
        rows = self.progress.clients
        for index, row in enumerate(rows):
            table.add_row(str(index) if row.alive else f"[bold red]{index} ✗[/]", *_cells(row))
        table.add_section()
        fields = ("committed", "rate", "declined", "conflicts", "retries", "unknown", "lag")
        total = ClientRow(True, **{field: sum(getattr(row, field) for row in rows) for field in fields})
        table.add_row("all", *_cells(total), style="bold")
        return table

    def _log(self) -> RenderableType:
        log = Table.grid(padding=(0, 2))
        for moment, text, style in self._events:
            log.add_row(f"[dim]{moment:6.1f} s[/]", Text(text, style=style))
        return log


def _cells(row: ClientRow) -> list[str]:
    return [
        f"{row.committed:,}",
        f"{row.rate:,.0f}",
        f"{row.declined:,}",
        f"{row.conflicts:,}",
        f"{row.retries:,}",
        f"{row.unknown:,}",
        f"{row.lag:,}",
    ]


def show_findings(console: Console, findings: Sequence[Finding]) -> None:
    """The promises, one a line, each with what was looked at; violations follow below it."""
    width = max(len(finding.promise) for finding in findings)
    for finding in findings:
        mark, style = ("✓", "green") if finding.kept else ("✗", "bold red")
        line = Text(f"  {mark} ", style=style)
        line.append(f"{finding.promise:<{width}}", style="" if finding.kept else "bold red")
        line.append(f"  {finding.detail}", style="dim")
        console.print(line, soft_wrap=True)
        if not finding.kept:
            console.print(Text(f"      {finding.shown()}", style="red"), soft_wrap=True)
