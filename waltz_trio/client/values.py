"""What applications hand in and get back."""

from __future__ import annotations

import enum
import functools
import warnings
import zlib
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, TypeVar, overload

import attrs

from waltz_core.base.errors import PayloadInvalidError, UnknownHeaderError, WaltzError
from waltz_core.base.lock import Lock, id_hash, name_hash
from waltz_core.base.record import record
from waltz_core.client.retry import Retry as Retry
from waltz_core.wire.lock_names import UNNAMED, pack_text
from waltz_trio.client.arguments import check_codec, check_lock_id, explain_locks, whole
from waltz_trio.client.codecs import Codec, Codecs, Raw
from waltz_trio.client.shown import shown

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from waltz_core.base.ids import ReqId

T = TypeVar("T")

LockLike = Lock | tuple[str, int]
"""A lock, or its name and its 64-bit id."""

_RAW = Raw()


class Tail(enum.Enum):
    """The type of `TAIL`."""

    TAIL = "tail"


TAIL: Final = Tail.TAIL
"""Start behind the last committed transaction: only what is new."""


@record
class Append:
    """A transaction to be: what `append`, `send` and `decide` functions work with.

    Locks say what the decision depends on: the append is refused if a write or read lock was taken, as
    `write` or `append`, by a transaction newer than the state the decision was based on.

    A lock holds within the partition of its append: the same lock in two partitions protects nothing. What must not
    conflict belongs in one partition (`Client.partition_of`), or into two transactions with a compensation.
    """

    value: Any  # what `codec` turns into the payload
    codec: Codec[Any] = _RAW
    header: int = 0  # 32-bit number that travels with the feed; readers can select by it
    write: Iterable[LockLike] = ()  # checked and taken
    read: Iterable[LockLike] = ()  # checked only
    append: Iterable[LockLike] = ()  # taken only
    result: Any = None  # stays here: handed out as `Receipt.value` once this is committed


@record
class Key:
    """An idempotency key, and the request that it stands for.

    What `key_of` of `Keys` gives, and what `submit` takes. The request is what tells two requests apart, such as the
    arguments of `submit`: a key that comes again with another one is refused.
    """

    key: str  # text of 1 to 255 bytes, unique within its partition
    request: object = None  # numbers, text, times, lists, dicts, attrs classes…; not what depends on the state


class Receipt(int):
    """A committed transaction: its id, as a number, and how it came about.

    It is always true, also with id 0. Two receipts are equal if all of their fields are.
    """

    partition: int
    attempts: int = 1  # appends sent, the committed one included
    conflicts: int = 0  # appends refused because of a lock
    value: Any = None  # `Append.result` of the append that committed

    def __new__(
        cls, partition: int, transaction_id: int, attempts: int = 1, conflicts: int = 0, value: Any = None
    ) -> Self:
        self = int.__new__(cls, transaction_id)
        self.partition = partition
        if attempts != 1 or conflicts or value is not None:  # else the class says it, which costs nothing
            self.attempts, self.conflicts, self.value = attempts, conflicts, value
        return self

    @property
    def transaction_id(self) -> int:
        """The id as a plain number."""
        return int(self)

    def _fields(self) -> tuple[int, int, int, int, Any]:
        return self.partition, int(self), self.attempts, self.conflicts, self.value

    def __bool__(self) -> bool:
        return True  # or `if receipt` would take transaction 0 for a decline

    def __eq__(self, other: object) -> bool:
        return self._fields() == other._fields() if isinstance(other, Receipt) else int(self) == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(int(self))

    def __repr__(self) -> str:
        value = "" if self.value is None else f", value={self.value!r}"
        return (
            f"Receipt(partition={self.partition}, transaction_id={int(self)}, attempts={self.attempts}, "
            f"conflicts={self.conflicts}{value})"
        )

    def __reduce__(self) -> Any:
        return Receipt, self._fields()


@attrs.define(eq=False, repr=False, weakref_slot=False)
class Transaction:
    """One committed transaction of the feed."""

    partition: int
    id: int
    header: int
    req_id: ReqId
    _data: bytes | None
    _fetch: Callable[[int, int], Awaitable[bytes]] | None = None
    _line: ClassVar[str] = "await txn.fetch()"

    def __repr__(self) -> str:
        return f"Transaction(partition={self.partition}, id={self.id}, header={self.header})"

    @overload
    def load(self) -> bytes: ...

    @overload
    def load(self, codec: Codec[T]) -> T: ...

    @overload
    def load(self, codec: Codecs) -> Any: ...

    def load(self, codec: Codec[Any] | Codecs = _RAW) -> Any:
        """The payload as a value; it must be there: prefetched, in a view, or after `fetch`.

        Raises:
            PayloadInvalidError: `codec` cannot decode it.
            UnknownHeaderError: `codec` knows no codec for the header.
            RuntimeError: the payload was not fetched.
        """
        if self._data is None:
            raise RuntimeError(f"the payload of {self!r} was not fetched: use `{self._line}`, or prefetch")
        if codec is _RAW:  # costs as much as all the rest of a reader's loop otherwise
            return self._data
        chosen: Codec[Any] = codec.of(self.header) if isinstance(codec, Codecs) else codec
        try:
            return chosen.loads(self._data)
        except (WaltzError, UnknownHeaderError):
            raise
        except Exception as error:
            check_codec(chosen, reads=True)
            raise PayloadInvalidError(
                f"partition {self.partition}: the payload of transaction {self.id} cannot be decoded: {error}"
            ) from error

    async def fetch(self) -> bytes:
        """The raw payload, read from the server if it is not there yet. Waits as long as it takes.

        Raises:
            BeforeStartError: it was freed before it was read.
        """
        if self._data is None:
            assert self._fetch is not None
            self._data = await self._fetch(self.partition, self.id)
        return self._data


@record
class Batch:
    """Consecutive transactions of one partition, at least one."""

    partition: int
    transactions: tuple[Transaction, ...]

    @property
    def first_id(self) -> int:
        """Id of the first."""
        return self.transactions[0].id

    @property
    def last_id(self) -> int:
        """Id of the last: the mark once the batch is done."""
        return self.transactions[-1].id

    def __iter__(self) -> Iterator[Transaction]:
        return iter(self.transactions)

    def __len__(self) -> int:
        return len(self.transactions)


def key_partition(key: int | str, count: int) -> int:
    """The partition of a key among `count`, for ever the same."""
    if isinstance(key, str):
        key = zlib.crc32(key.encode())
    elif isinstance(key, bytes | float):
        raise TypeError(f"a key is a whole number or text, found {shown(key)}")
    return whole(key, "a key") % count


_names: dict[int, str] = {}


@functools.lru_cache(maxsize=10_000)
def _of_name(name: str) -> tuple[int, bytes]:
    """Its hash, and its name as sent: packed, empty where it is no proper text."""
    value = name_hash(name)
    other = _names.setdefault(value, name)
    if other != name:
        warnings.warn(
            f"lock names {other!r} and {name!r} have the same hash: their locks conflict with each other",
            RuntimeWarning,
            stacklevel=4,
        )
    return value, pack_text(name) if name.encode(errors="ignore").decode() == name else b""


_SMALL = 1 << 31
_INT_64 = 1 << 63
_pack_id = Struct(">q").pack


def lock_hashes(
    locks: Iterable[LockLike], names: list[bytes] | None = None, count_max: int = _INT_64
) -> tuple[int, ...]:
    """The values that go on the wire: order and duplicates kept. `names` gets the packed name of each.

    Raises:
        TypeError: something that is no lock.
        ValueError: an id beyond 64 bits, or more than `count_max` locks.
    """
    hashes: list[int] = []
    try:
        for lock in locks:
            name, number = (lock.name, lock.id) if isinstance(lock, Lock) else lock
            if type(number) is not int or not -_INT_64 <= number < _INT_64:
                number = check_lock_id(number, lock)
            hash_of_name, packed = _of_name(name)
            # Both halves are signed 32-bit integers, and so is what xor makes of them; small ids are their own hash.
            hashes.append(hash_of_name ^ (number if 0 <= number < _SMALL else id_hash(number)))
            if names is not None:
                names.append(packed + _pack_id(number) if packed else UNNAMED)
            if len(hashes) > count_max:
                break
    except Exception as error:
        explain_locks(locks, error)
    if len(hashes) > count_max:
        raise ValueError(f"more than {count_max} locks in one append")
    return tuple(hashes)
