"""Who may do what: roles by the names in a peer's certificate. Pure rules, for the ports that accept connections.

Nothing configured = everything allowed, as 0.13.2. Configured, a peer may do what the rules that match one of
its names allow, all of them together, and nothing else.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Sequence

from waltz_core.base.edge import Port
from waltz_core.base.record import record
from waltz_core.wire import admin_messages as admin
from waltz_core.wire import client_messages as client
from waltz_core.wire.shared import AccessLevel

_LAST_PARTITION = (1 << 31) - 1


class Role(enum.Enum):
    """What a peer is in the cluster."""

    CLIENT = "client"  # reads and appends, within its partitions
    PROXY = "proxy"  # the same for others: mounts with their client ids, appends under their request ids
    SERVER = "server"  # owns partitions: the data ports of storage nodes, and repairs
    STORAGE = "storage"  # reads from other storage nodes what it repairs itself with
    ADMIN = "admin"  # looks at everything and changes everything, but appends nothing


Ranges = tuple[tuple[int, int], ...]
"""Partition ids, first and last of each range inclusive."""

EVERY: Ranges = ((0, _LAST_PARTITION),)
NONE: Ranges = ()


@record
class Rule:
    """One line of the rules: certificates with a matching name have a role."""

    pattern: str  # `*` any characters, `?` one; upper and lower case of a-z are the same
    role: Role
    read: Ranges = NONE  # clients and proxies: partitions that may be read
    write: Ranges = NONE  # clients and proxies: partitions that may be read and appended to


class Access:
    """What one peer may do. Each `..._problem` is None, or why not, for the peer and for the log."""

    __slots__ = ("_read", "_roles", "_who", "_write", "unrestricted")

    def __init__(self, who: str, rules: Iterable[Rule], *, unrestricted: bool = False) -> None:
        matching = tuple(rules)
        self.unrestricted = unrestricted  # no rules are configured
        self._who = who
        self._roles = frozenset(rule.role for rule in matching)
        self._write = tuple(one for rule in matching for one in rule.write)
        self._read = tuple(one for rule in matching for one in rule.read) + self._write

    def allows_as(self, other: Access) -> bool:
        """Whether it allows just what another one does."""
        return (
            self.unrestricted == other.unrestricted
            and self._roles == other._roles
            and set(self._read) == set(other._read)
            and set(self._write) == set(other._write)
        )

    @property
    def who(self) -> str:
        """The peer with its roles, for people."""
        if self.unrestricted:
            return self._who
        return f"{self._who} ({', '.join(sorted(role.value for role in self._roles)) or 'no role'})"

    def closed_line(self, address: str, reason: str) -> str:
        """That its connection was closed; it is named by its certificate once, here or in the reason."""
        return f"connection of {address if self._who in reason else self._who} closed: {reason}"

    @property
    def roles(self) -> frozenset[Role]:
        """All of its roles."""
        return self._roles

    @property
    def carries_others(self) -> bool:
        """Whether it may use client ids that others claimed, and request ids of others."""
        return Role.PROXY in self._roles

    @property
    def member(self) -> bool:
        """Whether it is known as a part of the cluster, or as one of its operators."""
        return not self._roles.isdisjoint((Role.SERVER, Role.STORAGE, Role.ADMIN))

    @property
    def sees_cluster_key(self) -> bool:
        """Whether servers show it the cluster key, which opens the ports of storage nodes."""
        return self.unrestricted or self.member

    def reads(self, partition_id: int) -> bool:
        """Whether it may read the records of a partition."""
        return self.unrestricted or Role.ADMIN in self._roles or _within(partition_id, self._read)

    def writes(self, partition_id: int) -> bool:
        """Whether it may append to a partition."""
        return self.unrestricted or _within(partition_id, self._write)

    def storage_problem(self) -> str | None:
        """Why it may not use the data port of a storage node: that is for servers, and for tools that recover."""
        return self._unless(Role.SERVER, Role.ADMIN, what="use the data port")

    def host_problem(self, port: Port) -> str | None:
        """Why it may not be what answers at such a port, when this process has dialed it."""
        if port is Port.CLIENT:
            return self._unless(Role.SERVER, what="be a server")
        return self._unless(Role.STORAGE, what="be a storage node")

    def admin_port_problem(self) -> str | None:
        """Why it may not use the admin port of a storage node at all."""
        return self._unless(Role.SERVER, Role.STORAGE, Role.ADMIN, what="use the admin port")

    def admin_problem(self, message: admin.AdminMessage) -> str | None:
        """Why it may not ask this on an admin port: servers start repairs and, as storage nodes, read."""
        kind = type(message)
        if kind is admin.RepairRequest:
            return self._unless(Role.SERVER, Role.ADMIN, what="ask for a repair")
        if kind in _ADMIN_CHANGES:
            return self._unless(Role.ADMIN, what=f"ask for a change ({kind.__name__})")
        return self.admin_port_problem()

    def client_problem(self, message: client.ClientMessage, partition_id: int) -> str | None:
        """Why it may not ask this of a server; `partition_id` is that of the request id."""
        if self.unrestricted:
            return None
        kind = type(message)
        if kind in _WRITES:
            allowed, what = self.writes(partition_id), f"append to partition {partition_id}"
        elif kind in _READS:
            allowed, what = self.reads(partition_id), f"read partition {partition_id} ({kind.__name__})"
        elif kind in _CLIENT_CHANGES:
            return self._unless(Role.ADMIN, what=f"ask for a change ({kind.__name__})")
        else:
            allowed, what = bool(self._roles), f"ask for {kind.__name__}"
        return None if allowed else self._refusal(what)

    def _unless(self, *roles: Role, what: str) -> str | None:
        if self.unrestricted or not self._roles.isdisjoint(roles):
            return None
        return self._refusal(what)

    def _refusal(self, what: str) -> str:
        return f"{self.who} may not {what}"


class Roles:
    """All rules of a process."""

    __slots__ = ("_patterns", "rules")

    def __init__(self, rules: Sequence[Rule] | None = None) -> None:
        """Without rules (None) everything is allowed; with an empty list nothing is."""
        self.rules = None if rules is None else tuple(rules)
        self._patterns = tuple((glob(rule.pattern), rule) for rule in self.rules or ())

    def access(self, names: Sequence[str], address: str) -> Access:
        """What a peer with these names in its certificate may do; the address is for people."""
        if self.rules is None:
            return Access(_who(names, (), address), (), unrestricted=True)
        matched: dict[str, None] = {}
        rules = []
        for pattern, rule in self._patterns:
            known = [name for name in names if pattern.fullmatch(name)]
            if known:
                rules.append(rule)
                matched.update(dict.fromkeys(known))
        who = _who(names, tuple(matched), address) if names else f"{address} without a certificate"
        return Access(who, rules)


@record
class RolesChanged:
    """Event for machines that accept connections: other rules hold from now on.

    A connection whose peer may now do more or less is ended: what it may do is asked in many places, and partly
    remembered (a claim to a client id, a subscription), and everybody handles a peer that connects again.
    """

    roles: Roles


def access_level(roles: Roles, *, certificates_asked: bool) -> AccessLevel:
    """How a process with these settings decides."""
    if roles.rules is not None:
        return AccessLevel.ROLES
    return AccessLevel.CERTIFICATES if certificates_asked else AccessLevel.EVERYBODY


NO_ROLES = Roles()
"""Everybody may do everything."""

_READS = frozenset(
    {
        client.MountRequest,
        client.FeedRequest,
        client.FeedWindowRequest,
        client.TransactionDataRequest,
        client.FlushRequest,
        client.HighWaterMarkRequest,
        client.RecordRangeRequest,
        client.LogStartRequest,
    }
)
_WRITES = frozenset({client.AppendRequest, client.NamedAppendRequest})
_CLIENT_CHANGES = frozenset(
    {client.AddPreferredPartitionRequest, client.RemovePreferredPartitionRequest, client.SetLogStartRequest}
)
_ADMIN_CHANGES = frozenset(
    {
        admin.PartitionAvailableRequest,
        admin.PartitionAssignmentRequest,
        admin.SetLogStartRequest,
        admin.AcceptLimboRequest,
    }
)


def _within(partition_id: int, ranges: Ranges) -> bool:
    return any(first <= partition_id <= last for first, last in ranges)


def _who(names: Sequence[str], matched: tuple[str, ...], address: str) -> str:
    """A certificate for the log: its first name, and those that gave it its roles where these are others."""
    if not names:
        return address
    aliases = "" if matched in ((), (names[0],)) else f" (as {', '.join(map(repr, matched))})"
    return f"certificate {names[0]!r}{aliases} at {address}"


def glob(pattern: str) -> re.Pattern[str]:
    """What matches a pattern: `*` any characters, `?` one; upper and lower case of a-z are the same."""
    pieces = {"*": ".*", "?": "."}
    text = "".join(pieces.get(character) or re.escape(character) for character in pattern)
    # By Unicode's rules the Kelvin sign is a k and the long s an s: letters that look alike to a reader of the rules.
    return re.compile(text, re.IGNORECASE | re.DOTALL | re.ASCII)
