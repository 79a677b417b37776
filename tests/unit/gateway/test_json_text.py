"""JSON as text: what it costs to write."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from waltz_core.gateway import json_text


@pytest.mark.parametrize(("value", "most"), [(1, 1), ("x", 2), ({"a": 1}, 6), ([2, 3], 3)])
def test_writing_costs_few_calls_for_each_value(value: Any, most: int) -> None:
    """A body of 4 MB may hold two million of them."""
    values = [value] * 1_000
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        text = json_text.write(values)
    finally:
        sys.setprofile(None)
    assert json_text.parse(text) == values
    assert calls <= most * len(values) + 10


@pytest.mark.parametrize("text", ['"\\u20ac"', '"\\ud800"', '"a\\"\\\\\\n\\u0000"', "1.50", "-0", "[true,null,1e5]"])
def test_what_was_written_is_read_as_it_was(text: str) -> None:
    value = json_text.parse(text)
    assert json_text.parse(json_text.write(value)) == value
    json_text.write(value).encode()
