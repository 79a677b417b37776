"""The site of the pages: it is made without a warning and without the network, and holds every public name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sphinx.util.inventory import InventoryFile

import waltz_asyncio
import waltz_dcb
import waltz_sync
import waltz_testing
import waltz_trio
from tests.docs.blocks import ROOT

pytestmark = pytest.mark.slow
# A proxy that nobody serves: whoever fetched something would fail.
_OFFLINE = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, made as `make docs` makes it."""
    place = tmp_path_factory.mktemp("site")
    options = ["-q", "-W", "--keep-going", "-b", "html", "-d", str(place / "trees")]
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, ROOT / "docs", place / "html"],
        env={**os.environ, **_OFFLINE, "PYTHONDEVMODE": "", "PYTHONWARNINGS": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return place / "html"


def test_the_makefile_makes_the_same_site() -> None:
    assert "sphinx-build -q -W --keep-going -b html docs build/site" in (ROOT / "Makefile").read_text()


def test_every_page_is_in_the_site(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert {str(page) for page in pages if not (site / page).exists()} == set()


@pytest.mark.parametrize("front", [waltz_trio, waltz_sync, waltz_asyncio, waltz_testing, waltz_dcb])
def test_every_public_name_is_in_the_reference(site: Path, front: object) -> None:
    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="")
    documented = {
        name.rpartition(".")[2]
        for kind in ("class", "exception", "function", "data", "attribute")
        for name in inventory.data.get(f"py:{kind}", {})
    }
    assert set(getattr(front, "__all__", ())) - documented == set()
    assert getattr(front, "__all__", ())


def test_signatures_carry_their_types(site: Path) -> None:
    page = (site / "reference" / "waltz_sync.html").read_text()
    assert 'id="waltz_sync.Client.append"' in page
    assert "timeout" in page
    assert "Raises" in page
