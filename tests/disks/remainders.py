"""A disk that loses power: everything that it may then hold, rather than one of it by chance."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from tests.disks.versions import Versions
from waltz_testing.simulation.volume import Volume, parent_of

Tree: TypeAlias = dict[str, bytes | None]  # path → content; None is a directory


def volume_of(tree: Mapping[str, bytes | None]) -> Volume[Versions]:
    """A volume on which exactly this is durable."""
    volume = Volume(Versions)
    for path, data in tree.items():
        if data is None:
            volume.put_directory(path)
        else:
            volume.put(path, Versions(data))
    return volume


def synced(volume: Volume[Versions]) -> Tree:
    """What a power failure leaves at least."""
    tree: Tree = dict.fromkeys(sorted(volume.durable_directories - {""}))
    for name, file in sorted(volume.durable_files.items()):
        if parent_of(name) in volume.durable_directories:
            tree[name] = file.versions[0]
    return tree


def remainders(volume: Volume[Versions], most: float, rng: random.Random) -> Iterator[Tree]:
    """What a power failure may leave: everything if that is not more than `most`, else a random part of it.

    Of each file any of its contents, of each directory any choice of the names that changed since it was synced, all
    combined. A part holds what is durable alone and everything that was done.
    """
    loose = volume.loose_directories()
    total = 0
    for kept in itertools.product((False, True), repeat=len(loose)):
        directories = _reachable({*volume.durable_directories, *itertools.compress(loose, kept)})
        options = _options(volume, directories)
        count = 1
        for _, choices in options:
            count *= len(choices)
        if total + count <= most:
            for choice in itertools.product(*(choices for _, choices in options)):
                yield _made(directories, options, choice)
        else:
            yield _made(directories, options, [choices[0] for _, choices in options])
            yield _made(directories, options, [choices[-1] for _, choices in options])
            for _ in range(max(2, int(most) // 2 ** len(loose))):
                yield _made(directories, options, [rng.choice(choices) for _, choices in options])
        total += count


def _reachable(directories: Iterable[str]) -> set[str]:
    """Those whose parents are there too."""
    kept = {""}
    for one in sorted(directories):
        if parent_of(one) in kept:
            kept.add(one)
    return kept


def _options(volume: Volume[Versions], directories: set[str]) -> list[tuple[str, list[bytes | None]]]:
    options: list[tuple[str, list[bytes | None]]] = []
    for name in sorted({*volume.files, *volume.durable_files}):
        if parent_of(name) not in directories:
            continue
        before, now = volume.durable_files.get(name), volume.files.get(name)
        choices: list[bytes | None] = [None] if before is None else list(before.contents())
        if now is not before:
            choices += [None] if now is None else now.contents()
        if name in volume.unlinked:
            choices.append(None)  # a file that was made anew under the name may have lost it again
        options.append((name, list(dict.fromkeys(choices))))
    return options


def _made(directories: set[str], options: list[tuple[str, list[bytes | None]]], choice: Sequence[bytes | None]) -> Tree:
    tree: Tree = dict.fromkeys(sorted(directories - {""}))
    tree.update({name: data for (name, _), data in zip(options, choice, strict=True) if data is not None})
    return tree
