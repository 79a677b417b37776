"""What a gateway takes and answers, as OpenAPI 3.1 for programs and as a page for people. It names no topic."""

from __future__ import annotations

import html
from typing import Any

from waltz_core.gateway import json_text
from waltz_core.gateway.calls import COUNT_MAX
from waltz_core.gateway.replies import JSON, PROBLEM_JSON, Reply

_Object = dict[str, Any]
_INTEGER: _Object = {"type": "integer", "format": "int64"}
_TEXT: _Object = {"type": "string"}
_LOCKS: _Object = {
    "type": "array",
    "items": {
        "type": "array",
        "prefixItems": [_TEXT, _INTEGER],
        "minItems": 2,
        "maxItems": 2,
        "examples": [["account", 7]],
    },
}
_AT = "/topics/{topic}/partitions/{partition}"


def _object(required: str, **properties: _Object) -> _Object:
    return {"type": "object", "required": required.split(), "properties": properties}


def _see(name: str) -> _Object:
    return {"$ref": f"#/components/schemas/{name}"}


def _parameter(name: str, where: str, schema: _Object, text: str, *, required: bool = True) -> _Object:
    return {"name": name, "in": where, "required": required, "schema": schema, "description": text}


_TOPIC = _parameter("topic", "path", _TEXT, "name of the topic")
_PARTITION = _parameter("partition", "path", {"type": "integer", "minimum": 0}, "number of the partition in the topic")
_PAYLOAD = _parameter(
    "payload",
    "query",
    {"enum": ["json", "text", "base64"], "default": "base64"},
    "the form of payloads; one that has another form comes as base64",
    required=False,
)
_SCHEMAS: _Object = {
    "Topic": _object(
        "topic partitions read append",
        topic=_TEXT,
        partitions={"type": "integer"},
        read={"type": "boolean", "description": "whether the caller may read"},
        append={"type": "boolean", "description": "whether the caller may append"},
        keyField={**_TEXT, "description": "the member of JSON payloads that carries their idempotency key"},
        keysRequired={"type": "boolean"},
    ),
    "Record": {
        **_object(
            "id header",
            id=_INTEGER,
            header={"type": "integer", "format": "int32"},
            json={},
            text=_TEXT,
            base64={"type": "string", "contentEncoding": "base64"},
        ),
        "description": "one committed transaction; exactly one of json, text and base64 holds its payload",
    },
    "Append": {
        **_object(
            "",
            json={"description": "the payload; an object where there is a key"},
            text=_TEXT,
            base64={"type": "string", "contentEncoding": "base64"},
            header={"type": "integer", "format": "int32", "default": 0},
            locks={"type": "object", "properties": {"write": _LOCKS, "read": _LOCKS, "append": _LOCKS}},
            mark={
                **_INTEGER,
                "description": "last transaction of the state that was decided on; for write, read locks",
            },
            key={
                "type": "string",
                "pattern": "^(-1|[0-9]{1,18}):[A-Za-z0-9._~-]{1,128}$",
                "description": "idempotency key MARK:TEXT; MARK is a committed mark from before the first attempt",
            },
        ),
        "required": [],
        "oneOf": [{"required": [form]} for form in ("json", "text", "base64")],
        "additionalProperties": False,
    },
    "Appended": _object(
        "topic partition id repeated",
        topic=_TEXT,
        partition={"type": "integer"},
        id=_INTEGER,
        repeated={"type": "boolean", "description": "an earlier attempt with this key had been committed"},
    ),
    "Mark": _object("topic partition mark", topic=_TEXT, partition={"type": "integer"}, mark=_INTEGER),
    "Records": _object(
        "topic partition mark records",
        topic=_TEXT,
        partition={"type": "integer"},
        mark=_INTEGER,
        records={"type": "array", "items": _see("Record")},
    ),
    "Problem": _object(
        "status code detail",
        status={"type": "integer"},
        code={**_TEXT, "description": "for programs"},
        detail={**_TEXT, "description": "for people"},
        outcome={
            "enum": ["refused", "unknown"],
            "description": "of an append: this attempt is not in the log; or it may be, and is repeated with its key",
        },
        retryAfter={"type": "integer", "description": "seconds"},
    ),
}


def _operation(
    summary: str, *parameters: _Object, answers: dict[str, tuple[str, str, _Object]], **more: Any
) -> _Object:
    responses = {
        status: {"description": text, "content": {kind: {"schema": schema}} if kind else {}}
        for status, (text, kind, schema) in answers.items()
    }
    problem = {"description": "a problem", "content": {PROBLEM_JSON: {"schema": _see("Problem")}}}
    return {"summary": summary, "parameters": list(parameters), "responses": {**responses, "default": problem}, **more}


_AFTER = _parameter("after", "query", _TEXT, "the last record that is done with; -1 = the start, tail = only new ones")
_PATHS: _Object = {
    "/topics": {
        "get": _operation(
            "the topics that the caller may use",
            answers={"200": ("topics", JSON, _object("topics", topics={"type": "array", "items": _see("Topic")}))},
        )
    },
    "/topics/{topic}": {
        "get": _operation("one topic", _TOPIC, answers={"200": ("the topic", JSON, _see("Topic"))}),
    },
    "/topics/{topic}/partition": {
        "get": _operation(
            "which partition a key of yours belongs to",
            _TOPIC,
            _parameter("of", "query", _TEXT, "the key"),
            answers={"200": ("it", JSON, _object("partition", topic=_TEXT, partition={"type": "integer"}))},
        )
    },
    f"{_AT}/mark": {
        "get": _operation(
            "how far a partition is committed; -1 where it is empty",
            _TOPIC,
            _PARTITION,
            answers={"200": ("the committed mark", JSON, _see("Mark"))},
        )
    },
    f"{_AT}/records": {
        "get": _operation(
            "a range of records, as many as fit into one answer",
            _TOPIC,
            _PARTITION,
            _parameter("first", "query", {**_INTEGER, "minimum": 0}, "id of the first record"),
            _parameter(
                "count",
                "query",
                {"type": "integer", "minimum": 1, "maximum": COUNT_MAX, "default": 100},
                "records at most",
                required=False,
            ),
            _PAYLOAD,
            answers={"200": ("records", JSON, _see("Records"))},
        )
    },
    f"{_AT}/append": {
        "post": _operation(
            "append one record",
            _TOPIC,
            _PARTITION,
            answers={
                "201": ("committed", JSON, _see("Appended")),
                "200": ("an earlier attempt with this key had been committed", JSON, _see("Appended")),
            },
            requestBody={"required": True, "content": {JSON: {"schema": _see("Append")}}},
        )
    },
    f"{_AT}/feed": {
        "get": _operation(
            "every record behind a mark, as server-sent events, without an end",
            _TOPIC,
            _PARTITION,
            _AFTER,
            _PAYLOAD,
            _parameter("Last-Event-ID", "header", _TEXT, "goes before after", required=False),
            answers={"200": ("events whose id is that of the record and whose data is it", "text/event-stream", _TEXT)},
        )
    },
    f"{_AT}/socket": {
        "get": _operation(
            "a WebSocket: messages {ref, …an append} in, {append, ref}, {problem, ref} and {record} out",
            _TOPIC,
            _PARTITION,
            {**_AFTER, "required": False, "description": "with it the socket carries a feed, as of feed"},
            _PAYLOAD,
            answers={"101": ("the connection goes on as WebSocket", "", {})},
        )
    },
}
DOCUMENT: _Object = {
    "openapi": "3.1.0",
    "info": {"title": "Waltz gateway", "version": "1", "description": "Topics of a distributed write-ahead log."},
    "paths": _PATHS,
    "components": {
        "schemas": _SCHEMAS,
        "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}, "certificate": {"type": "mutualTLS"}},
    },
    "security": [{}, {"token": []}, {"certificate": []}],
}
_HEADERS = (
    ("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"),
    ("Referrer-Policy", "no-referrer"),
)


def page(path: str) -> Reply | None:
    """What stands under a path that tells about the gateway itself, None if nothing does."""
    return _PAGES.get(path)


def _html() -> str:
    rows = "".join(
        f"<tr><td>{method.upper()}</td><td><code>{html.escape(path)}{_query(operation)}</code></td>"
        f"<td>{html.escape(operation['summary'])}</td></tr>"
        for path, operations in _PATHS.items()
        for method, operation in operations.items()
    )
    style = "body{font:16px system-ui;margin:2em;max-width:70em}td{padding:.3em 1em .3em 0;vertical-align:top}"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Waltz gateway</title><style>{style}</style>'
        f'<h1>Waltz gateway</h1><p>For programs: <a href="/openapi.json">OpenAPI</a>.</p><table>{rows}</table></html>'
    )


def _query(operation: _Object) -> str:
    names = [each["name"] for each in operation["parameters"] if each["in"] == "query"]
    return html.escape("?" + "&".join(f"{name}=…" for name in names)) if names else ""


# Written once: whoever has no token may ask for them.
_PAGES = {
    "/openapi.json": Reply(200, JSON, json_text.write(DOCUMENT)),
    "/": Reply(200, "text/html; charset=utf-8", _html(), _HEADERS),
}
