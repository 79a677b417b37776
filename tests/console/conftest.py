"""A real browser, and real processes to look at."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.processes.conftest import zookeeper  # noqa: F401  a fixture

# The name of everything but this machine resolves to nothing: what tries to leave is an error on the page.
_ARGUMENTS = ["--no-sandbox", "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE localhost , EXCLUDE 127.0.0.1"]


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """Debian's Chromium without a screen."""
    path = shutil.which("chromium")
    assert path is not None, "chromium is missing (Debian: chromium)"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_ARGUMENTS)
        yield browser
        browser.close()
