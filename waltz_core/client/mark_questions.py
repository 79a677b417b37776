"""Who shares a question for the committed mark.

An answer counts only for those who waited when its question left: it may be older than what came later. Who comes
while a question is under way therefore shares the next one, however many there are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

W = TypeVar("W")


class MarkQuestions(Generic[W]):
    """The question under way and the next one."""

    __slots__ = ("_asked", "_next")

    def __init__(self) -> None:
        self._asked: dict[W, None] | None = None  # None: no question is under way
        self._next: dict[W, None] = {}

    def join(self, who: W) -> bool:
        """Wait for a question that leaves now (True: it is to be sent), or for the next one."""
        if self._asked is None:
            self._asked = {who: None}
            return True
        self._next[who] = None
        return False

    def answered(self) -> tuple[Iterable[W], bool]:
        """For whom the answer is, and whether the next question leaves now."""
        answered = self._asked or {}
        self._asked, self._next = self._next or None, {}
        return answered, self._asked is not None

    def forget(self, who: W) -> None:
        """Who does not wait any more; a question under way is answered to the others."""
        if self._asked is not None:
            self._asked.pop(who, None)
        self._next.pop(who, None)
