"""docs/protocol.md promises that no byte of it changes: its frames and tables against the codecs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.unit.wire.test_codecs import encoded, opened
from waltz_core.base.lock import Conflict
from waltz_core.wire import admin_messages, client_messages, shared, storage_messages
from waltz_core.wire.connection import ADMIN_PROTOCOL, CLIENT_PROTOCOL, STORAGE_PROTOCOL

PAGE = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text()
BY_MAGIC: dict[int, Any] = {each.magic: each for each in (CLIENT_PROTOCOL, STORAGE_PROTOCOL, ADMIN_PROTOCOL)}
EXAMPLES = [(name, bytes.fromhex(data)) for name, data in re.findall(r"^(\w+) +([0-9a-f]{18,})$", PAGE, re.MULTILINE)]
SECTIONS = ((CLIENT_PROTOCOL, 5, "## 2."), (STORAGE_PROTOCOL, 1, "## 3."), (ADMIN_PROTOCOL, 1, "## 4."))


@pytest.mark.parametrize(("name", "data"), EXAMPLES, ids=[name for name, _ in EXAMPLES])
def test_the_frame_on_the_page_is_that_of_the_codec(name: str, data: bytes) -> None:
    protocol, version = BY_MAGIC[data[0]], data[2]
    connection, out = opened(protocol, version), list[Any]()
    connection.receive(data, out)
    assert [type(message).__name__ for message in out] == [name]
    assert encoded(connection, out) == data


@pytest.mark.parametrize(("protocol", "version", "section"), SECTIONS, ids=lambda each: getattr(each, "name", each))
def test_the_page_lists_every_message_of_ours(protocol: Any, version: int, section: str) -> None:
    new, old = protocol.tables[version].codecs, protocol.tables[version - 1].codecs
    ours = {type_id: codec.cls.__name__ for type_id, codec in new.items() if codec is not old.get(type_id)}
    text = PAGE.split(section)[1].split("\n## ")[0]
    listed = {
        int(type_id): name for type_id, name in re.findall(r"^\| (\d+) \| (\w+) \| (?:.*[→·–]|.*:)", text, re.MULTILINE)
    }
    assert ours.items() <= listed.items()
    shown = [(data[7], name) for name, data in EXAMPLES if data[0] == protocol.magic]
    assert dict(shown) == ours


@pytest.mark.parametrize(
    ("names", "section"),
    [
        (client_messages.Refusal, "## 2."),
        (Conflict, "## 2."),
        (client_messages.ErrorCode, "## 2."),
        (shared.FailureCode, "## 3."),
    ],
)
def test_the_page_lists_every_number(names: Any, section: str) -> None:
    text = PAGE.split(section)[1].split("\n## ")[0]
    for member in names:
        assert re.search(rf"^\| {member.value} \| {member.name} \|", text, re.MULTILINE), member


@pytest.mark.parametrize(
    ("bits", "section"),
    [
        (client_messages.Capability, "## 2."),
        (storage_messages.StorageCapability, "## 3."),
        (admin_messages.AdminCapability, "## 4."),
    ],
)
def test_the_page_lists_every_capability(bits: Any, section: str) -> None:
    text = PAGE.split(section)[1].split("\n## ")[0]
    for at, member in enumerate(bits):
        assert member.value == 1 << at
        assert re.search(rf"^\| {at} \| {member.name} \|", text, re.MULTILINE), member
