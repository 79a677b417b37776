"""A slice of the corruption matrix; `make corruption` runs all of it."""

from __future__ import annotations

from tests.model import corruption


def test_the_matrix_is_what_the_design_counts() -> None:
    recovered = sum(map(corruption.must_recover, range(corruption.CASES)))
    assert corruption.CASES == 4096
    assert (
        corruption.EXPECTED
        == {"recovered": recovered, "waiting": 4096 - recovered}
        == {
            "recovered": 2401,
            "waiting": 1695,
        }
    )


def test_what_has_a_good_copy_recovers_and_everything_else_waits_visibly() -> None:
    found = corruption.run(range(0, corruption.CASES, 61))
    assert found["wrong"] == []
    assert found["recovered"] > 20
    assert found["waiting"] > 20
