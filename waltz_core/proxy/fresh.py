"""Which clients of a proxy cannot have an append under way that this process does not know of.

Those whose id was given out while this process was alone in its root: another one, started before or after it, could
have carried their appends. Whether it is alone, ZooKeeper says; up to where ids were given out, the process reads now
and then. Only a reading that began when it was alone already says that later ids are of its own time, so the first one
behind that moment counts.

    ── alone, and ids read once since ──▶ from then on, read again: ids above are fresh ── another is seen ──▶ none is
"""

from __future__ import annotations


class Fresh:
    """Client ids, by what was seen and read so far."""

    __slots__ = ("_above", "_alone", "_read")

    def __init__(self) -> None:
        self._alone = False
        self._read = False  # a reading has ended since it is alone, so the next one began in that time
        self._above: int | None = None

    def __contains__(self, client_id: int) -> bool:
        return self._above is not None and client_id > self._above

    def seen(self, *, alone: bool) -> None:
        """Whether this process is alone in its root."""
        self._alone = alone
        if not alone:
            self._read, self._above = False, None

    def given(self, client_id: int) -> None:
        """A reading said that ids up to this one were given out; the next one begins behind it."""
        if self._read and self._above is None:
            self._above = client_id
        self._read = self._alone
