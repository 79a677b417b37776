"""`python -m benchmarks.micro.storage`: microseconds per record through a storage node's machine, without a disk.

A round is one batch: the frame of an append is decoded, checked, encoded for the disk, its completion is
taken, the answer encoded. The disk is a list that says "done"; `codec` and `read` time parts of it.
"""

from __future__ import annotations

import os
import time
from array import array
from typing import Any
from uuid import UUID

from waltz_core.base.edge import Accepted, Port, Received, Send
from waltz_core.base.ids import ReqId
from waltz_core.base.log import Record
from waltz_core.storage.config import StorageConfig
from waltz_core.storage.effects import DiskBatch, DiskBytes, DiskDone, DiskList, DiskListing, DiskRead
from waltz_core.storage.node import StorageNode
from waltz_core.storage.record_codec import encode_run
from waltz_core.storage.transcode import transcode_disk
from waltz_core.wire import admin_messages as admin
from waltz_core.wire import storage_messages as wire
from waltz_core.wire.connection import ADMIN_PROTOCOL, STORAGE_PROTOCOL, Connection
from waltz_core.wire.primitives import checksum_of
from waltz_core.wire.records import RecordRun

DATA = os.urandom(200)
CHECKSUM = checksum_of(DATA)
KEY = UUID(int=7)


def records(first: int, count: int) -> tuple[Record, ...]:
    """Records with consecutive ids."""
    return tuple(Record(one, ReqId(one.to_bytes(16)), 1, DATA, CHECKSUM) for one in range(first, first + count))


class Bench:
    """A node with one partition assigned and an open connection; only the node is timed."""

    def __init__(self) -> None:
        self.node = StorageNode(StorageConfig(KEY.bytes, 1))
        self.spent = 0.0
        self.disk_bytes = 0
        self.files: dict[str, bytes] = {}
        self.step([])
        tool = self.connect(1, Port.ADMIN, ADMIN_PROTOCOL, admin.AdminOpenRequest(-1, KEY, 1))
        self.send(1, tool, admin.PartitionAssignmentRequest(1, (0,), True, False))
        self.server = self.connect(2, Port.STORAGE, STORAGE_PROTOCOL, wire.OpenRequest(-1, -1, -1, KEY, 1))

    def connect(self, conn: int, port: Port, protocol: Any, opening: Any) -> Connection[Any]:
        connection = Connection[Any](protocol, "", (0,))
        self.step([Accepted(conn, port, ""), Received(conn, connection.hello())], connection)
        self.send(conn, connection, opening)
        return connection

    def send(self, conn: int, connection: Connection[Any], message: Any) -> list[Any]:
        out = bytearray()
        connection.encode(message, out)
        return self.step([Received(conn, bytes(out))], connection)

    def step(self, events: list[Any], connection: Connection[Any] | None = None) -> list[Any]:
        answers: list[Any] = []
        while True:
            out: list[Any] = []
            start = time.thread_time()
            self.node.step(0, events, out)
            self.spent += time.thread_time() - start
            events = []
            for effect in out:
                if type(effect) is DiskBatch:
                    events.append(DiskDone(effect.ticket))
                elif type(effect) is DiskList:
                    events.append(DiskListing(effect.ticket, ()))
                elif type(effect) is DiskRead:
                    events.append(DiskBytes(effect.ticket, b""))
                elif type(effect) is Send and connection is not None:
                    connection.receive(effect.data, answers)
            if not events:
                return answers


def appends(batch_count: int, rounds: int) -> float:
    """Microseconds per record appended in batches."""
    bench = Bench()
    frames = []
    for at in range(rounds):
        out = bytearray()
        message = wire.AppendRequest(5, at, 0, records(at * batch_count, batch_count), False)
        bench.server.encode(message, out)
        frames.append(bytes(out))
    bench.spent = 0.0
    for frame in frames:
        answers = bench.step([Received(2, frame)], bench.server)
        assert isinstance(answers[-1], wire.SuccessResponse), answers
    return bench.spent / rounds / batch_count * 1e6


def encoding(count: int) -> float:
    """Microseconds per record encoded for the disk."""
    run = records(0, count)
    start = time.thread_time()
    parts: list[bytes] = []
    encode_run(run, 0, 128, 1 << 40, parts, array("Q"))
    b"".join(parts)
    return (time.thread_time() - start) / count * 1e6


def decoding(count: int) -> float:
    """Microseconds per record read back, verified, and made ready for the wire."""
    parts: list[bytes] = []
    encode_run(records(0, count), 0, 128, 1 << 40, parts, array("Q"))
    data = b"".join(parts)
    start = time.thread_time()
    read = RecordRun(*transcode_disk(data, 0, count))
    assert len(read) == count
    return (time.thread_time() - start) / count * 1e6


def main() -> None:
    """Print the best of five."""
    for batch_count in (1, 10, 100, 1000):
        best = min(appends(batch_count, max(20, 20_000 // batch_count)) for _ in range(5))
        print(f"append through the node, batches of {batch_count:>4}: {best:6.2f} us a record")
    print(f"encode for the disk:                      {min(encoding(20_000) for _ in range(5)):6.2f} us a record")
    print(f"decode and verify:                        {min(decoding(20_000) for _ in range(5)):6.2f} us a record")


if __name__ == "__main__":
    main()
