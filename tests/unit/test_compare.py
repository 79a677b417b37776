"""Comparing two versions: what is taken from a run, and when pairs of runs tell anything."""

from __future__ import annotations

from benchmarks.compare import compare, figures_of


def test_the_figures_of_a_run_are_its_numbers_and_the_processor_time_of_each_process() -> None:
    run = {"tx_per_s": 100, "p50_ms": 1.5, "committed": 200, "cpu_s": {"server-0": 0.1}, "file_system": "ext4"}
    assert figures_of(run) == {
        "tx_per_s": 100,
        "p50_ms": 1.5,
        "committed": 200,
        "cpu_us_per_tx of server-0": 500,
    }


def test_a_ratio_tells_something_only_if_every_pair_agrees() -> None:
    pairs = [
        ({"cost": 10, "rate": 5, "gone": 1}, {"cost": 8, "rate": 6}),
        ({"cost": 20, "rate": 6, "gone": 1}, {"cost": 15, "rate": 5}),
        ({"cost": 12, "rate": 5, "gone": 1}, {"cost": 9, "rate": 6}),
    ]
    assert compare(pairs) == [("cost", 12, 9, 0.75, True), ("rate", 5, 6, 1.2, False)]


def test_one_pair_tells_nothing() -> None:
    assert compare([({"cost": 2}, {"cost": 1})]) == [("cost", 2, 1, 0.5, False)]
