"""What a submitter hears and says: its events and effects, see `submitter.py`."""

from __future__ import annotations

import enum
from typing import TypeAlias

from waltz_core.base.record import record
from waltz_core.client.calls import Failed, Reason
from waltz_core.client.keys import KeyEntry
from waltz_core.client.retry import Retry

# ---- events ----------------------------------------------------------------------------------------


@record
class SubmitBegun:
    """Somebody calls submit."""

    token: object
    retry: Retry
    confirm: bool = True  # a decline is confirmed by the server
    until_applied: bool = False
    request_hash: bytes | None = None  # of a submit with a key
    expects: tuple[int, ...] = ()  # locks that its append will probably write; if not, it has waited for nothing


@record
class Decided:
    """`decide` gave an append, with locks of these hashes; it waits to be sent."""

    token: object
    mark: int  # of the state that it saw
    write: tuple[int, ...] = ()
    read: tuple[int, ...] = ()
    append: tuple[int, ...] = ()


@record
class DecisionDeclined:
    """`decide` gave nothing."""

    token: object
    mark: int  # of the state that it saw


@record
class KeyFound:
    """The state has a transaction that carries the key; `decide` was not called."""

    token: object
    entry: KeyEntry


@record
class StateUnreadable:
    """The state could not be read, for a reason that may pass."""

    token: object


class Verdict(enum.Enum):
    """What became of an append."""

    COMMITTED = "committed"
    CONFLICT = "a lock was taken"
    LOST = "it is not in the log"
    REFUSED = "it is not in the log, and would be refused again"
    UNKNOWN = "unknown"


@record
class AppendJudged:
    """An append has an outcome."""

    token: object
    verdict: Verdict
    transaction_id: int = -1  # its own when committed; with a conflict, the one that blocked it


@record
class AppendsCommitted:
    """Appends are in the log: (token, transaction id) of each, in the order of the log."""

    outcomes: list[tuple[object, int]]


def judge(token: object, outcome: int | Failed) -> AppendJudged:
    """What the id of a transaction, or a failure, says of an append."""
    if not isinstance(outcome, Failed):
        return AppendJudged(token, Verdict.COMMITTED, outcome)
    if outcome.reason is Reason.LOCK:
        return AppendJudged(token, Verdict.CONFLICT, outcome.blocking_id)
    if outcome.reason is Reason.REFUSED:
        return AppendJudged(token, Verdict.REFUSED)
    return AppendJudged(token, Verdict.LOST if outcome.reason.certain else Verdict.UNKNOWN)


@record
class Withdrawn:
    """Nobody waits for a token any more."""

    token: object


@record
class MarkWanted:
    """Somebody waits until the view has applied a mark; None = everything that is committed by now."""

    token: object
    mark: int | None


@record
class MarkAnswered:
    """The answer to `AskMark`; None: the server refuses to tell it."""

    mark: int | None


@record
class ViewApplied:
    """The view holds everything up to a mark."""

    mark: int


@record
class ViewPaused:
    """The view takes nothing from this partition any more."""


Event: TypeAlias = (
    SubmitBegun
    | Decided
    | DecisionDeclined
    | KeyFound
    | StateUnreadable
    | AppendJudged
    | AppendsCommitted
    | Withdrawn
    | MarkWanted
    | MarkAnswered
    | ViewApplied
    | ViewPaused
)

# ---- effects ---------------------------------------------------------------------------------------


@record
class Decide:
    """Read the state, look for the key, and call `decide`.

    Answered by Decided, DecisionDeclined, KeyFound, StateUnreadable or Withdrawn.
    """

    token: object


@record
class Send:
    """Send what was decided last. Answered by AppendJudged, or with others by AppendsCommitted."""

    token: object


@record
class AskMark:
    """Ask the server for its committed mark, by a question that leaves after this."""


@record
class SubmitDone:
    """A submit committed, or declined with `transaction_id` None."""

    token: object
    transaction_id: int | None
    attempts: int  # appends sent
    conflicts: int


@record
class GaveUp:
    """The limits of a submit allow no further attempt, or the server refused the last one for good."""

    token: object
    attempts: int  # tries
    gated: bool = False  # the last wait was for another submit of this process, with one of the same locks


@record
class KeyReused:
    """The key belongs to another request."""

    token: object
    transaction_id: int  # that carries it


@record
class OutcomeUnknown:
    """An append ended without a verdict."""

    token: object


@record
class MarkReached:
    """The view has applied what somebody waited for."""

    token: object
    mark: int


@record
class NoMark:
    """The server refuses to tell what is committed: nobody can say whether a state holds it."""

    token: object


@record
class Unavailable:
    """The view is paused: nothing can be waited for."""

    token: object


Effect: TypeAlias = (
    Decide | Send | AskMark | SubmitDone | GaveUp | KeyReused | OutcomeUnknown | MarkReached | NoMark | Unavailable
)
