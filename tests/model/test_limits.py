"""What the simulator varies of the configuration, what it must reach by that, and that it looks for debts."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import pytest

from tests.model import run as runs
from tests.model.invariants import quiet
from tests.model.limits import draw_limits
from tests.model.marks import PER_THOUSAND, PREFIX, missed_marks
from tests.model.run import draw_plan, run_seed
from waltz_core.access.admission import UNLIMITED
from waltz_core.base.turns import Shares
from waltz_core.client.settings import ClientSettings
from waltz_core.server.config import ServerConfig
from waltz_core.server.fetches import DataFetches
from waltz_core.storage.config import StorageConfig

# Who takes part and where things are; protocol versions; what `Plan` draws of old; limits that no run could reach.
_NOT_DRAWN = {
    ServerConfig: {
        "root", "endpoint", "preferred_partitions", "versions", "storage_versions", "archive", "roles",
        "certificates_asked", "storage_frame_size_max", "retry_min_ms", "session", "journal", "lock_table_size",
        "min_fetch_size", "feed_cache_bytes", "data_cache_bytes", "batch_count_max", "payload_size_max",
        "retry_max_ms", "checkpoint_interval", "answer_timeout_ms", "proxies_trusted", "archiving",
    },
    StorageConfig: {
        "key", "partition_count", "segment_size_threshold", "queue_bytes_max", "shown_directory",
        "wall_clock_offset_ms", "frame_size_max", "version", "reserve_bytes", "certificates_asked", "roles",
        "gathered_max", "codecs",
    },
    ClientSettings: {
        "connect_ms", "hello_ms", "unmounted_warning_ms", "reconnect_base_ms", "fetch_base_ms", "fetch_cap_ms",
        "feed_buffer_max", "lock_names", "frame_size_max", "carries_others", "first_connection",
    },
}  # fmt: skip


def test_every_limit_of_the_configuration_is_drawn() -> None:
    drawn: Counter[str] = Counter(name for seed in range(400) for name in draw_limits(seed).names)
    parts = {ServerConfig: "server", StorageConfig: "storage", ClientSettings: "client"}
    for kind, part in parts.items():
        names = {field.name for field in kind.__attrs_attrs__}  # type: ignore[attr-defined]
        assert names - _NOT_DRAWN[kind] == {name.split(".")[1] for name in drawn if name.startswith(f"limit {part}.")}
    assert min(drawn.values()) >= 60


def test_small_limits_differ_from_what_ships() -> None:
    limits = [draw_limits(seed) for seed in range(50)]
    shipped = StorageConfig(bytes(16), 1)
    for name, value in {pair for one in limits for pair in one.storage}:
        assert getattr(shipped, name) != value
    assert shipped.places == UNLIMITED


def test_limits_change_nothing_else_of_a_run_and_can_be_left_out_one_by_one() -> None:
    seed = next(seed for seed in range(100) if len(draw_limits(seed).names) > 5)
    first, *others = draw_limits(seed).names
    assert draw_limits(seed).without(frozenset({first})).names == tuple(others)
    plan = draw_plan(seed)
    one, other = run_seed(seed), run_seed(seed, draw_limits(seed).names)
    assert set(plan.kinds) <= set(one.kinds)
    assert one.kinds == other.kinds
    assert one.limits == (first, *others)
    assert other.limits == ()


def test_a_drawn_disk_writes_and_syncs_lone_batches_in_the_loop_of_its_process() -> None:
    mark = PREFIX + "a lone batch was written and synced in place"
    drawn = [seed for seed in range(1, 40) if "limit process.sync_in_place" in draw_limits(seed).names]
    assert any(run_seed(seed).counts.get(mark) for seed in drawn[:4])
    assert not run_seed(drawn[0], ("limit process.sync_in_place",)).counts.get(mark)


def test_a_mark_that_too_few_seeds_reach_is_said() -> None:
    counts = {PREFIX + name: 1_000 for name in PER_THOUSAND}
    assert missed_marks(counts, 1_000) == []
    del counts[PREFIX + "a limbo was accepted"]
    assert missed_marks(counts, 1_000) == ["'a limbo was accepted' happened in 0 of 1000 seeds, not in 1"]
    assert missed_marks(counts, 200) == [], "it is too rare to be asked of so few"
    counts[PREFIX + "true refusals"] = 10
    assert missed_marks(counts, 200) == ["'true refusals' happened in 10 of 200 seeds, not in 38"]
    assert missed_marks({}, 16) == []


def _never_freed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Shares, "free", lambda self, conn, amount: None)


def _fetch_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Whoever left while payloads were read for him is still thought to wait."""
    patch.setattr(DataFetches, "gone", lambda self, conn: None)


@pytest.mark.parametrize(
    ("break_it", "seeds"),
    [(_never_freed, range(1, 4)), (_fetch_forgotten, range(1, 60))],
)
def test_a_debt_that_nobody_pays_is_found(break_it: Any, seeds: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    break_it(monkeypatch)
    failures = (run_seed(seed).failure for seed in seeds)
    assert any(failure.startswith("InvariantError: Quiet") for failure in failures)


def test_kept_seeds_run_without_limits_where_they_were_kept_before_limits_were_drawn() -> None:
    assert run_seed(1, limits=False).limits == ()
    assert runs.Run(1, limits=False).kinds == draw_plan(1).kinds


def _assigned(kind: type) -> tuple[str, ...]:
    """Names that its constructor, if it is written in Python, mentions."""
    code = getattr(kind.__init__, "__code__", None)  # type: ignore[misc]  # of the class itself, not of an instance
    return code.co_names if code is not None else ()


def test_every_collection_that_the_quiet_invariant_names_is_there() -> None:
    """A name that fits nothing any more, after a class was split, would excuse or check nothing in silence."""
    classes = {
        f"{kind.__name__}.{name}"
        for module in sys.modules.copy().values()
        if (module.__name__ or "").startswith("waltz_core.")
        for kind in vars(module).values()
        if isinstance(kind, type)
        for name in {*getattr(kind, "__slots__", ()), *_assigned(kind)}
    }
    assert (quiet.OF_CONNECTIONS | quiet._LEGACY_CLIENT | quiet._BROKEN_OFF) - classes == set()
