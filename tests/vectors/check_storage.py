"""Storage and admin protocols, one message or greeting per line: fields → bytes → fields."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.vectors.check_client_server import check
from tests.vectors.messages import PROTOCOLS
from tests.vectors.reading import Fields, Unit, lines


def units(path: Path) -> Iterator[Unit]:
    for name, line in lines(path):
        yield Unit(name, [line], lambda line=line: _check(line))  # type: ignore[misc]


def _check(line: Fields) -> frozenset[str]:
    return check(PROTOCOLS[line["protocol"]], line)
