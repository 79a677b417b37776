"""`waltz restart-plan -c CONFIG`: a rolling restart or upgrade, node by node, with the checks between."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from uuid import UUID

import trio

from waltz_core.base.errors import ClusterError
from waltz_core.operations.restart import (
    Move,
    Next,
    Progress,
    Step,
    has_left,
    marked,
    next_move,
    not_back,
    parse_steps,
    plan,
    process_of,
    steps_json,
)
from waltz_core.operations.stopping import committed_marks
from waltz_core.operations.view import ClusterView
from waltz_trio.base import durable
from waltz_trio.base.printable import printable
from waltz_trio.cli.help import Parser, UsageError
from waltz_trio.cli.interruption import advising
from waltz_trio.cli.options import CONFIG, JSON, Arguments, Command, CommandError, Option, parser_of
from waltz_trio.cli.tool import in_session
from waltz_trio.ports.gather import NODE_MAX, gather
from waltz_trio.ports.tool import Tool

DUE, WAIT, UNKNOWN, FAILED = 10, 11, 3, 1  # exit statuses besides 0: every node is done
_LOOK_AGAIN = 1.0  # seconds between two looks
_STDERR = 2  # its descriptor
_PATIENCE = 600  # seconds for the cluster to become whole again between two nodes
_STATUS = {Move.FINISHED: 0, Move.RESTART: DUE, Move.WAIT: WAIT, Move.UNKNOWN: UNKNOWN}


class PlanFile:
    """Where a walk is written down, so that a later call goes on where this one ended."""

    def __init__(self, path: Path, cluster: str) -> None:
        self.path = path
        self._cluster = cluster  # its key: a plan is of one cluster

    def read(self) -> tuple[Step, ...] | None:
        """The steps; None if there is no file.

        Raises:
            CommandError: it holds something else, or the plan of another cluster.
        """
        if not self.path.exists():
            return None
        try:
            value = json.loads(self.path.read_text(encoding="utf-8"))
            if not isinstance(value, dict) or not value.keys() >= {"cluster", "steps"}:
                raise ValueError("expected an object with the keys cluster and steps")
            cluster = value["cluster"]
            steps = parse_steps(value["steps"])
        except (ValueError, ClusterError) as error:
            text = f"{self.path} is no plan of this command, give another --state FILE: {error}"
            raise CommandError(text) from None
        if cluster != self._cluster:
            raise CommandError(f"{self.path} is the plan of another cluster ({cluster}): give another --state FILE")
        return steps

    def save(self, steps: Sequence[Step]) -> None:
        """Keep the plan where a crash leaves the old one or the new one."""
        value = {"cluster": self._cluster, "steps": steps_json(steps)}
        durable.replace_file(self.path, (json.dumps(value, indent=2) + "\n").encode())


class _Walk:
    """The plan in its file, and looks at the cluster."""

    def __init__(self, tool: Tool, path: Path, seconds: int) -> None:
        self._tool = tool
        self._file = PlanFile(path, str(UUID(bytes=tool.store.key)))
        self._seconds = seconds
        self._marks: Mapping[int, int] = {}
        self._view: ClusterView | None = None  # what `look` saw
        self.steps: tuple[Step, ...] = ()

    async def open(self, only: Sequence[str], done: str | None) -> None:
        """Read the plan, or make it; note the node that was restarted by hand.

        A plan that lacks this node is not kept: a word that was mistyped would leave one that nobody asked for.
        """
        view = await self._gather()
        self._marks = committed_marks(view)
        steps = self._file.read()
        if steps is not None and only:
            raise CommandError(f"{self._file.path} holds a plan already: remove it to make another one")
        self.steps = plan(view, only) if steps is None else steps
        if done is not None:
            self.mark(done, Progress.DONE)
        elif steps is None:
            self._file.save(self.steps)

    def mark(self, name: str, progress: Progress, process: str = "") -> None:
        """Write a step's progress down, before anything follows from it."""
        self.steps = marked(self.steps, name, progress, process)
        self._file.save(self.steps)

    def process_of(self, step: Step) -> str:
        """Which process a node was at the last look."""
        return "" if self._view is None else process_of(self._view, step)

    async def look(self) -> Next:
        """The next move, by a look of now and the marks of the one before."""
        view = self._view = await self._gather()
        move = next_move(view, self.steps, self._marks)
        self._marks = committed_marks(view)
        return move

    @property
    def staying(self) -> int:
        """How many of its nodes are in the cluster at the last look."""
        return len(self.steps) - sum(self._view is not None and has_left(self._view, step) for step in self.steps)

    async def missing(self, step: Step) -> tuple[str, ...]:
        """What a restarted node still lacks; nothing if it has left the cluster meanwhile."""
        view = await self._gather()
        reasons = () if has_left(view, step) else tuple(not_back(view, step, self._marks))
        self._marks = committed_marks(view)
        return reasons

    async def _gather(self) -> ClusterView:
        view = await gather(self._tool, self._seconds, certificates=False)
        if view.proxy_of is not None:
            text = "its one process may be restarted at any time, and its clients wait until it is back"
            raise CommandError(f"{view.root} is the root of a proxy: {text}")
        return view


async def _follow(tool: Tool, arguments: Arguments) -> int:
    only = [name for name in (arguments.text_or_none("only") or "").split(",") if name]
    if arguments.flag("only") and not only:  # an empty variable of a script must not restart all nodes
        raise UsageError("--only: expected names of nodes or hosts, separated by commas, found none")
    command = arguments.text_or_none("exec")
    if command is not None and not command.strip():
        raise UsageError("--exec is empty: expected the command that restarts one node")
    patience = arguments.number("wait", _PATIENCE, least=0)
    path = Path(arguments.text_or_none("state") or "waltz-restart.json")
    walk = _Walk(tool, path, arguments.number("timeout", int(NODE_MAX), least=1))
    await walk.open(only, arguments.text_or_none("done"))
    if command is not None:
        with advising(lambda: _left(walk, path)):
            return await _run_all(walk, command, patience, as_json=arguments.flag("json"))
    await trio.sleep(_LOOK_AGAIN)  # whether a replica is level is judged over two looks
    move = await walk.look()
    if arguments.flag("json"):
        print(_as_json(walk.steps, move.move.value, move.step, move.reasons))
    else:
        print("\n".join(_lines(walk.steps, move, path)))
    return _STATUS[move.move]


def _left(walk: _Walk, path: Path) -> str:
    """What a walk that was interrupted leaves."""
    begun = next((step.name for step in walk.steps if step.progress is Progress.BEGUN), None)
    where = f"{path} keeps what is done: the same command again goes on there"
    if begun is None:
        return where
    return f"{begun} may be stopped or not, and its command may go on. {where}, and restarts {begun} once more"


async def _run_all(walk: _Walk, command: str, patience: int, *, as_json: bool) -> int:
    """Restart what is left; as JSON, standard output has one object at the end, and what happens goes elsewhere."""
    out = sys.stderr if as_json else sys.stdout
    restarted = False
    while True:
        move = await _settled(walk, patience)
        if move.move is not Move.RESTART or move.step is None:
            break
        number = 1 + sum(step.progress is Progress.DONE for step in walk.steps)
        print(f"{number}/{len(walk.steps)} {move.step.kind.value} {move.step.name}", file=out, flush=True)
        status, how, reasons = await _restart_and_wait(walk, move.step, command, patience, as_json=as_json)
        if status != 0:
            if as_json:
                print(_as_json(walk.steps, how, move.step, reasons))
            return status
        restarted = True
    status = _STATUS[move.move]
    if move.move is not Move.FINISHED:
        _say(f"gave up after {patience} s: {'; '.join(move.reasons)}")
    elif not restarted:  # a node that is open yet was replaced: the walk does not know the one in its place
        _say("this walk was finished before: nothing was restarted now. Remove its file to begin another one")
        status = FAILED
    else:
        few = {0: "the node has left the cluster", 1: "the node is restarted and back"}
        print(few.get(walk.staying, f"all {walk.staying} nodes are restarted and back"), file=out)
    if as_json:
        print(_as_json(walk.steps, move.move.value, move.step, move.reasons))
    return status


async def _restart_and_wait(
    walk: _Walk, step: Step, command: str, patience: int, *, as_json: bool
) -> tuple[int, str, tuple[str, ...]]:
    """One node: the exit status, 0 once it is back, and what is told of a failure to a program."""
    walk.mark(step.name, Progress.BEGUN, walk.process_of(step))
    ended = await _restart(command, step, as_json=as_json)
    if ended != 0:
        text = f"the command ended with status {ended} for {step.name}"
        _say(f"{text}: mend that, then run this again to go on there")
        return FAILED, "failed", (text,)
    begun = next(each for each in walk.steps if each.name == step.name)
    missing = await _back(walk, begun, patience)
    if missing:
        return WAIT, Move.WAIT.value, missing
    walk.mark(step.name, Progress.DONE)
    return 0, Move.FINISHED.value, ()


async def _settled(walk: _Walk, patience: int) -> Next:
    """Wait until the next node may be stopped, or patience ends."""
    end, said = trio.current_time() + patience, ""
    while True:
        await trio.sleep(_LOOK_AGAIN)
        move = await walk.look()
        if move.move in (Move.FINISHED, Move.RESTART) or trio.current_time() >= end:
            return move
        said = _say_once(said, f"waiting: {'; '.join(move.reasons)}")


async def _back(walk: _Walk, step: Step, patience: int) -> tuple[str, ...]:
    """Wait until a node is back; what it still lacks when patience ends."""
    end, said = trio.current_time() + patience, ""
    while True:
        reasons = await walk.missing(step)
        if not reasons:
            return ()
        if trio.current_time() >= end:
            _say(f"{step.name} is not back after {patience} s: {'; '.join(reasons)}")
            return reasons
        said = _say_once(said, f"waiting: {'; '.join(reasons)}")
        await trio.sleep(_LOOK_AGAIN)


async def _restart(command: str, step: Step, *, as_json: bool) -> int:
    """Run the operator's command for one node; text from ZooKeeper is quoted.

    Where standard output is for a program, what the command prints goes to standard error.
    """
    fields = {"kind": step.kind.value, "node": step.name, "host": step.host}
    line = command
    for name, value in fields.items():
        line = line.replace(f"{{{name}}}", shlex.quote(value))
    environment = {**os.environ, **{f"WALTZ_{name.upper()}": value for name, value in fields.items()}}
    output = _STDERR if as_json else None
    words = ["/bin/sh", "-c", line]
    done = await trio.run_process(words, check=False, stdin=subprocess.DEVNULL, stdout=output, env=environment)
    return done.returncode


def _say(text: str) -> None:
    print(printable(text, "\n"), file=sys.stderr, flush=True)


def _say_once(said: str, text: str) -> str:
    if text != said:
        _say(text)
    return text


def _lines(steps: Sequence[Step], move: Next, path: Path) -> list[str]:
    signs = {Progress.DONE: "✓", Progress.BEGUN: "…", Progress.OPEN: " "}
    lines = [f"{signs[step.progress]} {step.kind.value:<8} {step.name}" for step in steps]
    step = move.step
    if move.move is Move.FINISHED:
        return [*lines, f"every node is restarted and back; remove {path} to begin another walk"]
    assert step is not None
    if move.move is Move.RESTART:
        lines.append(f"next: {step.name} may be stopped now")
        lines += [f"   {text}" for text in (move.answer.quorums() if move.answer is not None else move.reasons)]
        lines.append(f"   restart it, then: waltz restart-plan -c CONFIG --state {path} --done {step.name}")
    else:
        word = "not now" if move.move is Move.WAIT else "not known whether now"
        lines.append(f"next: {step.name}, {word}")
        lines += [f"   because {reason}" for reason in move.reasons]
    return lines


def _as_json(steps: Sequence[Step], move: str, step: Step | None, reasons: Sequence[str]) -> str:
    row = {
        "steps": steps_json(steps),
        "move": move,
        "node": step.name if step is not None else None,
        "reasons": list(reasons),
    }
    return json.dumps(row, indent=2)


COMMAND = Command(
    "",
    "Walks a rolling restart or upgrade: storage nodes, then servers, one at a time, each only once the cluster could "
    "do without it. Without --exec it shows the plan and whether the next node may be stopped now; --done NODE notes "
    "that it was restarted. With --exec it does all of it. The plan is kept in a file: interrupted, the same command "
    f"goes on. Exit status 0 = every node is done, {DUE} = the next one may be stopped now, {WAIT} = not now, "
    f"{UNKNOWN} = could not be determined, {FAILED} = the command of --exec failed.",
    (
        CONFIG,
        Option("s", "state", "File that the plan is kept in (default waltz-restart.json)"),
        Option("o", "only", "Nodes or hosts to restart, separated by commas (default: all); of a new plan"),
        Option("d", "done", "Node that was restarted by hand"),
        Option(
            "x",
            "exec",
            "Shell command that restarts one node and returns once it runs; {kind} (storage or server), {node} "
            "(host:port) and {host} stand for it",
        ),
        Option("w", "wait", f"With --exec: seconds to wait between two nodes (default {_PATIENCE})"),
        Option("t", "timeout", f"Seconds that each node may take to answer (default {NODE_MAX:.0f})"),
        JSON,
    ),
    lambda arguments: in_session(_follow, arguments),
    failed=UNKNOWN,
    example="-c tools.yml --exec ./restart-node.sh",
)


def make_parser() -> Parser:
    """The only command."""
    return parser_of("waltz restart-plan", (COMMAND,))
