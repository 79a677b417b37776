"""Connections to servers: dialed, greeted, kept alive, given up, and dialed again.

`Link` knows when it is due for what, the `ClientRouter` which links there are. Here is what that means for the process:
who hears that a connection can be used or is lost (the membership first, since what it asks decides where the others
go; then partitions and readers), which reason an operator gets to know, and in which order a step sends.

A connection has a number only from its dial to its end; events of any other number are about one that was given up.
"""

from __future__ import annotations

from collections import defaultdict

from waltz_core.base.attempts import Reasons
from waltz_core.base.edge import Closed, Dialed, Level, Report, Writable
from waltz_core.base.ids import Endpoint
from waltz_core.client.context import ClientContext
from waltz_core.client.link import ConnectionState, Kind, Link
from waltz_core.client.membership import Membership
from waltz_core.client.partitions import Partitions
from waltz_core.client.router import ClientRouter, EndpointMap

SILENT = "the server owes an answer and is silent"
"""Why a connection is given up."""


class Connections:
    """Every connection of this client, by its number."""

    def __init__(
        self, context: ClientContext, router: ClientRouter, membership: Membership, partitions: Partitions
    ) -> None:
        self._context = context
        self._out = context.out
        self._touch = context.touch
        self._router = router
        self._membership = membership
        self._partitions = partitions
        self._conns: dict[int, Link] = {}
        self._reasons: defaultdict[Endpoint, Reasons] = defaultdict(Reasons)  # its two links share a line
        self._due: dict[Link, None] = {}
        self._last_conn = 0

    def get(self, conn: int) -> Link | None:
        """The link whose connection this is; None for one that was given up."""
        return self._conns.get(conn)

    @property
    def usable(self) -> int:
        """How many can be used."""
        return sum(link.ready for link in self._router.links())

    # ---- events ------------------------------------------------------------------------------

    def dialed(self, now: int, event: Dialed) -> None:
        """A connection stands: greet."""
        link = self._conns.get(event.conn)
        if link is not None:
            link.on_dialed(now)
            self._touch(link)

    def closed(self, now: int, event: Closed) -> None:
        """A connection has ended, or never came to stand."""
        link = self._conns.pop(event.conn, None)
        if link is not None:
            link.on_closed(now, event.reason)
            self._touch(link)
            self.complain(link, f"no connection to {link.endpoint}: ", event.reason)
            self._lose(now, link)
            self._router.dials_wanted = True

    def writable(self, now: int, event: Writable) -> None:
        """A connection takes more bytes, or no more for now."""
        link = self._conns.get(event.conn)
        if link is not None:
            link.writable = event.writable
            if event.writable:
                self._partitions.link_writable(now, link)

    def ready(self, now: int, link: Link) -> None:
        """The server has greeted."""
        self._reasons.pop(link.endpoint, None)
        if link.kind is Kind.RPC:
            self._membership.on_link_ready(now, link)
        self._partitions.link_ready(now, link)

    def due(self, link: Link) -> None:
        """Look at a connection at the end of this step."""
        self._due[link] = None

    # ---- giving up ---------------------------------------------------------------------------

    def complain(self, link: Link, what: str, reason: str) -> None:
        """Tell an operator what is wrong with a server, each reason once until it can be used again."""
        if self._reasons[link.endpoint].failed(reason):
            self._out.put(Report(Level.WARNING, f"{what}{reason}"))

    def drop(self, now: int, link: Link, reason: str) -> None:
        """Close a connection because of its peer; a new one follows."""
        self._conns.pop(link.conn, None)
        self.complain(link, f"no connection to {link.endpoint}: ", reason)
        link.close(now, reason)
        self._touch(link)
        self._lose(now, link)
        self._router.dials_wanted = True

    def set_endpoints(self, now: int, endpoints: EndpointMap) -> None:
        """The map of the cluster changed: connections to servers that left it end."""
        for link in self._router.set_endpoints(endpoints):
            if not self._membership.keeps(link):
                self._conns.pop(link.conn, None)
                self._lose(now, link)
                link.end(now, "the server left the cluster")
                self._touch(link)

    def close(self, now: int) -> None:
        """The client is closed."""
        for link in list(self._router.wanted()):
            self._conns.pop(link.conn, None)
            link.end(now, "the client is closed")

    def _lose(self, now: int, link: Link) -> None:
        if link.kind is Kind.RPC:
            self._membership.on_link_lost(now, link)
        self._partitions.link_lost(now, link)

    # ---- the end of a step -------------------------------------------------------------------

    def finish(self, now: int) -> None:
        """Dial what is wanted, tend what is due, and send what the step has gathered."""
        if self._router.dials_wanted:
            self._router.dials_wanted = False
            self._due.update(dict.fromkeys(self._router.wanted()))
        if self._due:
            due, self._due = self._due, {}
            for link in [link for link in self._router.wanted() if link in due]:
                self._tend(now, link)
        for link in self._router.filled():
            link.flush(now)

    def _tend(self, now: int, link: Link) -> None:
        """Keep a connection alive, give it up, or open its successor, whichever is due."""
        before = link.state
        if link.due(now):
            self._last_conn -= 1
            link.dial(now, self._last_conn)
            self._conns[link.conn] = link
        elif before is ConnectionState.GREETING and link.state is ConnectionState.IDLE:
            self._conns.pop(link.conn, None)
            self._lose(now, link)
        self._touch(link)
