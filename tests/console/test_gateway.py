"""The pages of the gateway's how-to in a real Chromium, from another origin, over processes as users run them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Route, expect

from tests.docs.blocks import ROOT, blocks_of
from waltz_trio.net.ports import HeldPorts

pytestmark = pytest.mark.processes

PAGE = "docs/howto/gateway.md"
PATIENCE = 120_000
PAGES = [block.text for block in blocks_of(PAGE) if block.language == "html"]


@contextmanager
def running(*words: str, directory: Path) -> Iterator[str]:
    """A process; gives the first line that it prints."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", sys.executable, "-m", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=directory,
        env=environment,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the pages are served; their gateway and its cluster run."""
    directory = tmp_path_factory.mktemp("site")
    waltz = "waltz_trio.cli.main"
    with HeldPorts() as ports, running(waltz, "dev", "--port", "0", directory=directory) as url:
        held = ports.take()
        origin = f"http://localhost:{held}"
        topics = [{"name": "payments", "cluster": url, "partitions": "0-3"}]
        configuration = {"gateway.port": 0, "gateway.topics": topics, "gateway.origins": [origin]}
        (directory / "gateway.yml").write_text(json.dumps(configuration))
        with running(waltz, "gateway", "run", "-c", "gateway.yml", directory=directory) as address:
            port = address.rpartition(":")[2]
            for number, text in enumerate(PAGES):
                (directory / f"{number}.html").write_text(text.replace("7950", port))
            ports.release()
            with running("http.server", "--bind", "127.0.0.1", str(held), directory=directory) as said:
                assert "Serving" in said
                yield origin


def test_a_page_pays_and_sees_what_is_paid(site: str, chromium: Browser) -> None:
    page = chromium.new_context().new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(f"{site}/0.html")
    for number in range(2):
        page.locator("#pay").click()
        expect(page.locator("#said")).to_have_text(f"committed as {number}", timeout=PATIENCE)
    expect(page.locator("#payments li")).to_have_text(["5", "5"], timeout=PATIENCE)
    page.reload()
    expect(page.locator("#payments li")).to_have_text(["5", "5"], timeout=PATIENCE)
    assert complaints == []


HTML = "<html>502 Bad Gateway</html>"


def problem(status: int, code: str, **more: object) -> tuple[int, str]:
    return status, json.dumps({"status": status, "code": code, "detail": f"it is {code}", **more})


@pytest.mark.parametrize(
    ("first", "said"),
    [
        ([(502, HTML)], "committed as "),
        ([(504, HTML), None, (200, HTML)], "committed as "),
        ([problem(500, "gateway-failed", outcome="unknown")], "committed as "),
        ([problem(502, "cluster-problem", outcome="unknown")], "committed as "),
        ([problem(503, "full", outcome="refused", retryAfter=1)], "committed as "),
        ([problem(400, "bad-append")], "it is bad-append"),
        ([problem(502, "no-such-partition", outcome="refused")], "it is no-such-partition"),
        ([problem(409, "key-too-old", outcome="unknown")], " may be committed, look it up: it is key-too-old"),
        ([(502, HTML), problem(401, "no-token")], " may be committed, look it up: it is no-token"),
    ],
)
def test_a_page_pays_once_whatever_it_is_answered(
    site: str, chromium: Browser, first: list[tuple[int, str] | None], said: str
) -> None:
    """The gateway has each request, and what it says is replaced; None: nothing comes."""
    page = chromium.new_context().new_page()
    answers, bodies = list(first), []
    records = ""

    def stand_between(route: Route) -> None:
        nonlocal records
        records = route.request.url.replace("/append", "/records?first=0&count=1000&payload=json")
        bodies.append(route.request.post_data)
        real = route.fetch()
        if not answers:
            route.fulfill(response=real)
            return
        answer = answers.pop(0)
        if answer is None:
            route.abort()
        else:
            route.fulfill(status=answer[0], body=answer[1], headers={"Access-Control-Allow-Origin": site})

    page.route("**/append", stand_between)
    page.goto(f"{site}/0.html")
    page.locator("#pay").click()
    expect(page.locator("#said")).to_have_text(re.compile(re.escape(said)), timeout=PATIENCE)
    expect(page.locator("#pay")).to_be_enabled()
    assert len(set(bodies)) == 1, "the same key, and the same payment"
    assert len(bodies) == len(first) + said.startswith("committed")
    key = json.loads(str(bodies[0]))["key"]
    paid = [each["json"]["idempotencyKey"] for each in page.request.get(records).json()["records"]]
    assert paid.count(key) == 1


def test_a_page_appends_and_listens_by_websocket(site: str, chromium: Browser) -> None:
    page = chromium.new_context().new_page()
    page.goto(f"{site}/1.html")
    heard = page.locator("#heard")
    expect(heard).to_have_text(re.compile(r'"amount":2'), timeout=PATIENCE)
    expect(heard).to_have_text(re.compile(r'"ref":"second"'), timeout=PATIENCE)
    said = [json.loads(line) for line in heard.inner_text().splitlines()]
    assert [each["record"]["id"] for each in said if "record" in each] == [0, 1]
    assert [(each["ref"], each["append"]["id"]) for each in said if "append" in each] == [("first", 0), ("second", 1)]


def test_a_page_that_the_gateway_does_not_name_is_refused(site: str, chromium: Browser) -> None:
    page = chromium.new_context().new_page()
    page.goto(f"{site.replace('localhost', '127.0.0.1')}/1.html")
    refused = page.evaluate(
        """() => new Promise((resolve) => {
          const socket = new WebSocket(at_of(document));
          socket.onopen = () => resolve("opened");
          socket.onerror = () => resolve("refused");
          function at_of(page) { return page.scripts[0].textContent.match(/ws:[^"]+/)[0]; }
        })"""
    )
    assert refused == "refused"
