"""A few seconds of every decoder under bytes that nobody sends; `python -m tests.decoders` runs on."""

from __future__ import annotations

import time
from random import Random

import pytest

from tests.decoders.__main__ import blind, changed, weigh
from tests.decoders.guided import _traced
from tests.decoders.targets import Target, all_targets

TARGETS = all_targets()
SEED = time.time_ns() // 1_000_000_000
"""Other inputs every time; a failure tells decoder and input."""


def test_blind_inputs_raise_nothing_but_declared_errors() -> None:
    tally = blind(TARGETS, Random(SEED), 2.5, None)
    assert tally.failures == []
    assert set(tally.inputs) == {target.name for target in TARGETS}


def test_changed_inputs_raise_nothing_but_declared_errors() -> None:
    assert changed(TARGETS, Random(SEED), 2.5).failures == []


def test_inputs_that_reach_new_lines_raise_nothing_but_declared_errors() -> None:
    report = _traced(1.5, SEED)
    assert report["failures"] == []
    assert report["reached"]["corpus"] > sum(len(target.seeds) for target in TARGETS if target.name != "configuration")


def test_no_input_takes_more_memory_than_twice_its_size() -> None:
    _, failures = weigh(TARGETS, Random(SEED), 2)
    assert failures == []


@pytest.mark.parametrize("target", [target for target in TARGETS if "stream" not in target.name], ids=lambda t: t.name)
def test_every_decoder_has_something_valid_to_begin_from(target: Target) -> None:
    assert target.seeds
