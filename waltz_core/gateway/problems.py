"""The answer to a request that cannot be carried out: a status, a word for programs, a sentence for people."""

from __future__ import annotations

import enum

from waltz_core.base.record import record


class Outcome(enum.Enum):
    """What became of an append, as far as it is known."""

    REFUSED = "refused"  # it is not in the log, and this request will never be
    UNKNOWN = "unknown"  # it may be in the log now, or come into it


@record
class Problem:
    """Why a request was not done."""

    status: int  # of HTTP
    code: str  # for programs; it stays the same when the text changes
    detail: str  # for people
    outcome: Outcome | None = None  # of an append
    retry_after: int = 0  # seconds; 0 = nothing is said
    more: tuple[tuple[str, int | str | bool | None], ...] = ()  # further members of the answer


class RequestError(Exception):
    """A request that cannot be understood."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


def refused(status: int, code: str, detail: str) -> RequestError:
    """What is raised for a request that cannot be understood."""
    return RequestError(Problem(status, code, detail))
