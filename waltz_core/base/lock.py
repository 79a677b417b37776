"""A lock as applications name it, the hash of it that travels, and what is said of one that was refused."""

from __future__ import annotations

import enum
import hashlib
from struct import unpack

from waltz_core.base.record import record

_MASK_32 = 0xFFFFFFFF
_MASK_64 = 0xFFFFFFFFFFFFFFFF
_SIGN_32 = 0x80000000
_KEY_LOCK = "waltz.key"


def signed(value: int) -> int:
    """The low 32 bits as Java reads them: an int with a sign."""
    value &= _MASK_32
    return value - (1 << 32) if value & _SIGN_32 else value


def name_hash(name: str) -> int:
    """Hash of a lock's name over its UTF-16 code units, as a signed int32."""
    units = name.encode("utf-16-be", "surrogatepass")
    value = 0
    for unit in unpack(f">{len(units) // 2}H", units):
        value = (31 * value + unit) & _MASK_32
    return signed(value)


def id_hash(lock_id: int) -> int:
    """Both halves of a signed 64-bit id folded into a signed int32."""
    unsigned = lock_id & _MASK_64
    return signed(unsigned ^ (unsigned >> 32))


@record
class Lock:
    """A lock as applications name it; only its hash travels, so different locks may share one."""

    name: str
    id: int  # signed 64-bit

    def wire(self) -> int:
        """The signed int32 that goes on the wire (Java: PartitionLocalLock.hashCode)."""
        return signed(name_hash(self.name) ^ id_hash(self.id))


def key_lock(key: str) -> Lock:
    """The lock that an append with a key takes. Its id has 64 bits of a hash: two keys may have to share it."""
    return Lock(_KEY_LOCK, int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big", signed=True))


class Conflict(enum.IntEnum):
    """Whether a refused lock was really taken."""

    UNKNOWN = 0  # the server does not remember far enough back
    TRUE = 1  # the blocking transaction holds a write or append lock of the same hash
    FALSE = 2  # no such transaction behind the client's mark: the lock table was too coarse, or new


class LockKind(enum.IntEnum):
    """Which of the three lists of a request."""

    NONE = -1
    WRITE = 0
    READ = 1
    APPEND = 2
