"""Our views pass the suite that `waltz_testing` hands out, and the suite finds what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import waltz_trio as waltz
from tests.views.cases import dict_case, mysql_case, postgres_case, sqlite_case
from waltz_testing import ViewCase, check_view, view_checks


@pytest.fixture(params=["sqlite", "dict", "postgres", "mysql"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> ViewCase:
    if request.param == "sqlite":
        return sqlite_case(tmp_path)
    if request.param == "dict":
        return dict_case()
    if request.param == "postgres":
        return postgres_case(request.getfixturevalue("postgres"))
    return mysql_case(request.getfixturevalue("maria"))


@pytest.mark.parametrize("check", view_checks(), ids=lambda check: check.__name__)
def test_every_view_of_ours_conforms(case: ViewCase, check: Callable[[ViewCase], None]) -> None:
    if check in view_checks(case):
        check(case)


def test_the_checks_that_concern_a_view_are_chosen_by_what_it_is() -> None:
    assert len(view_checks()) > len(view_checks(dict_case())) >= 12
    assert check_view(dict_case) == [check.__name__ for check in view_checks(dict_case())]


class Broken(waltz.DictView[Any]):
    """What people get wrong."""

    def commit(self, batch: waltz.Batch) -> int:
        for transaction in batch:  # whether or not it is applied already, or the next
            self._apply(transaction, self.state)
        self.marks[batch.partition] = batch.last_id
        return batch.last_id

    def read(self, partition: int, decide: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, int]:
        return decide(self.state, *args), self.marks[partition]


def test_the_suite_names_what_is_wrong_with_a_view() -> None:
    def fresh() -> ViewCase:
        good = dict_case()
        return ViewCase(lambda apply: Broken(apply), good.note, good.noted, keeps=False)

    with pytest.raises(AssertionError) as failed:
        check_view(fresh)
    lines = str(failed.value).splitlines()
    assert "checks of the view failed" in lines[0]
    assert [line.partition(":")[0] for line in lines[1:]] == [
        "what_is_applied_already_is_passed_over",
        "a_gap_is_refused",
        "markers_only_move_the_mark",
        "what_cannot_be_applied_is_named_and_leaves_nothing_behind",
        "an_interruption_leaves_nothing_behind",
        "what_decides_cannot_change_the_state",
    ]
