"""The offline copy of a replica: against a source and a destination in memory, for every batch size and every cut."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from tests.model.recovery_world import make_record
from waltz_core.base.errors import StorageError
from waltz_core.base.log import SessionInfo
from waltz_core.operations import recover_partition as copying
from waltz_core.operations.recover_partition import RecoverPartition

LOG = tuple(make_record(number) for number in range(12))


class Destination:
    """A replica that keeps what it is told to."""

    def __init__(self, held: int, low: int) -> None:
        self.log = [make_record(number + 100) for number in range(held)]  # another history
        self.log[: low + 1] = LOG[: low + 1]
        self.low = low

    def info(self) -> SessionInfo:
        return SessionInfo(5, self.low, self.low)


def carry_out(step: copying.Step, destination: Destination, source: int, given: int) -> copying.Answer:
    match step:
        case copying.Truncate(mark=mark):
            del destination.log[mark + 1 :]
            return copying.Truncated(len(destination.log) - 1)
        case copying.AskSource():
            return copying.SourceInfo(SessionInfo(6, source, source))
        case copying.Read(first=first, count=count):
            return copying.RecordsRead(LOG[first : first + min(count, given)])
        case copying.Append(records=records):
            assert records[0].transaction_id == len(destination.log)
            destination.log += records
            return copying.Appended()
        case copying.Mark(mark=mark):
            assert destination.low < mark == len(destination.log) - 1, "a mark is above what is there, or falls"
            destination.low = mark
            return copying.Marked()
        case _:
            raise AssertionError(step)


@given(
    held=st.integers(0, 11),
    low=st.integers(-1, 10),
    source=st.integers(-1, 11),
    batch=st.integers(1, 13),
    given=st.integers(1, 13),
    cuts=st.sets(st.integers(0, 40)),
)
def test_the_destination_ends_with_what_the_source_has_wherever_a_copy_was_cut(
    held: int, low: int, source: int, batch: int, given: int, cuts: set[int]
) -> None:
    """After a cut another copy begins from what the destination has by then."""
    destination = Destination(max(held, low + 1), low)
    recovery = RecoverPartition(destination.info(), batch)
    for at in range(1_000):
        if isinstance(recovery.step, copying.Done):
            break
        if at in cuts:
            recovery = RecoverPartition(destination.info(), batch)
        recovery.answered(carry_out(recovery.step, destination, source, given))
    assert isinstance(recovery.step, copying.Done)
    end = max(source, low)
    assert (destination.log, destination.low) == (list(LOG[: end + 1]), end)


@pytest.mark.parametrize(
    ("records", "problem"),
    [
        ((), "has no transaction 3, though its mark is 11"),
        (LOG[4:6], "sends 4 where 3 belongs"),
        ((LOG[3], LOG[5]), "sends 5 where 4 belongs"),
        (LOG[3:8], "transactions 3 to 4 were asked for, the source sends 5"),
    ],
)
def test_a_source_that_sends_something_else_ends_the_copy(records: tuple[object, ...], problem: str) -> None:
    recovery = RecoverPartition(SessionInfo(5, 2, 2), 2)
    recovery.answered(copying.Truncated(2))
    assert recovery.answered(copying.SourceInfo(SessionInfo(6, 11, 11))) == copying.Read(3, 2)
    with pytest.raises(StorageError, match=problem):
        recovery.answered(copying.RecordsRead(records))  # type: ignore[arg-type]
