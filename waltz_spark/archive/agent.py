"""The process beside a server that keeps its archive: questions come on standard input, answers go to standard output.

    waltz server run ── ArchiveLook, ArchiveTake, ArchiveCommit, ArchiveCompare ──▶ the thread that writes ──┐
                     ── ArchiveRead ──────────────────────────────────────────────▶ the thread that reads ───┤
                     ◀───────────────────────────── one answer for each question ────────────────────────────┘

It keeps nothing that must survive: what was not committed to the manifest did not happen, and whoever asks looks again.
So it may be killed at any time, and ends by itself when its server does. What it holds is bounded by what its server
asks at a time: of a few files that are being written a row group each, and what was read last for others to read.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread
from typing import BinaryIO

import attrs

from waltz_core.base.errors import WaltzError
from waltz_core.server import archive_calls as calls
from waltz_core.server.archive_frames import FrameReader, encode_message, encoded_records
from waltz_core.wire.records import RecordRun, cut_records
from waltz_spark.archive.archive import FileTask, FileWriter, commit_written, publish, software
from waltz_spark.base.errors import ArchiveError
from waltz_spark.base.objects import Store, open_store
from waltz_spark.read.ports import block_of_wire
from waltz_spark.read.reading import Patience
from waltz_spark.records import manifest
from waltz_spark.records.archived import STORED, archived_blocks
from waltz_spark.records.blocks import Block
from waltz_spark.records.columns import Shape
from waltz_spark.records.manifest import ArchivedFile, ArchiveState
from waltz_trio.base import durable

_ANSWER_SIZE_MAX = 1 << 20  # bytes of records in one answer; one larger record goes alone
_CURSORS_MAX = 8  # files that stay open, each where somebody has read last
_KEPT_MAX = 32  # blocks that were read last; each has about `_BLOCK_SIZE_MAX` bytes
_BLOCK_SIZE_MAX = 2 << 20
_SHAPE = Shape(columns=STORED, verify="bytes", size_max=_BLOCK_SIZE_MAX)
_READ_SIZE = 1 << 20
_FILES_MAX = 4  # in the making; a server works at two, and does not say which it has lost with their partitions
_NICE = 5  # commits come first


class Manifest:
    """What the archive holds, as both threads see it."""

    def __init__(self, store: Store) -> None:
        self._reader = manifest.Reader(store)
        self._lock = Lock()
        self._state: ArchiveState | None = None

    def load(self) -> ArchiveState | None:
        """As of now."""
        with self._lock:
            self._state = self._reader.load()
            return self._state

    def file_of(self, partition: int, transaction_id: int) -> ArchivedFile:
        """The file that holds an id; the manifest is read again only if it is not known.

        Raises:
            ArchiveError: there is none.
        """
        for fresh in (False, True):
            known = self.load() if fresh else self._state
            file = known.file_at(partition, transaction_id) if known is not None else None
            if file is not None:
                return file
        raise ArchiveError(f"transaction {transaction_id} of partition {partition} is in no file of the archive")


def blocks_from(known: Manifest, root: str, partition: int, start: int) -> Iterator[Block]:
    """Blocks from an id on, to the end of its file."""
    file = known.file_of(partition, start)
    yield from archived_blocks(file.place(root), partition, start, file.end_id, _SHAPE)


class ArchiveReader:
    """The thread that reads: blocks that were read last, and files open where somebody read last."""

    def __init__(self, known: Manifest, root: str) -> None:
        self._known = known
        self._root = root
        self._kept: OrderedDict[tuple[int, int], Block] = OrderedDict()
        self._cursors: OrderedDict[tuple[int, int], Iterator[Block]] = OrderedDict()  # by what they give next

    def answer(self, question: calls.ArchiveAsk) -> calls.ArchiveEvent:
        """Some of the records that were asked for."""
        assert isinstance(question, calls.ArchiveRead)
        block = self._block(question.partition_id, question.first)
        low = question.first - block.first_id
        return calls.ArchiveData(question.ticket, wire_records(block, low, min(block.count, low + question.count)))

    def _block(self, partition: int, transaction_id: int) -> Block:
        for key, block in self._kept.items():
            if key[0] == partition and block.first_id <= transaction_id < block.end_id:
                self._kept.move_to_end(key)
                return block
        cursor = self._cursors.pop((partition, transaction_id), None)
        continued = next(cursor, None) if cursor is not None else None
        if cursor is None or continued is None:
            cursor = blocks_from(self._known, self._root, partition, transaction_id)
            continued = next(cursor)
        self._keep(partition, continued)
        self._cursors[partition, continued.end_id] = cursor
        if len(self._cursors) > _CURSORS_MAX:
            self._cursors.popitem(last=False)
        return continued

    def _keep(self, partition: int, block: Block) -> None:
        self._kept[partition, block.first_id] = block
        if len(self._kept) > _KEPT_MAX:
            self._kept.popitem(last=False)


def wire_records(block: Block, low: int, high: int) -> RecordRun:
    """Some records of a block, as they travel: no more than an answer may hold, but at least one."""
    parts: list[memoryview] = []
    size, count = 0, 0
    buffer = block.buffer.data
    for at, end in zip(block.offsets[low:high].tolist(), block.offsets[low + 1 : high + 1].tolist(), strict=True):
        size += end - at
        if count and size > _ANSWER_SIZE_MAX:
            break
        parts += (buffer[at : at + 32], buffer[at + 36 : end - 4], buffer[at + 32 : at + 36])
        count += 1
    encoded = b"".join(parts)
    return RecordRun(encoded, cut_records(encoded, 0, len(encoded), count))


@attrs.define
class _File:
    """A file in the making."""

    first: int
    next_id: int
    scratch: str
    writer: FileWriter


class ArchiveWriter:
    """The thread that writes: one file in the making per partition, and the manifest."""

    def __init__(self, store: Store, known: Manifest) -> None:
        self._store = store
        self._known = known
        self._files: dict[int, _File] = {}  # by partition, in the order of their last use
        self._looks: dict[int, calls.ArchiveLook] = {}  # what was said of the cluster, by partition
        self._compared: dict[int, Cursor] = {}  # where the comparison of a partition is
        self._steps: dict[type[calls.ArchiveAsk], Callable[[calls.ArchiveAsk], calls.ArchiveEvent]] = {
            calls.ArchiveLook: self._look,
            calls.ArchiveTake: self._take,
            calls.ArchiveCommit: self._commit,
            calls.ArchiveCompare: self._compare,
        }

    def answer(self, question: calls.ArchiveAsk) -> calls.ArchiveEvent:
        """Do it."""
        try:
            return self._steps[type(question)](question)
        except BaseException:
            self.drop(question.partition_id)
            raise

    def drop(self, partition: int) -> None:
        """What is in the making is of no use."""
        self._compared.pop(partition, None)
        file = self._files.pop(partition, None)
        if file is None:
            return
        try:
            file.writer.close()
        except OSError:
            pass  # a full disk, or one that fails: what could not be written is of no use either
        finally:
            _unlink(file.scratch)

    def forsake(self) -> None:
        """The process ends: files in the making must not stay behind."""
        for file in list(self._files.values()):
            _unlink(file.scratch)

    # ---- what is archived --------------------------------------------------------------------

    def _look(self, look: calls.ArchiveAsk) -> calls.ArchiveEvent:
        assert isinstance(look, calls.ArchiveLook)
        self.drop(look.partition_id)
        state = self._known.load()
        if state is not None and (state.key, state.partition_count) != (look.cluster_key, look.partition_count):
            raise ArchiveError(f"{self._store.root} is the archive of another cluster")
        self._looks[look.partition_id] = look
        return self._holds(look, state)

    def _holds(
        self, look: calls.ArchiveLook, state: ArchiveState | None, ticket: int | None = None
    ) -> calls.ArchiveHolds:
        files = state.files_of(look.partition_id) if state is not None else ()
        first, end = (files[0].first_id, files[-1].end_id) if files else (look.log_start, look.log_start)
        per_file = state.range_count if state is not None else look.file_records
        return calls.ArchiveHolds(look.ticket if ticket is None else ticket, first, end, per_file)

    # ---- a file ------------------------------------------------------------------------------

    def _take(self, take: calls.ArchiveAsk) -> calls.ArchiveEvent:
        assert isinstance(take, calls.ArchiveTake)
        if take.first == take.file_first:
            self.drop(take.partition_id)
            scratch = self._store.scratch(manifest.file_path(take.partition_id, take.first, take.first + 1))
            try:
                writer = FileWriter(scratch)
            except BaseException:
                _unlink(scratch)
                raise
            self._files[take.partition_id] = _File(take.first, take.first, scratch, writer)
            for partition in tuple(self._files)[:-_FILES_MAX]:
                self.drop(partition)
        file = self._file_at(take.partition_id, take.file_first, take.first)
        self._files[take.partition_id] = self._files.pop(take.partition_id)  # used last
        block = block_of_records(take.partition_id, take.first, take.records)
        file.writer.add(block)
        file.next_id = block.end_id
        return calls.ArchiveTaken(take.ticket)

    def _file_at(self, partition: int, first: int, next_id: int) -> _File:
        file = self._files.get(partition)
        if file is None or (file.first, file.next_id) != (first, next_id):
            at = "none" if file is None else f"{file.first} to {file.next_id - 1}"
            raise ArchiveError(f"partition {partition}: expected a file of {first} to {next_id - 1}, found {at}")
        return file

    def _commit(self, commit: calls.ArchiveAsk) -> calls.ArchiveEvent:
        assert isinstance(commit, calls.ArchiveCommit)
        partition = commit.partition_id
        file = self._file_at(partition, commit.first, commit.end)
        look = self._looks[partition]
        file.writer.close()
        root = self._store.root
        state = self._known.load() or ArchiveState(
            root, look.cluster_key, look.partition_count, look.file_records, 0, (), ()
        )
        task = FileTask(root, partition, commit.first, commit.end, (), Patience())
        written = publish(task, self._store, file.scratch, file.writer)
        about = {"source": ["server"], "cut": {str(partition): commit.end}, "software": software()}
        commit_written(self._store, state, [written], (), about)
        self.drop(partition)
        return self._holds(look, self._known.load(), commit.ticket)

    # ---- before anything is freed ------------------------------------------------------------

    def _compare(self, question: calls.ArchiveAsk) -> calls.ArchiveEvent:
        """What is in the archive is read from there, once more for each comparison, however little of it is compared.

        A file stays open between the pieces of one comparison only: what was read hours ago says nothing of what is
        there now, and the log start of a partition that is appended to rises by a few records at a time.
        """
        assert isinstance(question, calls.ArchiveCompare)
        partition, end = question.partition_id, question.first + len(question.records)
        expected = block_of_records(partition, question.first, question.records).data
        cursor = self._compared.pop(partition, None)
        if cursor is None or question.anew or cursor.at != question.first:
            cursor = Cursor(self._known, self._store.root, partition, question.first)
        low = 0
        while cursor.at < end:
            first, held = cursor.at, cursor.take(end)
            if expected[low : low + len(held)] != held:
                raise ArchiveError(
                    f"{self._store.root}: partition {partition}: among the ids {first} to {cursor.at - 1} it holds "
                    "other records than the log"
                )
            low += len(held)
        self._compared[partition] = cursor
        for other in tuple(self._compared)[:-_FILES_MAX]:
            del self._compared[other]
        return calls.ArchiveEqual(question.ticket)


def _unlink(scratch: str) -> None:
    if os.path.exists(scratch):
        durable.unlink(Path(scratch))


class Cursor:
    """Reads a partition's files one after the other, as they are in the store now."""

    def __init__(self, known: Manifest, root: str, partition: int, at: int) -> None:
        self.at = at  # the id that comes next
        self._known = known
        self._root = root
        self._partition = partition
        self._blocks: Iterator[Block] = iter(())
        self._block: Block | None = None

    def take(self, end: int) -> memoryview:
        """Some records, at least one, up to `end` at most, as they stand on disk."""
        block = self._block
        if block is None or block.end_id == self.at:
            block = next(self._blocks, None)
            if block is None:
                self._blocks = blocks_from(self._known, self._root, self._partition, self.at)
                block = next(self._blocks)
            self._block = block
        low, high = self.at - block.first_id, min(block.end_id, end) - block.first_id
        self.at = block.first_id + high
        return block.buffer.data[int(block.offsets[low]) : int(block.offsets[high])]


def block_of_records(partition: int, first: int, records: object) -> Block:
    """Records of a question as they stand on disk."""
    assert isinstance(records, RecordRun)
    body = bytearray(len(records).to_bytes(4, "big") + encoded_records(records))
    block = block_of_wire(body, 0, partition, first, first + len(records), "the server", "server")
    assert block is not None, "a question without records"
    block.check("payload")
    return block


# ---- the process -----------------------------------------------------------------------------


class Lane:
    """A thread that answers questions in the order in which they come."""

    def __init__(
        self, name: str, answer: Callable[[calls.ArchiveAsk], calls.ArchiveEvent], send: Callable[[bytes], None]
    ) -> None:
        self._answer = answer
        self._send = send
        self._questions: SimpleQueue[calls.ArchiveAsk] = SimpleQueue()
        Thread(target=self._run, name=name, daemon=True).start()

    def put(self, question: calls.ArchiveAsk) -> None:
        """Queue a question."""
        self._questions.put(question)

    def _run(self) -> None:
        while True:
            question = self._questions.get()
            try:
                answer = self._answer(question)
            except WaltzError as error:
                answer = calls.ArchiveFailed(question.ticket, str(error))
            except Exception as error:  # of any kind: the server must hear of it, and not wait
                answer = calls.ArchiveFailed(question.ticket, f"{type(error).__name__}: {error}")
            self._send(encode_message(answer))


def serve(root: str, source: BinaryIO, target: BinaryIO) -> None:
    """Answer what comes until the source ends."""
    store = open_store(root)
    known = Manifest(store)
    lock = Lock()

    def send(frame: bytes) -> None:
        with lock:
            target.write(frame)
            target.flush()

    writing, reading = ArchiveWriter(store, known), ArchiveReader(known, store.root)
    write, read = Lane("archive-write", writing.answer, send), Lane("archive-read", reading.answer, send)
    frames = FrameReader()
    while data := source.read1(_READ_SIZE):  # type: ignore[attr-defined]  # both are buffered
        for question in frames.receive(data):
            assert isinstance(question, calls.ArchiveAsk)
            (read if isinstance(question, calls.ArchiveRead) else write).put(question)
    writing.forsake()


def main() -> None:
    """The process; it ends when its server closes our standard input, or is gone."""
    parser = argparse.ArgumentParser(description="keeps the archive of a server; started by it")
    parser.add_argument("--archive", required=True, help="directory or URI")
    root = parser.parse_args().archive
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the server decides when we end
    os.nice(_NICE)
    target = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print must not get between the answers
    try:
        serve(root, sys.stdin.buffer, target)
    except WaltzError as error:
        print(error, file=sys.stderr)
        os._exit(1)
    os._exit(0)  # threads may be waiting for a store that never answers


if __name__ == "__main__":
    main()
