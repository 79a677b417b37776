"""Looks at a cluster as long as the console has viewers: one look for all of them, none without."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager

import attrs
import trio

from waltz_core.base.errors import WaltzError
from waltz_core.operations.findings import Finding
from waltz_core.operations.page import Console, Page
from waltz_core.operations.view import CertificateView, ClusterView
from waltz_trio.ports.gather import UNSEEN, gather, unseen
from waltz_trio.ports.tool import Tool

EVERY = 1.5  # seconds between two looks
NODE_MAX = 2.5  # seconds that a node may take: with the pause, one that is gone is shown within five
_CERTIFICATES_EVERY = 60  # looks: each takes connections of its own
_REST = 20.0  # seconds after which a session without viewers is given up

LOOK = "a look of the console at the cluster"  # in lines of the log

OpenTool = Callable[[], AbstractAsyncContextManager[Tool]]


class Watch:
    """Looks, and hands each page to all waiting viewers. Run `run`; ask within `viewing`."""

    def __init__(
        self, open_tool: OpenTool, console: Console, surprised: Callable[[Exception], None] | None = None
    ) -> None:
        """Prepare to look.

        Args:
            open_tool: a session with the cluster.
            console: makes the pages.
            surprised: hears of unexpected errors, for the log.
        """
        self._open = open_tool
        self._console = console
        self._surprised = surprised or (lambda error: None)
        self._viewers = 0
        self._wanted = trio.Event()
        self._changed = trio.Event()
        self._tool: Tool | None = None
        self._certificates: tuple[CertificateView, ...] = ()
        self._looks = 0
        self.number = 0  # of the page
        self.page: Page | None = None
        self.text = ""  # the page as JSON, made once for all viewers

    async def run(self) -> None:
        """Look while there are viewers; until cancelled."""
        while True:
            await self._wanted.wait()
            try:
                async with self._open() as tool:
                    self._tool = tool
                    await self._look_on(tool)
            except UNSEEN as error:
                self._lost(unseen(error))
            except (WaltzError, OSError) as error:
                self._lost(Finding("unseen", str(error), "waltz doctor -c CONFIG"))
            except Exception as error:  # what others answer must not end the process that shows it
                self._lost(Finding("unseen", f"an error in this process: {error!r}", "waltz doctor -c CONFIG"))
                self._surprised(error)
            finally:
                self._tool = None
            if not self._viewers:
                self._rest()
            await trio.sleep(EVERY)

    async def _look_on(self, tool: Tool) -> None:
        idle_since = trio.current_time()
        while True:
            view = await self._view(tool)
            self._publish(self._console.look(view, _now()))
            await trio.sleep(EVERY)
            if self._viewers:
                idle_since = trio.current_time()
            elif trio.current_time() - idle_since > _REST:
                return

    async def _view(self, tool: Tool) -> ClusterView:
        with_certificates = self._looks % _CERTIFICATES_EVERY == 0
        self._looks += 1
        view = await gather(tool, NODE_MAX, certificates=with_certificates)
        if with_certificates:
            self._certificates = view.certificates
        return attrs.evolve(view, certificates=self._certificates)

    def _lost(self, reason: Finding) -> None:
        self._publish(self._console.lost(reason, _now()))

    def _rest(self) -> None:
        """Wait for the next viewer."""
        self._wanted = trio.Event()
        self.page = None  # what it gets is not of today

    def _publish(self, page: Page) -> None:
        self.page, self.text = page, json.dumps(page, separators=(",", ":"))
        self.number += 1
        self._changed.set()
        self._changed = trio.Event()

    @contextmanager
    def viewing(self) -> Iterator[None]:
        """Somebody looks at the pages."""
        self._viewers += 1
        self._wanted.set()
        try:
            yield
        finally:
            self._viewers -= 1

    async def after(self, number: int) -> str:
        """The text of the page behind that one; the newest, if it is known already."""
        while self.page is None or self.number <= number:
            await self._changed.wait()
        return self.text

    @asynccontextmanager
    async def tool(self) -> AsyncIterator[Tool]:
        """A session with the cluster: that of the looks, or one of its own."""
        if self._tool is not None:
            yield self._tool
        else:
            async with self._open() as tool:
                yield tool


def _now() -> int:
    return time.time_ns() // 1_000_000
