"""What the commands of benchmarks share: their options, where figures are written, and what is said of a missed bar."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path


def parser_of(name: str, description: str | None, *, on_disk: bool = True) -> argparse.ArgumentParser:
    """The parser of `benchmarks.NAME`, with --json; and with --directory for whatever keeps data on a disk."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=description)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    if on_disk:
        parser.add_argument("--directory", default="/var/tmp", help="where the data goes; not on a tmpfs")
    parser.add_argument("--json", type=Path, help="write the figures as JSON")
    return parser


def conclude(figures: object, path: Path | None, missed: Sequence[str] = (), *, shown: bool = False) -> int:
    """Write the figures where they are wanted, name every bar that was missed; returns the exit status.

    Args:
        shown: they were printed already.
    """
    text = json.dumps(figures, indent=2)
    if path is not None:
        path.write_text(text + "\n")
    if not shown:
        print(text)
    for bar in missed:
        print(f"FAILED: {bar}", file=sys.stderr)
    return 1 if missed else 0
