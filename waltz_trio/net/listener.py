"""Listening sockets: binding with clear errors, and a loop that accepts until it is stopped."""

from __future__ import annotations

import errno
import resource
import socket
from collections.abc import Awaitable, Callable

import trio
from trio.lowlevel import notify_closing, wait_readable

from waltz_core.base.errors import ConfigError

_BACKLOG = 1024
LOOPBACK = "127.0.0.1"
_PORT_MAX = 65535
# Accepted before other tasks have their turn. Each may be at work at once, for a millisecond of a handshake or of a
# head that is parsed, and everybody else waits for all that are; a reply takes several rounds of that.
_AT_ONCE = 4
# Where nothing is sent, a peer whose machine is gone is noticed after a minute and a half; Linux waits two hours.
KEEP_ALIVE_AFTER = 60  # seconds without a byte
KEEP_ALIVE_EVERY = 10
KEEP_ALIVE_PROBES = 3
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_EXHAUSTED_PAUSE = 0.1  # seconds; descriptors come back when connections end


async def local_host() -> str:
    """The address 0.13.2 binds to when nothing else is said: that of the local host's name. A thread asks DNS, too."""

    def ask() -> str:
        try:
            return socket.gethostbyname(socket.gethostname())
        except OSError:
            return LOOPBACK

    return await trio.to_thread.run_sync(ask, abandon_on_cancel=True)


async def canonical_host() -> str:
    """The name 0.13.2 registers in ZooKeeper. DNS may take its time to say it: a thread waits, not the event loop."""
    return await trio.to_thread.run_sync(socket.getfqdn, abandon_on_cancel=True)


def bind(host: str, port: int, key: str) -> socket.socket:
    """A listening socket on `host` (empty = every address); port 0 takes a free one.

    Raises:
        ConfigError: the address is unknown or taken; the message names the configuration key.
    """
    if not 0 <= port <= _PORT_MAX:
        raise ConfigError(f"{key}: expected a port from 0 to {_PORT_MAX}, found {port}")  # else its last 16 bits count
    try:
        addresses = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except UnicodeError as error:
        raise ConfigError(f"{key}: cannot listen on {host}:{port}: {host!r} can be no name of a host") from error
    except OSError as error:
        raise ConfigError(f"{key}: cannot listen on {host}:{port}: {error.strerror}") from error
    family, kind, protocol, _, address = addresses[0]
    try:
        sock = socket.socket(family, kind, protocol)
    except OSError as error:  # of a family that this machine does not have
        raise ConfigError(f"{key}: cannot listen on {host}:{port}: {error.strerror}") from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        raise ConfigError(f"{key}: cannot listen on {host}:{port}: {error.strerror}") from error
    sock.setblocking(False)
    return sock


def peer_text(address: object) -> str:
    """`host:port` of a peer, for people."""
    if isinstance(address, tuple) and len(address) >= 2:
        host = str(address[0])
        return f"[{host}]:{address[1]}" if ":" in host else f"{host}:{address[1]}"
    return str(address)


async def accept_loop(
    sock: socket.socket,
    accepted: Callable[[socket.socket, str], None],
    turn: Callable[[], Awaitable[object]] | None = None,
    complain: Callable[[str, str], None] | None = None,
) -> None:
    """Hand every new connection (non-blocking, TCP_NODELAY) to `accepted` until cancelled or closed.

    `accepted` must not raise: what it starts for one peer is supervised there. Each one waits for `turn` before.
    `complain` hears what keeps this process from accepting, as often as it does; of no peer in particular.
    """
    try:
        while sock.fileno() >= 0:  # Trio must never be asked to wait for descriptor -1
            await wait_readable(sock.fileno())
            for _ in range(_AT_ONCE):
                if turn is not None:
                    await turn()
                try:
                    connection, address = sock.accept()
                except BlockingIOError:
                    break
                except OSError as error:
                    if error.errno in _EXHAUSTED:
                        if complain is not None:
                            complain("", f"no connection can be accepted: {error.strerror} ({_limit(error)})")
                        await trio.sleep(_EXHAUSTED_PAUSE)
                    break  # else the peer was gone again, or we were closed
                connection.setblocking(False)
                tune(connection)
                accepted(connection, peer_text(address))
    except trio.ClosedResourceError:
        return  # closed: the end was asked for
    finally:
        close(sock)


def _limit(error: OSError) -> str:
    """What an operator may raise."""
    if error.errno == errno.EMFILE:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return f"the limit of this process is {soft} descriptors: LimitNOFILE, or ulimit -n"
    return "of this machine"


def close(sock: socket.socket) -> None:
    """Stop listening; the accept loop ends."""
    if sock.fileno() >= 0:
        notify_closing(sock.fileno())
        sock.close()


def tune(sock: socket.socket) -> None:
    """Options of every connection: small messages leave at once, dead peers are noticed."""
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEP_ALIVE_AFTER)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEP_ALIVE_EVERY)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEP_ALIVE_PROBES)
    except OSError:
        pass  # the connection is gone already; the handshake will say so
