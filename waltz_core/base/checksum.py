"""CRC-32, which every record carries: on the wire and on disk, for each of its copies.

ISA-L's function gives the same numbers as zlib's, by vector instructions: 0.06 µs for 200 bytes instead of 0.15, 17 µs
for a megabyte instead of 234. It is used where the package `isal` is installed.
"""

from __future__ import annotations

from typing import Final

try:
    from isal.isal_zlib import crc32
except ImportError:  # it is an extra
    from zlib import crc32

__all__ = ["CRC32_BY", "crc32"]

CRC32_BY: Final = crc32.__module__.partition(".")[0]
"""Whose function it is, for people: `isal` or `zlib`."""
