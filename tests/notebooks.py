"""Runs a notebook in a kernel of its own."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path

from nbclient import NotebookClient
from nbformat import NotebookNode

CELL_SECONDS = 300
KERNEL_SECONDS = 300  # until the kernel answers; the default of 60 is short for two cores with other work


def execute(notebook: NotebookNode, folder: Path | None = None) -> None:
    """Run every cell, in `folder`.

    Raises:
        CellExecutionError: a cell failed.
    """
    resources = {} if folder is None else {"metadata": {"path": str(folder)}}
    client = NotebookClient(
        notebook, timeout=CELL_SECONDS, startup_timeout=KERNEL_SECONDS, kernel_name="python3", resources=resources
    )
    try:
        client.execute()
    finally:
        # A kernel that does not start leaves an event loop's descriptor there, and no Trio runs beside that.
        with contextlib.suppress(ValueError):  # not the main thread: it has none
            signal.set_wakeup_fd(-1)
