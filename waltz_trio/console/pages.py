"""The console over HTTP: a page, its style and script, the events that fill it, and the log browser.

Every request is a GET and changes nothing. `waltz_core.access.web` decides who is let in, `waltz_core.operations.page`
what is shown; here they are only put together.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote

import trio

from waltz_core.access.port_turns import cost_of
from waltz_core.access.roles import NO_ROLES, Roles
from waltz_core.access.web import Door, Visit, may_read, refusal
from waltz_core.base.errors import WaltzError
from waltz_trio.console.log_page import BadRangeError, parse_range, read_log
from waltz_trio.console.watch import Watch
from waltz_trio.net import http
from waltz_trio.net.http import Answer, Handler, Pay, Request, Response, Send, Stream

PREFIX = "/console/"
_FILES = {
    "": ("index.html", "text/html; charset=utf-8"),
    "console.css": ("console.css", "text/css; charset=utf-8"),
    "console.js": ("console.js", "text/javascript; charset=utf-8"),
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = (
    ("Content-Security-Policy", _POLICY),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("X-Frame-Options", "DENY"),
)


class Pages:
    """Answers requests below `/console/`."""

    def __init__(
        self,
        watch: Watch,
        door: Door,
        *,
        roles: Callable[[], Roles] = lambda: NO_ROLES,
        certificates_asked: bool = False,
        token: str = "",
        journal: Path | None = None,
    ) -> None:
        """Prepare.

        Args:
            watch: gives the pages; the caller runs it.
            door: who is let in.
            roles: what certificates may do, now.
            certificates_asked: clients of the cluster need one.
            token: that a browser must bring, in the address first and then in a cookie.
            journal: directory of a decision journal, from which the log browser takes locks.
        """
        self._watch = watch
        self._door = door
        self._roles = roles
        self._certificates_asked = certificates_asked
        self._token = token
        self._journal = journal
        static = files("waltz_trio.console") / "static"
        self._files = {name: (static.joinpath(file).read_bytes(), kind) for name, (file, kind) in _FILES.items()}

    def or_else(self, other: Handler) -> Handler:
        """These pages, and for other paths another handler."""

        def handle(request: Request) -> Answer | Awaitable[Answer]:
            if request.path.startswith(PREFIX) or request.path == PREFIX.rstrip("/"):
                return self.handle(request)
            return other(request)

        return handle

    def handle(self, request: Request) -> Answer | Awaitable[Answer]:
        """Answer a request."""
        if request.path in ("/", PREFIX.rstrip("/")):
            return _redirect()
        if not request.path.startswith(PREFIX):
            return _safe(http.refusal(HTTPStatus.NOT_FOUND))
        name = request.path.removeprefix(PREFIX)
        given = request.query.get("token", [""])[-1]
        visit = self._visit(request, name, given)
        refused = refusal(self._door, visit, self._token)
        if refused is not None:
            return _safe(http.refusal(HTTPStatus(refused.status), refused.why))
        if given and self._token:
            # Out of the address, so that it is in no history and no screenshot.
            return _redirect(
                ("Set-Cookie", f"{self._cookie(request)}={given}; Path={PREFIX}; HttpOnly; SameSite=Strict")
            )
        if name in self._files:
            body, kind = self._files[name]
            return _safe(Response(200, kind, body))
        match name:
            case "events":
                return Stream("text/event-stream", self._feed, _HEADERS)
            case "page.json":
                return self._page()
            case "log.json":
                return self._log(request, visit)
        return _safe(http.refusal(HTTPStatus.NOT_FOUND))

    def _visit(self, request: Request, name: str, given: str) -> Visit:
        access = None if request.names is None else self._roles().access(request.names, request.peer)
        token = given or _cookies(request.headers.get("cookie", "")).get(self._cookie(request), "")
        return Visit(request.peer, request.headers, not name, access, token)

    @staticmethod
    def _cookie(request: Request) -> str:
        """Cookies know no ports: each console of this machine has one of its own."""
        port = request.headers.get("host", "").rpartition(":")[2]
        return f"waltz-console-{port if port.isdigit() else ''}"

    async def _feed(self, send: Send, pay: Pay) -> None:
        with self._watch.viewing():
            await send(b"retry: 1000\n\n")
            seen = 0
            while True:
                text = await self._watch.after(seen)
                seen = self._watch.number
                await send(b"data: " + text.encode() + b"\n\n")
                await pay(cost_of(len(text)))

    async def _page(self) -> Answer:
        with self._watch.viewing():
            return _json((await self._watch.after(0)).encode())

    async def _log(self, request: Request, visit: Visit) -> Answer:
        try:
            wanted = parse_range(request.query)
            refused = may_read(visit, wanted.partition_id, certificates_asked=self._certificates_asked)
            if refused is not None:
                return _problem(refused.status, refused.why)
            with self._watch.viewing():
                if self._watch.page is None:
                    with trio.move_on_after(10):
                        await self._watch.after(0)
                return _json(json.dumps(await read_log(self._watch, wanted, self._journal)).encode())
        except BadRangeError as error:
            return _problem(400, str(error))
        except trio.TooSlowError:
            return _problem(504, "the server of the partition did not answer in time")
        except (WaltzError, OSError) as error:
            return _problem(502, str(error))


def _safe(response: Response) -> Response:
    return Response(response.status, response.content_type, response.body, (*response.headers, *_HEADERS))


def _json(body: bytes, status: int = 200) -> Response:
    return _safe(Response(status, "application/json", body))


def _problem(status: int, why: str) -> Response:
    return _json(json.dumps({"problem": why}).encode(), status)


def _redirect(*more: tuple[str, str]) -> Response:
    return _safe(Response(303, "text/plain", b"", (("Location", quote(PREFIX)), *more)))


def _cookies(header: str) -> dict[str, str]:
    pairs = (part.strip().partition("=") for part in header.split(";"))
    return {name: value for name, _, value in pairs if name}
