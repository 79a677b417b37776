"""Payloads read ahead: whatever pieces they come in, they are handed out in the order of their ids."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from waltz_trio.client.ahead import ReadAhead


def payloads(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def handed_out(ahead: ReadAhead) -> Iterator[bytes | None]:
    while ahead.ready:
        piece = ahead.peek(3)
        yield from piece
        ahead.take(len(piece))


def asked(*counts: int) -> ReadAhead:
    ahead = ReadAhead()
    ahead.begin(10)
    for count in counts:
        ahead.ask(count)
    return ahead


def test_a_piece_is_handed_out_once_those_before_it_are() -> None:
    ahead = asked(5, 5)
    ahead.arrived(15, payloads(15, 20))
    assert list(handed_out(ahead)) == []
    assert [*ahead.missing()] == [10, 11, 12, 13, 14]
    ahead.arrived(10, payloads(10, 15))
    assert list(handed_out(ahead)) == payloads(10, 20)
    assert ahead.room_taken == 0


def test_what_is_passed_over_takes_its_turn_without_a_payload() -> None:
    ahead = asked(2)
    ahead.pass_over(2)
    ahead.ask(1)
    ahead.arrived(14, [b"14"])
    ahead.arrived(10, [b"10", b"11"])
    assert list(handed_out(ahead)) == [b"10", b"11", None, None, b"14"]


def test_what_was_not_asked_for_or_has_come_already_is_dropped() -> None:
    ahead = asked(4)
    ahead.arrived(8, payloads(8, 12))
    ahead.arrived(10, [b"again", b"again"])
    ahead.arrived(11, [b"again", b"12", b"13", b"behind"])
    assert list(handed_out(ahead)) == payloads(10, 14)
    assert not ahead.waits_for(14)


def test_one_that_is_still_on_its_way_is_known() -> None:
    ahead = asked(6)
    ahead.arrived(12, payloads(12, 14))
    assert [number for number in range(9, 18) if ahead.waits_for(number)] == [10, 11, 14, 15]


@pytest.mark.parametrize("seed", range(50))
def test_any_pieces_in_any_order_give_every_payload_once(seed: int) -> None:
    rng, ahead = random.Random(seed), ReadAhead()
    ahead.begin(0)
    out: list[bytes | None] = []
    expected: list[bytes | None] = []
    while ahead.end < 200:
        count = rng.randrange(1, 30)
        if rng.random() < 0.3:
            expected += [None] * count
            ahead.pass_over(count)
        else:
            expected += payloads(ahead.end, ahead.end + count)
            ahead.ask(count)
    while len(out) < len(expected):
        first = rng.randrange(-5, 205)
        ahead.arrived(first, payloads(first, first + rng.randrange(0, 25)))
        out += handed_out(ahead)
    assert out == expected
    assert [*ahead.missing()] == []
