"""An append of a gateway: tried again where that is safe, and committed once at most for its idempotency key.

A gateway has no view in which keys could be remembered, and a second gateway may serve the same topic. So a key says
itself from where on it may be in the log: `MARK:TEXT`, where MARK is a committed mark from before the first attempt.
All attempts of one key then have one MARK by definition, whichever gateway carries them, and this holds:

- The record carries its key (a member of its JSON payload), and the append takes a write lock on the key.
- No attempt is sent before the log up to the mark it is based on has been searched from MARK on. If a transaction there
  carries the key, that is the answer, and nothing is sent.
- An attempt that is based on mark B and committed as X saw no other transaction with the key's lock in (B, X). With the
  search of (MARK, B], no transaction in (MARK, X) carries the key. So of all attempts one commits at most.
- Where the caller has locks of his own, B is the mark that he decided on, also where MARK is newer: based on MARK, his
  locks would be off between the two. Nothing is to be searched then before it is sent.

    begin ──► AskMark ──► LookUp (MARK, base] ──► Send ──► committed                              ──► done
                 ▲                                 ▲  └──► lost: it is not in the log  ──► AskMark ──► Send again
                 │                                 │  └──► refused: a lock was taken up to Y
                 │                                 │          └──► LookUp (base, mark ≥ Y] ──► found: done
                 │                                 └── only the key's lock could be it ◄───┴──► refused for good
                 └ unless the marks are known to be committed

A mark that is not committed yet would switch the locks off, so marks are held against the log's own before all else,
and again where an append was lost: what the gateway knew may be of a log that was restored since.
The refusal of a key's lock alone, without a transaction that carries the key, is one of chance: another lock shares its
place in the server's table, or the table is younger than the key. The search has shown that, and the next attempt is
based on where it ended.
"""

from __future__ import annotations

import re
from typing import TypeAlias, assert_never

from waltz_core.base.lock import Lock, key_lock
from waltz_core.base.record import record
from waltz_core.gateway import json_text
from waltz_core.gateway.problems import Outcome, Problem

_KEY = re.compile(r"(-1|[0-9]{1,18}):[A-Za-z0-9._~-]{1,128}")
ATTEMPTS_MAX = 5


@record
class Key:
    """An idempotency key."""

    text: str  # MARK:TEXT
    mark: int

    @property
    def lock(self) -> Lock:
        """What each append with this key takes."""
        return key_lock(self.text)


def parse_key(text: str) -> Key | None:
    """A key from its text, None if it is none."""
    return Key(text, int(text.partition(":")[0])) if _KEY.fullmatch(text) else None


@record
class Carrier:
    """The transaction that carries a key."""

    transaction_id: int
    same: bool  # its payload and header are those of this request


def carrier(
    key: Key, field: str, payload: bytes, header: int, transaction_id: int, data: bytes, its: int
) -> Carrier | None:
    """Whether a transaction carries a key."""
    if key.text.encode() not in data:
        return None
    try:
        value = json_text.parse(data)
    except ValueError:
        return None
    if not isinstance(value, dict) or value.get(field) != key.text:
        return None
    return Carrier(transaction_id, data == payload and its == header)


# ---- events and effects --------------------------------------------------------------------------------


@record
class Begun:
    """The append is admitted; `known` is a mark of which the gateway knows that it is committed."""

    known: int


@record
class MarkAnswered:
    """The committed mark, asked of a server now."""

    mark: int


@record
class Searched:
    """The range was searched; its first transaction that carries the key."""

    carrier: Carrier | None


@record
class Committed:
    """The append is in the log."""

    transaction_id: int


@record
class Refused:
    """The append was refused: a lock was taken up to `blocking_id`."""

    blocking_id: int
    lock: Lock | None = None  # where the server says which


@record
class Lost:
    """The append was judged lost: it is not in the log and never will be."""

    why: str
    for_good: bool = False  # a server refuses it for what it is, and would again


Event: TypeAlias = Begun | MarkAnswered | Searched | Committed | Refused | Lost


@record
class AskMark:
    """Ask a server for the committed mark."""


@record
class LookUp:
    """Search a range of committed transactions for the key."""

    first: int
    last: int


@record
class Send:
    """Append, based on a mark."""

    based_on: int | None


@record
class Done:
    """The append is in the log, once."""

    transaction_id: int
    repeated: bool  # an earlier attempt had put it there


Effect: TypeAlias = AskMark | LookUp | Send | Done | Problem


class AppendMachine:
    """One append, with a key or without: each event has one effect, the last one is Done or Problem."""

    __slots__ = ("_attempts", "_base", "_key", "_locked", "_lost", "_mark", "_refused", "_searched", "_window")

    def __init__(self, key: Key | None, mark: int | None, *, locked: bool, window: int) -> None:
        """Prepare.

        Args:
            key: the idempotency key.
            mark: of the state that the caller's decision was based on.
            locked: the caller names write or read locks.
            window: how many transactions are searched for a key at most.
        """
        assert mark is not None or not locked
        self._key = key
        self._locked = locked
        self._window = window
        self._mark = mark if locked else None  # without locks of its own an append is based on nothing
        self._base: int | None = self._mark
        if key is not None and self._mark is None:
            self._base = key.mark
        self._searched = -1 if key is None else key.mark  # up to here no transaction behind MARK carries the key
        self._attempts = 0
        self._refused: Refused | None = None
        self._lost = ""  # why the last attempt is not in the log, while the mark is asked for

    def step(self, event: Event) -> Effect:
        """What is to be done next."""
        match event:
            case Begun(known=mark):
                return AskMark() if self._newest > mark else self._search_or_send()
            case MarkAnswered(mark):
                return self._on_mark(mark)
            case Searched(carrier=None):
                return self._not_found()
            case Searched(carrier=it):
                assert it is not None
                return Done(it.transaction_id, repeated=True) if it.same else _reused(it.transaction_id)
            case Committed(transaction_id):
                return Done(transaction_id, repeated=False)
            case Refused():
                return self._on_refused(event)
            case Lost(why, for_good=True):
                return Problem(422, "append-refused", f"the cluster refuses this append: {why}", Outcome.REFUSED)
            case Lost(why):
                return self._on_lost(f"the append is not in the log ({why})")
            case _:
                assert_never(event)

    @property
    def _newest(self) -> int:
        """Of the marks that must be committed: the one that it is based on, and that of its key."""
        return max(-1 if self._base is None else self._base, -1 if self._key is None else self._key.mark)

    def _on_mark(self, mark: int) -> Effect:
        if self._refused is None:
            if self._newest <= mark:
                return self._again(self._lost) if self._lost else self._search_or_send()
            return Problem(
                409,
                "mark-ahead",
                f"mark {self._newest} is not committed yet: the log ends at {mark}; is this the right topic?",
                Outcome.REFUSED,
                more=(("mark", mark),),
            )
        return self._look_up(max(mark, self._refused.blocking_id))

    def _search_or_send(self) -> Effect:
        if self._key is not None and self._base is not None:
            return self._look_up(self._base)
        return self._send()

    def _look_up(self, last: int) -> Effect:
        """Search what was not searched yet."""
        assert self._key is not None
        if last - self._key.mark > self._window:
            return Problem(
                409,
                "key-too-old",
                f"more than {self._window} transactions are behind the mark of this key: they are not searched. This "
                "attempt appended nothing; whether an earlier one did is in the log behind that mark",
                Outcome.UNKNOWN,
            )
        if last <= self._searched:
            return self._not_found()
        first, self._searched = self._searched + 1, last
        return LookUp(first, last)

    def _not_found(self) -> Effect:
        refused, self._refused = self._refused, None
        if refused is None:
            return self._send()
        if self._locked:
            return _conflict(refused)
        self._base = self._searched
        return self._again("the lock on its key was refused by chance")

    def _on_refused(self, event: Refused) -> Effect:
        if self._key is None:
            return _conflict(event)
        self._refused = event
        return AskMark()

    def _on_lost(self, why: str) -> Effect:
        if self._base is None:
            return self._again(why)
        self._lost = why
        return AskMark()

    def _again(self, why: str) -> Effect:
        self._lost = ""
        if self._attempts < ATTEMPTS_MAX:
            return self._send()
        return Problem(503, "not-committed", f"{why}; it is safe to send it again", Outcome.REFUSED, retry_after=1)

    def _send(self) -> Effect:
        self._attempts += 1
        return Send(self._base)


def _conflict(refused: Refused) -> Problem:
    lock = refused.lock
    which = "a lock" if lock is None else f"lock {lock.name}/{lock.id}"
    return Problem(
        409,
        "lock-conflict",
        f"{which} was taken after the mark, up to transaction {refused.blocking_id}: read up to there and decide anew",
        Outcome.REFUSED,
        more=(("blockingId", refused.blocking_id),),
    )


def _reused(transaction_id: int) -> Problem:
    return Problem(
        409,
        "key-reused",
        f"transaction {transaction_id} carries this key with another request; a new request needs a key of its own",
        Outcome.REFUSED,
        more=(("id", transaction_id),),
    )
