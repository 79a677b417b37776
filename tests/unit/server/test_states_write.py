"""Pauses between attempts to write replica states: growing, with jitter, up to a limit; one report per change."""

from __future__ import annotations

import random

from waltz_core.base.edge import ZkError
from waltz_core.server.states_write import StatesWrite


def test_pauses_grow_up_to_the_limit_and_begin_anew_after_a_success() -> None:
    write = StatesWrite(100, 1_000, random.Random(1))
    for least, most in ((50, 100), (100, 200), (200, 400), (400, 800), (500, 1_000), (500, 1_000)):
        write.failed(5_000, ZkError.REFUSED)
        assert write.again_at is not None
        assert 5_000 + least <= write.again_at <= 5_000 + most
        assert not write.due(write.again_at - 1)
        assert write.due(write.again_at)
        assert not write.due(10_000)
    assert write.succeeded()
    write.failed(0, ZkError.REFUSED)
    assert write.again_at is not None
    assert write.again_at <= 100


def test_each_reason_is_told_once_and_a_lost_connection_by_others() -> None:
    write = StatesWrite(100, 1_000, random.Random(1))
    errors = ZkError.REFUSED, ZkError.REFUSED, ZkError.UNAVAILABLE, ZkError.NO_NODE, ZkError.REFUSED
    assert [write.failed(0, error) for error in errors] == ["refused", "", "", "no node", "refused"]
    assert write.succeeded()
    write.failed(0, ZkError.OUTCOME_UNKNOWN)
    assert not write.succeeded()
    write.failed(0, ZkError.UNAVAILABLE)
    write.forget()
    assert write.again_at is None
