"""Runs a module of Waltz and notes when its parts do what, for `benchmarks.timeline`.

python -m benchmarks.stamped OUT.json -m MODULE ARGUMENTS...

All processes of a machine share the clock (CLOCK_MONOTONIC). A stamp costs a fraction of a microsecond; two dozen of
them belong to an append.
"""

from __future__ import annotations

import functools
import json
import runpy
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from waltz_core.base.edge import Received
from waltz_core.storage.effects import SyncFile, WriteAt
from waltz_trio.base.pump import Pump
from waltz_trio.client.client import Client
from waltz_trio.client.pending import Pending
from waltz_trio.net.channel import Channel, TlsPipe
from waltz_trio.net.driver import NodeDriver
from waltz_trio.node.storage_node import StorageProcess
from waltz_trio.storage.disk import Disk

STAMPS: defaultdict[str, list[int]] = defaultdict(list)  # what happened → when, in ns


def before(owner: type, method: str, what: str, concerns: Callable[..., bool] = lambda *_: True) -> None:
    """Note each call of a method."""
    original = getattr(owner, method)
    note = STAMPS[what].append

    @functools.wraps(original)
    def noted(*args: Any, **keywords: Any) -> Any:
        if concerns(*args):
            note(time.monotonic_ns())
        return original(*args, **keywords)

    setattr(owner, method, noted)


def after(owner: type, method: str, what: str, concerns: Callable[..., bool] = lambda *_: True) -> None:
    """Note each return of a method."""
    original = getattr(owner, method)
    note = STAMPS[what].append

    @functools.wraps(original)
    def noted(*args: Any, **keywords: Any) -> Any:
        result = original(*args, **keywords)
        if concerns(*args):
            note(time.monotonic_ns())
        return result

    setattr(owner, method, noted)


def after_wait(owner: type, method: str, what: str) -> None:
    """Note each return of an asynchronous method."""
    original = getattr(owner, method)
    note = STAMPS[what].append

    @functools.wraps(original)
    async def noted(*args: Any, **keywords: Any) -> Any:
        result = await original(*args, **keywords)
        note(time.monotonic_ns())
        return result

    setattr(owner, method, noted)


def observe() -> None:
    """Have every part that an append passes through note when it does."""
    before(Client, "send", "called")
    after_wait(Pending, "outcome", "known")
    after_wait(TlsPipe, "readable", "woken")
    before(NodeDriver, "deliver", "received", lambda driver, events: type(events[0]) is Received)
    before(Pump, "run_once", "step")
    before(NodeDriver, "_perform", "stepped")
    after(Channel, "_encrypt", "encrypted")
    before(Disk, "offer", "queued")
    before(Disk, "_carry_out", "taken")
    after(Disk, "_apply", "written", lambda disk, operation: type(operation) is WriteAt)
    after(Disk, "_apply", "synced", lambda disk, operation: type(operation) is SyncFile)
    before(StorageProcess, "_post_all", "answered")


def main() -> None:
    """Take our own arguments away and run the module as `__main__`."""
    out, _, module, *rest = sys.argv[1:]
    sys.argv = [module, *rest]
    observe()
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        Path(out).write_text(json.dumps(STAMPS))


if __name__ == "__main__":
    main()
