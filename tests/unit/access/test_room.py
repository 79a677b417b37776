"""Whose connection makes room for a newcomer."""

from __future__ import annotations

from waltz_core.access.room import Room


def test_who_was_answered_stays_while_others_have_asked_for_nothing() -> None:
    room: Room[str] = Room()
    for conn in ("caller", "silent", "drips"):
        room.came(conn)
    room.answered("caller")
    assert [room.yields() for _ in range(3)] == ["silent", "drips", "caller"]
    assert len(room) == 0


def test_of_those_who_were_answered_the_one_goes_that_was_answered_longest_ago() -> None:
    room: Room[str] = Room()
    for conn in ("first", "second"):
        room.came(conn)
        room.answered(conn)
    room.answered("first")
    assert room.yields() == "second"


def test_a_flood_of_connections_takes_places_from_its_like_alone() -> None:
    room: Room[int] = Room()
    room.came(-1)
    for conn in range(1_000):
        room.answered(-1)
        room.came(conn)
        if len(room) > 10:
            assert room.yields() == conn - 9
    assert room.yields() != -1


def test_an_answer_gives_no_place_to_who_had_to_go() -> None:
    room: Room[str] = Room()
    room.came("gone")
    assert room.yields() == "gone"
    room.answered("gone")
    assert len(room) == 0
    assert not room.gone("gone")
