"""Who is let in at a gateway, and to which topics: by the name in a certificate, or by a bearer token.

Without rules everybody who reaches the port may do everything; a gateway then listens on this machine alone, and its
`Host` header must name this machine, or any page that a browser here has open could speak for its user (DNS rebinding).
With rules, a caller may do what those say that match his certificate or his token. Tokens are kept as SHA-256: they are
long and random, so there is nothing to try out, and a configuration that is read by others gives none away.

A browser says by `Origin` whose page asks. Pages of other sites are refused unless the gateway names their origin.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from waltz_core.access.admission import owner_of
from waltz_core.access.roles import glob
from waltz_core.access.web import host_of, is_loopback
from waltz_core.base.record import record
from waltz_core.gateway.problems import Problem

ALL = "*"
_BEARER = "bearer."


@record
class Rule:
    """What who shows a certificate or a token may do."""

    certificate: str  # a pattern; empty: the rule is for a token
    token_hash: str  # SHA-256 as hex; empty: the rule is for certificates
    read: tuple[str, ...]  # topics, `*` for all
    append: tuple[str, ...]
    name: str = ""  # of whom the token belongs to, for logs and limits


@record
class Visit:
    """A request, as far as the door looks at it."""

    peer: str  # host:port
    headers: Mapping[str, str]  # names in lower case
    names: tuple[str, ...] = ()  # in the certificate that was shown
    token: str | None = None  # None: none was brought


@record
class Caller:
    """Who asks, and what for he may."""

    who: str  # limits are counted by this
    read: tuple[str, ...]
    append: tuple[str, ...]

    def reads(self, topic: str) -> bool:
        """Whether he may read the records of a topic."""
        return ALL in self.read or topic in self.read

    def appends(self, topic: str) -> bool:
        """Whether he may append to a topic."""
        return ALL in self.append or topic in self.append

    def knows(self, topic: str) -> bool:
        """Whether he may see that it is there."""
        return self.reads(topic) or self.appends(topic)


class Door:
    """Lets callers in."""

    __slots__ = ("_certificates", "_origins", "_tokens", "rules")

    def __init__(self, rules: Sequence[Rule] | None, origins: Sequence[str] = ()) -> None:
        """Prepare.

        Args:
            rules: what callers may do; None: everybody everything.
            origins: of other sites whose pages may use the gateway, such as `https://shop.example`.
        """
        self.rules = rules
        self._origins = frozenset(origins)
        self._certificates = [(glob(rule.certificate), rule) for rule in rules or () if rule.certificate]
        self._tokens: dict[str, list[Rule]] = {}
        for rule in rules or ():
            if rule.token_hash:
                self._tokens.setdefault(rule.token_hash.lower(), []).append(rule)

    def enter(self, visit: Visit) -> Caller | Problem:
        """Who it is, or why he is sent away."""
        problem = self.page_problem(visit)
        if problem is not None:
            return problem
        if self.rules is None:
            return Caller(owner_of(visit.peer), (ALL,), (ALL,))
        rules: list[Rule] = []
        who = owner_of(visit.peer)
        if visit.token is not None:
            rules = self._tokens.get(token_hash(visit.token), [])
            if not rules:
                return Problem(401, "unknown-token", "this bearer token is not known here")
            who = rules[0].name or f"token {rules[0].token_hash[:8]}"
        matching = [
            (rule, name) for name in visit.names for pattern, rule in self._certificates if pattern.fullmatch(name)
        ]
        if matching:
            rules = [*rules, *(rule for rule, _ in matching)]
            who = who if visit.token is not None else matching[0][1]
        if not rules:
            return Problem(401, "who-are-you", "show a certificate of the gateway's authority, or a bearer token")
        return Caller(
            who,
            tuple(topic for rule in rules for topic in rule.read),
            tuple(topic for rule in rules for topic in rule.append),
        )

    def page_problem(self, visit: Visit) -> Problem | None:
        """Why the page that asks, if it is one, may not."""
        host = visit.headers.get("host", "")
        if self.rules is None and not is_loopback(host_of(host)):
            return Problem(
                421, "wrong-host", f"the Host header names {host[:100]!r}, which is not this machine: use localhost"
            )
        origin = visit.headers.get("origin")
        if origin is None:
            if visit.headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
                return Problem(403, "foreign-page", "asked by a page of another site, which does not say whose it is")
        elif origin.partition("://")[2] != host and origin not in self._origins:
            return Problem(
                403, "foreign-page", f"asked by a page of {origin[:100]!r}: gateway.origins does not name it"
            )
        return None

    def shared_with(self, visit: Visit) -> tuple[tuple[str, str], ...]:
        """What lets a browser hand an answer to the page of another site."""
        origin = visit.headers.get("origin", "")
        if not self._origins:
            return ()
        if origin not in self._origins:
            return (("Vary", "Origin"),)
        return (
            ("Vary", "Origin"),
            ("Access-Control-Allow-Origin", origin),
            ("Access-Control-Expose-Headers", "Retry-After"),
        )


PREFLIGHT = (
    ("Access-Control-Allow-Methods", "GET, POST"),
    ("Access-Control-Allow-Headers", "Authorization, Content-Type, Last-Event-ID"),
    ("Access-Control-Max-Age", "600"),
)


def token_hash(token: str) -> str:
    """What is kept of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def bearer(headers: Mapping[str, str]) -> str | None:
    """The token of a request, None if it has none.

    The WebSocket of a page can set no header but the protocols that it offers: there one is `bearer.TOKEN`.
    """
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    offered = [protocol.strip() for protocol in headers.get("sec-websocket-protocol", "").split(",")]
    return next((each.removeprefix(_BEARER) for each in offered if each.startswith(_BEARER) and each != _BEARER), None)
