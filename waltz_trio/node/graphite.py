"""Sends the metrics of a process to Graphite, as the original's reporter does."""

from __future__ import annotations

import time
from collections.abc import Callable

import trio

from waltz_core.base.edge import Level
from waltz_trio.base.metrics import Registry
from waltz_trio.config.config import Config
from waltz_trio.net.dialer import why

_DATAGRAM_MAX = 1400  # bytes, below the usual MTU
_SEND_MAX = 10.0  # seconds


async def report_to_graphite(
    config: Config, prefix: str, registry: Registry, report: Callable[[Level, str], None]
) -> None:
    """Send all metrics once per interval until cancelled; returns at once where no host is configured.

    Args:
        config: read under `prefix`, which is `server.graphite.` or `storage.graphite.`.
        prefix: of the keys.
        registry: what is sent.
        report: called when Graphite stops and starts answering.
    """
    host = config.text_or_none(prefix + "hostname")
    if host is None:
        return
    port = config.number(prefix + "port")
    send = _send_udp if config.flag(prefix + "useUdp") else _send_tcp
    reached = True
    while True:
        await trio.sleep(config.number(prefix + "reportIntervalMs"))  # seconds, see the key
        lines = await registry.reading(
            lambda: list(registry.graphite(config.text(prefix + "prefix"), int(time.time())))
        )
        try:
            with trio.fail_after(_SEND_MAX):
                await send(host, port, lines)
        except (OSError, UnicodeError, trio.BrokenResourceError, trio.TooSlowError) as error:
            # UnicodeError: no name of a host can be so. It must not end the process that reports.
            if reached:
                late = isinstance(error, trio.TooSlowError)
                reason = f"no answer within {_SEND_MAX:.0f} s" if late else why(error)
                report(Level.WARNING, f"Graphite at {host}:{port} cannot be reached: {reason}")
            reached = False
        else:
            if not reached:
                report(Level.INFO, f"Graphite at {host}:{port} is reached again")
            reached = True


async def _send_tcp(host: str, port: int, lines: list[str]) -> None:
    async with await trio.open_tcp_stream(host, port) as stream:
        await stream.send_all("".join(line + "\n" for line in lines).encode())


async def _send_udp(host: str, port: int, lines: list[str]) -> None:
    found = await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_DGRAM)
    family, kind, protocol, _, address = found[0]
    with trio.socket.socket(family, kind, protocol) as sock:
        batch = ""
        for line in [*lines, ""]:
            if batch and (not line or len(batch) + len(line) > _DATAGRAM_MAX):
                await sock.sendto(batch.encode(), address)
                batch = ""
            batch += line + "\n"
