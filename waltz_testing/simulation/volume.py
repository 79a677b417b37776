"""A simulated disk: files, names and directories, each as the process sees it and as a power failure leaves it.

The one disk of the whole-cluster simulator, of the crash sweep and of the replay of real drivers' calls. Paths are
relative, with `/` between parts; "" is the root. Nothing here knows what the files mean.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Generic, TypeVar

from waltz_testing.simulation.contents import Content, Sectors

C = TypeVar("C", bound=Content)


def parent_of(path: str) -> str:
    """The directory of a name."""
    return path.rpartition("/")[0]


class Volume(Generic[C]):
    """Names of files and directories.

    Attributes:
        files: as the process sees them.
        durable_files: names that survive a power failure, with what they stand for.
        unlinked: names that stood for nothing at some moment since their directory was synced.
    """

    def __init__(self, new: Callable[[], C]) -> None:
        self._new = new
        self.files: dict[str, C] = {}
        self.durable_files: dict[str, C] = {}
        self.directories: set[str] = {""}
        self.durable_directories: set[str] = {""}
        self.unlinked: set[str] = set()
        self._loose: dict[str, None] = {}  # names that came or went since their directory was synced

    # ---- what a process does ---------------------------------------------------------------------

    def create(self, path: str) -> C:
        """A file that is empty, there before or not.

        Raises:
            FileNotFoundError: its directory is missing.
        """
        if parent_of(path) not in self.directories:
            raise FileNotFoundError(2, f"no such directory: {parent_of(path)}")
        file = self.files.get(path)
        if file is None:
            file = self.files[path] = self._new()
            self._loose[path] = None
        else:
            file.resize(0)
        return file

    def file(self, path: str) -> C:
        """A file that is there.

        Raises:
            FileNotFoundError: it is not.
        """
        if path not in self.files:
            raise FileNotFoundError(2, f"no such file: {path}")
        return self.files[path]

    def make_directory(self, path: str) -> None:
        """A directory, there before or not."""
        self.directories.add(path)

    def unlink(self, path: str) -> None:
        """A name goes.

        Raises:
            FileNotFoundError: there is none.
        """
        self.file(path)
        del self.files[path]
        self.unlinked.add(path)
        self._loose[path] = None

    def rename(self, path: str, target: str) -> None:
        """A file gets another name, in place of what had it."""
        self.files[target] = self.file(path)
        del self.files[path]
        self._loose[path] = self._loose[target] = None

    def link(self, path: str, target: str) -> None:
        """A file gets one more name."""
        self.files[target] = self.file(path)
        self._loose[target] = None

    def sync_names(self, directory: str) -> None:
        """The names in a directory become durable.

        Raises:
            FileNotFoundError: it is missing.
        """
        if directory not in self.directories:
            raise FileNotFoundError(2, f"no such directory: {directory}")
        for name in [name for name in self._loose if parent_of(name) == directory]:
            self._keep_name(name)
        for one in self.directories:
            if one and parent_of(one) == directory:
                self.durable_directories.add(one)

    def sync_all(self) -> None:
        """Everything becomes durable."""
        for file in {id(file): file for file in self.files.values()}.values():
            file.sync()
        for directory in sorted(self.directories):
            self.sync_names(directory)

    def _keep_name(self, name: str) -> None:
        self._loose.pop(name, None)
        self.unlinked.discard(name)
        if name in self.files:
            self.durable_files[name] = self.files[name]
        else:
            self.durable_files.pop(name, None)

    def names_in(self, directory: str) -> tuple[list[str], list[str]]:
        """Files and directories in a directory, by path; the latter in an order that does not depend on the process.

        Raises:
            FileNotFoundError: it is missing.
        """
        if directory not in self.directories:
            raise FileNotFoundError(2, f"no such directory: {directory}")
        files = [name for name in self.files if parent_of(name) == directory]
        return files, sorted(name for name in self.directories if name and parent_of(name) == directory)

    # ---- for tests -------------------------------------------------------------------------------

    def put(self, path: str, file: C) -> None:
        """A file that is there, durably."""
        self.put_directory(parent_of(path))
        self.files[path] = self.durable_files[path] = file
        self._loose.pop(path, None)

    def put_directory(self, path: str) -> None:
        """A directory that is there, durably."""
        self.directories.add(path)
        self.durable_directories.add(path)

    def remove(self, path: str) -> None:
        """A file is gone, durably."""
        self.files.pop(path, None)
        self.durable_files.pop(path, None)
        self._loose.pop(path, None)

    def loose_names(self) -> list[str]:
        """Names that a power failure may take or bring back."""
        return sorted(name for name in self._loose if self.files.get(name) is not self.durable_files.get(name))

    def loose_directories(self) -> list[str]:
        """Directories that a power failure may take."""
        return sorted(self.directories - self.durable_directories)


# ---- a power failure -------------------------------------------------------------------------------


def lose_some(volume: Volume[Sectors], rng: random.Random) -> None:
    """Power failure: what was not synced survives in parts, sector by sector and name by name."""
    for name in volume.loose_directories():
        if parent_of(name) in volume.durable_directories and rng.random() < 0.5:
            volume.durable_directories.add(name)
    for name in volume.loose_names():
        if rng.random() < 0.5:
            volume._keep_name(name)
    for file in {id(one): one for one in volume.durable_files.values()}.values():
        file.keep_some(rng)
    lose_unsynced(volume)


def lose_unsynced(volume: Volume[Sectors]) -> None:
    """Power failure that leaves exactly what was synced."""
    kept = volume.durable_directories
    volume.directories = set(kept)
    volume.durable_files = {name: file for name, file in volume.durable_files.items() if parent_of(name) in kept}
    for file in volume.durable_files.values():
        file.lose()
    volume.files = dict(volume.durable_files)
    volume.unlinked.clear()
    volume._loose = {}
