"""Every message type of every codec is attacked with."""

from __future__ import annotations

from typing import Any

import pytest

from tests.attacks.messages import PROTOCOLS, Identity, encoded, extreme_frames, message_types, opening, ordinary
from waltz_core.base.errors import ProtocolError
from waltz_core.wire.connection import Connection
from waltz_core.wire.table import Codec

EVERY = [(name, version, codec) for name in PROTOCOLS for version, codec in message_types(name)]


IDS = [f"{name}-{version}-{codec.cls.__name__}" for name, version, codec in EVERY]


@pytest.mark.parametrize(("name", "version", "codec"), EVERY, ids=IDS)
def test_every_message_type_of_every_codec_has_hostile_frames(name: str, version: int, codec: Codec[Any]) -> None:
    """An ordinary one that a peer decodes, and many that are at a limit or beyond it, none of which it chokes on."""
    frames = extreme_frames(name, version, codec)
    plain = ordinary(codec)

    assert _received(name, version, frames[0]) == [type(plain)]
    assert len(frames) > 6
    assert any(one == [codec.cls] for one in (_received(name, version, frame) for frame in frames[1:]))
    assert any(one is None for one in (_received(name, version, frame) for frame in frames[1:]))


def _received(name: str, version: int, frame: bytes) -> list[type] | None:
    """The types of the messages that a peer decodes, None if it ends the connection."""
    ours: Connection[Any] = Connection(PROTOCOLS[name], "victim", {version})
    got: list[Any] = []
    ours.receive(Connection(PROTOCOLS[name], "attack", {version}).hello(), got)
    try:
        ours.receive(frame, got)
    except ProtocolError:
        return None
    return [type(message) for message in got]


@pytest.mark.parametrize("name", PROTOCOLS)
def test_the_opening_of_each_port_can_be_said_in_every_version(name: str) -> None:
    for version in PROTOCOLS[name].tables:
        for message in opening(name, Identity()):
            assert encoded(PROTOCOLS[name], version, message) is not None, (version, message)
