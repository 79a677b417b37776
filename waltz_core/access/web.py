"""Who may see the console: rules over what a browser says of a request.

A browser on this machine is also driven by every page that its user has open. Such a page cannot read our answers as
long as we send no CORS header, unless its name resolves to this machine (DNS rebinding): then it is "the same origin"
for the browser, and only the `Host` header gives it away. Hence the rule that on loopback `Host` must name loopback.
"""

from __future__ import annotations

import enum
import hmac
import ipaddress
from collections.abc import Mapping

from waltz_core.access.roles import Access
from waltz_core.base.record import record


class Door(enum.Enum):
    """Who is let in."""

    OFF = "off"
    LOOPBACK = "loopback"  # processes of this machine
    CERTIFICATE = "certificate"  # who shows a certificate of the authority, with a role


@record
class Visit:
    """One request, as far as the rules look at it."""

    peer: str  # host:port
    headers: Mapping[str, str]  # names in lower case
    top: bool  # asks for the page itself, which a link elsewhere may lead to; it holds no data
    access: Access | None = None  # of the certificate shown; None: not over TLS
    token: str = ""  # that it brought


@record
class Refusal:
    """Why a request is not served."""

    status: int
    why: str


def refusal(door: Door, visit: Visit, token: str = "") -> Refusal | None:
    """Whether a request must be refused.

    Args:
        door: who is let in.
        visit: the request.
        token: that it must bring; empty: none.
    """
    if door is Door.OFF:
        return Refusal(404, "the console is switched off here (server.console)")
    if door is Door.CERTIFICATE:
        if visit.access is None:
            return Refusal(403, "the console is served over TLS, to whom shows a certificate")
        if not (visit.access.unrestricted or visit.access.roles):
            return Refusal(403, f"{visit.access.who} has no role in this cluster")
    elif not is_loopback(host_of(visit.peer)):
        return Refusal(
            403,
            "the console is shown on this machine alone: open it through `ssh -L`, run `waltz console` where you are, "
            "or set server.console to certificate",
        )
    host = visit.headers.get("host", "")
    if door is Door.LOOPBACK and not is_loopback(host_of(host)):
        return Refusal(421, f"the Host header names {host!r}, which is not this machine: use localhost")
    origin = visit.headers.get("origin")
    if origin is not None and origin.partition("://")[2] != host:
        return Refusal(403, f"asked by a page of {origin!r}: other sites may not read the console")
    if not visit.top and visit.headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        return Refusal(403, "asked by a page of another site")
    if token and not hmac.compare_digest(token.encode(), visit.token.encode()):
        return Refusal(403, "the address that `waltz console` printed ends in a token, which is missing here")
    return None


def may_read(visit: Visit, partition_id: int, *, certificates_asked: bool) -> Refusal | None:
    """Whether payloads of a partition may be shown.

    Args:
        visit: the request, let in by `refusal`.
        partition_id: of the log.
        certificates_asked: clients of the cluster need a certificate: then its log is not for who shows none.
    """
    if visit.access is None:
        if not certificates_asked:
            return None
        return Refusal(
            403,
            "clients of this cluster show certificates, and this page was asked for without one: run "
            "`waltz console -c CONFIG` with your own, and the log is shown as far as its role goes",
        )
    if visit.access.reads(partition_id):
        return None
    return Refusal(403, f"{visit.access.who} may not read partition {partition_id}")


def host_of(address: str) -> str:
    """`h:1` → `h`, `[::1]:1` → `::1`, `::1` and `h` as they are."""
    if address.startswith("["):
        return address[1:].partition("]")[0]
    host, colon, port = address.rpartition(":")
    return host if colon and port.isdigit() and ":" not in host else address


def is_loopback(host: str) -> bool:
    """Whether a name or an address is that of this machine."""
    if host.lower() in ("localhost", "localhost."):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
