"""The compiled twins for tests: those that are installed here, else built, once for each version of their source."""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import waltz_speedups
from waltz_core.base.twins import REFERENCES

ROOT = Path(__file__).parents[1]
_BUILD = "from setuptools import setup, Extension; setup(name='t', ext_modules=[Extension('_loops', ['_loops.pyx'])])"


class NoCompilerError(Exception):
    """Nothing can be compiled here."""


def built() -> Path:
    """A directory to put before others on PYTHONPATH: `waltz_speedups` with its compiled part.

    Raises:
        NoCompilerError: there is neither that nor a compiler.
    """
    source = ROOT / "waltz_speedups" / "_loops.pyx"
    kind = importlib.machinery.EXTENSION_SUFFIXES[0]
    here = source.with_name(f"_loops{kind}")
    if here.exists() and here.stat().st_mtime >= source.stat().st_mtime:
        return ROOT
    if shutil.which(os.environ.get("CC", "cc")) is None:
        raise NoCompilerError
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    place = Path(tempfile.gettempdir()) / f"waltz-twins-{os.getuid()}-{digest}"
    if not place.exists():
        with tempfile.TemporaryDirectory(dir=place.parent) as scratch:
            tree = Path(scratch)
            shutil.copy(source, tree)
            command = [sys.executable, "-c", _BUILD, "-q", "build_ext", "--inplace"]
            # What is compared are outcomes, not speed.
            done = subprocess.run(
                command, cwd=tree, capture_output=True, text=True, check=False, env={**os.environ, "CFLAGS": "-O0"}
            )
            assert done.returncode == 0, done.stdout + done.stderr
            package = tree / "waltz_speedups"
            shutil.copytree(ROOT / "waltz_speedups", package, ignore=shutil.ignore_patterns("_loops*", "__pycache__"))
            shutil.move(tree / f"_loops{kind}", package)
            fresh = tree / "place"
            fresh.mkdir()
            package.rename(fresh / "waltz_speedups")
            if not place.exists():  # somebody else may have been faster
                fresh.rename(place)
    return place


def compiled() -> ModuleType:
    """The compiled module, whether or not this process uses it.

    Raises:
        NoCompilerError: as `built`.
    """
    loops = waltz_speedups.loops
    if loops is not None and REFERENCES.keys() <= vars(loops).keys():  # else it was built in an older checkout
        return loops
    (path,) = (built() / "waltz_speedups").glob("_loops.*" + importlib.machinery.EXTENSION_SUFFIXES[0].lstrip("."))
    spec = importlib.util.spec_from_file_location("waltz_speedups._loops", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.REFERENCES.update(REFERENCES)
    return module
