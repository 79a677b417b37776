"""Which ids are old enough to be archived though they fill no file."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from waltz_core.server.archiving import Ages

AFTER = 1_600


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 400), st.integers(1, 5)), max_size=30))
def test_an_id_is_old_once_it_was_seen_committed_so_long_ago_and_not_much_later(steps: list[tuple[int, int]]) -> None:
    ages, now, mark = Ages(AFTER), 0, -1
    seen: list[tuple[int, int]] = []  # when the mark was what

    def look() -> None:
        ages.look(now, mark)
        assert ages.old <= max((each for at, each in seen if at <= now - AFTER), default=-1)
        assert ages.old >= max((each for at, each in seen if at <= now - AFTER - AFTER // 16), default=-1)

    for pause, more in [*steps, (2 * AFTER, 0)]:
        until, looks = now + pause, 0
        while (at := ages.deadline(now, mark)) is not None and at <= until:
            now, looks = max(now, at), looks + 1
            assert looks < 100, "it does not come to rest"
            look()
        now, mark = until, mark + more
        seen.append((now, mark))
        look()
    assert ages.old == mark
    assert ages.deadline(now, mark) is None
