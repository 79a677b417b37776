"""Java's modified UTF-8: UTF-16 units, each in one to three bytes.

NUL takes two bytes and a character beyond U+FFFF is a pair of three-byte surrogates, so ordinary UTF-8
reads neither. Lone surrogates survive in both directions.
"""

from __future__ import annotations

from waltz_core.base.errors import ProtocolError

SIZE_MAX = 0xFFFF


def encode_modified_utf8(text: str) -> bytes:
    """The bytes of `text`, without the length.

    Raises:
        ProtocolError: more than 65,535 bytes, which the two-byte length in front cannot say.
    """
    if "\0" in text or any(character > "\uffff" for character in text):
        units = text.encode("utf-16-be", "surrogatepass")
        pieces = bytearray()
        for at in range(0, len(units), 2):
            unit = units[at] << 8 | units[at + 1]
            pieces += chr(unit).encode("utf-8", "surrogatepass") if unit else b"\xc0\x80"
        encoded = bytes(pieces)
    else:
        encoded = text.encode("utf-8", "surrogatepass")
    if len(encoded) > SIZE_MAX:
        raise ProtocolError(f"text of {len(encoded)} bytes, at most {SIZE_MAX} fit in front of a two-byte length")
    return encoded


def decode_modified_utf8(data: bytes) -> str:
    """The text in `data`; as lenient as Java: a raw 00 byte and over-long forms are read.

    Raises:
        ProtocolError: a stray continuation byte, a lead byte f0–ff, or a sequence cut short.
    """
    if data.isascii():
        return data.decode("ascii")
    units = bytearray()
    at, size = 0, len(data)
    while at < size:
        lead = data[at]
        if lead < 0x80:
            unit, width = lead, 1
        elif 0xC0 <= lead < 0xE0:
            unit, width = lead & 0x1F, 2
        elif 0xE0 <= lead < 0xF0:
            unit, width = lead & 0x0F, 3
        else:
            raise ProtocolError(f"text: byte {lead:02x} at {at} starts no character of modified UTF-8")
        if at + width > size:
            raise ProtocolError(f"text: character at {at} is cut by the end")
        for follower in data[at + 1 : at + width]:
            if follower & 0xC0 != 0x80:
                raise ProtocolError(f"text: byte {follower:02x} where the character at {at} should go on")
            unit = unit << 6 | follower & 0x3F
        units += unit.to_bytes(2, "big")
        at += width
    return units.decode("utf-16-be", "surrogatepass")
