"""One line on standard error for every change that a tool makes: who, what, on what, and what became of it."""

from __future__ import annotations

import getpass
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from waltz_core.base.errors import WaltzError


def operator() -> str:
    """Who runs this tool, and where."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in containers
        user = "somebody"
    return f"{user}@{socket.gethostname()}"


@contextmanager
def audited(what: str) -> Iterator[None]:
    """Write the line when the block has ended, whichever way."""
    try:
        yield
    except Exception as error:
        shown = str(error) if isinstance(error, (WaltzError, OSError)) else type(error).__name__
        _write(what, f"failed: {' '.join(shown.split())}")
        raise
    except BaseException:
        _write(what, "interrupted: nobody knows whether it was done")
        raise
    _write(what, "done")


def _write(what: str, outcome: str) -> None:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    print(f"{stamp} audit: {operator()}: {what}: {outcome}", file=sys.stderr)
