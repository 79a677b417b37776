"""A pytest plugin for the second run of what failed beside other tests: who passes alone is noted in a file.

`pytest -p tests.beside --beside FILE --last-failed ...` appends their names to FILE, one to a line.
"""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--beside`: where the names go."""
    parser.addoption("--beside", type=Path, help="append the names of the tests that pass to this file")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """A test that failed beside others and passes now needs more time than it gives itself, or shares something."""
    file: Path | None = config.getoption("--beside")
    names = [report.nodeid for report in terminalreporter.stats.get("passed", ()) if report.when == "call"]
    if file is not None and names:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a") as out:
            out.writelines(f"{name}\n" for name in names)
