"""Field codecs where they differ from the obvious."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waltz_core.base.errors import ChecksumError, ProtocolError
from waltz_core.wire.primitives import (
    BOOL,
    DATA,
    FLOAT64,
    INT16,
    INT32,
    INT_LIST,
    INTS,
    STRING,
    TEXT,
    Negative,
    checksum_of,
    decode_text,
    encode_text,
    flags_by,
    list_of,
    optional,
    read_count,
    structure,
    verify,
)
from waltz_core.wire.shared import STATISTICS, Statistic


@pytest.mark.parametrize(("byte", "value"), [(0, False), (1, True), (2, False), (255, False)])
def test_only_one_is_true(byte: int, value: bool) -> None:
    assert BOOL.read(bytes([byte]), 0, 1) == (value, 1)


@pytest.mark.parametrize("count", [b"\xff\xff\xff\xff", b"\xff\xff\xff\xfb", b"\x80\x00\x00\x00"])
def test_a_negative_count_is_null_in_arrays_and_strings(count: bytes) -> None:
    assert INTS.read(count, 0, 4) == (None, 4)
    assert STRING.read(count, 0, 4) == (None, 4)
    assert flags_by(INT16).read(count, 0, 4) == ((), 4)
    assert list_of(INT16, Negative.EMPTY).read(count, 0, 4) == ((), 4)
    for field in (DATA, TEXT, INT_LIST, list_of(INT16)):
        with pytest.raises(ProtocolError, match=r"null|negative count"):
            field.read(count, 0, 4)


def test_a_count_is_compared_with_the_bytes_left_before_anything_is_read() -> None:
    with pytest.raises(ProtocolError, match="12 more bytes needed, 11 left"):
        read_count(b"\x00\x00\x00\x03" + bytes(11), 0, 15, 4)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"a\x00b", "a\0b"),
        ("\N{ROCKET} é".encode(), "\N{ROCKET} é"),
        (b"a\xc3b\xffc", "a�b�c"),
        (b"\xed\xa0\x80", "�"),  # an encoded surrogate is one malformed sequence to Java
        (b"\xed\xa0", "�"),
        (b"\xed\xbf\xbfx", "�x"),
        (b"\xed\xa0A", "�A"),
        (b"\xed\xa0\x80\xed\xb0\x80", "��"),
        (b"\xe1\xed\xa0\x80", "��"),
        (b"\xe1\x80", "�"),
        (b"\xf0\x90\x80A", "�A"),
        (b"\xf5\x80", "��"),
        (b"\xc0\x80", "��"),
    ],
)
def test_text_that_is_not_utf_8_has_as_many_replacements_as_in_java(data: bytes, text: str) -> None:
    assert decode_text(data) == text


def test_a_lone_surrogate_is_written_as_a_question_mark() -> None:
    assert encode_text("a\ud800b") == b"a?b"


@settings(deadline=None, database=None)
@given(st.binary())
def test_any_bytes_decode_to_some_text(data: bytes) -> None:
    decode_text(data).encode()


def test_the_last_of_equal_keys_wins() -> None:
    data = b"\x00\x00\x00\x02\x00\x05\x01\x00\x05\x00"
    assert flags_by(INT16).read(data, 0, len(data)) == (((5, False),), len(data))


@pytest.mark.parametrize("count", [0, 1, 32, 33, 100])
def test_int_arrays_of_any_size(count: int) -> None:
    values, out = tuple(range(-count, 0)), bytearray()
    INTS.write(out, values)
    assert INTS.read(bytes(out), 0, len(out)) == (values, len(out))
    assert INT_LIST.read(bytes(out), 0, len(out)) == (values, len(out))


def test_null_is_written_as_minus_one() -> None:
    for field in (INTS, STRING):
        out = bytearray()
        field.write(out, None)
        assert out == b"\xff\xff\xff\xff"


def test_an_optional_value_is_absent_unless_its_boolean_is_one() -> None:
    field = optional(INT16)
    out = bytearray()
    field.write(out, None)
    field.write(out, 7)
    assert out == b"\x00\x01\x00\x07"
    assert field.read(b"\x02\x00\x07", 0, 3) == (None, 1)


def test_checksums_are_signed() -> None:
    assert checksum_of(b"") == 0
    assert checksum_of(b"a") == 0xE8B7BE43 - (1 << 32)
    verify(b"a", checksum_of(b"a"))
    with pytest.raises(ChecksumError, match="checksum error: 1 announced, 1 bytes of data"):
        verify(b"a", 1)


@given(
    st.lists(st.builds(Statistic, st.text(max_size=9), st.integers(-(1 << 31), (1 << 31) - 1), st.floats()), max_size=9)
)
def test_figures_are_written_as_their_structure_is(figures: list[Statistic]) -> None:
    """They are written in a loop of their own, which knows each name once."""
    plain, written = bytearray(), bytearray()
    figure = structure(Statistic, {"name": TEXT, "partition_id": INT32, "value": FLOAT64})
    list_of(figure).write(plain, (*figures, *figures))
    STATISTICS.write(written, (*figures, *figures))
    assert written == plain
