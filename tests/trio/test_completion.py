"""The completion scripts, run by the shells they are for."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from waltz_trio.cli.completion import bash, branches, fish, zsh

# Words behind `waltz`, the last one unfinished, and what completes it.
CASES: list[tuple[Sequence[str], set[str]]] = [
    (["may"], {"may-stop"}),
    (["zoo"], {"zookeeper"}),
    (["storage", "add-"], {"add-node", "add-partition"}),
    (["demo", ""], {"run", "bank"}),
    (["spark", "ar"], {"archive"}),
    (["seal", "--new"], {"--new-key"}),
    (["certificates", "re"], {"renew"}),
    (["completion", ""], {"bash", "zsh", "fish"}),
    (["storage", "max-transaction-id", "--stor"], {"--storage", "--storage-port"}),
    (["storage", "list", "-s", "h:1", "--js"], {"--json"}),
    (["storage", "list", "--logger-as-output", "--js"], {"--json"}),
    (["may-stop", "--w"], {"--wait"}),
    (["dev", "--storage"], {"--storage-nodes"}),
    (["certificates", "make", "d", "--inst"], {"--installed-at"}),
]
NAMES = [" ".join(words) for words, _ in CASES]


def run(*command: str, directory: Path) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=directory)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout.splitlines()


def ask_bash(path: Path, words: Sequence[str]) -> list[str]:
    quoted = " ".join(f"'{word}'" for word in ("waltz", *words))
    script = f'. {path}; COMP_WORDS=({quoted}); COMP_CWORD={len(words)}; _waltz; printf "%s\\n" "${{COMPREPLY[@]}}"'
    return [line for line in run("bash", "--norc", "-c", script, directory=path.parent) if line]


def write(directory: Path, text: str) -> Path:
    path = directory / "script"
    path.write_text(text)
    return path


@pytest.mark.parametrize(("words", "expected"), CASES, ids=NAMES)
def test_bash(words: Sequence[str], expected: set[str], tmp_path: Path) -> None:
    assert set(ask_bash(write(tmp_path, bash()), words)) == expected


def test_bash_completes_values(tmp_path: Path) -> None:
    path = write(tmp_path, bash())
    assert ask_bash(path, ["demo", "bank", "--mode", "in"]) == ["interactive"]
    assert ask_bash(path, ["storage", "list", "-c", "--js"]) == []  # a value is due: the shell offers names of files
    assert ask_bash(path, ["no-such-noun", "st"]) == ask_bash(path, ["disk", "verify-segment", "st"]) == []


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
@pytest.mark.parametrize(("words", "expected"), CASES, ids=NAMES)
def test_fish(words: Sequence[str], expected: set[str], tmp_path: Path) -> None:
    path = write(tmp_path, fish())
    line = " ".join(("waltz", *words))
    found = run("fish", "--no-config", "-c", f"source {path}; complete -C '{line}'", directory=tmp_path)
    assert {line.partition("\t")[0] for line in found} - {
        "script"
    } == expected  # an empty word is completed by files too


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
@pytest.mark.parametrize(("words", "expected"), CASES, ids=NAMES)
def test_zsh(words: Sequence[str], expected: set[str], tmp_path: Path) -> None:
    """Its own functions are stood in for: `_describe` shows what it is given, unfiltered."""
    path = write(tmp_path, zsh())
    quoted = " ".join(f"'{word}'" for word in ("waltz", *words))
    script = (
        f"compdef() {{ : }}; _describe() {{ print -l -- ${{(P)2}} }}; _files() {{ print FILES }}; . {path}; "
        f"words=({quoted}); CURRENT={len(words) + 1}; _waltz"
    )
    found = {line.partition(":")[0] for line in run("zsh", "-f", "-c", script, directory=tmp_path)}
    assert {one for one in found if one.startswith(words[-1])} == expected


def test_every_command_is_known() -> None:
    paths = {branch.path for branch in branches()}
    assert {("storage", "recover-partition"), ("demo", "bank"), ("doctor",), ("certificates", "make")} <= paths
