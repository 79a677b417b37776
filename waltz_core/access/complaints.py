"""What is wrong with peers, as lines of a log: one for each owner and kind at a time, and then how many there were.

A peer can break the protocol many times a second, on a new connection each time; a line for each would bury what else
the log has to say. The first line of a kind is written at once. For a minute, others of its kind from the same owner
are counted; if there were any, the end of the minute says how many, by the last of them, and the next minute begins.

An owner is a name in a certificate, or the address (of IPv6, the network) of who has shown none: a certificate that
attacks must not hide what is wrong with another one behind the same address. A kind is the text without its numbers and
without the address of the peer. An owner has a few kinds at a time; what else is wrong with it counts together, so that
words of the peer's own in a text fill neither the log nor this table. So many kinds begin in a second; what else does
counts together, so that neither do very many addresses.
"""

from __future__ import annotations

import re

from waltz_core.access.admission import owner_of
from waltz_core.base.edge import Report

EVERY_MS = 60_000
KINDS_MAX = 16  # of one owner
KEPT_MAX = 1_000  # kinds of all owners; the one that is due first makes room
NEW_MAX = 20  # kinds that begin in a second; as many as are kept, in a minute
_REST = "the rest"
_OTHERS = "\0", _REST
_NUMBER = re.compile(r"\d+")


class _Kind:
    """A minute of one kind of one owner."""

    __slots__ = ("count", "last", "until")

    def __init__(self, last: Report, until: int) -> None:
        self.last = last
        self.until = until
        self.count = 0  # since the last line


class Complaints:
    """Says which reports about peers become lines."""

    __slots__ = ("_kinds", "_new", "_of_owner", "_second")

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, str], _Kind] = {}  # by owner and kind; who is due first stands first
        self._of_owner: dict[str, int] = {}  # how many of them
        self._second = -1
        self._new = 0  # kinds that began in it

    def __len__(self) -> int:
        return len(self._kinds)

    def put(self, now: int, report: Report) -> list[Report]:
        """Something is wrong with a peer; what is to be written now."""
        lines = self.due(now)
        owner = report.owner or owner_of(report.peer)
        key = owner, _NUMBER.sub("#", report.text.replace(report.peer, "") if report.peer else report.text)
        if key not in self._kinds and self._of_owner.get(owner, 0) >= KINDS_MAX:
            key = owner, _REST
        if key not in self._kinds and not self._may_begin(now):
            key = _OTHERS
        known = self._kinds.get(key)
        if known is not None:
            known.last = report
            known.count += 1
            return lines
        if len(self._kinds) >= KEPT_MAX:
            lines += self._end(next(iter(self._kinds)))
        self._kinds[key] = _Kind(report, now + EVERY_MS)
        self._of_owner[key[0]] = self._of_owner.get(key[0], 0) + 1
        lines.append(report)
        return lines

    def _may_begin(self, now: int) -> bool:
        """Whether one more kind may have a line of its own."""
        if now // 1_000 != self._second:
            self._second, self._new = now // 1_000, 0
        self._new += 1
        return self._new <= NEW_MAX

    def due(self, now: int) -> list[Report]:
        """What the minutes that are over have counted."""
        lines: list[Report] = []
        while self._kinds:
            key, kind = next(iter(self._kinds.items()))
            if kind.until > now:
                break
            counted = self._end(key)
            if counted:
                self._kinds[key] = _Kind(kind.last, now + EVERY_MS)
                self._of_owner[key[0]] = self._of_owner.get(key[0], 0) + 1
                lines += counted
        return lines

    def deadline(self) -> int | None:
        """When `due` has something to say, or to forget."""
        return next(iter(self._kinds.values())).until if self._kinds else None

    def _end(self, key: tuple[str, str]) -> list[Report]:
        """Forget a kind; the line of those that were counted."""
        kind = self._kinds.pop(key)
        self._of_owner[key[0]] -= 1
        if not self._of_owner[key[0]]:
            del self._of_owner[key[0]]
        if not kind.count:
            return []
        more = f"{kind.count} like this"
        if key[1] == _REST:
            more = f"{kind.count} things were wrong with {'others' if key == _OTHERS else 'this peer'}"
        text = f"{kind.last.text} ({more} within {EVERY_MS // 1000} s)"
        return [Report(kind.last.level, text, kind.last.peer)]
