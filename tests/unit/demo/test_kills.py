"""Plans of kills."""

from __future__ import annotations

from pathlib import Path

import pytest

from waltz_trio.demo import journal
from waltz_trio.demo.journal import Event, Journal
from waltz_trio.demo.kills import CLUSTER, plan


@pytest.mark.parametrize("seed", range(20))
def test_a_plan_kills_often_enough_and_everything_once(seed: int) -> None:
    strikes = plan(40, 8, 2, 3, 3, seed)
    targets = [target for strike in strikes for target in strike.targets]
    assert targets.count(CLUSTER) == 1
    assert sum(target.startswith("client") for target in targets) == 1
    assert sum(not target.startswith("client") for target in targets) >= 8
    assert {"server", "storage"} <= {target.split()[0] for target in targets}
    assert all(len(strike.targets) == len(set(strike.targets)) for strike in strikes)
    assert [strike.at for strike in strikes] == sorted(strike.at for strike in strikes)
    assert all(0 < strike.at < 36 for strike in strikes)


def test_a_plan_is_that_of_its_seed() -> None:
    assert plan(40, 8, 2, 3, 3, 7) == plan(40, 8, 2, 3, 3, 7) != plan(40, 8, 2, 3, 3, 8)


def test_a_journal_goes_on_where_a_killed_client_left_it(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    book = Journal(path)
    first = book.asked(1)
    book.settled(journal.COMMITTED, first, 1, 30)
    book.close()
    with path.open("a") as file:
        file.write("17 asked 99")  # cut short
    assert [(e.kind, e.request, e.partition, e.transaction_id) for e in journal.read(path, 5)] == [
        ("asked", 1, 1, -1),
        ("committed", 1, 1, 30),
    ]
    assert all(isinstance(e, Event) and e.client == 5 for e in journal.read(path, 5))
