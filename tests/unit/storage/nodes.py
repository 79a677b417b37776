"""Several storage nodes whose dials reach one another, for tests of repair."""

from __future__ import annotations

from typing import Any

from tests.model.disk import SimDisk
from tests.unit.storage.desk import KEY, codec_1, some
from tests.vectors.storage_desk import Desk
from waltz_core.base.edge import Accepted, Closed, Dial, Dialed, Port, Received
from waltz_core.base.ids import Endpoint
from waltz_core.base.rules import LEGACY, SAFE, SafetyRules
from waltz_core.wire import admin_messages as admin
from waltz_core.wire import storage_messages as wire


class _Link:
    """One end, at the node dialed, of a connection between two nodes."""

    def __init__(self, nodes: Nodes, caller: Desk, caller_conn: int, conn: int) -> None:
        self.nodes, self.caller, self.caller_conn, self.conn = nodes, caller, caller_conn, conn
        self.closed = False
        self.connection = self  # `Desk` asks its wires for the protocol of their connection
        self.version = None

    def eat(self, effect: Any) -> None:
        self.nodes.to_do.append((self.caller, _answer(self.caller_conn, effect)))


class _CallerEnd(_Link):
    """The end at the node that dialed."""

    def eat(self, effect: Any) -> None:
        if self.nodes.links.get((id(self.caller), self.caller_conn)) is not None:
            target, conn = self.nodes.links[id(self.caller), self.caller_conn]
            self.nodes.to_do.append((target, _answer(conn, effect)))


def _answer(conn: int, effect: Any) -> Any:
    return Received(conn, bytes(effect.data)) if hasattr(effect, "data") else Closed(conn, effect.reason)


class Nodes:
    """Replicas of partition 0, level, in one session; `a`, `b`, … are endpoints of their admin ports."""

    def __init__(self, count: int = 3, records: int = 12, *, legacy: tuple[int, ...] = (), size: int = 60) -> None:
        self.to_do: list[tuple[Desk, Any]] = []
        self.links: dict[tuple[int, int], tuple[Desk, int]] = {}
        self.desks: list[Desk] = []
        self.unreachable: set[int] = set()
        self.silent: set[int] = set()  # reached, but says nothing
        self._conns = 1000
        for number in range(count):
            rules = LEGACY if number in legacy else SAFE
            self.desks.append(self.node(SimDisk(), rules))
            self.desks[-1].admin(admin.PartitionAssignmentRequest(1, (0,), True, False))
            self.desks[-1].storage(wire.SetLowWaterMarkRequest(5, 1, 0, -1, False))
            if records:
                answer = self.desks[-1].storage(wire.AppendRequest(5, 1, 0, some(0, records, size), False))
                assert answer == wire.SuccessResponse(5, 1, 0)
            self.settle()

    def node(self, disk: SimDisk, rules: SafetyRules = SAFE) -> Desk:
        return Desk(disk, KEY, 2, threshold=500, rules=rules)

    def settle(self) -> None:
        """Let marks be written."""
        for desk in self.desks:
            desk.now += 2000
            desk.step()

    def restart(self, number: int) -> Desk:
        rules = self.desks[number].node.rules
        self.desks[number] = self.node(self.desks[number].disk, rules)
        return self.desks[number]

    def endpoint(self, number: int) -> Endpoint:
        return Endpoint(f"node{number}", 1)

    def repair(self, number: int, *sources: int, ranges: tuple[Any, ...] = ()) -> Any:
        """Ask a node for a repair and let everything happen; its answer."""
        desk = self.desks[number]
        port = codec_1(desk, Port.ADMIN)
        first = len(desk.emitted)
        request = admin.RepairRequest(1, 0, tuple(map(self.endpoint, sources)), ranges)
        answer = port.ask(request)
        while answer is None:
            self._deliver(desk, first)
            first = len(desk.emitted)
            if not self.to_do:
                if port.messages:
                    return port.messages.pop()
                desk.now = max(desk.now, desk.node.deadline() or 0)
                desk.step()
                continue
            to_do, self.to_do = self.to_do, []
            for target, event in to_do:
                target.step(event)
        return answer

    def _deliver(self, desk: Desk, first: int) -> None:
        for effect in desk.emitted[first:]:
            if isinstance(effect, Dial):
                number = int(effect.endpoint.host.removeprefix("node"))
                if number in self.unreachable:
                    self.to_do.append((desk, Closed(effect.conn, "connection refused")))
                    continue
                if number in self.silent:
                    self.to_do.append((desk, Dialed(effect.conn)))
                    continue
                target = self.desks[number]
                self._conns += 1
                self.links[id(desk), effect.conn] = target, self._conns
                target.wires[self._conns] = _Link(self, desk, effect.conn, self._conns)  # type: ignore[assignment]
                desk.wires[effect.conn] = _CallerEnd(self, desk, effect.conn, self._conns)  # type: ignore[assignment]
                self.to_do.append((target, Accepted(self._conns, Port.ADMIN, "node")))
                self.to_do.append((desk, Dialed(effect.conn)))
