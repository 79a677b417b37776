"""Appends and submits whose outcome is asked for later."""

from __future__ import annotations

import waltz_trio as trio_front
from waltz_asyncio.bridge import call, documented
from waltz_sync.portal import Portal
from waltz_trio.client.many import Outcomes
from waltz_trio.client.shown import shown
from waltz_trio.client.values import Receipt


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

    @documented(trio_front.Pending.outcome)
    async def outcome(self) -> Receipt:
        self._portal.check_own()
        if self._pending.done:
            return self._pending._receipt()
        return await call(self._portal, self._pending.outcome)


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

    @documented(trio_front.PendingMany.outcomes)
    async def outcomes(self) -> Outcomes:
        self._portal.check_own()
        if self._pending.done:
            return self._pending._outcomes()
        return await call(self._portal, self._pending.outcomes)


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
        """The last append that was sent; None: nothing was, and after a cancellation nothing will be."""
        pending = self._inner.pending
        return None if pending is None or self._portal is None else Pending(self._portal, pending)
