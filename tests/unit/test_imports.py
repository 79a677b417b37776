"""The core does no I/O: a clean interpreter that imports all of it loads nothing which could."""

from __future__ import annotations

import subprocess
import sys

_IMPORT_ALL = """
import sys
import attrs  # itself loads threading
before = set(sys.modules)
import importlib, pkgutil, waltz_core
names = [found.name for found in pkgutil.walk_packages(waltz_core.__path__, "waltz_core.")]
for name in names:
    importlib.import_module(name)
assert len(names) > 20, names
banned = {"trio", "socket", "ssl", "select", "asyncio", "kazoo", "threading", "logging", "subprocess"}
print(*sorted(banned & (set(sys.modules) - before)))
"""


def test_no_module_of_the_core_loads_anything_that_does_input_or_output() -> None:
    done = subprocess.run([sys.executable, "-c", _IMPORT_ALL], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stdout + done.stderr
