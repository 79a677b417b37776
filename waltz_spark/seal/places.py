"""Where a seal is kept: in a local folder, or in an object store beside the archive.

    folder                              object store
    partition-0/checkpoint              partition-0/checkpoint/00000000000000000512
    partition-0/tile/0/000              partition-0/tile/0/000
    partition-0/tile/0/001.p/7          partition-0/tile/0/001.p/7

In a folder a checkpoint takes the place of the last one, and what it has outgrown is removed. In an object store
nothing is ever written over or removed: credentials that may only add objects suffice, all checkpoints stay, and of two
runs at the same time none can harm what the other has sealed. The checkpoint with the most records counts.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from waltz_core.operations.merkle import ProofError
from waltz_core.operations.transparency import TEXT_MAX, SignedCheckpoint, parse_checkpoint
from waltz_spark.base.objects import Store, open_store
from waltz_trio.base import durable

_CHECKPOINT = "checkpoint"
_DIGITS = 20  # of the number of records in the name of a checkpoint
_PUTS_MAX = 16  # objects on their way at a time


class Place(Protocol):
    """The seal of one partition. Names are relative, with slashes; as text it is where that is."""

    def find(self, name: str, size_max: int) -> bytes | None:
        """A file; None if there is none. Of one that is too long some more than `size_max`, or an error."""
        ...

    def put(self, name: str, data: bytes) -> None:
        """Write a file, durably when `settle` returns."""
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


def open_seal(root: str, *, read_only: bool = False) -> Callable[[int], Place]:
    """The places of the partitions of a seal: a path, `file://...`, or the URI of an object store.

    Raises:
        ArchiveError: no seal can be kept there.
    """
    root = root.removeprefix("file://")
    if "://" not in root:
        return lambda partition: Folder(Path(root) / _name_of(partition))
    store = open_store(root, read_only=read_only)
    return lambda partition: Bucket(store, _name_of(partition))


def _name_of(partition: int) -> str:
    return f"partition-{partition}"


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
        path = self._path / name
        durable.make_directories(path.parent)
        durable.replace_file(path, data)

    def settle(self) -> None:
        pass

    def checkpoint(self) -> SignedCheckpoint | None:
        text = self.find(_CHECKPOINT, TEXT_MAX)
        return None if text is None else _parsed(f"{self}/{_CHECKPOINT}", text)

    def put_checkpoint(self, signed: SignedCheckpoint) -> None:
        self.put(_CHECKPOINT, str(signed).encode())

    def outgrown(self, name: str, *, folder: bool) -> None:
        path = self._path / name
        with contextlib.suppress(FileNotFoundError):
            durable.unlink(path)
        if folder:
            shutil.rmtree(path.parent, ignore_errors=True)  # leftovers of runs that were cut short, too


class Bucket:
    """A prefix of an object store."""

    def __init__(self, store: Store, prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self._pool: ThreadPoolExecutor | None = None
        self._puts: list[Future[None]] = []

    def __str__(self) -> str:
        return f"{self._store.root}/{self._prefix}"

    def find(self, name: str, size_max: int) -> bytes | None:
        return self._store.find(f"{self._prefix}/{name}", size_max)

    def put(self, name: str, data: bytes) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_PUTS_MAX, "seal")
        if len(self._puts) >= _PUTS_MAX:
            self.settle()
        self._puts.append(self._pool.submit(self._put, name, data))

    def _put(self, name: str, data: bytes) -> None:
        put_once(self._store, f"{self._prefix}/{name}", data)

    def settle(self) -> None:
        puts, self._puts = self._puts, []
        for put in puts:
            put.result()

    def checkpoint(self) -> SignedCheckpoint | None:
        names = self._store.names(f"{self._prefix}/{_CHECKPOINT}")
        sizes = [name for name in names if len(name) == _DIGITS and name.isdecimal()]
        if not sizes:
            return None
        name = f"{self._prefix}/{_CHECKPOINT}/{max(sizes)}"
        signed = _parsed(f"{self._store.root}/{name}", self._store.read(name, TEXT_MAX))
        if signed.checkpoint.size != int(max(sizes)):
            text = f"expected the checkpoint of {int(max(sizes))} records, found that of {signed.checkpoint.size}"
            raise ProofError(f"{self._store.root}/{name}: {text}")
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
    """
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
    """
    if "://" in place:
        root, _, name = place.rpartition("/")
        put_once(open_store(root), name, data)
    else:
        durable.replace_file(Path(place), data)
