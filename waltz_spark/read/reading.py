"""Reading the ranges of a task: from one place, and if that fails, even in the middle, from the next.

Runs in executors: connections are opened here, once per process and node, and never sent.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from typing import Any, TypeVar

import numpy as np
import trio

import waltz_trio as waltz
from waltz_core.base.errors import ConfigError, WaltzError
from waltz_core.base.log import Record
from waltz_core.base.record import record
from waltz_core.storage.record_codec import encode_record
from waltz_core.storage.segment import HEADER_SIZE
from waltz_core.wire import client_messages
from waltz_core.wire.client_codec import EXTENDED
from waltz_spark.base.errors import DataLossError, PipelineError, RecordDamagedError, UnreachableError
from waltz_spark.base.planning import (
    ArchivePlace,
    FilePlace,
    Place,
    Range,
    ServerPlace,
    StoragePlace,
    clip,
    is_remote,
)
from waltz_spark.read.ports import AdminPort, ClientPort, record_places
from waltz_spark.records.blocks import Block
from waltz_spark.records.columns import Shape
from waltz_spark.records.segments import SegmentFile, cut
from waltz_trio.net.tls import ClientTls

_FIRST_COUNT = 64  # of the first request, before the size of records is known
_RECORD_MAX = 1 << 30  # bytes: more than a frame can bring
_SPARE = 1 << 16  # bytes asked for beyond the estimate
_FEED_COUNT = 4096  # transactions read in one visit to a server that has no range read
_PAUSE, _PAUSE_MAX = 0.05, 2.0  # seconds before the places are tried again; doubled each time

T = TypeVar("T")


@record
class Patience:
    """How long to retry."""

    timeout: float = 10.0  # seconds for an answer
    attempts: int = 3  # multiples of it without progress before nodes that do not answer are given up

    @property
    def limit(self) -> float:
        """Seconds without progress; a fail-over takes some."""
        return self.timeout * self.attempts


def read_blocks(part: Range, shape: Shape, patience: Patience) -> Iterator[Block]:
    """The records of a range as checked blocks, without a gap between them.

    Raises:
        RecordDamagedError, DataLossError, UnreachableError: every place failed; the first reason of the last
            round is raised, the others are its notes.
    """
    yield from _persist(part, patience, lambda place, start: _open(place, part, start, shape, patience))


def read_batches(part: Range, shape: Shape, patience: Patience) -> Iterator[Any]:
    """The same as Arrow record batches in the schema of `shape`; batches without a row are left out."""

    def pieces(place: Place, start: int) -> Iterator[tuple[int, Any]]:
        if isinstance(place, ArchivePlace):
            from waltz_spark.records.archived import archived_batches

            yield from archived_batches(place, part.partition, start, part.end, shape)
            return
        for end, block in _open(place, part, start, shape, patience):
            yield end, block.batch(shape)

    for batch in _persist(part, patience, pieces):
        if batch.num_rows:
            yield batch


def _persist(part: Range, patience: Patience, pieces: Callable[[Place, int], Iterator[tuple[int, T]]]) -> Iterator[T]:
    """Go through the places until the range is read; `pieces` yields the id behind each piece, and the piece."""
    next_id, failures = part.start, 0
    progressed = time.monotonic()
    while next_id < part.end:
        problems: list[PipelineError] = []
        for place in part.places:
            try:
                for end, piece in pieces(place, next_id):
                    assert next_id < end <= part.end
                    yield piece
                    next_id, failures, progressed = end, 0, time.monotonic()
            except PipelineError as problem:
                problems.append(problem)
                continue
            if next_id == part.end:
                return
            problems.append(UnreachableError(f"{_name(place)} has nothing from id {next_id} on"))
        hope = any(isinstance(problem, UnreachableError) for problem in problems) and any(map(is_remote, part.places))
        if not hope or time.monotonic() - progressed > patience.limit:
            raise _worst(problems)
        time.sleep(min(_PAUSE_MAX, _PAUSE * 2**failures))
        failures += 1


def _worst(problems: Sequence[PipelineError]) -> PipelineError:
    """The most telling problem: damage and loss before a node that does not answer."""
    for kind in (RecordDamagedError, DataLossError):
        for problem in problems:
            if isinstance(problem, kind):
                return _noted(problem, problems)
    return _noted(problems[0], problems)


def _noted(problem: PipelineError, problems: Sequence[PipelineError]) -> PipelineError:
    for other in problems:
        if other is not problem:
            problem.add_note(f"and: {other}")
    return problem


def _name(place: Place) -> str:
    match place:
        case FilePlace(path=path) | ArchivePlace(path=path):
            return path
        case StoragePlace(endpoint=endpoint) | ServerPlace(endpoint=endpoint):
            return str(endpoint)


def _open(place: Place, part: Range, start: int, shape: Shape, patience: Patience) -> Iterator[tuple[int, Block]]:
    match place:
        case FilePlace():
            blocks = _from_file(place, part, start, shape)
        case ArchivePlace():
            from waltz_spark.records.archived import archived_blocks

            blocks = archived_blocks(place, part.partition, start, part.end, shape)
        case StoragePlace():
            blocks = _from_storage(place, part, start, shape, patience)
        case ServerPlace():
            blocks = _from_server(place, part, start, shape, patience)
    for block in blocks:
        block.check(shape.verify)
        if shape.verify == "quorum" and not isinstance(place, ArchivePlace):  # which was compared when it was made
            _confirm(block, place, part, patience)
        yield block.end_id, block


def _from_file(place: FilePlace, found: Range, start: int, shape: Shape) -> Iterator[Block]:
    with SegmentFile(place.path, found.partition, place.key) as segment:
        yield from segment.blocks(start, found.end, shape)


# ---- a second copy ---------------------------------------------------------------------------


def _confirm(block: Block, place: Place, part: Range, patience: Patience) -> None:
    """Find another replica that holds the same bytes.

    Raises:
        RecordDamagedError: the others that can be reached hold something else.
        UnreachableError: no other replica can be reached.
    """
    problems: list[PipelineError] = []
    for other in part.places:
        if other == place or not isinstance(other, FilePlace | StoragePlace):
            continue
        try:
            if _holds(other, block, part, patience):
                return
            reason = f"{_name(other)} holds something else between here and id {block.end_id - 1}"
            problems.append(RecordDamagedError(block.partition, block.first_id, _name(place), reason))
        except PipelineError as problem:
            problems.append(problem)
    if not problems:
        text = f"verify=quorum needs two replicas, {_name(place)} is the only one: name another directory or node"
        raise UnreachableError(text)
    raise _worst(problems)


def _holds(place: FilePlace | StoragePlace, block: Block, found: Range, patience: Patience) -> bool:
    """Whether a replica holds the bytes of a block; a storage node of ours is asked for digests only."""
    part, shape, own = clip(found, block.first_id, block.end_id), Shape(verify="none"), sha256()
    assert part is not None
    if isinstance(place, FilePlace):
        blocks = _from_file(place, part, part.start, shape)
    elif _admin_port(place, patience).digests():
        return _digests_match(place, block, patience)
    else:
        blocks = _from_storage(place, part, part.start, shape, patience)
    for one in blocks:
        own.update(one.data)
    return own.digest() == sha256(block.data).digest()


def _digests_match(place: StoragePlace, block: Block, patience: Patience) -> bool:
    port, first = _admin_port(place, patience), block.first_id
    try:
        while first < block.end_id:
            last, digest = port.digest(block.partition, first, block.end_id - 1)
            if not first <= last < block.end_id:
                return False
            low, high = block.offsets[first - block.first_id], block.offsets[last + 1 - block.first_id]
            if sha256(block.buffer.data[low:high]).digest() != digest:
                return False
            first = last + 1
    except UnreachableError:
        _drop(_admin_key(place))
        raise
    return True


# ---- over the network ------------------------------------------------------------------------

_pool: dict[object, AdminPort | ClientPort] = {}
_pool_pid = 0


def _pooled(key: object, make: Callable[[], Any]) -> Any:
    """A connection of this process; Spark forks its workers, which must not share one."""
    global _pool_pid
    if _pool_pid != os.getpid():
        _pool.clear()
        _pool_pid = os.getpid()
    if key not in _pool:
        _pool[key] = make()
    return _pool[key]


def drop_connections() -> None:
    """Close what this process has open to servers and storage nodes."""
    for key in tuple(_pool):
        _drop(key)


def _drop(key: object) -> None:
    port = _pool.pop(key, None)
    if port is not None:
        port.close()


def _from_storage(place: StoragePlace, part: Range, start: int, shape: Shape, patience: Patience) -> Iterator[Block]:
    partition, done = part.partition, False
    port = _admin_port(place, patience)
    try:
        session_id, local_mark = port.session(partition)
        # A replica that missed the session of the mark may hold other records above its own mark.
        end = part.end if session_id >= place.session_id else min(part.end, local_mark + 1)
        if port.reads_segments():
            yield from _segment_blocks(port, partition, start, end, shape)
            done = True
            return
        count = _FIRST_COUNT
        while start < end:
            port.request_records(partition, start, min(count, end - start))
            block = port.records(partition, start, end)
            if block is None:
                break
            start = block.end_id
            average = max(1, len(block.buffer) // block.count)
            count = max(1, min(shape.rows_max, shape.size_max // average))
            if start >= part.end:
                done = True
            yield block
        done = True
    finally:
        if not done:
            _drop(_admin_key(place))  # an answer may be under way


def _admin_key(place: StoragePlace) -> object:
    return ("admin", place.endpoint, place.tls)


def _admin_port(place: StoragePlace, patience: Patience) -> AdminPort:
    port: AdminPort = _pooled(
        _admin_key(place),
        lambda: AdminPort(place.endpoint, ClientTls(place.tls), place.key, place.partition_count, patience.timeout),
    )
    return port


def _segment_blocks(port: AdminPort, partition: int, start: int, end: int, shape: Shape) -> Iterator[Block]:
    """Bytes of the node's files, requested one piece ahead, cut into records and checked here."""
    place = str(port.endpoint)
    for segment in port.segments(partition):
        stop = min(end, segment.last_id + 1)
        if not segment.first_id <= start < stop:
            continue
        average = (segment.size - HEADER_SIZE) // (segment.last_id - segment.first_id + 1) + 1
        left = (stop - start) * average + _SPARE  # bytes, if records are as large as the others
        held = np.empty(0, np.uint8)
        position, asked = -1 - start, False
        while start < stop:
            if not asked:
                port.request_bytes(partition, segment.first_id, position, min(max(left, _SPARE), shape.size_max))
            offset, data = port.bytes_read()
            if len(data) == 0:
                return
            position, left = offset + len(data), left - len(data)
            asked = left > 0
            if asked:
                port.request_bytes(partition, segment.first_id, position, min(left, shape.size_max))
            held = np.concatenate([held, data]) if len(held) else data
            places = record_places(held)[: stop - start + 1]
            for low, high in cut(places, shape.rows_max, shape.size_max):
                buffer, own = held[places[low] : places[high]], places[low : high + 1] - places[low]
                block = Block(partition, start, buffer, own, place, "storage")
                block.check("bytes")  # the node sends bytes as they are on its disk
                start = block.end_id
                yield block
            held = held[places[-1] :]
            if len(held) > _RECORD_MAX:
                raise RecordDamagedError(partition, start, place, f"no record ends within {len(held)} bytes")
        if asked:
            port.bytes_read()


def _from_server(place: ServerPlace, part: Range, start: int, shape: Shape, patience: Patience) -> Iterator[Block]:
    key = ("client", place.endpoint, place.tls)
    done = False
    port: ClientPort = _pooled(key, lambda: ClientPort(place.endpoint, ClientTls(place.tls), patience.timeout))
    try:
        if port.version < EXTENDED or not port.cluster().capabilities & client_messages.Capability.RECORD_RANGES:
            done = True
            yield from feed_blocks(place, part, start, patience)
            return
        while start < part.end:
            stop = min(part.end, start + shape.rows_max)
            try:
                block = port.range(part.partition, start, stop, shape.size_max)
            except UnreachableError:  # the partition has moved: a client finds its owner
                yield from feed_blocks(place, part, start, patience)
                return
            if block is None:
                break
            start = block.end_id
            yield block
        done = True
    finally:
        if not done:
            _drop(key)


def feed_blocks(place: ServerPlace, part: Range, start: int, patience: Patience) -> Iterator[Block]:
    """One transaction per request, for servers without range reads."""
    while start < part.end:
        end = min(part.end, start + _FEED_COUNT)
        try:
            # No scope of Trio may be open across a yield of this generator: one visit per block.
            block = trio.run(_visit, place, part.partition, start, end, patience.timeout)
        except ConfigError:
            raise
        except (WaltzError, trio.TooSlowError, BaseExceptionGroup) as error:
            if isinstance(error, BaseExceptionGroup) and error.split(Exception)[1] is not None:
                raise
            raise UnreachableError(f"{place.endpoint}: {error}") from error
        yield block
        start = end


async def _visit(place: ServerPlace, partition: int, start: int, end: int, silence_max: float) -> Block:
    config: Any = place.client if isinstance(place.client, str) else dict(place.client)
    parts: list[bytes] = []
    with trio.fail_after(silence_max) as patience:
        async with waltz.open_client(config) as client, client.feed(partition, after=start - 1, prefetch=256) as feed:
            feed.markers = True  # they are records as others
            async for txn in feed:
                patience.deadline = trio.current_time() + silence_max
                data: bytes = txn.load()
                checksum = zlib.crc32(data)
                checksum -= (checksum & 1 << 31) << 1
                parts.append(encode_record(Record(txn.id, txn.req_id, txn.header, data, checksum)))
                if txn.id + 1 >= end:
                    break
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum([len(part) for part in parts], dtype=np.int64)])
    buffer = np.frombuffer(b"".join(parts), np.uint8)
    return Block(partition, start, buffer, offsets, str(place.endpoint), "server")
