"""What docs/howto/{fastapi,django,celery}.md show of the examples is in them, word for word; test_bank.py runs them.

The pages: fastapi.md, django.md, celery.md.
"""

from __future__ import annotations

import pytest

from tests.docs.blocks import ROOT, blocks_of

EXAMPLES = ROOT / "examples" / "bank"


@pytest.mark.parametrize("name", ["fastapi", "django", "celery"])
def test_a_page_shows_the_example_as_it_is(name: str) -> None:
    program = (EXAMPLES / f"with_{name}.py").read_text()
    texts = [program, (EXAMPLES / "model.py").read_text()]
    blocks = blocks_of(f"docs/howto/{name}.md")
    assert {block.language for block in blocks} == {"sh", "python"}
    for block in blocks:
        if block.language == "python":
            assert any(block.text in text for text in texts), block.where
        else:
            assert block.text.strip() in program, block.where
