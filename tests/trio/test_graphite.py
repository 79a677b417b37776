"""The Graphite reporter over real sockets, on a virtual clock where nothing foreign is waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

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


async def test_many_metrics_are_datagrams_below_the_usual_size_and_none_is_left_out(nursery: trio.Nursery) -> None:
    names = [f"waltz-server.{number}.{'x' * 50}" for number in range(100)]
    many = Registry(trio.current_time)
    for name in names:
        many.gauge(name, lambda: 1)
    with trio.socket.socket(type=trio.socket.SOCK_DGRAM) as sock:
        await sock.bind(("127.0.0.1", 0))
        graphite = {"hostname": "127.0.0.1", "port": sock.getsockname()[1], "reportIntervalMs": 0, "useUdp": True}
        config = Config({"server.graphite": graphite})
        nursery.start_soon(report_to_graphite, config, "server.graphite.", many, ignore)
        came: list[str] = []
        while len(came) < len(names):
            data, _ = await sock.recvfrom(1 << 16)
            assert len(data) <= 1400
            assert data.endswith(b"\n")
            came += data.decode().splitlines()
        nursery.cancel_scope.cancel()

    assert sorted(line.split()[0] for line in came) == sorted(f"waltz.{name}" for name in names)


async def test_a_graphite_that_goes_and_comes_is_told_once_each(nursery: trio.Nursery) -> None:
    told: list[tuple[Level, str]] = []
    reads = 0
    changed = trio.Event()

    def read() -> int:
        nonlocal reads
        reads += 1
        return reads

    def report(level: Level, text: str) -> None:
        told.append((level, text))
        changed.set()

    async def until(condition: Callable[[], bool]) -> None:
        with trio.fail_after(60):
            while not condition():
                await trio.lowlevel.checkpoint()

    counted = Registry(trio.current_time)
    counted.gauge("reads", read)
    with trio.socket.socket() as sock:  # bound, not listening: connections are refused
        await sock.bind(("127.0.0.1", 0))
        where = f"Graphite at 127.0.0.1:{sock.getsockname()[1]}"
        graphite = {"hostname": "127.0.0.1", "port": sock.getsockname()[1], "reportIntervalMs": 0}
        config = Config({"storage.graphite": graphite})
        nursery.start_soon(report_to_graphite, config, "storage.graphite.", counted, report)
        await until(lambda: reads == 5)
        assert told == [(Level.WARNING, f"{where} cannot be reached: Connection refused")]
        sock.listen(1000)
        seen = reads
        await until(lambda: reads >= seen + 5)
        assert told[1:] == [(Level.INFO, f"{where} is reached again")]
        nursery.cancel_scope.cancel()


async def test_a_graphite_that_does_not_answer_is_not_waited_for(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    told: list[str] = []
    failed = trio.Event()

    class Silent(trio.abc.HostnameResolver):
        async def getaddrinfo(self, *arguments: object) -> Any:
            await trio.sleep_forever()

        async def getnameinfo(self, *arguments: object) -> Any:
            await trio.sleep_forever()

    def report(level: Level, text: str) -> None:
        told.append(text)
        failed.set()

    trio.socket.set_custom_hostname_resolver(Silent())
    began = trio.current_time()
    graphite = {"hostname": "graphite.example", "port": 2003, "reportIntervalMs": 1}
    config = Config({"storage.graphite": graphite})
    nursery.start_soon(report_to_graphite, config, "storage.graphite.", registry(), report)
    await failed.wait()
    nursery.cancel_scope.cancel()

    assert told == ["Graphite at graphite.example:2003 cannot be reached: no answer within 10 s"]
    assert trio.current_time() - began == 11


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
