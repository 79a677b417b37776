"""A disk that loses power after any recorded call: every content that it may then have.

Like the disk of the crash sweep, with names that are renamed and linked: of each sector any version since the last
sync of its file, of each file any length that it had since and any border of a sector between, of each directory any
choice of the names that changed since it was synced, all combined. Where that is too much, a random part of it, always
with what is durable alone and with everything.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path

from tests.driver_crashes.recorder import Call
from tests.model.crash_sweep import _File

Content = dict[str, bytes | None]  # path → content; None is a directory


class Disk:
    """What is there, and what of it survives."""

    def __init__(self) -> None:
        self._files: dict[str, _File] = {}  # as the process sees them
        self._durable: dict[str, _File] = {}  # names that survive
        self._directories = {""}
        self._durable_directories = {""}

    def apply(self, call: Call) -> None:
        """Replay one call."""
        match call.name:
            case "open_file":
                if call.path in self._files:
                    self._files[call.path].become(b"")
                else:
                    self._files[call.path] = _File()
            case "write" | "write_at":
                file = self._files[call.path]
                old = file.now.ljust(call.offset, b"\0")
                file.become(old[: call.offset] + call.data + old[call.offset + len(call.data) :])
            case "truncate":
                file = self._files[call.path]
                file.become(file.now[: call.size].ljust(call.size, b"\0"))
            case "make_directory":
                self._directories.add(call.path)
            case "rename":
                self._files[call.target] = self._files.pop(call.path)
            case "link":
                self._files[call.target] = self._files[call.path]
            case "unlink":
                del self._files[call.path]
            case _:
                self._sync(call)

    def _sync(self, call: Call) -> None:
        match call.name:
            case "sync_data":
                del self._files[call.path].versions[:-1]
            case "sync_directory":
                self._sync_names(call.path)
            case "sync_file_system":
                for file in self._files.values():
                    del file.versions[:-1]
                for directory in self._directories:
                    self._sync_names(directory)
            case _:
                raise AssertionError(call)

    def _sync_names(self, directory: str) -> None:
        for name in {*self._files, *self._durable}:
            if name.rpartition("/")[0] == directory:
                if name in self._files:
                    self._durable[name] = self._files[name]
                else:
                    self._durable.pop(name, None)
        self._durable_directories |= {one for one in self._directories if one.rpartition("/")[0] == directory}

    def contents(self, most: int, rng: random.Random) -> Iterator[Content]:
        """What a power failure may leave: all of it if that is not more than `most`, else so many of them."""
        loose = sorted(self._directories - self._durable_directories)
        total = 0
        for kept in itertools.product((False, True), repeat=len(loose)):
            directories = self._reachable({*self._durable_directories, *itertools.compress(loose, kept)})
            options = self._options(directories)
            count = 1
            for _, choices in options:
                count *= len(choices)
            if total + count <= most:
                for choice in itertools.product(*(choices for _, choices in options)):
                    yield self._made(directories, options, choice)
            else:
                yield self._made(directories, options, [choices[0] for _, choices in options])
                yield self._made(directories, options, [choices[-1] for _, choices in options])
                for _ in range(max(2, most // 2 ** len(loose))):
                    yield self._made(directories, options, [rng.choice(choices) for _, choices in options])
            total += count

    @staticmethod
    def _reachable(directories: set[str]) -> set[str]:
        """Those whose parents are there too."""
        kept = {""}
        for one in sorted(directories - {""}):
            if one.rpartition("/")[0] in kept:
                kept.add(one)
        return kept

    def _options(self, directories: set[str]) -> list[tuple[str, list[bytes | None]]]:
        options: list[tuple[str, list[bytes | None]]] = []
        for name in sorted({*self._files, *self._durable}):
            if name.rpartition("/")[0] not in directories:
                continue
            before, now = self._durable.get(name), self._files.get(name)
            choices: list[bytes | None] = [None] if before is None else list(before.contents())
            if now is not before:
                choices += [None] if now is None else now.contents()
            options.append((name, list(dict.fromkeys(choices))))
        return options

    @staticmethod
    def _made(directories: set[str], options: list[tuple[str, list[bytes | None]]], choice: object) -> Content:
        content: Content = dict.fromkeys(sorted(directories - {""}))
        assert isinstance(choice, list | tuple)
        content.update({name: data for (name, _), data in zip(options, choice, strict=True) if data is not None})
        return content


def lay_out(content: Content, root: Path) -> None:
    """Make a real directory of it; the root must be empty."""
    for name, data in content.items():
        if data is None:
            (root / name).mkdir(parents=True, exist_ok=True)
        else:
            (root / name).write_bytes(data)
