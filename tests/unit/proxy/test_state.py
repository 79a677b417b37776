"""What a proxy keeps in its root."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz_core.base.errors import ProtocolError
from waltz_core.proxy.state import (
    BLOCK_SIZE,
    ProxyState,
    block_behind,
    decode_proxy_state,
    encode_proxy_state,
)

STATE = ProxyState(11, 1, ((11, 10 + BLOCK_SIZE),), "cluster", 4, 77)


def test_what_is_written_is_read() -> None:
    assert decode_proxy_state(encode_proxy_state(STATE)) == STATE


@given(st.one_of(st.binary(max_size=60), st.sampled_from([b"[]", b"{}", b'{"blocks": []}', b'{"blocks": 3}'])))
def test_anything_else_is_refused_by_a_clear_error(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="no state of a proxy"):
        decode_proxy_state(data)


def test_a_state_that_contradicts_itself_is_refused() -> None:
    for blocks in ((), ((5, 4),), ((5, 9),)):
        with pytest.raises(ProtocolError):
            decode_proxy_state(encode_proxy_state(ProxyState(11, 1, blocks, "cluster", 4, 77)))


def test_ids_of_clients_are_those_of_its_blocks_but_its_own() -> None:
    assert not STATE.includes(11)
    assert STATE.includes(12)
    assert STATE.includes(10 + BLOCK_SIZE)
    assert not STATE.includes(11 + BLOCK_SIZE)


def test_each_start_numbers_its_connections_above_those_of_the_one_before() -> None:
    later = STATE.started()
    assert later.first_connection - STATE.first_connection == 1 << 32
    with pytest.raises(ProtocolError, match="started"):
        ProxyState(11, (1 << 30) - 1, STATE.blocks, "cluster", 4, 77).started()


def test_blocks_are_taken_behind_the_counter_while_there_are_ids() -> None:
    assert block_behind(0) == (1, BLOCK_SIZE)
    assert block_behind(10) == (11, 10 + BLOCK_SIZE)
    id_max = (1 << 31) - 1
    assert block_behind(id_max - BLOCK_SIZE) == (id_max - BLOCK_SIZE + 1, id_max), "the last block"
    assert STATE.is_short(10 + BLOCK_SIZE // 2 + 1)
    assert not STATE.is_short(10 + BLOCK_SIZE // 2), "half of it is left"
    for counter in (-5, -1, id_max - BLOCK_SIZE + 1, id_max):
        with pytest.raises(ProtocolError, match="no 65536 client ids"):
            block_behind(counter)


def test_a_proxy_behind_another_takes_a_part_of_the_block_that_the_clients_there_have_ids_of() -> None:
    """Ids behind that block are others': of clients of the cluster, or of another proxy."""
    first, last, part = 11, 10 + BLOCK_SIZE, BLOCK_SIZE // 16
    assert block_behind(first, STATE) == (first + 1, first + part)
    assert block_behind(last - part, STATE) == (last - part + 1, last)
    for counter in (last - part + 1, last, last + 5):
        with pytest.raises(ProtocolError, match=f"no {part} client ids are left behind {counter}: the proxy there"):
            block_behind(counter, STATE)
    small = attrs.evolve(STATE, blocks=((11, 10 + part), (90, 90 + part - 1)))
    assert block_behind(89, small) == (90, 89 + part // 16), "of its last block"
    assert not small.is_short(89 + part // 2)
    assert small.is_short(90 + part // 2), "half of that is left"
    tiny = attrs.evolve(STATE, blocks=((11, 13),))
    assert block_behind(11, tiny) == (12, 13), "its own id, and a client's"
    with pytest.raises(ProtocolError):
        block_behind(12, tiny)
