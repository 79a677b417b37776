"""The transcripts in `testdata` say what the machines do today.

`pytest tests/model/test_transcripts.py --rewrite` writes them anew; what changed is then to be read in the diff.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.model.journeys import JOURNEYS
from tests.model.transcript_words import told
from waltz_core.client.calls import Fetched

TESTDATA = Path(__file__).parent / "testdata"


@pytest.mark.parametrize("name", JOURNEYS)
def test_the_transcript_of_a_journey_is_up_to_date(name: str, request: pytest.FixtureRequest) -> None:
    path = TESTDATA / f"{name}.txt"
    text = JOURNEYS[name]()
    if request.config.getoption("--rewrite"):
        path.write_text(text)
    assert text == path.read_text(), f"read the difference; if it is meant, run pytest {__name__} with --rewrite"


def test_payloads_that_arrived_are_told_with_their_ids() -> None:
    fetched = Fetched(0, [(3, [b"a", b"b"]), (9, [b"c"])])
    assert told(fetched) == "transaction 3 says 'a', transaction 4 says 'b', transaction 9 says 'c'"


def test_every_transcript_has_its_journey_and_stands_on_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "transcripts.md").read_text()
    assert {path.stem for path in TESTDATA.iterdir()} == set(JOURNEYS)
    assert [name for name in JOURNEYS if f"../tests/model/testdata/{name}.txt" not in page] == []
