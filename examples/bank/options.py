"""The command line that the programs share."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from waltz_testing import running_cluster


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"expected a port from 0 to 65535, found {text!r}")
    return int(text)


@contextmanager
def options_of(arguments: Sequence[str], description: str | None) -> Iterator[argparse.Namespace]:
    """Parsed options; where no cluster or database is named, both are made for the block, and removed behind it."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="of a cluster; without it one is started")
    parser.add_argument("--port", type=_port, default=8000, help="where to serve, on this machine alone")
    parser.add_argument("--database", help="file of the view; without it a temporary one")
    options = parser.parse_args(arguments)
    with ExitStack() as stack:
        if options.url is None:
            options.url = stack.enter_context(running_cluster()).url
        if options.database is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            options.database = str(Path(folder) / "bank.db")
        yield options
