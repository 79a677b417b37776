"""Puts one bug into a module, in memory, before anything imports it."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType

import attrs

ROOT = Path(__file__).parent.parent.parent
_PACKAGES = ("waltz_trio", "waltz_sync", "waltz_asyncio", "waltz_spark", "waltz_dcb")


class DoesNotApplyError(Exception):
    """The text that a bug replaces is not there, or not once: the code has changed, and the corpus must follow."""


@attrs.frozen
class Mutant:
    """One bug: in `module`, `old` is replaced by `new`."""

    name: str
    module: str  # below waltz_core, unless it begins with the name of another package
    old: str
    new: str
    found_by: tuple[str, ...] = ()  # test files, one of which must find it; else whichever detector is first

    @property
    def fullname(self) -> str:
        """The module as it is imported."""
        return self.module if self.module.partition(".")[0] in _PACKAGES else f"waltz_core.{self.module}"

    @property
    def path(self) -> Path:
        """The file of the module."""
        return ROOT / (self.fullname.replace(".", "/") + ".py")

    def source(self) -> str:
        """The module's text with the bug in it.

        Raises:
            DoesNotApplyError: `old` does not occur exactly once.
        """
        text = self.path.read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            raise DoesNotApplyError(
                f"{self.name}: found {text.count(self.old)} times in {self.path.name}: {self.old!r}"
            )
        return text.replace(self.old, self.new)


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, fullname: str, mutant: Mutant) -> None:
        super().__init__(fullname, str(mutant.path))
        self._code = compile(mutant.source(), str(mutant.path), "exec")

    def get_code(self, fullname: str) -> CodeType:
        return self._code


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._mutant.fullname:
            return None
        loader = _Loader(fullname, self._mutant)
        return importlib.util.spec_from_file_location(fullname, self._mutant.path, loader=loader)


def plant(mutant: Mutant) -> None:
    """From here on the module that is imported has the bug, in this process and not in those it starts."""
    assert mutant.fullname not in sys.modules, "already imported"
    os.environ["WALTZ_SPEEDUPS"] = "0"  # the bug may be in a loop of which a compiled twin would run instead
    sys.meta_path.insert(0, _Finder(mutant))
    importlib.import_module(mutant.fullname)  # before pytest, whose own hook would read the file itself
