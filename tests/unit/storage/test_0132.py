"""The twin of the storage node is as careless as 0.13.2, in the same words."""

from __future__ import annotations

from typing import Any

import pytest

from tests.storage_desk import DATA, INDEX, KEY, append, desk, filled, replica, some, text_of
from tests.twin_0132.storage import StorageFailed0132, StorageNode0132
from waltz_core.storage.effects import DiskRead, FaultKind
from waltz_core.storage.record_codec import encode_record
from waltz_core.wire import storage_messages as wire
from waltz_testing.simulation.disk import SimDisk

SE = "com.wepay.waltz.storage.exception.StorageException: "


def java(disk: SimDisk | None = None, **settings: Any) -> Any:
    return desk(disk, kind=StorageNode0132, **settings)


def java_filled(count: int = 12, **settings: Any) -> Any:
    return filled(count, kind=StorageNode0132, **settings)


def chain(disk: SimDisk) -> tuple[str, ...]:
    """How it fails to start."""
    failure = java(disk).failure
    assert isinstance(failure, StorageFailed0132)
    return failure.chain


def test_it_leaves_no_side_files_and_the_same_bytes_as_ours() -> None:
    ours, theirs = filled().disk.files(), java_filled().disk.files()
    assert set(ours) - set(theirs) == {"0/waltz.fence", "0/waltz.mark", "0/waltz.faults"}
    assert {name: ours[name] for name in theirs} == theirs


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda disk: disk.put(DATA, b""), (f"{SE}failed to open segment file: <dir>/{DATA}", f"{SE}end of file")),
        (
            lambda disk: disk.flip(DATA, 13),
            (f"{SE}failed to open segment file: <dir>/{DATA}", f"{SE}the cluster key does not match"),
        ),
        (lambda disk: disk.put(INDEX, b""), (f"{SE}end of file",)),
        (lambda disk: disk.flip(INDEX, 13), (f"{SE}the cluster key does not match",)),
        (lambda disk: disk.flip(INDEX, 30), (f"{SE}partition id does not match",)),
        (
            lambda disk: disk.remove(INDEX),
            (
                f"{SE}failed to open segment file: <dir>/{INDEX}",
                f"java.nio.file.NoSuchFileException: <dir>/{INDEX}",
            ),
        ),
        (
            lambda disk: disk.flip(DATA, 128 + 28),
            ("java.lang.IllegalArgumentException: capacity < 0: (-16777156 < 0)",),
        ),
        (lambda disk: disk.flip(DATA, 128 + 28, 0x40), ("java.lang.OutOfMemoryError: Java heap space",)),
        (lambda disk: disk.put("waltz-storage.ctl", bytes(280)), (f"{SE}the cluster key does not match",)),
        (lambda disk: disk.flip("waltz-storage.ctl", 31), (f"{SE}the number of partitions does not match",)),
    ],
)
def test_it_does_not_start(change: Any, expected: tuple[str, ...]) -> None:
    disk = java_filled(4).disk
    change(disk)
    assert chain(disk) == expected


def test_it_reads_without_checking() -> None:
    node = java_filled(12)
    node.disk.flip(DATA, 128 + 150)
    again = java(node.disk, threshold=500)
    assert again.storage(wire.RecordRequest(5, 1, 0, 0)).record == some(0, 1)[0]
    right = node.disk.content(INDEX)

    def with_entry(value: int) -> str:
        node.disk.put(INDEX, right[:128] + value.to_bytes(8, signed=True) + right[136:])
        return text_of(again.storage(wire.RecordRequest(5, 1, 0, 0)))

    assert again.storage(wire.RecordRequest(5, 1, 0, 1)).record is None  # cut when it was opened
    assert with_entry(128 + 40) == f"{SE}transaction id mismatch"
    assert with_entry(100_000) == f"{SE}end of file"
    assert with_entry(1 << 50) == "java.io.IOException: Invalid argument"
    node.disk.put(INDEX, right[:128] + (-1).to_bytes(8, signed=True) + right[136:])
    assert again.storage(wire.RecordRequest(5, 1, 0, 0)).record is None
    node.disk.put(INDEX, right)
    node.disk.put(DATA, node.disk.content(DATA)[:150])
    assert text_of(again.storage(wire.RecordRequest(5, 1, 0, 0))) == f"{SE}end of file"
    raw = bytearray(node.disk.content(DATA))
    raw += bytes(300)
    raw[128 + 28 : 128 + 32] = (-7).to_bytes(4, signed=True)
    raw[128:136] = bytes(8)
    node.disk.put(DATA, bytes(raw))
    assert text_of(again.storage(wire.RecordRequest(5, 1, 0, 0))) == "java.lang.NegativeArraySizeException: -7"
    node.disk.fault = lambda effect: FaultKind.IO if isinstance(effect, DiskRead) else None
    assert text_of(again.storage(wire.RecordRequest(5, 1, 0, 0))).startswith("java.io.IOException")


def test_a_session_counts_from_its_arrival_and_is_forgotten() -> None:
    node = java_filled(2)
    text_of(node.storage(wire.MaxTransactionIdRequest(9, 1, 0, True)))
    assert "session id has changed to 9" in text_of(append(node, 2, 1))
    again = java(node.disk, threshold=500)
    assert append(again, 2, 1) == wire.SuccessResponse(5, 1, 0)


def test_a_batch_out_of_order_leaves_its_beginning() -> None:
    node = java_filled(0)
    records = (*some(0, 6), *some(7, 1))
    text_of(node.storage(wire.AppendRequest(5, 1, 0, records, False)))
    assert replica(node).max_id == 5
    assert node.storage(wire.RecordRequest(5, 1, 0, 5)).record == some(5, 1)[0]
    text_of(node.storage(wire.AppendRequest(5, 1, 0, (*some(6, 2), *some(9, 1)), False)))
    assert replica(node).max_id == 7


def test_an_index_in_the_way_stops_every_append() -> None:
    node = java_filled(4)
    node.disk.put("0/0000000000000000004.idx", b"x")
    for _ in range(2):
        answer = append(node, 4, 1)
        assert text_of(answer) == f"{SE}segment file not empty: <dir>/0/0000000000000000004.idx"


def test_truncation_knows_no_floor_and_destroys_before_it_fails() -> None:
    node = java_filled(12)
    text = text_of(node.storage(wire.TruncateRequest(5, 1, 0, -2, False)))
    assert text == f"{SE}transaction id out of range: file=<dir>/{DATA}"
    assert replica(node).max_id == 3
    node.disk.put(INDEX, node.disk.content(INDEX)[:136])
    assert text_of(node.storage(wire.TruncateRequest(5, 1, 0, 1, False))) == f"{SE}corrupted"


def test_a_wrong_first_id_in_the_index() -> None:
    for change, expected in ((0x7F, "illegal record position"), (0xFF, "Invalid argument")):
        node = java_filled(3)
        node.disk.flip(INDEX, 32 if change == 0xFF else 34, change)
        assert any(expected in text for text in chain(node.disk)), chain(node.disk)
    node = java_filled(3)
    raw = bytearray(node.disk.content(INDEX))
    raw[32:40] = (-2).to_bytes(8, signed=True)
    node.disk.put(INDEX, bytes(raw))
    again = java(node.disk, threshold=500)
    assert replica(again).max_id == 2
    assert len(node.disk.content(INDEX)) == 128 + 8 * 5


def test_a_checkpoint_behind_which_the_index_is_lost() -> None:
    node = java(threshold=1 << 30)
    append(node, 0, 1010, size=1)
    right = node.disk.content(INDEX)
    node.disk.put(INDEX, right[: 128 + 8000] + bytes(80))
    assert chain(node.disk)[0] == f"{SE}segment corrupted: record corrupted"
    node.disk.put(INDEX, right[: 128 + 8000] + (-1).to_bytes(8, signed=True) + right[128 + 8008 :])
    assert chain(node.disk)[0] == f"{SE}segment corrupted: index corrupted"
    node.disk.put(INDEX, right)
    assert replica(java(node.disk, threshold=1 << 30)).max_id == 1009


def test_a_record_longer_than_what_is_read_at_once() -> None:
    node = java(threshold=1 << 30)
    for first in range(3):
        append(node, first, 1, size=700_000)
    again = java(node.disk, threshold=1 << 30)
    assert replica(again).max_id == 2
    data = node.disk.content(DATA)
    node.disk.put(DATA, data + encode_record(some(3, 1)[0])[:20])
    assert replica(java(node.disk, threshold=1 << 30)).max_id == 2
    assert node.disk.content(DATA) == data
    assert KEY.bytes in data
