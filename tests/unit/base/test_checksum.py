"""The checksum of records: the same numbers, whoever computes them."""

from __future__ import annotations

import subprocess
import sys
import zlib

from hypothesis import given
from hypothesis import strategies as st

from waltz_core.base.checksum import CRC32_BY, crc32


@given(data=st.binary(max_size=5000), cut=st.integers(0, 5000))
def test_checksums_are_those_of_zlib_in_one_piece_and_in_two(data: bytes, cut: int) -> None:
    wanted = zlib.crc32(data)
    assert crc32(data) == crc32(bytearray(data)) == crc32(memoryview(data)) == wanted
    assert crc32(memoryview(data)[cut:], crc32(data[:cut])) == wanted


def test_without_isal_the_core_takes_zlib() -> None:
    program = (
        "import sys; sys.modules['isal'] = None; "
        "from waltz_core.base import checksum; print(checksum.CRC32_BY, checksum.crc32(b'123456789'))"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["zlib", str(0xCBF43926)]
    assert CRC32_BY == "isal"  # which the tests run with
