"""Procedures whose reads were foreseen: answered from memory until they write, and told of every failure."""

from __future__ import annotations

from typing import Any

import pytest

from waltz_core.storage.effects import FaultKind, WriteAt
from waltz_core.storage.procedure import DiskError, Procedure, ReadSpan, foreseen, read, read_all, write

SPAN = ReadSpan("a", 0, 3)


def reads_around_a_write() -> Procedure[tuple[bytes, bytes]]:
    before = yield from read("a", 0, 3)
    yield from write(WriteAt("a", 0, b"new"))
    return before, (yield from read("a", 0, 3))


def test_what_was_read_ahead_counts_until_something_is_written() -> None:
    work = foreseen(reads_around_a_write(), {SPAN: b"old"})
    assert next(work) == (WriteAt("a", 0, b"new"),)
    assert work.send(None) == SPAN
    with pytest.raises(StopIteration) as end:
        work.send(b"new")
    assert end.value.value == (b"old", b"new")


def test_a_failure_reaches_the_procedure_where_it_waits() -> None:
    def patient() -> Procedure[str]:
        try:
            yield from read("b", 0, 3)
        except DiskError as error:
            return str(error)
        return "read"

    work = foreseen(patient(), {SPAN: b"old"})
    assert next(work) == ReadSpan("b", 0, 3)
    with pytest.raises(StopIteration) as end:
        work.throw(DiskError(FaultKind.IO, "worn out"))
    assert end.value.value == "worn out"


def test_nothing_to_read_waits_for_nothing() -> None:
    with pytest.raises(StopIteration) as end:
        next(read_all(()))
    assert end.value.value == []
    spans: list[Any] = [SPAN, ReadSpan("b", 0, 1)]
    work = read_all(spans)
    assert next(work).spans == tuple(spans)  # type: ignore[union-attr]
