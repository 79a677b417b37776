"""The Graphite reporter over real sockets, on a virtual clock where nothing foreign is waited for."""

from __future__ import annotations

import pytest
import trio

from waltz_core.base.edge import Level
from waltz_trio.base.metrics import Registry
from waltz_trio.config.config import Config
from waltz_trio.node.graphite import report_to_graphite


def registry() -> Registry:
    found = Registry(trio.current_time)
    found.gauge("waltz-server.is-closed", lambda: False)
    return found


def ignore(level: Level, text: str) -> None:
    raise AssertionError(text)


async def test_lines_arrive_over_tcp(nursery: trio.Nursery) -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    graphite = {"hostname": "127.0.0.1", "port": port, "reportIntervalMs": 0, "prefix": "w"}
    config = Config({"server.graphite": graphite})
    nursery.start_soon(report_to_graphite, config, "server.graphite.", registry(), ignore)

    async with await listener.accept() as stream:
        text = await stream.receive_some(1000)

    name, value, _ = text.decode().split()
    assert (name, value) == ("w.waltz-server.is-closed", "0")
    await listener.aclose()


async def test_lines_arrive_over_udp(nursery: trio.Nursery) -> None:
    with trio.socket.socket(type=trio.socket.SOCK_DGRAM) as sock:
        await sock.bind(("127.0.0.1", 0))
        graphite = {"hostname": "127.0.0.1", "port": sock.getsockname()[1], "reportIntervalMs": 0, "useUdp": True}
        config = Config({"server.graphite": graphite})
        nursery.start_soon(report_to_graphite, config, "server.graphite.", registry(), ignore)

        data, _ = await sock.recvfrom(2000)

    assert data.startswith(b"waltz.waltz-server.is-closed 0 ")


async def test_without_a_host_nothing_is_sent() -> None:
    await report_to_graphite(Config({}), "server.graphite.", registry(), ignore)


async def test_a_graphite_that_is_away_is_told(nursery: trio.Nursery) -> None:
    told: list[str] = []
    failed = trio.Event()

    def report(level: Level, text: str) -> None:
        told.append(text)
        failed.set()

    with trio.socket.socket() as sock:  # bound, not listening: connections are refused
        await sock.bind(("127.0.0.1", 0))
        graphite = {"hostname": "127.0.0.1", "port": sock.getsockname()[1], "reportIntervalMs": 0}
        config = Config({"storage.graphite": graphite})
        nursery.start_soon(report_to_graphite, config, "storage.graphite.", registry(), report)
        await failed.wait()
        nursery.cancel_scope.cancel()

    assert "cannot be reached" in told[0]


@pytest.mark.parametrize("udp", [False, True], ids=["TCP", "UDP"])
async def test_a_graphite_whose_name_can_be_none_is_told_and_ends_nothing(nursery: trio.Nursery, udp: bool) -> None:
    told: list[str] = []
    failed = trio.Event()

    def report(level: Level, text: str) -> None:
        told.append(text)
        failed.set()

    graphite = {"hostname": "a..b", "port": 2003, "reportIntervalMs": 0, "useUdp": udp}
    config = Config({"storage.graphite": graphite})
    nursery.start_soon(report_to_graphite, config, "storage.graphite.", registry(), report)
    await failed.wait()
    nursery.cancel_scope.cancel()

    assert "Graphite at a..b:2003 cannot be reached" in told[0]
