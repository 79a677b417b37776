"""How events and conditions become locks: a matching event has taken a lock that the condition looks at.

    an event of type T with tags A, B takes      all, type T, tag A, tag B, type T with tag A, type T with tag B
    a condition looks, for each of its items, at
        no types, no tags                        all
        types T, U                               type T, type U
        tags A, B                                tag A or tag B: one of them is enough, for a match has both
        types T, U and tags A, B                 type T with tag A, type U with tag A; or with tag B

Where one tag is enough, the rarest is chosen: the fewer events carry it, the fewer conflicts are false. Events take
APPEND locks, which do not conflict with appends without a condition; conditions take READ locks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

from waltz_core.base.lock import Lock
from waltz_dcb.events import Event, Query

_ALL = Lock("dcb.all", 0)


def _lock(name: str, *texts: str) -> Lock:
    digest = hashlib.sha256("\0".join(texts).encode()).digest()
    return Lock(name, int.from_bytes(digest[:8], "big", signed=True))


def locks_taken(events: Iterable[Event]) -> list[Lock]:
    """What an append of events takes, each lock once."""
    locks = [_ALL]
    for event in events:
        locks.append(_lock("dcb.type", event.type))
        for tag in sorted(event.tags):
            locks += [_lock("dcb.tag", tag), _lock("dcb.type+tag", event.type, tag)]
    return list(dict.fromkeys(locks))


def locks_looked_at(query: Query, count_of: Callable[[str], int]) -> list[Lock]:
    """What a condition looks at; `count_of` says how many events carry a tag."""
    locks: list[Lock] = []
    for item in query.items:
        tag = _rarest(sorted(item.tags), count_of)
        types = sorted(item.types)
        if tag is None:
            locks += [_lock("dcb.type", kind) for kind in types] or [_ALL]
        else:
            locks += [_lock("dcb.type+tag", kind, tag) for kind in types] or [_lock("dcb.tag", tag)]
    return list(dict.fromkeys(locks))


def _rarest(tags: list[str], count_of: Callable[[str], int]) -> str | None:
    if len(tags) < 2:
        return tags[0] if tags else None
    return min(tags, key=count_of)
