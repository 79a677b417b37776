"""`waltz storage drain` and the like, `restart-plan` and `cluster verify` by views of a cluster: what they refuse."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import attrs
import pytest

from tests.unit.operations.views import KEY, NAMES, assigned, cluster, storage
from waltz_core.operations import moves
from waltz_core.operations.restart import Kind, Progress, Step, plan, steps_json
from waltz_core.operations.view import ClusterView
from waltz_trio.cli import cluster as cli_cluster
from waltz_trio.cli import moves as cli_moves
from waltz_trio.cli import restart_plan
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


# ---- restart-plan


class Walked:
    """Runs of `restart-plan --exec` over views, with the steps of an earlier one."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self._patch = monkeypatch
        monkeypatch.setattr(restart_plan, "_LOOK_AGAIN", 0.0)

    def keep(self, steps: Iterable[Step]) -> None:
        self.path.write_text(json.dumps({"cluster": str(UUID(bytes=KEY)), "steps": steps_json(list(steps))}))

    async def run(self, *views: ClusterView, command: str = "true", **more: str) -> int:
        self._patch.setattr(restart_plan, "gather", looks(*views))
        tool: Any = SimpleNamespace(store=SimpleNamespace(key=KEY))
        words = {"exec": command, "state": str(self.path), "wait": "0", **more}
        return await restart_plan._follow(tool, Arguments(words))

    @property
    def progress(self) -> list[str]:
        return [step["progress"] for step in json.loads(self.path.read_text())["steps"]]


@pytest.fixture
def walked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Walked:
    return Walked(tmp_path / "plan.json", monkeypatch)


ALL = tuple(attrs.evolve(step, progress=Progress.DONE) for step in plan(cluster()))


async def test_a_walk_of_which_only_a_replaced_node_is_left_has_restarted_nothing(
    walked: Walked, capsys: pytest.CaptureFixture[str]
) -> None:
    """It said that all nodes were restarted, with status 0; the one in the place of the replaced one was not."""
    walked.keep((Step(Kind.STORAGE, GONE), *ALL))
    assert await walked.run(cluster()) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert "was finished before: nothing was restarted now" in output.err
    assert await walked.run(cluster(), json="") == 1
    assert json.loads(capsys.readouterr().out)["move"] == "finished"


async def test_a_node_that_is_replaced_while_it_is_waited_for_is_waited_for_no_longer(
    walked: Walked, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was, for all of --wait, and the walk ended with 11."""
    view = cluster()
    apart = attrs.evolve(view, storages=view.storages[1:])
    without = attrs.evolve(apart, maps=assigned(*((name, (0, 1)) for name in NAMES[1:])).maps)
    walked.keep((Step(Kind.STORAGE, NAMES[0]), *ALL[1:]))
    assert await walked.run(view, view, without) == 0
    assert walked.progress == ["done"] * 5
    assert capsys.readouterr().out.endswith("all 4 nodes are restarted and back\n")

    walked.keep((Step(Kind.STORAGE, NAMES[0]),))
    assert await walked.run(view, view, without) == 0
    assert capsys.readouterr().out.endswith("the node has left the cluster\n")


async def test_a_walk_of_which_something_is_left_restarts_it(
    walked: Walked, capsys: pytest.CaptureFixture[str]
) -> None:
    walked.keep((attrs.evolve(ALL[0], progress=Progress.OPEN), *ALL[1:]))
    assert await walked.run(cluster()) == 0
    assert capsys.readouterr().out.endswith("all 5 nodes are restarted and back\n")
    walked.keep(ALL)
    assert await walked.run(cluster()) == 1
    walked.path.unlink()
    assert await walked.run(cluster(), command="exit 7", only="s1") == 1
    assert "status 7 for s1:7000" in capsys.readouterr().err


# ---- cluster verify


async def test_a_cluster_without_partitions_is_not_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    """It passed, nothing having been looked at."""
    monkeypatch.setattr(cli_cluster, "gather", looks(cluster(num_partitions=0, partitions=())))
    tool: Any = None
    with pytest.raises(CommandError, match="it has no partitions: nothing was verified"):
        await cli_cluster._verify(tool, Arguments({}))
