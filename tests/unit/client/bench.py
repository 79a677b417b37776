"""The parts of a client on the bench: events in, all that they put out and send as answers."""

from __future__ import annotations

import random
from typing import Any

from tests.unit.client.desk import A
from waltz_core.base.edge import CloseConn, Dial, Send
from waltz_core.base.ids import Endpoint, ReqId, make_req_id
from waltz_core.client.appends import Appends
from waltz_core.client.calls import Phase
from waltz_core.client.context import ClientContext
from waltz_core.client.delivery import Delivery
from waltz_core.client.link import Kind, Link
from waltz_core.client.mounting import Mounting
from waltz_core.client.patience import Patience
from waltz_core.client.settings import ClientSettings
from waltz_core.client.standing import Standing
from waltz_core.client.window import FeedWindow
from waltz_core.wire.client_codec import VERSIONS
from waltz_core.wire.connection import CLIENT_PROTOCOL, Connection

NOW = 1_000


def req(sequence: int, generation: int = 1) -> ReqId:
    """A request id of the client on the bench, for partition 0."""
    return make_req_id(7, generation, 0, sequence)


class Bench:
    """A process without parts: its outbox, and connections that have been greeted."""

    def __init__(self, settings: ClientSettings | None = None) -> None:
        self.context = ClientContext(settings or ClientSettings(), random.Random(3), VERSIONS)
        self.context.client_id, self.context.partition_count = 7, 2
        self.links: list[Link] = []
        self._servers: dict[Link, Connection[Any]] = {}

    def connect(self, kind: Kind = Kind.STREAM, endpoint: Endpoint = A) -> Link:
        """A link that can be used."""
        context = self.context
        link = Link(endpoint, kind, context.settings, context.rng, VERSIONS, context.out, [])
        link.dial(NOW, -1 - len(self.links))
        link.on_dialed(NOW)
        self._servers[link] = Connection(CLIENT_PROTOCOL, "server", VERSIONS)
        link.receive(NOW, self._servers[link].hello(), [])
        self.links.append(link)
        self.work()
        return link

    def work(self) -> tuple[list[Any], list[Any]]:
        """All effects since the last time, and all messages that are to be sent."""
        messages: list[Any] = []
        for link in self.links:
            self._servers[link].receive(bytes(link.out), messages)
            link.out.clear()
        effects = [effect for effect in self.context.out.take() if not isinstance(effect, (Dial, Send, CloseConn))]
        return effects, messages


class PartitionBench(Bench):
    """The parts of partition 0, made as `ClientPartition` makes them; open at -1, and on no connection yet."""

    def __init__(self, settings: ClientSettings | None = None, *, deliver: bool = True) -> None:
        super().__init__(settings)
        context = self.context
        self.standing = Standing(0, context)
        self.delivery = Delivery(0, context)
        self.appends = Appends(context, self.standing, self.delivery)
        self.window = FeedWindow(self.standing, self.delivery, self.appends)
        self.mounting = Mounting(context, self.standing, self.delivery, self.appends, self.window)
        self.patience = Patience(context, self.standing, self.appends)
        self.delivery.active = deliver
        self.standing.enter(NOW, Phase.WAITING)
        self.work()

    def mount(self) -> Link:
        """Mounted, with nothing sent that was not looked at."""
        link = self.connect()
        self.mounting.place(NOW, link, 1)
        self.standing.enter(NOW, Phase.MOUNTED)
        self.work()
        return link
