"""What the log must say is wrong with a peer, by attack and port.

A line that names an address is not enough: it must say what that peer did.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from tests.attacks.messages import PROTOCOLS

_HANDSHAKE = r"no TLS handshake|TLS handshake failed|too many connections without a TLS handshake"
_SILENT = r"asked for nothing|cluster key was not shown|no greeting|the limit for one address"
_STRANGE = r"not of this cluster|cluster key was not shown"
_CORRUPT = r"closed: .*(magic byte|version \d|frame|unknown message type|corrupted|negative|checksum|is null|surplus)"
_MISPLACED = r"is not a message|is not a request|times at once|under request ids|may not|audit: refused|: refused"
_BROKEN = r"in the middle of a frame|unfinished frames|a frame of more than"

_TLS = {
    "silence": _HANDSHAKE,
    "idleness": _SILENT,
    "resets": _HANDSHAKE,
    "drip": _HANDSHAKE,
    "half_open": "",  # a peer that greets, ends its half and asks for nothing keeps to the rules
    "extremes": _CORRUPT,
    "flood": rf"asks for more than its part|{_MISPLACED}|{_STRANGE}",
    "unread": rf"asks for more than its part|takes data too slowly|{_MISPLACED}|{_STRANGE}|{_SILENT}",
    "fields": rf"{_CORRUPT}|{_MISPLACED}|{_STRANGE}",
    "halves": rf"{_BROKEN}|{_HANDSHAKE}|{_MISPLACED}|{_STRANGE}|{_SILENT}",
    "lies": rf"{_MISPLACED}|{_STRANGE}",
    "updates": rf"messages of TLS itself|{_HANDSHAKE}",
}
_HTTP_REFUSED = (
    r"the WebSocket was ended|an HTTP request was refused|too many HTTP connections|broke in the middle of a request"
)
_HTTP = dict.fromkeys(_TLS, _HTTP_REFUSED) | {
    "silence": "too many HTTP connections",
    "flood": "more HTTP requests than its part",
    "unread": "more HTTP requests than its part|too slow",
    "bodies": _HTTP_REFUSED,
    "readers": _HTTP_REFUSED,
}
_GATEWAY = _HTTP | dict.fromkeys(("flood", "unread"), f"{_HTTP_REFUSED}|more HTTP requests than its part|too slow")


def named(attack: str, protocol: str, lines: Iterable[str]) -> bool:
    """Whether a line names the peer and says what is wrong with it."""
    wrong = (_TLS if protocol in PROTOCOLS else _GATEWAY if protocol == "gateway" else _HTTP)[attack]
    if not wrong:
        return True
    return any("WARNING" in line and "127.0.0.1:" in line and re.search(wrong, line) for line in lines)
