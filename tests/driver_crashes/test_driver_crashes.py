"""What real drivers acknowledged is there after a power failure at any call; a sync less, or elsewhere, is noticed."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.driver_crashes.lives import Life, short_lives
from tests.driver_crashes.recorder import Call
from tests.driver_crashes.sweep import CHANGES, HARMLESS, ROOT, UNLIVED, kinds, record, replay, sites

# Calls that make bytes durable, change names or open files for writing; drivers reach them through the port alone.
_OS_CALLS = {
    "fsync",
    "fdatasync",
    "sync",
    "pwrite",
    "write",
    "writev",
    "ftruncate",
    "truncate",
    "rename",
    "replace",
    "link",
} | {"symlink", "unlink", "remove", "rmdir", "mkdir", "makedirs", "renames", "open", "posix_fallocate", "sendfile"}
_PATH_CALLS = {"write_bytes", "write_text", "unlink", "rename", "mkdir", "rmdir", "hardlink_to", "symlink_to"}
_WRITING = {*"wax+"}

_ELSEWHERE = {
    "waltz_trio/net/tls.py:load_pair": "a key that OpenSSL takes from a file only: it must be gone at once",
    "waltz_trio/base/pump.py:write": "the flight record of a failed assertion: the process ends, the machine goes on",
    "waltz_trio/demo/children.py:_run": "standard error of a process of the demo, which takes a file and no port",
    "waltz_trio/demo/run.py:run": "the directory of a demo, which it removes itself; a demo outlives no machine",
    "waltz_trio/demo/run.py:_write_json": "the result of a demo, for who asked for it on that command line",
    "waltz_spark/cli/main.py:_audit": "a page for people, which may be a pipe and can be made again",
    "waltz_spark/cli/main.py:_report": "as the page of the audit",
    "waltz_trio/node/proxy_cache.py:__init__": "a lock of a cache whose content is deleted at start, never used again",
    "waltz_trio/node/proxy_cache.py:_clear": "that deletion",
    "waltz_trio/node/proxy_cache.py:_change": "what may be lost or torn: it is read by its checksum, or asked again",
    "waltz_spark/archive/restore.py:_begin": "removal of what an interrupted restore has left, which is written anew",
    "waltz_spark/seal/places.py:outgrown": "removal of a directory of what was outgrown, which may come back",
}
"""Functions that write without the port, and why that may be."""


_PARTS = 15  # of the syncs: the first is tried with the quick tests, the others take a minute


@pytest.fixture(scope="module")
def recorded() -> list[tuple[Life, tuple[Call, ...]]]:
    return [(life, record(life)) for life in short_lives()]


@pytest.mark.parametrize("number", range(len(short_lives())), ids=lambda number: short_lives()[number].name)
def test_what_was_acknowledged_survives_a_power_failure_at_any_call(
    recorded: list[tuple[Life, tuple[Call, ...]]], number: int
) -> None:
    life, calls = recorded[number]
    tally = replay(life, calls)
    assert tally.violations == []
    assert tally.cuts == len(calls) > 10
    assert tally.contents > tally.cuts


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, _PARTS))])
def test_a_sync_that_is_left_out_or_early_or_elsewhere_is_noticed(
    recorded: list[tuple[Life, tuple[Call, ...]]], part: int
) -> None:
    """The list comes from what was recorded; what changes nothing is named in `HARMLESS` with its reason."""
    every = [*itertools.product(kinds([calls for _, calls in recorded]), CHANGES.items())]
    assert len(every) > 60
    assert HARMLESS.keys() <= {f"{kind}: {name}" for kind, (name, _) in every}
    tried, unnoticed = set(), set()
    for kind, (name, change) in every[part::_PARTS]:
        tried.add(f"{kind}: {name}")
        lives = ((life, calls) for life, calls in recorded if kind in kinds([calls]))
        if not any(replay(life, change(calls, kind)).violations for life, calls in lives):
            unnoticed.add(f"{kind}: {name}")
    assert unnoticed == HARMLESS.keys() & tried


def test_every_driver_that_syncs_is_in_a_life(recorded: list[tuple[Life, tuple[Call, ...]]]) -> None:
    reached = {kind.split(": ")[0].split(" < ")[-1] for kind in kinds([calls for _, calls in recorded])}
    assert {*sites()} - UNLIVED.keys() == reached


def _calls_of_os(path: Path) -> dict[str, set[str]]:
    """What functions of a module ask of the file system without the port; "" for the module itself."""
    found: dict[str, set[str]] = {}
    module = ast.parse(path.read_text(encoding="utf-8"))
    owner = dict.fromkeys(ast.walk(module), "")
    for function in ast.walk(module):  # outer ones first
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            owner |= dict.fromkeys(ast.walk(function), function.name)
    for node, name in owner.items():
        if isinstance(node, ast.Call) and (call := _call_of_os(node)):
            found.setdefault(name, set()).add(call)
    return found


def _call_of_os(node: ast.Call) -> str:
    """What a call asks of the file system without the port; empty if nothing, or nothing but to read."""
    function, name = node.func, ""
    if isinstance(function, ast.Name):
        name = function.id
    elif isinstance(function, ast.Attribute):
        name = function.attr
        value = function.value
        if isinstance(value, ast.Name) and value.id in ("durable", "outbox"):
            return ""
        if isinstance(value, ast.Name) and value.id == "shutil":
            return f"shutil.{name}"
        if isinstance(value, ast.Name) and value.id == "os":
            return f"os.{name}" if name in _OS_CALLS and not (name == "open" and _only_reads(node)) else ""
        if ast.unparse(value).endswith("._system"):
            return ""  # the port, as a data directory has it
    return name if name in _PATH_CALLS or (name == "open" and _writes(node)) else ""


def _only_reads(node: ast.Call) -> bool:
    """Whether a call of `os.open` takes a descriptor by which nothing can be changed, or that of the null device."""
    path, flags = ast.unparse(node.args[0]), ast.unparse(node.args[1])
    return path == "os.devnull" or (
        "O_RDONLY" in flags and not {"O_CREAT", "O_TRUNC"} & set(flags.replace("os.", "").split(" | "))
    )


def _writes(call: ast.Call) -> bool:
    """Whether a call of `open` has a mode that writes."""
    modes = [
        one.value for one in [*call.args, *(word.value for word in call.keywords)] if isinstance(one, ast.Constant)
    ]
    return any(isinstance(mode, str) and len(mode) < 4 and _WRITING & set(mode) for mode in modes)


def test_drivers_make_bytes_durable_through_the_port_alone() -> None:
    paths = [path for package in ("waltz_trio", "waltz_spark") for path in (ROOT / package).rglob("*.py")]
    direct = {
        f"{path.relative_to(ROOT).as_posix()}:{function}": calls
        for path in paths
        if path.name != "durable.py"
        for function, calls in _calls_of_os(path).items()
    }
    assert direct.keys() == _ELSEWHERE.keys(), direct


@pytest.mark.parametrize(
    ("code", "calls"),
    [
        ("def f(p):\n    os.open(p, os.O_RDONLY | os.O_CLOEXEC)", {}),
        ("def f(p):\n    os.open(p, os.O_RDONLY | os.O_CREAT)", {"f": {"os.open"}}),
        (
            "def f(p):\n    def g():\n        p.write_text('')\n    os.unlink(p)",
            {"f": {"os.unlink"}, "g": {"write_text"}},
        ),
        ("shutil.rmtree(p)\nopen(p, 'wb')\nopen(p)", {"": {"shutil.rmtree", "open"}}),
        ("def f(p):\n    durable.unlink(p)\n    self._system.unlink(p)", {}),
    ],
)
def test_what_goes_past_the_port_is_seen(tmp_path: Path, code: str, calls: dict[str, set[str]]) -> None:
    (tmp_path / "driver.py").write_text(code)
    assert _calls_of_os(tmp_path / "driver.py") == calls


def test_the_disk_forgets_what_was_not_synced() -> None:
    """The instrument itself: a life without any sync is noticed at once, in every driver."""
    for life in short_lives():
        calls: Sequence[Call] = [call for call in record(life) if not call.name.startswith("sync")]
        assert replay(life, calls).violations, life.name
