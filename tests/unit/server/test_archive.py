"""The archive as the partitions of a server share it: turns, what is under way, and what is owed for too long."""

from __future__ import annotations

from typing import Any

from waltz_core.base.contract import Tickets
from waltz_core.base.edge import Report
from waltz_core.base.outbox import Outbox
from waltz_core.server.archive import Archive, ReadAsked
from waltz_core.server.archive_calls import ArchiveFailed, ArchivePolicy, ArchiveRead, ArchiveReset


def made(**policy: Any) -> tuple[Archive, Outbox[Any]]:
    out: Outbox[Any] = Outbox()
    return Archive(ArchivePolicy("the vault", **policy), out, Tickets()), out


def test_so_many_reads_are_under_way_and_the_others_wait_in_order() -> None:
    archive, out = made(reads_max=2)
    for token in range(5):
        archive.read(0, ReadAsked(token % 2, token, 10 * token, 3))
    first, second = out.take()
    assert (first, second) == (ArchiveRead(1, 0, 0, 3), ArchiveRead(2, 1, 10, 3))
    assert archive.answered(7, ArchiveFailed(1, "no")) == (0, ReadAsked(0, 0, 0, 3))
    assert out.take() == [ArchiveRead(3, 0, 20, 3)]


def test_a_read_that_waits_can_be_called_off_and_one_that_has_begun_counts_until_it_is_answered() -> None:
    archive, out = made(reads_max=1)
    for token in (1, 2, 3):
        archive.read(0, ReadAsked(token % 2, token, 10 * token, 3))
    assert [archive.call_off(*which) for which in ((1, 1), (1, 2), (0, 2), (0, 2))] == [False, False, True, False]
    assert archive.answered(7, ArchiveFailed(1, "no")) == (1, ReadAsked(1, 1, 10, 3))
    assert out.take() == [ArchiveRead(1, 1, 10, 3), ArchiveRead(2, 1, 30, 3)]


def test_a_partition_that_is_let_go_hears_nothing_and_its_reads_still_count() -> None:
    archive, out = made(reads_max=1)
    archive.read(0, ReadAsked(0, 1, 0, 3))
    archive.read(0, ReadAsked(0, 2, 5, 3))
    archive.read(0, ReadAsked(1, 3, 0, 3))
    archive.gone(0)
    assert len(out.take()) == 1
    assert archive.answered(1, ArchiveFailed(1, "no")) is None
    assert out.take() == [ArchiveRead(2, 1, 0, 3)]
    assert archive.answered(1, ArchiveFailed(77, "of nothing")) is None


def test_turns_go_round() -> None:
    archive, _ = made(files_max=2)
    assert [archive.turn(partition) for partition in (0, 1, 2, 3)] == [True, True, False, False]
    archive.turn_over(1)
    assert archive.ready == [2]
    assert archive.turn(2)
    assert not archive.turn(1)
    archive.gone(3)
    archive.turn_over(0)
    assert archive.ready == [2, 1]


def test_what_is_owed_for_too_long_is_given_up_once() -> None:
    archive, out = made(answer_ms=1_000)
    assert archive.deadline() is None
    ticket = archive.owe(5, 0)
    assert archive.deadline() == 1_005
    archive.due(1_004)
    assert out.take() == []
    archive.due(1_005)
    assert [type(effect) for effect in out.take()] == [Report, ArchiveReset]
    assert archive.deadline() is None
    archive.answered(1_006, ArchiveFailed(ticket, "killed"))
    archive.owe(2_000, 0)
    assert archive.deadline() == 3_000


def test_an_archive_that_was_started_anew_and_is_silent_again_is_given_up_again() -> None:
    """Although reads that had waited were asked before everything older had failed."""
    archive, out = made(answer_ms=1_000, reads_max=2)
    for token in range(3):
        archive.read(0, ReadAsked(0, token, token, 1))
    archive.due(1_000)
    archive.answered(1_001, ArchiveFailed(1, "its process ended"))
    assert archive.deadline() is None, "the second one will fail, too"
    archive.answered(1_002, ArchiveFailed(2, "its process ended"))
    out.take()
    assert archive.deadline() == 2_001
    archive.due(2_001)
    assert [type(effect) for effect in out.take()] == [Report, ArchiveReset]
