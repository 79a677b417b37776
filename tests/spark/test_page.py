"""The page of the pipeline: every block of docs/pipeline.md does what it says, in its order, on `waltz dev`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import Block, blocks_of, program_of
from tests.docs.test_pages import Reader

PAGE = "docs/pipeline.md"
SPARKS_PATHS = ("ledger-table", "ledger-checkpoint", "events-checkpoint", "orders.parquet")

pytestmark = [pytest.mark.processes, pytest.mark.filterwarnings("ignore")]


class Notebook(Reader):
    """A reader who types the page's programs into one session: later ones use what earlier ones made."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.names: dict[str, Any] = {"__name__": "__main__"}

    def _replaced(self, block: Block, text: str) -> str:
        """Spark takes relative paths from where its JVM was started, long before this page."""
        text = super()._replaced(block, text)
        for name in SPARKS_PATHS:
            text = text.replace(f'"{name}"', f'"{self.directory / name}"')
        return text

    def _runs_program(self, block: Block) -> None:
        code = compile(self._replaced(block, program_of(block)), block.where, "exec", dont_inherit=True)
        exec(code, self.names)


@pytest.mark.slow
def test_every_block_of_the_page_works_as_printed(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    reader = Notebook(tmp_path)
    try:
        for block in blocks_of(PAGE):
            reader.does(block)
        names = reader.names
        count = spark.read.format("waltz").option("url", names["url"]).load().count()
    finally:
        reader.leaves()
    shown = capsys.readouterr().out
    assert "|        0|  500|" in shown, "the first table is not empty"
    assert "1000 transactions in the table" in shown
    assert count > 1002, "the sink has written"
    assert names["made"].count > 1000
