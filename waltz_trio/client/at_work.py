"""What a view runs of the application right now, and since when: for the log, a status, and calls that run out of time.

    in_view ──► AtWork ──returns──► forgotten (a caller that ran out of time meanwhile says its name)
                   └── after `SLOW_AFTER` seconds: a line of the log, and again after twice the time, and so on

`apply`, `decide` and `read` run in a thread or, where the view is not threaded, in the event loop, which stands still
meanwhile. So a separate thread watches them: it can report what blocks, even when the event loop is what blocks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import trio

from waltz_core.base.edge import Level
from waltz_trio.client.calls import Call, Together
from waltz_trio.client.views import name_of

SLOW_AFTER = 10.0  # seconds, until the log says that a function has not returned
_NAMED_FROM = 1.0  # seconds that a function ran for, until a call that ran out of time names it
_ADVICE = "what waits for it goes on only then, cancelled or not. Let such functions end by themselves"

CALLS_NO_CLIENT = (
    "apply, decide, select and instruments must not call the client. Do that where submit is called, before or after it"
)

_ALL: dict[AtWork, None] = {}  # of this process; a thread puts or takes one at a time, and readers copy


def named(view: Any) -> str:
    """A view as the log names it: its class, and its file or database."""
    where = getattr(view, "_where", "")
    return f"{type(view).__name__}{where and f' {where}'}"


class AtWork:
    """A method of a view, at work inside the block. Made for every one: what only an answer needs is found then."""

    __slots__ = ("_args", "_method", "_works", "ended", "partition", "report_after", "since")

    def __init__(self, works: Works, partition: int, method: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._works = works
        self.partition = partition
        self._method = method
        self._args = args
        self.since = time.monotonic()
        self.report_after = SLOW_AFTER  # seconds; doubles with each line in the log
        self.ended = False

    def __enter__(self) -> AtWork:
        _ALL[self] = None
        return self

    def __exit__(self, *_: object) -> None:
        self.ended = True
        del _ALL[self]
        if time.monotonic() - self.since >= _NAMED_FROM or self.report_after > SLOW_AFTER:
            self._works.took_long(self)

    def __str__(self) -> str:
        return f"{self._what()} of {named(self.view)}, partition {self.partition}"

    @property
    def seconds(self) -> float:
        """How long it has run."""
        return time.monotonic() - self.since

    def still(self) -> str:
        """For how long it has not returned."""
        return f"{self}, has not returned for {self.seconds:.1f} s"

    @property
    def view(self) -> Any:
        """Whose method it is."""
        return self._works.view

    @property
    def run(self) -> trio.lowlevel.TrioToken | None:
        """Where its application runs."""
        return self._works.run

    def _what(self) -> str:
        method = getattr(self._method, "__name__", "a method")
        if method == "commit":
            apply = getattr(self.view, "_apply", None)
            return "commit" if apply is None else f"apply {name_of(apply)}"
        if method != "read":
            return method
        function = self._args[1]
        owner = getattr(function, "__self__", None)
        call = owner.current if isinstance(owner, Together) else owner
        if isinstance(call, Call) and call.decide is not None:
            return f"decide {name_of(call.decide)}"
        return f"read {name_of(function)}"


class Works:
    """Those of one view."""

    def __init__(self, view: Any, report: Callable[[Level, str], None]) -> None:
        self.view = view
        self.run: trio.lowlevel.TrioToken | None = None  # while it is watched
        self._report = report
        self._last: dict[int, tuple[float, str]] = {}  # by partition: the last that took long, and when it returned

    def doing(self, partition: int, method: Callable[..., Any], args: tuple[Any, ...]) -> AtWork:
        """A method of the view is at work inside the block that this is for."""
        return AtWork(self, partition, method, args)

    def took_long(self, work: AtWork) -> None:
        """Something has returned that was reported, or may be named by a call that ran out of time."""
        self._last[work.partition] = time.monotonic(), f"{work}, ran for {work.seconds:.1f} s"
        if work.report_after > SLOW_AFTER:
            self._report(Level.INFO, f"{work}, has returned after {work.seconds:.0f} s")

    def now(self, partition: int | None = None) -> list[AtWork]:
        """What is at work, the longest first."""
        works = [work for work in list(_ALL) if work._works is self and partition in (None, work.partition)]
        return sorted(works, key=lambda work: work.since)

    def longest(self, partition: int) -> str | None:
        """What has been at work for the longest, and since when."""
        works = self.now(partition)
        return works[0].still() if works else None

    def named(self, partition: int, began: float) -> str:
        """What a call that began then, and whose time is over, has probably waited for; empty: nothing took long."""
        works = self.now(partition)
        if works and works[0].seconds >= _NAMED_FROM:
            return works[0].still()
        ended, text = self._last.get(partition, (began, ""))
        return text if ended > began else ""

    @contextmanager
    def watched(self) -> Iterator[None]:
        """The log says what does not return, while the block runs."""
        self.run = trio.lowlevel.current_trio_token()
        over = threading.Event()
        thread = threading.Thread(target=self._watch, args=(over,), name="waltz watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _watch(self, over: threading.Event) -> None:
        pause = SLOW_AFTER
        while not over.wait(pause):
            pause = SLOW_AFTER
            for work in self.now():
                if work.seconds >= work.report_after:
                    work.report_after *= 2
                    self._report(Level.WARNING, f"{work}, has not returned for {work.seconds:.0f} s: {_ADVICE}")
                pause = min(pause, max(0.0, work.report_after - work.seconds))


def of_run(run: trio.lowlevel.TrioToken | None) -> str:
    """What is at work for the clients of a run of Trio, as a list of names; empty: nothing is."""
    works = sorted((work for work in list(_ALL) if work.run is run), key=lambda work: work.since)
    return "; ".join(work.still() for work in works[:3])


# ---- who calls ---------------------------------------------------------------------------------------

_INSIDE: ContextVar[AtWork | None] = ContextVar("waltz_inside", default=None)


def inside() -> AtWork | None:
    """The view that is at work in this thread, or that this task was started from; None: no view is."""
    work = _INSIDE.get()
    return None if work is None or work.ended else work


def enter(work: AtWork) -> None:
    """Note that this thread works for a view, from here on in this context."""
    _INSIDE.set(work)
