"""Where an archive is kept: a local directory, or an object store through fsspec. Small, whole-file operations.

All that is asked of a store beyond reading and writing is *put if absent*: of two who create the same
name, one fails. Locally that is a hard link to a synced file; S3 has conditional puts, which s3fs offers as
mode `create`. A kind of store of which that is not known is refused.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from waltz_spark.errors import ArchiveError, UnreachableError

_CONDITIONAL = ("s3", "s3a")  # kinds of fsspec whose mode `create` is a conditional put


class Store(Protocol):
    """Names are relative, with slashes."""

    root: str

    def names(self, folder: str) -> list[str]:
        """Names of the files in a folder, sorted; empty if there is none."""
        ...

    def read(self, name: str) -> bytes:
        """The whole file; raises UnreachableError."""
        ...

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Create a file durably and whole; False if the name is taken."""
        ...

    def open_input(self, name: str) -> Any:
        """A seekable binary file for reading; raises UnreachableError."""
        ...

    def scratch(self, name: str) -> str:
        """A local path to write a file to that is to become `name`."""
        ...

    def publish(self, scratch: str, name: str) -> bool:
        """Make a scratch file the file `name`, durably; False if the name is taken. The scratch file is gone."""
        ...

    def size_and_crc(self, name: str) -> tuple[int, int]:
        """Size and CRC-32 of a file."""
        ...

    def remove(self, name: str) -> None:
        """Delete a file, if it is there. Archives never do."""
        ...


def open_store(root: str, *, read_only: bool = False) -> Store:
    """The store of an archive: a path, `file://...`, or any URI that fsspec knows (`s3://bucket/prefix`).

    Args:
        read_only: nothing will be put there, so that any kind of store will do.

    Raises:
        ArchiveError: fsspec, or the package for this kind of store, is not installed.
    """
    if root.startswith("file://"):
        root = root.removeprefix("file://")
    if "://" not in root:
        return LocalStore(root)
    try:
        import fsspec
    except ImportError:
        raise ArchiveError(f"{root}: object stores need the package fsspec") from None
    kind = root.partition("://")[0]
    if kind not in _CONDITIONAL and not read_only:
        raise ArchiveError(f"{root}: archives are kept in directories or on {', '.join(_CONDITIONAL)}, not on {kind}")
    try:
        file_system, path = fsspec.core.url_to_fs(root)
    except (ImportError, ValueError) as error:
        raise ArchiveError(f"{root}: {error}") from error
    return RemoteStore(root, file_system, path)


def _crc(file: Any) -> tuple[int, int]:
    size = checksum = 0
    while chunk := file.read(1 << 20):
        checksum = zlib.crc32(chunk, checksum)
        size += len(chunk)
    return size, checksum


class LocalStore:
    """A directory."""

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)
        self._root = Path(self.root)

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(one for one in os.listdir(self._root / folder) if not one.startswith("."))
        except FileNotFoundError:
            return []

    def read(self, name: str) -> bytes:
        try:
            return (self._root / name).read_bytes()
        except OSError as error:
            raise UnreachableError(f"{self._root / name}: {error.strerror}") from error

    def put_if_absent(self, name: str, data: bytes) -> bool:
        scratch = self.scratch(name)
        Path(scratch).write_bytes(data)
        return self.publish(scratch, name)

    def open_input(self, name: str) -> Any:
        try:
            return (self._root / name).open("rb")
        except OSError as error:
            raise UnreachableError(f"{self._root / name}: {error.strerror}") from error

    def scratch(self, name: str) -> str:
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return str(path.with_name(f".{path.name}.{uuid4().hex}"))

    def publish(self, scratch: str, name: str) -> bool:
        with open(scratch, "rb") as file:
            os.fsync(file.fileno())
        path = self._root / name
        try:
            os.link(scratch, path)
        except FileExistsError:
            return False
        finally:
            os.unlink(scratch)
        _sync_folders(path.parent, self._root)
        return True

    def size_and_crc(self, name: str) -> tuple[int, int]:
        with self.open_input(name) as file:
            return _crc(file)

    def remove(self, name: str) -> None:
        (self._root / name).unlink(missing_ok=True)


def _sync_folders(folder: Path, root: Path) -> None:
    """A name is durable when its folder is, and the folder's own name, up to the root."""
    while True:
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        if folder == root.parent or folder == folder.parent:
            return
        folder = folder.parent


class RemoteStore:
    """What fsspec reaches. Scratch files are written to the local temporary directory and uploaded whole."""

    def __init__(self, root: str, file_system: Any, path: str) -> None:
        self.root = root
        self._file_system = file_system
        self._path = path.rstrip("/")

    def _full(self, name: str) -> str:
        return f"{self._path}/{name}"

    def names(self, folder: str) -> list[str]:
        try:
            self._file_system.invalidate_cache()
            found = self._file_system.ls(self._full(folder), detail=False)
        except FileNotFoundError:
            return []
        return sorted(one.rsplit("/", 1)[1] for one in found)

    def read(self, name: str) -> bytes:
        try:
            data: bytes = self._file_system.cat_file(self._full(name))
        except OSError as error:
            raise UnreachableError(f"{self.root}/{name}: {error}") from error
        return data

    def put_if_absent(self, name: str, data: bytes) -> bool:
        try:
            self._file_system.pipe_file(self._full(name), data, mode="create")
        except FileExistsError:
            return False
        except OSError as error:
            raise UnreachableError(f"{self.root}/{name}: {error}") from error
        return True

    def open_input(self, name: str) -> Any:
        try:
            return self._file_system.open(self._full(name), "rb")
        except OSError as error:
            raise UnreachableError(f"{self.root}/{name}: {error}") from error

    def scratch(self, name: str) -> str:
        import tempfile

        handle, path = tempfile.mkstemp(prefix="waltz-archive-")
        os.close(handle)
        return path

    def publish(self, scratch: str, name: str) -> bool:
        try:
            self._file_system.put_file(scratch, self._full(name), mode="create")
        except FileExistsError:
            return False
        except OSError as error:
            raise UnreachableError(f"{self.root}/{name}: {error}") from error
        finally:
            os.unlink(scratch)
        return True

    def size_and_crc(self, name: str) -> tuple[int, int]:
        with self.open_input(name) as file:
            return _crc(file)

    def remove(self, name: str) -> None:
        try:
            self._file_system.rm_file(self._full(name))
        except FileNotFoundError:
            pass
        except OSError as error:
            raise UnreachableError(f"{self.root}/{name}: {error}") from error
