"""What every process answers over HTTP, as the original does: its version, its health, its metrics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus

from waltz_trio.base.exposition import Form
from waltz_trio.base.metrics import Registry
from waltz_trio.base.version import version
from waltz_trio.net.http import Answer, Handler, Request, Response, json_text, refusal, text


def endpoints(service: str, registry: Registry, health: Callable[[], tuple[bool, Mapping[str, object]]]) -> Handler:
    """Answers to these, and to nothing else.

    Args:
        service: name in /buildinfo.
        registry: what /metrics shows.
        health: whether the process is healthy, and the object /health shows.
    """

    async def json(pretty: bool) -> Response:
        body = await registry.text(f"json {pretty}", lambda: registry.json(pretty=pretty))
        return Response(200, "application/json", body.encode())

    async def scraped(form: Form) -> Response:
        body = await registry.text(form.name, lambda: registry.prometheus(form))
        return text(body, content_type=form.value)

    def handle(request: Request) -> Answer | Awaitable[Answer]:
        match request.path.rstrip("/") or "/":
            case "/ping":
                return text("pong\n", content_type="text/plain")
            case "/buildinfo":
                return json_text({"service_name": service, "version": version()}, pretty=request.pretty)
            case "/health":
                healthy, value = health()
                return json_text(value, status=200 if healthy else 500, pretty=request.pretty)
            case "/metrics":
                form = _form_of(request.headers.get("accept", ""))
                return json(request.pretty) if form is None else scraped(form)
            case "/metrics/prometheus":
                return scraped(_form_of(request.headers.get("accept", "")) or Form.PROMETHEUS)
        return refusal(HTTPStatus.NOT_FOUND)

    return handle


_FORMS = {"text/plain": Form.PROMETHEUS, "application/openmetrics-text": Form.OPENMETRICS, "application/json": None}


def _form_of(accept: str) -> Form | None:
    """The requested text form; None for JSON, which is the default."""
    best: tuple[float, Form | None] = (0.0, None)
    for part in accept.split(","):
        kind, *parameters = (piece.strip().lower() for piece in part.split(";"))
        weight = 1.0
        for parameter in parameters:
            if parameter.startswith("q="):
                try:
                    weight = float(parameter[2:])
                except ValueError:
                    weight = 0.0
        if kind in _FORMS and weight > best[0]:
            best = weight, _FORMS[kind]
    return best[1]
