"""Groups of batches without a disk: which calls are made, in which order, and which batch an error is the answer to."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any

import pytest

from waltz_core.storage.effects import (
    Create,
    DiskBatch,
    DiskDone,
    DiskEvent,
    DiskFailed,
    FaultKind,
    MakeDirectory,
    SyncDirectory,
    SyncFile,
    WriteAt,
)
from waltz_trio.storage.group import Step, SyncEach, SyncWhole, carry_out

BROKEN = OSError(errno.EIO, "input/output error")


def carried(
    group: Sequence[DiskBatch], broken: Sequence[object] = (), *, whole: bool = False
) -> tuple[list[Step], list[DiskEvent]]:
    """The steps of a group and its answers, where some operations fail."""
    steps: list[Step] = []
    work = carry_out(group, lambda files: whole)
    answer: Any = None
    while True:
        try:
            step = work.send(answer)
        except StopIteration as end:
            return steps, end.value
        steps.append(step)
        if isinstance(step, SyncEach):
            answer = {sync: BROKEN for sync in step.files if sync in broken}
        else:
            answer = BROKEN if step in broken or (isinstance(step, SyncWhole) and "whole" in broken) else None


A, B, C = (DiskBatch(ticket, (WriteAt(path, 0, b"x"), SyncFile(path))) for ticket, path in enumerate("aba"))
"""Two batches of one file, and another file's between them."""


def test_each_file_is_synced_once_behind_everything_that_was_written() -> None:
    steps, answers = carried([A, B, C])
    writes = [batch.operations[0] for batch in (A, B, C)]
    assert steps == [*writes, SyncEach((SyncFile("a"), SyncFile("b")))]
    assert answers == [DiskDone(0), DiskDone(1), DiskDone(2)]


@pytest.mark.parametrize("whole", [False, True])
def test_a_failed_sync_is_the_answer_to_every_batch_of_its_file_and_to_no_other(whole: bool) -> None:
    steps, answers = carried([A, B, C], [SyncFile("a"), "whole"], whole=whole)
    assert sum(isinstance(step, SyncWhole) for step in steps) == whole
    assert answers == [
        DiskFailed(0, FaultKind.IO, "input/output error: a"),
        DiskDone(1),
        DiskFailed(2, FaultKind.IO, "input/output error: a"),
    ]


def test_a_directory_that_cannot_be_synced_fails_all_who_have_a_name_in_it() -> None:
    new = [DiskBatch(7 + n, (Create(f"d/{n}"), SyncFile(f"d/{n}"), SyncDirectory("d"))) for n in range(3)]
    steps, answers = carried([*new, A], [SyncDirectory("d")])
    assert steps[-1] == SyncDirectory("d")
    assert steps.count(SyncDirectory("d")) == 1
    assert [type(answer) for answer in answers] == [DiskFailed, DiskFailed, DiskFailed, DiskDone]


def test_a_sync_between_operations_is_carried_out_in_its_place() -> None:
    ordered = DiskBatch(7, (WriteAt("f", 0, b"1"), SyncFile("f"), WriteAt("f", 8, b"2"), SyncFile("f")))
    steps, answers = carried([ordered])
    assert steps == [*ordered.operations[:3], SyncEach((SyncFile("f"),))]
    assert answers == [DiskDone(7)]


def test_nothing_behind_an_operation_that_failed_is_done_for_its_batch() -> None:
    batch = DiskBatch(7, (MakeDirectory("d"), WriteAt("d/f", 0, b"1"), SyncFile("d/f")))
    steps, answers = carried([batch, A], [MakeDirectory("d")])
    assert steps == [MakeDirectory("d"), A.operations[0], SyncEach((SyncFile("a"),))]
    assert [type(answer) for answer in answers] == [DiskFailed, DiskDone]
