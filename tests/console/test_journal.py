"""Locks from a decision journal: a few decisions out of many files."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from waltz_core.base.ids import ReqId, make_req_id
from waltz_core.base.lock import Conflict, LockKind
from waltz_core.server.journal_format import CommittedRange, Decision, SessionOpened, Started, Synced, encode_entry
from waltz_trio.console.journal import find_decisions

COUNT = 30_000
PER_FILE = 8_000


def req(number: int) -> ReqId:
    return make_req_id(7, 1, 3, number)


def decision(session: int, number: int, req_id: ReqId, locks: int = 2) -> Decision:
    head = (session, number, req_id, 5, number - 1, -1, 0, Conflict.UNKNOWN, -1, LockKind.NONE, -1, 1, 2, 9)
    return Decision(*head, write_locks=(number, *range(locks)))


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Several files; two sessions end with appends in flight, whose ids the next one gives to other requests."""
    directory = tmp_path_factory.mktemp("journal")
    (directory / "3").mkdir()
    parts = [encode_entry(Started(bytes(16), 3, 0, -1, 1, 2, "a:1"))]
    files, number, session = 0, 0, 1
    while number < COUNT:
        if number in (11_000, 24_000):
            parts += [encode_entry(decision(session, at, req(1_000_000 + at))) for at in range(number, number + 500)]
            session += 1
            parts.append(encode_entry(SessionOpened(session, 1, number - 1, 0)))
        parts += [encode_entry(Synced()), encode_entry(decision(session, number, req(number), number % 5))]
        parts.append(encode_entry(CommittedRange(session, number, number, 0)))
        number += 1
        if number % PER_FILE == 0:
            (directory / "3" / f"{files:019d}.journal").write_bytes(b"".join(parts))
            files += 1
            parts = [encode_entry(Started(bytes(16), 3, files, 0, files, 2, "a:1"))]
    (directory / "3" / f"{files:019d}.journal").write_bytes(b"".join(parts))
    return directory


def test_every_decision_of_a_range_is_found(journal: Path) -> None:
    rng = random.Random(16)
    begins = [
        0,
        10_990,
        11_000,
        11_499,
        23_999,
        PER_FILE - 50,
        COUNT - 100,
        *(rng.randrange(COUNT - 100) for _ in range(8)),
    ]
    for first in begins:
        wanted = {number: req(number) for number in range(first, first + 100)}
        decisions = find_decisions(journal, 3, wanted)
        assert {number: it.req_id for number, it in decisions.items()} == wanted, first
        assert all(it.write_locks[0] == number for number, it in decisions.items())


def test_what_another_request_decided_under_an_id_is_not_shown(journal: Path) -> None:
    wanted = {11_100: req(11_100), 11_101: req(5), 90_000: req(90_000)}
    assert list(find_decisions(journal, 3, wanted)) == [11_100]
    assert find_decisions(journal, 4, wanted) == {}
    assert find_decisions(journal / "nowhere", 3, wanted) == {}


def test_damage_hides_what_it_struck_and_nothing_else(journal: Path, tmp_path: Path) -> None:
    folder = tmp_path / "3"
    folder.mkdir()
    data = bytearray((journal / "3" / f"{1:019d}.journal").read_bytes())
    struck = data.index(encode_entry(decision(1, 9_000, req(9_000), 0)))
    data[struck + 30] ^= 1
    (folder / f"{1:019d}.journal").write_bytes(bytes(data[:-7]))
    wanted = {number: req(number) for number in (8_999, 9_000, 9_001, 15_998)}
    assert sorted(find_decisions(tmp_path, 3, wanted)) == [8_999, 9_001, 15_998]
