"""What a port holds of bodies: bounded for all, and for one caller by what he leaves to others."""

from __future__ import annotations

from waltz_core.access.bodies import Bodies, Held

ROOM = 1_200


def filled(held: list[Held], size: int = 10) -> list[int]:
    """What each has taken once no one gets more."""
    taken = [0] * len(held)
    going = True
    while going:
        going = False
        for at, one in enumerate(held):
            if one.take(size):
                taken[at] += size
                going = True
    return taken


def test_one_body_may_have_all_the_room_that_there_is() -> None:
    bodies = Bodies(ROOM)
    held = bodies.of(1, "a")
    assert held.take(ROOM)
    assert not held.take(1)
    assert not bodies.of(2, "b").take(1)
    held.give_back()
    assert bodies.of(2, "b").take(ROOM)


def test_a_caller_with_many_bodies_leaves_half_of_the_room_to_others() -> None:
    bodies = Bodies(ROOM)
    taken = filled([bodies.of(conn, "flood") for conn in range(10)])
    assert ROOM // 2 - 50 <= sum(taken) <= ROOM // 2
    assert bodies.of(99, "honest").take(ROOM // 2)


def test_two_such_callers_leave_a_third() -> None:
    bodies = Bodies(ROOM)
    taken = filled([bodies.of(conn, f"flood {conn % 2}") for conn in range(10)])
    assert sum(taken) <= 2 * ROOM // 3
    assert bodies.of(99, "honest").take(ROOM // 3)


def test_what_is_given_back_is_there_for_others_and_once() -> None:
    bodies = Bodies(ROOM)
    one, other = bodies.of(1, "a"), bodies.of(2, "a")
    assert one.take(100)
    assert other.take(200)
    one.give_back()
    one.give_back()
    third = bodies.of(3, "b")
    assert not third.take(ROOM - 199)
    other.give_back()
    assert third.take(ROOM)
