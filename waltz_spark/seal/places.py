"""Where a seal is kept: in a local folder, or in an object store beside the archive.

    folder                              object store
    partition-0/checkpoint              partition-0/checkpoint/00000000000000000512
    partition-0/tile/0/000              partition-0/tile/0/000
    partition-0/tile/0/001.p/7          partition-0/tile/0/001.p/7

In a folder a checkpoint takes the place of the last one, and what it has outgrown is removed. So one run at a time
seals there: the one that has locked the file `lock` beside the partitions. In an object store nothing is ever written
over or removed: credentials that may only add objects suffice, all checkpoints stay, and of two runs at the same time
none can harm what the other has sealed. The checkpoint with the most records counts.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from waltz_core.operations.merkle import ProofError
from waltz_core.operations.transparency import TEXT_MAX, SignedCheckpoint, parse_checkpoint
from waltz_spark.base.errors import PipelineError
from waltz_spark.base.objects import Store, open_store, plain_root
from waltz_trio.base import durable

_CHECKPOINT = "checkpoint"
_LOCK = "lock"
_DIGITS = 20  # of the number of records in the name of a checkpoint
_PUTS_MAX = 16  # objects on their way at a time


class Place(Protocol):
    """The seal of one partition. Names are relative, with slashes; as text it is where that is."""

    def find(self, name: str, size_max: int) -> bytes | None:
        """A file; None if there is none. Of one that is too long some more than `size_max`, or an error."""
        ...

    def put(self, name: str, data: bytes) -> None:
        """Write a file of hashes, durably when `settle` returns.

        Raises:
            ProofError: it is there already, and is another one; at the latest by `settle`.
        """
        ...

    def settle(self) -> None:
        """Wait until all that was put is there."""
        ...

    def checkpoint(self) -> SignedCheckpoint | None:
        """The checkpoint that counts; None before the first one.

        Raises:
            ProofError: it is damaged.
            UnreachableError: nobody can tell.
        """
        ...

    def put_checkpoint(self, signed: SignedCheckpoint) -> None:
        """Write it durably; what was put before must be settled."""
        ...

    def outgrown(self, name: str, *, folder: bool) -> None:
        """A file is not needed any more, nor, if `folder`, are others in its folder."""
        ...


class Places(Protocol):
    """The seals of all partitions."""

    def of(self, partition: int) -> Place:
        """That of one partition."""
        ...

    def writing(self) -> AbstractContextManager[object]:
        """Around a run that seals; only inside may anything be put.

        Raises:
            PipelineError: another run seals in this folder, or nothing can be written there.
        """
        ...


def open_seal(root: str, *, read_only: bool = False) -> Places:
    """The places of the partitions of a seal: a path, `file:/...`, or the URI of an object store.

    Raises:
        ArchiveError: no seal can be kept there.
    """
    root = plain_root(root)
    return Folders(Path(root)) if "://" not in root else Buckets(open_store(root, read_only=read_only))


def _name_of(partition: int) -> str:
    return f"partition-{partition}"


class Folders:
    """A folder with one for each partition."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def of(self, partition: int) -> Folder:
        return Folder(self._root / _name_of(partition))

    @contextmanager
    def writing(self) -> Iterator[None]:
        try:
            durable.make_directories(self._root)
            lock = durable.open_file(self._root / _LOCK, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise PipelineError(f"{self._root}: no seal can be kept there: {error.strerror}") from error
        try:
            self._take(lock)
            yield
        finally:
            durable.close(lock)

    def _take(self, lock: int) -> None:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = "another run is sealing there; expected one at a time. Run this again when that has ended"
            raise PipelineError(f"{self._root}: {text}: nothing was changed by this one") from None
        except OSError as error:
            text = f"the file {_LOCK} cannot be locked: {error.strerror}; keep the seal on a local disk or in a bucket"
            raise PipelineError(f"{self._root}: {text}") from error


class Folder:
    """A directory."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __str__(self) -> str:
        return str(self._path)

    def find(self, name: str, size_max: int) -> bytes | None:
        try:
            with (self._path / name).open("rb") as file:
                return file.read(size_max + 1)
        except FileNotFoundError:
            return None

    def put(self, name: str, data: bytes) -> None:
        before = self.find(name, len(data))
        if before is None:
            self._write(name, data)
        elif (
            before != data
        ):  # the hashes of the same records are the same: a run that was cut short leaves no other ones
            raise ProofError(
                f"{self._path / name} is there already, and is another one: nothing was written over. It is of other "
                "records than these, or damaged; if you know which, move the folder away"
            )

    def _write(self, name: str, data: bytes) -> None:
        path = self._path / name
        durable.make_directories(path.parent)
        durable.replace_file(path, data)

    def settle(self) -> None:
        pass

    def checkpoint(self) -> SignedCheckpoint | None:
        text = self.find(_CHECKPOINT, TEXT_MAX)
        return None if text is None else _parsed(f"{self}/{_CHECKPOINT}", text)

    def put_checkpoint(self, signed: SignedCheckpoint) -> None:
        self._write(_CHECKPOINT, str(signed).encode())

    def outgrown(self, name: str, *, folder: bool) -> None:
        path = self._path / name
        with contextlib.suppress(FileNotFoundError):
            durable.unlink(path)
        if folder:
            shutil.rmtree(path.parent, ignore_errors=True)  # leftovers of runs that were cut short, too


class Buckets:
    """An object store with a prefix for each partition."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pool: Executor | None = None  # of the run that seals

    def of(self, partition: int) -> Bucket:
        return Bucket(self._store, _name_of(partition), self._pool)

    @contextmanager
    def writing(self) -> Iterator[None]:
        with ThreadPoolExecutor(_PUTS_MAX, "seal") as self._pool:
            try:
                yield
            finally:
                self._pool = None


class Bucket:
    """A prefix of an object store."""

    def __init__(self, store: Store, prefix: str, pool: Executor | None = None) -> None:
        self._store = store
        self._prefix = prefix
        self._pool = pool
        self._puts: list[Future[None]] = []

    def __str__(self) -> str:
        return f"{self._store.root}/{self._prefix}"

    def _full(self, name: str) -> str:
        return f"{self._prefix}/{name}"

    def find(self, name: str, size_max: int) -> bytes | None:
        return self._store.find(self._full(name), size_max)

    def put(self, name: str, data: bytes) -> None:
        assert self._pool is not None, "objects are put inside of a run"
        if len(self._puts) >= _PUTS_MAX:
            self.settle()
        self._puts.append(self._pool.submit(self._put, name, data))

    def _put(self, name: str, data: bytes) -> None:
        put_once(self._store, self._full(name), data)

    def settle(self) -> None:
        puts, self._puts = self._puts, []
        for put in puts:
            put.result()

    def checkpoint(self) -> SignedCheckpoint | None:
        numbers = self._store.names(self._full(_CHECKPOINT))
        newest = max((number for number in numbers if len(number) == _DIGITS and number.isdecimal()), default=None)
        if newest is None:
            return None
        name = f"{_CHECKPOINT}/{newest}"
        signed = _parsed(f"{self}/{name}", self._store.read(self._full(name), TEXT_MAX))
        if signed.checkpoint.size != int(newest):
            text = f"expected the checkpoint of {int(newest)} records, found that of {signed.checkpoint.size}"
            raise ProofError(f"{self}/{name}: {text}")
        return signed

    def put_checkpoint(self, signed: SignedCheckpoint) -> None:
        self._put(f"{_CHECKPOINT}/{signed.checkpoint.size:0{_DIGITS}d}", str(signed).encode())

    def outgrown(self, name: str, *, folder: bool) -> None:
        pass


def _parsed(name: str, text: bytes) -> SignedCheckpoint:
    try:
        return parse_checkpoint(text.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ProofError(f"{name}: expected a signed checkpoint, found bytes that are no text") from error
    except ProofError as error:
        raise ProofError(f"{name}: {error}") from error


def put_once(store: Store, name: str, data: bytes) -> None:
    """Create an object, which may be there already if it is the same.

    Raises:
        ProofError: it is another one.
        UnreachableError: the store cannot be written.
    """
    if not store.put_if_absent(name, data) and store.find(name) != data:
        raise ProofError(f"{store.root}/{name} is there already, and is another one: nothing was written over")


# ---- texts that stand by themselves --------------------------------------------------------------


def read_text(place: str) -> bytes:
    """The text of a proof or a checkpoint, from a file or an object store; a byte more than it may have shows.

    Raises:
        OSError: there is no such file.
        UnreachableError: there is no such object.
        ArchiveError: it looks like a URI and is none.
    """
    place = plain_root(place)
    if "://" in place:
        root, _, name = place.rpartition("/")
        return open_store(root, read_only=True).read(name, TEXT_MAX)
    with open(place, "rb") as file:
        return file.read(TEXT_MAX + 1)


def put_text(place: str, data: bytes) -> None:
    """Write a proof; a file is written over, an object is not.

    Raises:
        ProofError: the object is there already, and is another one.
        UnreachableError: the store cannot be written.
        ArchiveError: it looks like a URI and is none.
    """
    place = plain_root(place)
    if "://" in place:
        root, _, name = place.rpartition("/")
        put_once(open_store(root), name, data)
    else:
        durable.replace_file(Path(place), data)
