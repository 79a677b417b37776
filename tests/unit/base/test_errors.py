"""Errors that are copied, or that cross the border of a process."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable, Iterator

import pytest

import waltz_core.base.errors
from waltz_core.base.errors import (
    ApplyFailedError,
    BeforeStartError,
    ClientAheadError,
    FrameTooLargeError,
    KeyReusedError,
    LockConflictError,
    NotCommittedError,
    PartitionUnavailableError,
    RetriesExhaustedError,
    UnknownHeaderError,
    ViewIdentityError,
    ViewRegressedError,
    WaltzError,
    WrongProcessError,
    WrongThreadError,
)
from waltz_core.base.lock import Lock
from waltz_trio.zk.client import NoNodeError

MADE = [
    FrameTooLargeError(9, 4),
    PartitionUnavailableError(3, "why", 5),
    LockConflictError(3, 7),
    LockConflictError(3, 7, kind="write", lock=Lock("account", 7), conflict=True, taken_by=6),
    NotCommittedError(3, "lost", refused=True),
    RetriesExhaustedError(4),
    RetriesExhaustedError(1, "reason"),
    KeyReusedError(3, "k", 5),
    ClientAheadError(3, 9, 5),
    BeforeStartError(3, "text"),
    ViewRegressedError(3, None, 5),
    ViewIdentityError("database", "stored", "given", "advice"),
    ApplyFailedError(3, 9, "reason"),
    UnknownHeaderError(5),
    WrongThreadError(),
    WrongProcessError(),
    NoNodeError("/a"),
]
WAYS: list[Callable[[WaltzError], WaltzError]] = [
    copy.copy,
    copy.deepcopy,
    lambda error: pickle.loads(pickle.dumps(error)),
]


def kinds(base: type[WaltzError] = WaltzError) -> Iterator[type[WaltzError]]:
    """All classes that are imported here."""
    yield base
    for kind in base.__subclasses__():
        yield from kinds(kind)


def test_every_error_with_arguments_of_its_own_is_among_those_tried() -> None:
    ours = (each for _, each in inspect.getmembers(waltz_core.base.errors, inspect.isclass))
    own = {each for each in ours if issubclass(each, WaltzError) and "__init__" in vars(each)}
    assert own <= {type(error) for error in MADE}
    assert len(own) >= 12


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("error", MADE, ids=lambda error: type(error).__name__)
def test_an_error_is_the_same_behind_a_copy_and_in_another_process(
    error: WaltzError, way: Callable[[WaltzError], WaltzError]
) -> None:
    """A pool of processes ends, or waits for ever, where the error of a task cannot be made again."""
    error.add_note("a note")
    again = way(error)
    assert type(again) is type(error)
    assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))


def test_every_class_can_be_pickled() -> None:
    for kind in set(kinds()):
        if not kind.__module__.startswith("tests."):
            again = pickle.loads(pickle.dumps(kind.__new__(kind, "text")))
            assert (type(again), again.args) == (kind, ("text",))
