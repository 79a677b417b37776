"""Whose appends another process in the root of a proxy cannot have carried."""

from __future__ import annotations

from waltz_core.proxy.fresh import Fresh


def test_only_ids_behind_the_second_reading_since_it_is_alone_are_fresh() -> None:
    """The first one may have begun before; ids that were given out between the two may be of anybody's clients."""
    fresh = Fresh()
    fresh.given(10)
    fresh.given(11)
    assert 99 not in fresh, "nobody has said that it is alone"
    fresh.seen(alone=True)
    assert 99 not in fresh
    fresh.given(12)
    assert 99 not in fresh, "that reading began before"
    fresh.given(15)
    assert (15 in fresh, 16 in fresh) == (False, True)
    fresh.seen(alone=True)
    fresh.given(30)
    assert 16 in fresh, "all later ids are of its own time, too"


def test_once_another_was_seen_nobody_is_fresh_until_it_is_alone_again() -> None:
    fresh = Fresh()
    fresh.seen(alone=True)
    fresh.given(10)
    fresh.given(10)
    assert 11 in fresh
    fresh.seen(alone=False)
    fresh.given(12)
    fresh.given(13)
    assert 99 not in fresh
    fresh.seen(alone=True)
    fresh.given(14)
    assert 99 not in fresh
    fresh.seen(alone=False)
    fresh.seen(alone=True)
    fresh.given(15)
    assert 99 not in fresh, "the reading of before says nothing of now"
    fresh.given(16)
    assert (16 in fresh, 17 in fresh) == (False, True)
