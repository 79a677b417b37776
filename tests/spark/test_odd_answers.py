"""Nodes that answer something else: a reader of Spark says so, as of any node that cannot be read now."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from waltz_core.base.ids import Endpoint
from waltz_core.wire import admin_messages as admin
from waltz_core.wire.admin_codec import VERSIONS
from waltz_core.wire.connection import ADMIN_PROTOCOL, Connection
from waltz_spark.base.errors import UnreachableError
from waltz_spark.read.ports import AdminPort
from waltz_trio.net.tls import ClientTls, ServerTls, TlsSettings

KEY = bytes(16)


@contextmanager
def odd_node(answer: Callable[[int], admin.AdminMessage]) -> Iterator[AdminPort]:
    """A port of a node that lets in, and then answers each request with the same."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        plain, _ = listener.accept()
        protocol = Connection(ADMIN_PROTOCOL, "odd", VERSIONS)
        with plain, ServerTls(TlsSettings()).context.wrap_socket(plain, server_side=True) as peer:
            peer.sendall(protocol.hello())
            while data := peer.recv(1 << 16):
                requests: list[admin.AdminMessage] = []
                protocol.receive(data, requests)
                answers = bytearray()
                for request in requests:
                    opening = isinstance(request, admin.AdminOpenRequest)
                    protocol.encode((admin.AdminSuccessResponse if opening else answer)(request.seq_num), answers)
                peer.sendall(answers)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        endpoint = Endpoint("127.0.0.1", listener.getsockname()[1])
        with AdminPort(endpoint, ClientTls(TlsSettings(verify=False)), KEY, 1, 30.0) as port:
            yield port
    finally:
        thread.join(30)
        listener.close()


@pytest.mark.parametrize(
    "ask",
    [
        AdminPort.assigned,
        AdminPort.started_ms,
        lambda port: port.session(0),
        lambda port: port.digest(0, 0, 1),
        lambda port: port.segments(0),
        AdminPort.digests,
    ],
    ids=["partitions", "start", "session", "digest", "segments", "capabilities"],
)
def test_an_answer_of_another_type_is_that_of_a_node_that_cannot_be_read(ask: Callable[[AdminPort], object]) -> None:
    expected = r"127.0.0.1:\d+: expected \w+Response, found AdminSuccessResponse"
    with odd_node(admin.AdminSuccessResponse) as port, pytest.raises(UnreachableError, match=expected):
        ask(port)
