"""Replays what real drivers asked of the operating system, with a power failure after every call.

`python -m tests.driver_crashes [--words N] [--json PATH]`: every life in full, then once more for each sync left out,
moved before what it is to make durable, and aimed at another file; exit status 1 if a promise is broken where nothing
was changed, or if nothing is noticed where something was.

The method is that of ALICE (Pillai et al., OSDI 2014) and CrashMonkey (Mohan et al., OSDI 2018): record, cut, reorder.
"""

from __future__ import annotations

import ast
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import attrs
import trio

from tests.disks.remainders import remainders
from tests.disks.versions import Versions
from tests.driver_crashes.disk import apply
from tests.driver_crashes.lives import Life
from tests.driver_crashes.recorder import SYNCS, Call, Recorder
from waltz_testing.simulation.volume import Volume

ROOT = Path(__file__).parents[2]
CONTENTS_MAX = 400  # contents of the disk that are tried at one cut


@attrs.define
class Tally:
    """What was looked at, and what was wrong."""

    calls: int = 0
    cuts: int = 0
    contents: int = 0
    violations: list[str] = attrs.field(factory=list)


def record(life: Life) -> tuple[Call, ...]:
    """The calls of a life, the last of them an end without effect that carries the last acknowledgements."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory).resolve()
        recorder = Recorder(root)
        with recorder.installed():
            trio.run(life.run, root, recorder)
        return (*recorder.calls, Call("end", "", "", acknowledged=recorder.acknowledged()))


def replay(life: Life, calls: Sequence[Call], *, enough: int = 1, most: int = CONTENTS_MAX, seed: int = 0) -> Tally:
    """Cut the power before each call, and judge everything that the disk may then hold.

    Args:
        enough: violations after which nothing more is looked at.
        most: contents of the disk tried at one cut.
    """
    tally, volume, rng = Tally(calls=len(calls)), Volume(Versions), random.Random(seed)
    seen: set[int] = set()
    for at, call in enumerate(calls):
        tally.cuts += 1
        for content in remainders(volume, most, rng):
            tally.contents += 1
            known = hash((tuple(sorted(content.items(), key=lambda one: one[0])), repr(call.acknowledged)))
            if known in seen:
                continue
            seen.add(known)
            problem = life.judge(content, call.acknowledged)
            if problem is not None:
                before = calls[at - 1] if at else call
                tally.violations.append(
                    f"{life.name}, power cut behind call {at} ({before.name} {before.path}): {problem}"
                )
                break
        if len(tally.violations) >= enough:
            return tally
        if call.name != "end":
            apply(volume, call)
    return tally


# ---- syncs that are not there ----------------------------------------------------------------


def kind(call: Call) -> str:
    """What a sync is for: where it is asked for, and which kind of file it names."""
    name = call.path.rpartition("/")[2]
    suffix = name.rpartition(".")[2] if "." in name else name
    stem = name.rpartition(".")[0] if suffix in ("new",) else ""
    what = f"{stem}.{suffix}" if stem else ("the root" if not name else suffix)
    return f"{call.site}: {call.name} of {'a partition' if what.isdigit() else what}"


def left_out(calls: Sequence[Call], wanted: str) -> list[Call]:
    """Without the syncs of a kind."""
    return [call for call in calls if not (call.name in SYNCS and kind(call) == wanted)]


def too_early(calls: Sequence[Call], wanted: str) -> list[Call]:
    """Each sync of a kind before the last call that it is to make durable."""
    moved: list[Call] = []
    for call in calls:
        if call.name in SYNCS and kind(call) == wanted:
            at = len(moved)
            while at and not _concerns(call, moved[at - 1]):
                at -= 1
            moved.insert(max(0, at - 1), call)
            if call.name == "sync_data" and not _exists(call.path, moved[: max(0, at - 1)]):
                moved.remove(call)  # before its file was made, it is none
        else:
            moved.append(call)
    return moved


def _exists(path: str, calls: Sequence[Call]) -> bool:
    return any(path in (call.path, call.target) and call.name in ("open_file", "rename") for call in calls)


def _concerns(sync: Call, call: Call) -> bool:
    if sync.name == "sync_file_system":
        return call.name not in SYNCS
    if sync.name == "sync_data":
        return call.path == sync.path and call.name in ("open_file", "write", "write_at", "truncate")
    names = [call.path, call.target] if call.name in ("rename", "link") else [call.path]
    changed = call.name in ("open_file", "rename", "link", "unlink", "make_directory")
    return changed and any(name and name.rpartition("/")[0] == sync.path for name in names)


def aimed_elsewhere(calls: Sequence[Call], wanted: str) -> list[Call]:
    """Each sync of a kind on another file that is there, or another directory; left out where there is none."""
    aimed: list[Call] = []
    for call in calls:
        if not (call.name in SYNCS and kind(call) == wanted):
            aimed.append(call)
            continue
        made = "open_file" if call.name == "sync_data" else "make_directory"
        others = [one.path for one in aimed if one.name == made and one.path != call.path]
        gone = {one.path for one in aimed if one.name in ("rename", "unlink")}
        others = [path for path in others if path not in gone]
        if others and call.name != "sync_file_system":  # another file system has nothing of ours
            aimed.append(attrs.evolve(call, path=others[0]))
    return aimed


CHANGES: dict[str, Callable[[Sequence[Call], str], list[Call]]] = {
    "left out": left_out,
    "too early": too_early,
    "aimed elsewhere": aimed_elsewhere,
}


def kinds(traces: Sequence[Sequence[Call]]) -> list[str]:
    """Every kind of sync that was recorded."""
    return sorted({kind(call) for calls in traces for call in calls if call.name in SYNCS})


# ---- the syncs of the source -----------------------------------------------------------------


def sites(packages: Sequence[str] = ("waltz_trio", "waltz_spark")) -> Iterator[str]:
    """Every function of a driver that asks for something to be made durable, as `file:function`."""
    asking = {*SYNCS, "replace_file", "make_directories"}
    for package in packages:
        place = ROOT / package
        for path in [place] if place.is_file() else sorted(place.rglob("*.py")):
            if path.name == "durable.py":
                continue
            for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                    for node in ast.walk(function):
                        if isinstance(node, ast.Attribute) and node.attr in asking and _is_port(node.value):
                            yield f"{path.relative_to(ROOT).as_posix()}:{function.name}"


def _is_port(value: ast.expr) -> bool:
    """Whether calls of it are calls of the port: the module, or what a data directory has for it."""
    named = isinstance(value, ast.Name) and value.id == "durable"
    return named or (isinstance(value, ast.Attribute) and value.attr == "_system")


UNLIVED = {
    "waltz_spark/seal/places.py:put_text": "a proof to give away, which can be made again",
    "waltz_trio/cli/zookeeper.py:_list": "a backup of ZooKeeper, written by the same call as each file of certificates",
}
"""Functions that ask for something to be made durable and are in no life, and why."""

HARMLESS = {
    "waltz_trio/node/journal_directory.py:_trim: sync_directory of a partition: too early": (
        "it must be durable that a name went before the next one of the partition goes, and just before is soon enough"
    ),
    "durable.replace_file < waltz_trio/node/embedded.py:make_certificates: sync_directory of tls: too early": (
        "what comes last is the node's own certificate, and a start makes another one; the authority is named before"
    ),
    **{
        f"waltz_spark/base/objects.py:_sync_folders: sync_directory of {folder}: too early": (
            "what happens last in the folder is that the scratch file loses its name, which may come back"
        )
        for folder in ("state", "a")
    },
    **{
        f"durable.replace_file < waltz_spark/archive/restore.py:_write_start: sync_directory of a partition: {name}": (
            "the directory of each partition is synced once more before the control file is there, and no node starts"
        )
        for name in ("left out", "too early", "aimed elsewhere")
    },
    "waltz_spark/archive/restore.py:_write_control: sync_directory of a partition: too early": (
        "what happens last in the directory is that an attempt's scratch file loses its name, which may come back"
    ),
    "waltz_trio/storage/files.py:apply: sync_data of fence: too early": (
        "each session is written into both slots, one after the other: the sync of the second covers the first"
    ),
    "waltz_trio/storage/files.py:apply: sync_data of start: too early": "as the fence",
    **{
        f"waltz_trio/storage/files.py:apply: sync_data of faults: {name}": (
            "what is damaged is noticed again by its checksum when it is read; the list saves the reading"
        )
        for name in CHANGES
    },
}
"""Changes of syncs that break no promise, and why."""
