"""What a driver asked of the operating system: every call of `waltz_trio.base.durable`, carried out and written down.

Calls name files by descriptor; here they stand by path below one directory, so that they can be replayed on a disk that
loses power. Each call carries what had been acknowledged when it was made.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from waltz_trio.base import durable

_ROOT = Path(__file__).parents[2]
SYNCS = ("sync_data", "sync_directory", "sync_file_system")


@attrs.frozen
class Call:
    """One call, once it has returned."""

    name: str  # of the function of `waltz_trio.base.durable`
    path: str  # below the root, "" for the root itself
    site: str  # file and function that asked for it
    data: bytes = b""
    offset: int = -1  # -1 where the descriptor's own place counts
    size: int = -1
    target: str = ""  # the other name of a rename or link
    fresh: bool = False  # an open that made or emptied the file
    acknowledged: Any = None  # what had been promised before the call


class Recorder:
    """Stands in for the functions of `waltz_trio.base.durable` while a life runs.

    Args:
        root: calls outside of it are carried out and not written down.

    Attributes:
        acknowledged: called with every call for what has been promised so far; must not change afterwards.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.calls: list[Call] = []
        self.acknowledged: Callable[[], Any] = lambda: None
        self._paths: dict[int, tuple[str, int]] = {}  # descriptor → path, place
        self._mutex = threading.Lock()
        self._real = {name: getattr(durable, name) for name in _CALLS}

    @contextmanager
    def installed(self) -> Iterator[Recorder]:
        """Record while the block runs."""
        for name in _CALLS:
            setattr(durable, name, getattr(self, f"_{name}"))
        try:
            yield self
        finally:
            for name, function in self._real.items():
                setattr(durable, name, function)

    def _relative(self, path: Path) -> str | None:
        try:
            relative = path.absolute().relative_to(self.root).as_posix()
        except ValueError:
            return None
        return "" if relative == "." else relative

    def _note(self, name: str, path: str | None, **details: Any) -> None:
        if path is not None:
            self.calls.append(Call(name, path, _site(), acknowledged=self.acknowledged(), **details))

    # ---- the calls -------------------------------------------------------------------------------

    def _open_file(self, path: Path, flags: int, mode: int = durable.OWNER_ONLY) -> int:
        with self._mutex:
            relative = self._relative(path)
            made = not path.exists() or bool(flags & os.O_TRUNC)
            fd: int = self._real["open_file"](path, flags, mode)
            if relative is not None:
                self._paths[fd] = relative, 0
                if made:
                    self._note("open_file", relative, fresh=True)
            return fd

    def _close(self, fd: int) -> None:
        with self._mutex:
            self._paths.pop(fd, None)
            self._real["close"](fd)

    def _write(self, fd: int, data: bytes | memoryview) -> int:
        with self._mutex:
            count: int = self._real["write"](fd, data)
            if fd in self._paths:
                path, place = self._paths[fd]
                self._note("write", path, data=bytes(data[:count]), offset=place)
                self._paths[fd] = path, place + count
            return count

    def _write_at(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        with self._mutex:
            count: int = self._real["write_at"](fd, data, offset)
            if fd in self._paths:
                self._note("write_at", self._paths[fd][0], data=bytes(data[:count]), offset=offset)
            return count

    def _truncate(self, fd: int, size: int) -> None:
        with self._mutex:
            self._real["truncate"](fd, size)
            if fd in self._paths:
                self._note("truncate", self._paths[fd][0], size=size)

    def _sync_data(self, fd: int) -> None:
        # What was written before this call is durable after it, and nothing that is written while it runs.
        with self._mutex:
            self._real["sync_data"](fd)
            if fd in self._paths:
                self._note("sync_data", self._paths[fd][0])

    def _sync_directory(self, path: Path) -> None:
        with self._mutex:
            self._real["sync_directory"](path)
            self._note("sync_directory", self._relative(path))

    def _sync_file_system(self, directory: Path, call: Callable[[], None]) -> None:
        with self._mutex:
            self._real["sync_file_system"](directory, call)
            self._note("sync_file_system", self._relative(directory))

    def _make_directory(self, path: Path, mode: int = durable.OWNER_ONLY_DIRECTORY) -> None:
        with self._mutex:
            made = not path.exists()
            self._real["make_directory"](path, mode)
            if made:
                self._note("make_directory", self._relative(path))

    def _rename(self, source: Path, target: Path) -> None:
        with self._mutex:
            self._real["rename"](source, target)
            self._note("rename", self._relative(source), target=self._relative(target) or "")

    def _link(self, source: Path, target: Path) -> None:
        with self._mutex:
            self._real["link"](source, target)
            self._note("link", self._relative(source), target=self._relative(target) or "")

    def _unlink(self, path: Path) -> None:
        with self._mutex:
            self._real["unlink"](path)
            self._note("unlink", self._relative(path))


_CALLS = tuple(name[1:] for name in vars(Recorder) if name[1:] in vars(durable) and name.startswith("_"))


def _site() -> str:
    """The function of a driver from which the port was called, through the port's own helpers."""
    frame = sys._getframe(1)
    names: list[str] = []
    while frame is not None:
        file = frame.f_code.co_filename
        if file.endswith("waltz_trio/base/durable.py"):
            names.append(f"durable.{frame.f_code.co_name}")
        elif "/tests/driver_crashes/recorder.py" not in file:
            place = Path(file).relative_to(_ROOT).as_posix()
            return " < ".join([*names, f"{place}:{frame.f_code.co_name}"])
        assert frame.f_back is not None
        frame = frame.f_back
    return "?"
