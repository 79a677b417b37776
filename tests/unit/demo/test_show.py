"""What is shown, on a terminal and elsewhere."""

from __future__ import annotations

import io

from rich.console import Console

from waltz_trio.demo.proof import Finding
from waltz_trio.demo.show import ClientRow, Progress, Screen, show_findings


def progress() -> Progress:
    rows = [ClientRow(True, 1_200, 3, 2, 40, 41, 7, 300.0), ClientRow(False, 10)]
    return Progress(40.0, rows, {"server 0": True, "storage 0": False}, 12.0, 10.0, "under fire", 3, 2, 1.5)


def test_without_a_terminal_there_are_plain_lines() -> None:
    out = io.StringIO()
    with Screen(Console(file=out, width=200), progress()) as screen:
        screen.event("kill server 0", "red")
        screen.tick()
        screen.tick()
    assert out.getvalue() == (
        "  12.0 s  kill server 0\n"
        "  12.0 s  1210 committed (300/s), 40 conflicts, 41 retries, 2 unknown, lag 7, 3 kills, 2 fail-overs\n"
    )


def test_on_a_terminal_there_is_a_table_of_nodes_and_clients() -> None:
    console = Console(file=io.StringIO(), width=120, force_terminal=True, record=True)
    screen = Screen(console, progress())
    screen.event("kill storage 0", "red")
    console.print(screen.__rich__())
    text = console.export_text()
    for expected in ("● server 0", "✗ storage 0", "3 kills   2 fail-overs", "last commit 1.5 s ago", "1 ✗"):
        assert expected in text
    all_row = next(line for line in text.splitlines() if line.strip().startswith("all"))
    assert all_row.split() == ["all", "1,210", "300", "3", "40", "41", "2", "7"]
    assert "12.0 s  kill storage 0" in text


def test_findings_are_told_with_what_breaks_them() -> None:
    out = io.StringIO()
    broken = Finding("money conserved", "3 accounts", tuple(f"violation {number}" for number in range(5)))
    show_findings(Console(file=out, width=200), [Finding("equal replicas", "3 replicas"), broken])
    assert out.getvalue() == (
        "  ✓ equal replicas   3 replicas\n"
        "  ✗ money conserved  3 accounts\n"
        "      violation 0; violation 1; violation 2; and 2 more\n"
    )
