"""The description of a gateway says what `route` and `read_append` do."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from waltz_core.gateway import calls, openapi
from waltz_core.gateway.calls import Asked, route
from waltz_core.gateway.problems import RequestError
from waltz_core.gateway.topics import Place, Topic, Topics

TOPIC = Topic("pay", "a.yml", (0,))
OPERATIONS = [
    (path, method, operation)
    for path, operations in openapi.DOCUMENT["paths"].items()
    for method, operation in operations.items()
]
SAMPLES = {"of": "k", "first": "0", "count": "1", "after": "tail", "payload": "json"}


def query_of(operation: dict[str, Any]) -> dict[str, list[str]]:
    return {each["name"]: [SAMPLES[each["name"]]] for each in operation["parameters"] if each["in"] == "query"}


@pytest.mark.parametrize(("path", "method", "operation"), OPERATIONS)
def test_every_operation_is_one_that_is_taken_with_these_parameters(path: str, method: str, operation: Any) -> None:
    filled = path.replace("{topic}", "pay").replace("{partition}", "0")
    route(Topics([TOPIC]), Asked(method.upper(), filled, query_of(operation), {}))
    required = [each["name"] for each in operation["parameters"] if each["in"] == "query" and each["required"]]
    for name in required:
        if name != "of":
            left = {other: text for other, text in query_of(operation).items() if other != name}
            with pytest.raises(RequestError):
                route(Topics([TOPIC]), Asked(method.upper(), filled, left, {}))


def test_every_path_that_is_taken_is_described() -> None:
    described = {f"{method.upper()} {path}" for path, method, _ in OPERATIONS}
    listed = re.findall(r"^ *(GET|POST) +(\S+)", str(calls.__doc__), re.MULTILINE)
    assert len(listed) == len(described)
    for method, path in listed:
        full = path.partition("?")[0].replace("/T", "/{topic}").replace("/P", "/{partition}")
        assert f"{method} {full}" in described


def test_an_append_has_these_members() -> None:
    assert set(openapi.DOCUMENT["components"]["schemas"]["Append"]["properties"]) == calls._FIELDS
    value = {"json": {}, "header": 1, "locks": {}, "mark": 1, "key": "1:a"}
    assert calls.append_of(Place(TOPIC, 0, 0), value).header == 1


def test_references_lead_somewhere() -> None:
    for name in re.findall(r"#/components/schemas/(\w+)", json.dumps(openapi.DOCUMENT)):
        assert name in openapi.DOCUMENT["components"]["schemas"]


def test_it_is_there_for_programs_and_for_people() -> None:
    told = openapi.page("/openapi.json")
    assert told is not None
    assert json.loads(told.text) == openapi.DOCUMENT
    shown = openapi.page("/")
    assert shown is not None
    assert all(path in shown.text for path, _, _ in OPERATIONS)
    assert "<script" not in shown.text
    assert openapi.page("/topics") is None


@pytest.mark.parametrize("path", ["/", "/openapi.json"])
def test_it_is_written_once_however_often_strangers_ask_for_it(path: str) -> None:
    assert openapi.page(path) is openapi.page(path)
