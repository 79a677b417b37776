"""Recorded calls on a simulated disk, and what it then holds as a real directory."""

from __future__ import annotations

from pathlib import Path

from tests.disks.remainders import Tree
from tests.disks.versions import Versions
from tests.driver_crashes.recorder import Call
from waltz_testing.simulation.volume import Volume


def apply(volume: Volume[Versions], call: Call) -> None:
    """Replay one call."""
    match call.name:
        case "open_file":
            volume.create(call.path)
        case "write" | "write_at":
            volume.file(call.path).write(call.offset, call.data)
        case "truncate":
            volume.file(call.path).resize(call.size)
        case "make_directory":
            volume.make_directory(call.path)
        case "rename":
            volume.rename(call.path, call.target)
        case "link":
            volume.link(call.path, call.target)
        case "unlink":
            volume.unlink(call.path)
        case "sync_data":
            volume.file(call.path).sync()
        case "sync_directory":
            volume.sync_names(call.path)
        case "sync_file_system":
            volume.sync_all()
        case _:
            raise AssertionError(call)


def lay_out(content: Tree, root: Path) -> None:
    """Make a real directory of it; the root must be empty."""
    for name, data in content.items():
        if data is None:
            (root / name).mkdir(parents=True, exist_ok=True)
        else:
            (root / name).write_bytes(data)
