"""The transcripts in `testdata` say what the machines do today.

`pytest tests/model/test_transcripts.py --rewrite` writes them anew; what changed is then to be read in the diff.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.model.journeys import JOURNEYS

TESTDATA = Path(__file__).parent / "testdata"


@pytest.mark.parametrize("name", JOURNEYS)
def test_the_transcript_of_a_journey_is_up_to_date(name: str, request: pytest.FixtureRequest) -> None:
    path = TESTDATA / f"{name}.txt"
    text = JOURNEYS[name]()
    if request.config.getoption("--rewrite"):
        path.write_text(text)
    assert text == path.read_text(), f"read the difference; if it is meant, run pytest {__name__} with --rewrite"


def test_every_transcript_has_its_journey_and_stands_on_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "transcripts.md").read_text()
    assert {path.stem for path in TESTDATA.iterdir()} == set(JOURNEYS)
    assert [name for name in JOURNEYS if f"../tests/model/testdata/{name}.txt" not in page] == []
