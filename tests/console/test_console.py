"""The console in a real Chromium, over a cluster of real processes that is broken while it is watched."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trio
from playwright.sync_api import Browser, BrowserContext, Page, expect

import waltz_trio as waltz
from tests.processes.cluster import Cluster, poll, running_cluster
from tests.processes.zookeeper import ZooKeeperServer

pytestmark = pytest.mark.processes

RED_WITHIN = 5_000  # milliseconds from a node's death to its being red
PATIENCE = 60_000
WIDE = {"width": 1180, "height": 900}
PHONE = {"width": 320, "height": 640}


class Watched:
    """A page, with everything that it asked for and complained of."""

    def __init__(self, context: BrowserContext) -> None:
        self.page = context.new_page()
        self.asked: list[str] = []
        self.methods: set[str] = set()
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self._on_request(request.url, request.method))
        self.page.on("console", lambda message: self._on_message(message.type, message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _on_request(self, url: str, method: str) -> None:
        self.asked.append(url)
        self.methods.add(method)

    def _on_message(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(text)

    def judge(self) -> None:
        """Nothing went elsewhere, nothing but GET was asked, nothing went wrong on the page."""
        assert {urlsplit(url).hostname for url in self.asked} <= {"localhost", "127.0.0.1"}
        assert self.methods == {"GET"}
        assert self.complaints == []


@contextmanager
def watched(chromium: Browser, url: str, size: dict[str, int] = WIDE, scheme: str = "light") -> Iterator[Watched]:
    context = chromium.new_context(viewport=size, color_scheme=scheme, locale="en-GB")  # type: ignore[arg-type]
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    made = Watched(context)
    made.page.goto(url)
    expect(made.page.locator("#live")).to_have_text("live", timeout=PATIENCE)
    yield made
    made.judge()
    context.close()


@pytest.fixture
def cluster(tmp_path: Path, zookeeper: ZooKeeperServer) -> Iterator[Cluster]:
    settings = {"server.journal.mode": "async"}
    with running_cluster(tmp_path, zookeeper.fresh_chroot(), partitions=6, servers=2, settings=settings) as made:
        load = made.child("load", "-m", "tests.console.load", str(made.client_file))
        load.start()
        made.wait_commits(20)
        yield made
        load.interrupt()
        load.wait()


# Where its file is, so that no path of the machine of the test stands in a picture.
_CONSOLE = """
import os, sys
from waltz_trio.cli.main import main
os.chdir(sys.argv[1])
main(["console", "-c", "tools.yml", "-p", "0"])
"""


def picture(page: Page, name: str) -> None:
    """A screenshot; `make screenshots` keeps it in the docs."""
    folder = os.environ.get("WALTZ_SCREENSHOTS")
    if folder:
        page.screenshot(path=Path(folder) / f"{name}.png")


def address(cluster: Cluster) -> str:
    """That of the console which `waltz console` serves, with its token."""
    child = cluster.children.get("console") or cluster.child("console", "-c", _CONSOLE, str(cluster.directory))
    if not child.running:
        child.start()
    return str(poll("the console says its address", lambda: re.search(r"http://\S+", child.says()))[0])


def node(page: Page, name: str) -> str:
    return f'[data-node="{name}"]'


@pytest.mark.slow
def test_a_node_that_dies_turns_red_and_green_again_and_the_log_can_be_read(
    cluster: Cluster, chromium: Browser
) -> None:
    with cluster.tools_file.open("a") as file:
        file.write(f"\nserver.journal.directory: {cluster.journal_of(cluster.owners()[3])}\n")
    url = address(cluster)
    with watched(chromium, url) as seen:
        page = seen.page
        assert "token" not in page.url  # it is in a cookie now, and in no screenshot
        for name in cluster.storage_names:
            expect(page.locator(node(page, cluster.advertised[name]))).to_have_attribute("data-level", "ok")
        expect(page.locator("#findings")).to_contain_text("Nothing is wrong", timeout=PATIENCE)
        expect(page.locator("#plots path.first")).to_have_count(3, timeout=PATIENCE)
        expect(page.locator(".plot > .dim").first).to_have_text(re.compile(r"last [3-9]\d s"), timeout=PATIENCE)
        picture(page, "console")

        victim = cluster.advertised["storage-1"]
        cluster.children["storage-1"].kill()
        expect(page.locator(node(page, victim))).to_have_attribute("data-level", "bad", timeout=RED_WITHIN)
        expect(page.locator("#findings")).to_contain_text("storage-down")
        expect(page.locator("#findings")).to_contain_text("no-spare-replica")
        expect(page.locator("#squares button.warn")).to_have_count(6)
        page.get_by_role("button", name="Copy").nth(1).click()
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied == f"waltz storage replace-node -c tools.yml --from {victim} --to HOST:PORT -a ADMIN_PORT"
        page.keyboard.press("t")
        expect(page.locator("html")).to_have_attribute("data-theme", "dark")
        picture(page, "console-node-down")
        page.keyboard.press("t")
        cluster.start("storage-1")
        expect(page.locator(node(page, victim))).to_have_attribute("data-level", "ok", timeout=PATIENCE)
        expect(page.locator("#findings")).to_contain_text("Nothing is wrong", timeout=PATIENCE)

        page.keyboard.press("2")
        card = page.locator("#partition-3")
        expect(card).to_contain_text("in session")
        expect(card).to_contain_text("ready")
        expect(card).to_contain_text(re.compile(r"127\.0\.0\.1:\d+"))
        card.get_by_role("button", name="Read its log").click()
        expect(page.locator(".record")).to_have_count(20, timeout=PATIENCE)
        expect(page.locator("#log-about")).to_contain_text("Partition 3 holds 0 to")
        page.fill("#log-first", "2")
        page.fill("#log-count", "5")
        page.keyboard.press("Enter")
        expect(page.locator(".record .head b")).to_have_text(["2", "3", "4", "5", "6"], timeout=PATIENCE)
        expect(page.locator(".record pre").first).to_have_text(re.compile(r'^\{"from": ?\d+,'))
        expect(page.locator(".record .locks").last).to_have_text(
            re.compile(r"^write account/\d+; decided at mark \d+$")
        )
        picture(page, "console-log")
        page.select_option("#log-form-of", "hex")
        expect(page.locator(".record pre").first).to_have_text(re.compile(r"^000000  7b 22 66 72 6f 6d"))
        page.select_option("#log-form-of", "text")
        expect(page.locator(".record pre").first).to_have_text(re.compile(r'^\{"from":'))
        page.get_by_role("button", name="Older").click()
        expect(page.locator(".record .head b").first).to_have_text("0")

        page.locator("#tab-clients").click()
        expect(page.locator("#lock-rows tbody tr").first).to_be_visible(timeout=PATIENCE)
        expect(page.locator("#client-rows tbody tr").first).to_be_visible()


def test_a_cluster_for_development_shows_itself(chromium: Browser) -> None:
    command = [sys.executable, "-m", "waltz_trio.cli.main", "dev", "--port", "0", "--partitions", "2"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as dev:
        try:
            assert dev.stderr is not None
            line = next(line for line in dev.stderr if line.startswith("console: "))
            with watched(chromium, line.split()[1]) as seen:
                expect(seen.page.locator("#findings")).to_contain_text("Nothing is wrong", timeout=PATIENCE)
                expect(seen.page.locator("#squares button.ok")).to_have_count(2)
                seen.page.keyboard.press("3")
                expect(seen.page.locator("#log-about")).to_have_text("Partition 0 is empty.", timeout=PATIENCE)
        finally:
            dev.terminate()


@pytest.mark.slow
def test_what_peers_write_is_text_and_never_markup(cluster: Cluster, chromium: Browser) -> None:
    hostile = b"<img src=x onerror=document.title='owned'><script>document.title='owned'</script>"

    async def append() -> None:
        async with waltz.open_client(str(cluster.client_file)) as client:
            await client.append(5, waltz.Append(hostile))

    cluster.children["load"].interrupt()
    cluster.children["load"].wait()
    trio.run(append)
    with watched(chromium, address(cluster) + "#log") as seen:
        seen.page.fill("#log-partition", "5")
        seen.page.keyboard.press("Enter")
        expect(seen.page.locator(".record pre").last).to_have_text(hostile.decode(), timeout=PATIENCE)
        assert seen.page.locator(".record img, .record script").count() == 0
        assert "owned" not in seen.page.title()


@pytest.mark.slow
def test_it_fits_a_phone_and_obeys_the_keyboard(cluster: Cluster, chromium: Browser) -> None:
    with watched(chromium, address(cluster), PHONE, "dark") as seen:
        page = seen.page
        expect(page.locator("#plots path.first")).to_have_count(3, timeout=PATIENCE)
        for key, tab in zip("1234", ("overview", "partitions", "log", "clients"), strict=True):
            page.keyboard.press(key)
            expect(page.locator(f"#{tab}")).to_be_visible()
            expect(page.locator("section:visible")).to_have_count(1)
            if tab == "log":
                expect(page.locator(".record").first).to_be_visible(timeout=PATIENCE)
            assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], f"{tab} is wider"
        page.keyboard.press("1")
        expect(page.locator(".plot > .dim").first).to_contain_text("last", timeout=PATIENCE)
        page.locator("#tab-clients").focus()
        page.keyboard.press("ArrowRight")
        expect(page.locator("#overview")).to_be_visible()
        picture(page, "console-phone")
        page.keyboard.press("/")
        expect(page.locator("#log-first")).to_be_focused()


@pytest.mark.slow
def test_every_server_serves_the_same_page_and_says_when_it_is_gone(cluster: Cluster, chromium: Browser) -> None:
    port = cluster.addresses["server-0"]["server.jetty.port"]
    with watched(chromium, f"http://localhost:{port}/console/") as seen:
        page = seen.page
        victim = cluster.advertised["server-1"]
        expect(page.locator(node(page, victim))).to_have_attribute("data-level", "ok", timeout=PATIENCE)
        cluster.children["server-1"].pause()
        expect(page.locator(node(page, victim))).to_have_attribute("data-level", "bad", timeout=RED_WITHIN)
        cluster.children["server-1"].resume()
        expect(page.locator(node(page, victim))).to_have_attribute("data-level", "ok", timeout=PATIENCE)
        cluster.children["server-1"].kill()  # the others delete its registration at once
        expect(page.locator(node(page, victim))).to_have_count(0, timeout=PATIENCE)
        cluster.start("server-1")
        expect(page.locator(node(page, victim))).to_have_attribute("data-level", "ok", timeout=PATIENCE)
        expect(page.locator("#findings")).to_contain_text("Nothing is wrong", timeout=PATIENCE)
        assert cluster.attempt("doctor", "-c", str(cluster.tools_file)).returncode == 0
        page.keyboard.press("3")
        # Clients of this cluster show certificates, and a browser on loopback has none.
        expect(page.locator("#log-about")).to_contain_text("waltz console -c CONFIG", timeout=PATIENCE)
        seen.complaints.clear()  # Chromium reports a refused request, as it must be one
