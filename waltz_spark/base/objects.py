"""Where an archive is kept: a local directory, or an object store through fsspec. Small, whole-file operations.

All that is asked of a store beyond reading and writing is *put if absent*: of two who create the same
name, one fails. Locally that is a hard link to a synced file; S3 has conditional puts, which s3fs offers as
mode `create`. Other kinds of stores are refused.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import stat
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from waltz_spark.base.errors import ArchiveError, UnreachableError
from waltz_trio.base import durable

SMALL_MAX = 1 << 28
"""Bytes of the largest file that is read as a whole: a checkpoint of some 700,000 archived files."""

_CONDITIONAL = ("s3", "s3a")  # kinds of fsspec whose mode `create` is a conditional put
_FAILURES = (("botocore.exceptions", "BotoCoreError"), ("aiohttp", "ClientError"))  # beside OSError
_TAKEN = ("PreconditionFailed", "412")  # what S3 calls a taken name, and a store that sends a status alone
_ONE_SLASH = re.compile(r"([a-z][a-z0-9+.-]+):/(?!/)", re.IGNORECASE)


class Store(Protocol):
    """Names are relative, with slashes."""

    root: str

    def names(self, folder: str) -> list[str]:
        """Names of the files in a folder, sorted; empty if there is none."""
        ...

    def read(self, name: str, size_max: int = SMALL_MAX) -> bytes:
        """The whole file; raises UnreachableError, ArchiveError where it has more than `size_max` bytes."""
        ...

    def find(self, name: str, size_max: int = SMALL_MAX) -> bytes | None:
        """As `read`; None if there is no such file."""
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

    def size_and_crc(self, name: str, size_max: int | None = None) -> tuple[int, int]:
        """Size and CRC-32 of a file; of one with more than `size_max` bytes, of those and one more."""
        ...

    def remove(self, name: str) -> None:
        """Delete a file, if it is there. Archives never do."""
        ...


def open_store(root: str, *, read_only: bool = False) -> Store:
    """The store of an archive: a path, `file:///...`, or any URI that fsspec knows (`s3://bucket/prefix`).

    Args:
        read_only: nothing will be put there, so that any kind of store will do.

    Raises:
        ArchiveError: fsspec, or the package for this kind of store, is not installed, or this is no place of any kind.
    """
    root = plain_root(root)
    if "://" not in root:
        return LocalStore(root)
    try:
        import fsspec
    except ImportError:
        raise ArchiveError(f"{root}: object stores need the package fsspec") from None
    kind = root.partition("://")[0]
    if kind not in _CONDITIONAL and not read_only:
        raise ArchiveError(
            f"{root}: archives, seals and checkpoints of a sink are kept in directories or on "
            f"{', '.join(_CONDITIONAL)}, not on {kind}"
        )
    try:
        with _reaching(root):
            file_system, path = fsspec.core.url_to_fs(root)
    except (ImportError, ValueError) as error:
        raise ArchiveError(f"{root}: {error}") from error
    return RemoteStore(root, file_system, path)


def plain_root(root: str) -> str:
    """The path of a local URI, as Spark and Hadoop write it (`file:/path`, percent signs as they are); else as it is.

    Raises:
        ArchiveError: it looks like a URI and is none: as a path it would be a folder in the working directory.
    """
    if root.lower().startswith("file:"):
        path = re.sub(r"^//(localhost)?(?=/)", "", root[len("file:") :])
        if not path.startswith("/") or path.startswith("//"):
            raise ArchiveError(f"{root}: expected file:///path, on this machine")
        return path
    match = _ONE_SLASH.match(root)
    if match is not None:
        kind = match[1]
        raise ArchiveError(
            f"{root}: expected {kind}://bucket/prefix, or a path; archives, seals and checkpoints of a sink are kept "
            f"in directories or on {', '.join(_CONDITIONAL)} (a folder of such a name: ./{root})"
        )
    return root


def _crc(file: Any, size_max: int | None) -> tuple[int, int]:
    size = checksum = 0
    while chunk := file.read(1 << 20 if size_max is None else min(1 << 20, size_max + 1 - size)):
        checksum = zlib.crc32(chunk, checksum)
        size += len(chunk)
    return size, checksum


class LocalStore:
    """A directory. What is written there is for the user who writes it alone; what is read are regular files in it."""

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)
        self._root = Path(self.root)

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(one for one in os.listdir(self._root / folder) if not one.startswith("."))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UnreachableError(f"{self._root / folder}: {error.strerror}") from error

    def read(self, name: str, size_max: int = SMALL_MAX) -> bytes:
        with self.open_input(name) as file:
            try:
                data: bytes = file.read(min(os.fstat(file.fileno()).st_size, size_max) + 1)
            except OSError as error:
                raise UnreachableError(f"{self._root / name}: {error.strerror}") from error
        return _bounded(f"{self._root / name}", data, size_max)

    def find(self, name: str, size_max: int = SMALL_MAX) -> bytes | None:
        return self.read(name, size_max) if os.path.lexists(self._root / name) else None

    def put_if_absent(self, name: str, data: bytes) -> bool:
        scratch = self.scratch(name)
        try:
            fd = durable.open_file(Path(scratch), os.O_WRONLY)
            try:
                durable.write_all(fd, data)
            finally:
                durable.close(fd)
        except BaseException:  # a full disk: what is there already must not make it fuller at every attempt
            durable.unlink(Path(scratch))
            raise
        return self.publish(scratch, name)

    def open_input(self, name: str) -> Any:
        path = self._root / name
        try:
            # A FIFO without a writer would be waited for; of a regular file it changes nothing.
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise UnreachableError(f"{path}: {error.strerror}") from error
        try:
            self._check_input(path, handle)
            return os.fdopen(handle, "rb")
        except BaseException:
            os.close(handle)
            raise

    def _check_input(self, path: Path, handle: int) -> None:
        opened = os.fstat(handle)
        if not stat.S_ISREG(opened.st_mode):
            raise ArchiveError(f"{path} is no regular file")
        real, root = os.path.realpath(path), os.path.realpath(self._root)
        try:
            same = os.path.samestat(os.stat(real), opened)
        except OSError:
            same = False
        if not same or os.path.commonpath([real, root]) != root:
            raise ArchiveError(f"{path} is not inside {self.root}: it leads to {real}")

    def scratch(self, name: str) -> str:
        path = self._root / name
        _make_folders(path.parent, self._root)
        scratch = path.with_name(f".{path.name}.{uuid4().hex}")
        durable.close(durable.open_file(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        return str(scratch)

    def publish(self, scratch: str, name: str) -> bool:
        path = self._root / name
        try:
            fd = durable.open_file(Path(scratch), os.O_RDONLY)
            try:
                durable.sync_data(fd)
            finally:
                durable.close(fd)
            durable.link(Path(scratch), path)
        except FileExistsError:
            return False
        finally:
            durable.unlink(Path(scratch))
        _sync_folders(path.parent, self._root)
        return True

    def size_and_crc(self, name: str, size_max: int | None = None) -> tuple[int, int]:
        with self.open_input(name) as file:
            return _crc(file, size_max)

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            durable.unlink(self._root / name)


def _make_folders(folder: Path, root: Path) -> None:
    """Like `mkdir -p`, but the root and what is below it are for their owner alone."""
    durable.make_directories(root.parent, 0o777)  # as others make them; but their names must survive, too
    for path in (root, *reversed([one for one in (folder, *folder.parents) if root in one.parents])):
        durable.make_directory(path)


def _bounded(name: str, data: bytes, size_max: int) -> bytes:
    if len(data) > size_max:
        raise ArchiveError(f"{name} has more than {size_max} bytes")
    return data


def _sync_folders(folder: Path, root: Path) -> None:
    """A name is durable when its folder is, and the folder's own name, up to the root."""
    while True:
        durable.sync_directory(folder)
        if folder == root.parent or folder == folder.parent:
            return
        folder = folder.parent


@contextlib.contextmanager
def _reaching(place: str) -> Iterator[None]:
    """Around a call of fsspec: whatever it raises where the store does not do it is an UnreachableError."""
    try:
        yield
    except _failures() as error:
        raise UnreachableError(f"{place}: {error}") from error


def _failures() -> tuple[type[Exception], ...]:
    """With the errors of the packages beneath s3fs, which lets through those that are no answers of the store."""
    loaded = [(sys.modules.get(name), root) for name, root in _FAILURES]  # one that is not imported raises nothing
    return (OSError, *(getattr(module, root) for module, root in loaded if module is not None))


def _is_taken(error: OSError) -> bool:
    """Whether a put was refused for its condition; s3fs does not understand stores that do not say which one it was."""
    response = getattr(error.__cause__, "response", None)
    code = response.get("Error", {}).get("Code") if isinstance(response, dict) else None
    return isinstance(error, FileExistsError) or code in _TAKEN


class _RemoteFile(io.RawIOBase):
    """An object that is read; what pyarrow calls an OSError of its own is then something in the object."""

    def __init__(self, place: str, file: Any) -> None:
        super().__init__()
        self._place = place
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        with _reaching(self._place):
            data: bytes = self._file.read(size)
            return data

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


class RemoteStore:
    """What fsspec reaches. Scratch files are written to the local temporary directory and uploaded whole."""

    def __init__(self, root: str, file_system: Any, path: str) -> None:
        self.root = root
        self._file_system = file_system
        self._path = path.rstrip("/")

    def _full(self, name: str) -> str:
        return f"{self._path}/{name}"

    def names(self, folder: str) -> list[str]:
        with _reaching(f"{self.root}/{folder}"):
            try:
                # Not by dropping the cache: threads share this object, and one may be reading from it.
                paths = self._file_system.ls(self._full(folder), detail=False, refresh=True)
            except FileNotFoundError:
                self._check_bucket()
                return []
        return sorted(path.rsplit("/", 1)[1] for path in paths)

    def _check_bucket(self) -> None:
        """That nothing is in a folder must not mean that there is no bucket, which looks the same."""
        if self.root.partition("://")[0] not in _CONDITIONAL:
            return  # others have no buckets, or none that can be asked for
        bucket = self._path.partition("/")[0]
        try:
            self._file_system.info(bucket, refresh=True)
        except FileNotFoundError as error:
            raise UnreachableError(f"{self.root}: there is no bucket {bucket}") from error

    def read(self, name: str, size_max: int = SMALL_MAX) -> bytes:
        with _reaching(f"{self.root}/{name}"):
            data: bytes = self._file_system.cat_file(self._full(name), start=0, end=size_max + 1)
        return _bounded(f"{self.root}/{name}", data, size_max)

    def find(self, name: str, size_max: int = SMALL_MAX) -> bytes | None:
        with _reaching(f"{self.root}/{name}"):
            try:
                data: bytes = self._file_system.cat_file(self._full(name), start=0, end=size_max + 1)
            except FileNotFoundError:
                return None
        return _bounded(f"{self.root}/{name}", data, size_max)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        with _reaching(f"{self.root}/{name}"):
            try:
                self._file_system.pipe_file(self._full(name), data, mode="create")
            except OSError as error:
                if _is_taken(error):
                    return False
                raise
        return True

    def open_input(self, name: str) -> Any:
        with _reaching(f"{self.root}/{name}"):
            return _RemoteFile(f"{self.root}/{name}", self._file_system.open(self._full(name), "rb"))

    def scratch(self, name: str) -> str:
        import tempfile

        handle, path = tempfile.mkstemp(prefix="waltz-archive-")
        os.close(handle)
        return path

    def publish(self, scratch: str, name: str) -> bool:
        try:
            with _reaching(f"{self.root}/{name}"):
                try:
                    self._file_system.put_file(scratch, self._full(name), mode="create")
                except OSError as error:
                    if _is_taken(error):
                        return False
                    raise
        finally:
            durable.unlink(Path(scratch))
        return True

    def size_and_crc(self, name: str, size_max: int | None = None) -> tuple[int, int]:
        with self.open_input(name) as file:
            return _crc(file, size_max)

    def remove(self, name: str) -> None:
        with _reaching(f"{self.root}/{name}"), contextlib.suppress(FileNotFoundError):
            self._file_system.rm_file(self._full(name))
