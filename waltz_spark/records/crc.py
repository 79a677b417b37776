"""CRC-32 of many records at once.

A call of zlib per record costs more than the checksum of a small record itself. CRC-32 is linear: the
checksum of a run is the sum, over its pieces, of each piece's checksum times x^(8 * bytes behind it). So one
zlib call over a whole run and a little polynomial arithmetic on the stored checksums tell whether *all* of
them are right, at any size. Polynomials are kept as zlib keeps them: bit 31 is x^0.

Cheaper still, where pieces are not too short: the stored checksum of a piece, added to the bytes behind it,
takes the piece out of the register of the CRC again. Then the checksum of the whole run is that of its last
piece, exactly if those of all pieces are right (up to one chance in 2^32, as with every CRC-32).
"""

from __future__ import annotations

import functools
import threading
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

try:  # vector instructions: ten times as fast
    from isal.isal_zlib import crc32 as _fast_crc32
except ImportError:  # pragma: no cover
    _fast_crc32 = zlib.crc32

Words = npt.NDArray[np.uint32]

crc32: Callable[..., int] = _fast_crc32
"""CRC-32 of bytes, as zlib's."""

SPAN_MAX = 1 << 24
"""Longest run, in bytes, that `combined` takes."""

_LOW = 1 << 12
_ONE = 0x80000000
_PIECE = 4096  # elements whose intermediate results stay in the cache


def _byte_table() -> Words:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(0xEDB88320), table >> 1)
    return table


_T = _byte_table()


def _zero_bytes(values: Words) -> Words:
    """Times x^8."""
    return np.asarray(_T[values & 0xFF] ^ (values >> 8))


def _halves() -> tuple[Words, ...]:
    """Tables by which two bytes at once are multiplied by x^32."""
    tables = []
    for shift in (0, 16):
        table = np.arange(1 << 16, dtype=np.uint32) << np.uint32(shift)
        for _ in range(4):
            table = _zero_bytes(table)
        tables.append(table)
    return tuple(tables)


_LOW_HALF, _HIGH_HALF = _halves()
_WORD = _zero_bytes(_zero_bytes(np.arange(1 << 16, dtype=np.uint32)))


def _times_x32(values: Words) -> Words:
    """Times x^32: what four zero bytes do."""
    found = _LOW_HALF.take(values & 0xFFFF)
    found ^= _HIGH_HALF.take(values >> 16)
    return found


_HOLES: tuple[Any, ...] = tuple(np.uint64(0x11111111 << shift) for shift in range(4))
_HOLES_WIDE: tuple[Any, ...] = tuple(np.uint64(0x1111111111111111 << shift) for shift in range(4))


def multiply(a: Words, b: Words) -> Words:
    """Products modulo the polynomial of CRC-32, element by element.

    Integer multiplication of numbers with three zero bits between any two bits carries nothing into the
    next one: at most eight ones meet in a place, which leaves the parity in the place itself.
    """
    if len(a) <= _PIECE:
        return _multiply(a, b)
    return np.concatenate([_multiply(a[at : at + _PIECE], b[at : at + _PIECE]) for at in range(0, len(a), _PIECE)])


def _multiply(a: Words, b: Words) -> Words:
    wide_a, wide_b = a.astype(np.uint64), b.astype(np.uint64)
    xs = [wide_a & hole for hole in _HOLES]
    ys = [wide_b & hole for hole in _HOLES]
    product, other = np.zeros_like(wide_a), np.empty_like(wide_a)
    for place in range(4):
        part = xs[0] * ys[place]
        for at in range(1, 4):
            part ^= np.multiply(xs[at], ys[(place - at) % 4], out=other)
        part &= _HOLES_WIDE[place]
        product |= part
    high = (product >> np.uint64(31)).astype(np.uint32)
    low = ((product & np.uint64(0x7FFFFFFF)) << np.uint64(1)).astype(np.uint32)
    return np.asarray(high ^ _times_x32(low))


def _powers(step: int, count: int) -> Words:
    """`step` to the powers 0 .. count - 1."""
    powers = np.array([_ONE], np.uint32)
    factor = np.array([step], np.uint32)
    while len(powers) < count:
        powers = np.concatenate([powers, multiply(powers, np.repeat(factor, len(powers)))])
        factor = multiply(factor, factor)
    return powers


_POWERS = _powers(0x00800000, _LOW)
_POWERS_HIGH = _powers(int(multiply(_POWERS[-1:], _POWERS[1:2])[0]), SPAN_MAX // _LOW + 1)


def _without_word(wanted: int) -> int:
    """The register that four zero bytes turn into `wanted`: each of the steps is reversed."""
    register = wanted
    for _ in range(32):
        register = (register ^ 0xEDB88320) << 1 | 1 if register >> 31 else register << 1
    return register & 0xFFFFFFFF


_RENEWED = np.uint32(_without_word(0xFFFFFFFF) ^ 0xFFFFFFFF)


_local = threading.local()


def _copy_of(run: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """The same bytes to be changed, good until the next call of this thread: fresh memory costs more than the copy."""
    room = getattr(_local, "room", None)
    if room is None or len(room) < len(run):
        room = np.empty(max(1 << 20, len(run)), np.uint8)
        if len(run) <= SPAN_MAX:
            _local.room = room
    found: npt.NDArray[np.uint8] = room[: len(run)]
    np.copyto(found, run)
    return found


def _words_at(buffer: npt.NDArray[np.uint8]) -> Any:
    """The 32-bit words that begin at each byte."""
    return np.ndarray((len(buffer) - 3,), "V4", buffer, strides=(1,))


def pieces_match(run: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], checksums: Words) -> bool:
    """Whether pieces that lie end to end have these checksums; quick if all but the first have four bytes.

    Args:
        run: the bytes; left as they are.
        starts: where each piece starts; the first at 0, the last one ends with the run.
    """
    inner = starts[1:]
    if len(inner) == 0:
        return crc32(run) == int(checksums[0])
    if int(np.diff(starts, append=len(run))[1:].min()) < 4:
        ends = np.append(inner, len(run))
        return len(run) <= SPAN_MAX and crc32(run) == combined(checksums, ends)
    scratch = _copy_of(run)
    words = _words_at(scratch)
    following = words[inner].view("<u4")
    following ^= checksums[:-1]
    words[inner] = following.view("V4")
    return crc32(scratch) == int(checksums[-1])


def own_match(run: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64]) -> bool:
    """Whether each of the pieces that lie end to end closes with the checksum, big-endian, of what is before it.

    Args:
        run: the bytes; left as they are.
        ends: behind each checksum.
    """
    scratch = _copy_of(run)
    words = _words_at(scratch)
    places = ends - 4
    # In their place go words that set the register back to what it is at the start of a piece.
    words[places] = (words[places].view(">u4").astype("<u4") ^ _RENEWED).view("V4")
    return crc32(scratch) == 0


def combined(checksums: Words, ends: npt.NDArray[np.int64]) -> int:
    """CRC-32 of a run from the checksums of its pieces.

    Args:
        checksums: of each piece by itself.
        ends: where each ends; rising, and the last is at most SPAN_MAX.
    """
    behind = ends[-1] - ends
    sums = multiply(checksums, _POWERS.take(behind & (_LOW - 1)))
    # `behind` falls: pieces with the same high part stand together and share one factor.
    high = behind >> 12
    starts = np.flatnonzero(np.concatenate([[True], high[1:] != high[:-1]]))
    factors = _POWERS_HIGH.take(high[starts])
    return int(np.bitwise_xor.reduce(multiply(np.bitwise_xor.reduceat(sums, starts), factors)))


def shifted(checksums: Words, sizes: npt.NDArray[np.int64]) -> Words:
    """Checksums times x^(8 * size): what they add to that of a piece with so many bytes behind them."""
    if int(sizes.max(initial=0)) < _LOW:
        kinds = np.flatnonzero(np.bincount(sizes, minlength=1))
        if len(kinds) <= _KINDS_MAX:
            return _shifted_by_tables(checksums, sizes, kinds)
    small = _POWERS.take(sizes & (_LOW - 1))
    if int(sizes.max(initial=0)) >= _LOW:
        high = np.full(len(sizes), _ONE, np.uint32)
        step = _POWERS_HIGH[1:2]
        left = sizes >> 12
        while left.any():  # by squaring: sizes beyond the tables are rare
            factor = np.where(left & 1, step[0], np.uint32(_ONE)).astype(np.uint32)
            high = multiply(high, factor)
            step = multiply(step, step)
            left = left >> 1
        small = multiply(small, high)
    return multiply(checksums, small)


_KINDS_MAX = 64  # sizes whose tables stay in the cache together


@functools.lru_cache(maxsize=4 * _KINDS_MAX)
def _shift_table(size: int) -> Words:
    """What each byte of a checksum adds, shifted by a size."""
    every = np.arange(256, dtype=np.uint32)
    rows = np.concatenate([every << np.uint32(shift) for shift in (0, 8, 16, 24)])
    return multiply(rows, np.full(len(rows), _POWERS[size], np.uint32))


def _shifted_by_tables(checksums: Words, sizes: npt.NDArray[np.int64], kinds: npt.NDArray[np.intp]) -> Words:
    table = np.concatenate([_shift_table(size) for size in kinds.tolist()])
    ranks = np.zeros(_LOW, np.uint32)
    ranks[kinds] = np.arange(len(kinds), dtype=np.uint32) << np.uint32(10)
    base = ranks.take(sizes)
    shifted: Words = table.take(base + (checksums & np.uint32(0xFF)))
    for byte in (1, 2, 3):
        shifted ^= table.take(base + (256 * byte + ((checksums >> np.uint32(8 * byte)) & np.uint32(0xFF))))
    return shifted


@functools.lru_cache(maxsize=64)
def _word_before(words: int) -> Words:
    """What a word adds to the checksum if so many words stand behind it."""
    return _WORD if words == 0 else _zero_bytes(_zero_bytes(_word_before(words - 1)))


def of_words(words: npt.NDArray[np.uint16]) -> Words:
    """CRC-32 of rows of 16-bit little-endian words, one row each.

    Columns that are the same in all rows, as most are in the heads of records, are gone through once.
    """
    varying = np.flatnonzero((words != words[0]).any(axis=0))
    common = words[0].copy()
    common[varying] = 0
    checksums: Words = np.full(len(words), zlib.crc32(common.tobytes()), np.uint32)
    for column in varying.tolist():
        checksums ^= _word_before(words.shape[1] - 1 - column).take(words[:, column])
    return checksums


def each(buffer: memoryview, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> Words:
    """CRC-32 of each piece, one zlib call apiece: to find which one is wrong."""
    found = [zlib.crc32(buffer[start:end]) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    return np.array(found, np.uint32)
