"""Asks the HTTP port of a process how it is: for tools. Plain HTTP, one question, one answer of bounded size."""

from __future__ import annotations

import json
from typing import Any

import h11
import trio

from waltz_core.base.ids import Endpoint
from waltz_trio.ports.port import PortError

_SIZE_MAX = 1 << 20  # bytes of an answer


async def health_of(endpoint: Endpoint) -> dict[str, Any]:
    """What `/health` says, of a process that is well or not.

    Raises:
        PortError: nobody answers there, or with something else.
    """
    try:
        async with await trio.open_tcp_stream(endpoint.host, endpoint.port) as stream:
            body = await _ask(stream, endpoint)
    except (OSError, trio.BrokenResourceError) as error:
        raise PortError(f"{endpoint}: {error}") from None
    except h11.RemoteProtocolError as error:
        raise PortError(f"{endpoint} does not speak HTTP: is it the port gateway.healthPort? ({error})") from None
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        raise PortError(f"{endpoint}: /health is no JSON object: is it the port gateway.healthPort?")
    return said


async def _ask(stream: trio.SocketStream, endpoint: Endpoint) -> bytes:
    connection = h11.Connection(h11.CLIENT)
    headers = [("Host", str(endpoint)), ("Connection", "close")]
    request = connection.send(h11.Request(method="GET", target="/health", headers=headers))
    await stream.send_all(request + connection.send(h11.EndOfMessage()))
    body = b""
    while True:
        match connection.next_event():
            case h11.NEED_DATA:
                connection.receive_data(await stream.receive_some(1 << 16))
            case h11.Data(data=data):
                body += data
                if len(body) > _SIZE_MAX:
                    raise PortError(f"{endpoint}: /health is longer than {_SIZE_MAX} bytes")
            case h11.EndOfMessage() | h11.ConnectionClosed():
                return body
