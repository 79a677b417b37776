"""The table of the locks that appends are refused for."""

from __future__ import annotations

import random
from collections import Counter

from waltz_core.locks.hot import HotLocks


def test_the_most_refused_come_first() -> None:
    hot = HotLocks()
    for lock_hash, count in ((7, 2), (8, 5), (9, 1)):
        for _ in range(count):
            hot.refused(lock_hash)

    assert hot.hottest(2) == ((8, 5), (7, 2))


def test_a_lock_with_a_large_share_is_never_lost_among_many_and_its_count_is_no_less() -> None:
    generator = random.Random(5)
    locks = [generator.randrange(100_000) if generator.random() < 0.7 else 42 for _ in range(20_000)]
    hot = HotLocks()
    for lock_hash in locks:
        hot.refused(lock_hash)

    (first, count), *_ = hot.hottest(100)
    assert first == 42
    assert count >= Counter(locks)[42]
    assert len(hot.hottest(1000)) == 64
