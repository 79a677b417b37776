"""Appends and submits whose outcome is asked for later."""

from __future__ import annotations

import waltz_trio as trio_front
from waltz_sync.callers import check_timeout
from waltz_sync.portal import Portal
from waltz_trio.client.many import Outcomes
from waltz_trio.client.shown import shown
from waltz_trio.client.values import Receipt

_OUTCOME_LATE = (
    "the outcome is unknown yet: the append stays under way, and may commit. Call outcome() again to learn it"
)

_OUTCOMES_LATE = (
    "some outcomes are unknown yet: the appends stay under way, and may commit. Call outcomes() again to learn them"
)


class Pending:
    """An append that was sent; its outcome is kept whether or not a caller waits."""

    __slots__ = ("_pending", "_portal", "partition")

    def __init__(self, portal: Portal, pending: trio_front.Pending) -> None:
        self.partition = pending.partition
        self._portal = portal
        self._pending = pending

    @property
    def done(self) -> bool:
        """The outcome is known; `outcome` returns or raises at once."""
        return self._pending.done

    def outcome(self, *, timeout: float | None = None) -> Receipt:
        """A receipt: the transaction id, and more.

        Raises:
            TimeoutError: not known within `timeout` seconds; ask again.
            LockConflictError: refused because of a lock.
            NotCommittedError: lost; it is safe to append again.
            ClientAheadError: the log is behind this client; the outcome is unknown.
            BeforeStartError: history was freed that this client has not seen; likewise.
            ClientClosedError: the client was closed before the outcome was known.
            ClientFailedError: the client broke before the outcome was known.
        """
        self._portal.check()
        check_timeout(timeout)
        if self._pending.done:
            return self._pending._receipt()
        return self._portal.call(self._pending.outcome, timeout, _OUTCOME_LATE)


class PendingMany:
    """Appends that were sent by one call; their outcomes are kept whether or not a caller waits."""

    __slots__ = ("_pending", "_portal", "partition")

    def __init__(self, portal: Portal, pending: trio_front.PendingMany) -> None:
        self.partition = pending.partition
        self._portal = portal
        self._pending = pending

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def done(self) -> bool:
        """All outcomes are known; `outcomes` returns or raises at once."""
        return self._pending.done

    def outcomes(self, *, timeout: float | None = None) -> Outcomes:
        """For each, in their order: a receipt, or the error that says why it is not in the log.

        Raises:
            TimeoutError: not all known within `timeout` seconds; ask again.
            ClientAheadError: the log is behind this client; the outcome of some is unknown.
            BeforeStartError: history was freed that this client has not seen; likewise.
            ClientClosedError: the client was closed before all outcomes were known.
            ClientFailedError: the client broke before all outcomes were known.
        """
        self._portal.check()
        check_timeout(timeout)
        if self._pending.done:
            return self._pending._outcomes()
        return self._portal.call(self._pending.outcomes, timeout, _OUTCOMES_LATE)


class Submission:
    """A handle to a `submit` whose caller may not wait for its end: `submit(..., submission=handle)`."""

    __slots__ = ("_inner", "_portal")

    def __init__(self) -> None:
        self._inner = trio_front.Submission()
        self._portal: Portal | None = None

    @classmethod
    def _on(cls, portal: Portal, given: Submission | None) -> Submission:
        """The handle of a call: the caller's, or one that nobody looks at."""
        handle = cls() if given is None else given
        if not isinstance(handle, cls):
            raise TypeError(f"expected a Submission, found {shown(handle)}; write submission=Submission()")
        handle._portal = portal
        return handle

    @property
    def pending(self) -> Pending | None:
        """The last append that was sent; None: nothing was, and after a TimeoutError nothing will be."""
        pending = self._inner.pending
        return None if pending is None or self._portal is None else Pending(self._portal, pending)
