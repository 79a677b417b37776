"""Turns an append into what travels: bytes, a header, and hashes of locks. What a caller may get wrong is found here.

This runs once for each append. What can be looked at once is: types of arguments by identity, names of locks only where
there are any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from waltz_core.base.edge import Level
from waltz_core.base.lock import key_lock
from waltz_core.base.record import record
from waltz_core.client.columns import NO_LOCKS, RowLocks
from waltz_core.wire.lock_names import NO_NAMES, UNNAMED, name_at
from waltz_trio.client.arguments import as_payload, check_codec, not_an_append, whole
from waltz_trio.client.codecs import Raw
from waltz_trio.client.life import Life
from waltz_trio.client.values import Append, LockLike, lock_hashes

_INT_31 = 1 << 31
_HOMES_KEPT = 10_000  # locks whose partition is remembered
# Of this package's own protocols, such as those of a sink and of a store: they are taken in every partition.
_OUR_LOCKS = ("waltz.", "dcb.")
_NO_HASHES: tuple[int, ...] = ()


@record
class ClientLimits:
    """What an application may have under way; sizes in bytes."""

    max_in_flight: int = 5  # unresolved submits per partition
    send_window: int = 8 << 20  # unresolved payload above which `send` waits
    payload_size_max: int = 16 << 20
    locks_max: int = 10_000  # of one append


class LocksMaxError(ValueError):
    """An append has more locks than a server takes."""


class Encoder:
    """What one client appends, as it travels."""

    def __init__(self, life: Life, limits: ClientLimits, mark_for: Callable[[int], int]) -> None:
        self._life = life
        self._mark_for = mark_for  # a partition's mark for appends with locks that name none
        self._payload_size_max = limits.payload_size_max
        self._locks_max = limits.locks_max
        self._homes: dict[bytes, int] | None = {}  # lock → its partition; None: somebody was warned already

    def row(
        self, partition: int, append: Append, based_on: int | None, mark: int | ValueError | None = None
    ) -> tuple[bytes, int, RowLocks]:
        """Payload, header and locks of an append, as they travel.

        Args:
            partition: where it goes.
            append: as the caller gave it.
            based_on: what the caller says that it is based on.
            mark: of the feed when the caller handed it over, or why there was none; None: it is as it is now.
        """
        if type(append) is not Append and not isinstance(append, Append):
            raise not_an_append(append)
        value = append.value
        if type(append.codec) is Raw and type(value) is bytes and len(value) <= self._payload_size_max:
            data = value
        else:
            data = self.payload(append)
        header = append.header if type(append.header) is int else whole(append.header, "a header")
        if not -_INT_31 <= header < _INT_31:
            raise ValueError(f"a header has 32 bits, from -2**31 to 2**31 - 1, found {header}")
        if not (append.write or append.read or append.append):
            return data, header, NO_LOCKS
        taken: list[bytes] = []
        write, read, adds = self._hashes(append, taken)
        if self._homes is not None:
            self._check_homes(partition, taken)
        names = b"".join(taken) if len(taken) > 1 else taken[0] if taken else NO_NAMES
        if names == UNNAMED:
            names = NO_NAMES
        if based_on is not None or not (write or read):
            mark = None
        elif mark is None:
            mark = self._mark_for(partition)
        elif isinstance(mark, ValueError):
            raise mark
        return data, header, RowLocks(mark, write, read, adds, names)

    def payload(self, append: Append) -> bytes:
        """Of an append, by its codec."""
        try:
            data = append.codec.dumps(append.value)
        except (TypeError, AttributeError):
            check_codec(append.codec)
            raise
        if type(data) is not bytes:
            data = as_payload(data, append.codec)
        if len(data) > self._payload_size_max:
            raise ValueError(
                f"payload of {len(data)} bytes, at most {self._payload_size_max} accepted (server.payloadSizeMax)"
            )
        return data

    def expected(self, locks: Iterable[LockLike], key: str | None) -> tuple[int, ...]:
        """Locks that an append will probably write, as they travel; that of its key is certain."""
        hashes = lock_hashes(locks, None, self._locks_max)
        return hashes if key is None or not hashes else (*hashes, *lock_hashes((key_lock(key),)))

    def _hashes(self, append: Append, names: list[bytes]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Write, read and append locks as they travel; `names` gets all of their names, in this order."""
        limit = self._locks_max
        try:
            write = lock_hashes(append.write, names, limit) if append.write else _NO_HASHES
            read = lock_hashes(append.read, names, limit - len(write)) if append.read else _NO_HASHES
            adds = lock_hashes(append.append, names, limit - len(write) - len(read)) if append.append else _NO_HASHES
        except ValueError:
            if len(names) <= limit:
                raise
            raise LocksMaxError(f"more than {limit} locks in one append (server.locksMax)") from None
        return write, read, adds

    def _check_homes(self, partition: int, locks: list[bytes]) -> None:
        """Warn, once in the life of this client, of a lock that goes to two partitions and so protects nothing."""
        homes = self._homes
        assert homes is not None
        for lock in locks:
            home = homes.setdefault(lock, partition)
            if home != partition and lock != UNNAMED and not _is_ours(lock):
                self._homes = None
                self._life.report(
                    Level.WARNING,
                    f"lock {name_at(lock, 0)} is used in partitions {home} and {partition}, but a lock holds within "
                    "one partition: it protects neither from the other. Append what must not conflict to one "
                    "partition, such as partition_of(KEY). Said once for each client",
                )
                return
        while len(homes) > _HOMES_KEPT:
            del homes[next(iter(homes))]


def _is_ours(lock: bytes) -> bool:
    named = name_at(lock, 0)
    return named is not None and named[0].startswith(_OUR_LOCKS)
