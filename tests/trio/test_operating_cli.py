"""`waltz storage drain` and the like, `restart-plan` and `cluster verify` by views of a cluster: what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from tests.unit.operations.views import NAMES, cluster, storage
from waltz_core.operations import moves
from waltz_core.operations.view import ClusterView
from waltz_trio.cli import cluster as cli_cluster
from waltz_trio.cli import moves as cli_moves
from waltz_trio.cli.options import Arguments, CommandError

GONE = "s9:7000"


def looks(*views: ClusterView) -> Callable[..., Any]:
    """A `gather` that sees these one after the other, and then the last one again and again."""
    left = list(views)

    async def look(*_: object, **__: object) -> ClusterView:
        return left.pop(0) if len(left) > 1 else left[0]

    return look


# ---- moves


def test_a_target_that_has_lost_the_partition_again_is_not_waited_for() -> None:
    """It was, for an hour: somebody had taken it away."""
    view = cluster()
    assert cli_moves._is_level(0, NAMES[0], view)
    silent = attrs.evolve(view, storages=(storage(NAMES[0], replicas=None), *map(storage, NAMES[1:])))
    assert cli_moves._is_level(0, NAMES[0], silent), "ZooKeeper says so, and it may answer soon"
    without = attrs.evolve(view, storages=(storage(NAMES[0], replicas={}), *map(storage, NAMES[1:])))
    with pytest.raises(CommandError, match=f"{NAMES[0]} does not hold partition 0 any more: somebody took it away"):
        cli_moves._is_level(0, NAMES[0], without)


@pytest.mark.parametrize("again", [True, False])
async def test_files_are_kept_of_what_the_node_is_to_hold_again_or_under_another_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], again: bool
) -> None:
    """An hour may pass between the plan and its last steps."""
    done: list[moves.Step] = []
    release = moves.Release("s0:7000", 0)

    async def do(tool: object, step: moves.Step, patience: int, *, delete: bool) -> None:
        done.append(step)

    view, later = cluster(), cluster(name="later")
    monkeypatch.setattr(cli_moves, "gather", looks(view, later))
    monkeypatch.setattr(cli_moves, "_audited", do)

    def steps(seen: ClusterView) -> tuple[moves.Step, ...]:
        if seen.name != "later":
            return (release,)
        return (moves.Unassign("s0:7000", 0), moves.AwaitWithout("s0:7000", 0), release) if again else ()

    tool: Any = None
    with pytest.raises(CommandError, match="s0:7000: give partition 0 up: the cluster is not as it was"):
        await cli_moves._carry_out(steps, tool, Arguments({"yes": ""}))
    assert done == []
    capsys.readouterr()


# ---- cluster verify


async def test_a_cluster_without_partitions_is_not_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    """It passed, nothing having been looked at."""
    monkeypatch.setattr(cli_cluster, "gather", looks(cluster(num_partitions=0, partitions=())))
    tool: Any = None
    with pytest.raises(CommandError, match="it has no partitions: nothing was verified"):
        await cli_cluster._verify(tool, Arguments({}))
