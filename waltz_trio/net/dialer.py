"""Opening connections: name, TCP, TLS, and the check of who answered."""

from __future__ import annotations

import os
import socket
import ssl

import trio

from waltz_core.base.ids import Endpoint
from waltz_trio.net.channel import NetLimits, TlsPipe
from waltz_trio.net.listener import tune
from waltz_trio.net.tls import ClientTls

_PROBE_TIMEOUT = 2.0  # seconds
_OTHER_NAMES = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH


class DialError(Exception):
    """The connection does not stand; the text says why."""

    def __init__(self, text: str, *, untrusted: bool = False, refused: bool = False) -> None:
        super().__init__(text)
        self.refused = refused  # the host answers, and nobody listens there
        self.untrusted = untrusted  # TLS failed, or the peer is not who it must be


async def dial(endpoint: Endpoint, tls: ClientTls, limits: NetLimits) -> TlsPipe:
    """Connect and shake hands.

    Raises:
        DialError: no connection within the limits, or the peer is not who it must be.
    """
    try:
        with trio.fail_after(limits.connect_timeout):
            sock = await _connected(endpoint)
    except trio.TooSlowError:
        raise DialError(f"{endpoint} did not answer within {limits.connect_timeout:.0f} s") from None
    except (OSError, ValueError) as error:  # ValueError: no name of a host, as Unicode and TLS see it
        raise DialError(f"cannot connect to {endpoint}: {why(error)}", refused=all_refused(error)) from error
    tune(sock)
    try:
        pipe = TlsPipe(sock, tls.context, server_side=False, host_name=tls.host_name(endpoint))
    except ValueError as error:
        sock.close()
        raise DialError(f"cannot connect to {endpoint}: {why(error)}") from error
    try:
        with trio.fail_after(limits.handshake_timeout):
            await pipe.handshake()
        refusal = tls.check(endpoint, pipe.tls.getpeercert(binary_form=True))
        if refusal is not None:
            raise DialError(refusal, untrusted=True)
    except trio.TooSlowError:
        pipe.close()
        # Silence tells of a network or a process that hangs, not of trust.
        raise DialError(f"{endpoint} did not finish the TLS handshake in {limits.handshake_timeout:.0f} s") from None
    except OSError as error:
        pipe.close()
        raise _of_tls(endpoint, error) from error
    except BaseException:
        pipe.close()
        raise
    return pipe


async def _connected(endpoint: Endpoint) -> socket.socket:
    """A non-blocking socket, connected to the first address of the name that answers."""
    stream = await trio.open_tcp_stream(endpoint.host, endpoint.port)
    sock = socket.socket(fileno=stream.socket.detach())
    sock.setblocking(False)
    return sock


async def dial_stream(endpoint: Endpoint, tls: ClientTls, limits: NetLimits) -> trio.SSLStream[trio.SocketStream]:
    """As `dial`, as a Trio stream: for tools, which ask and wait.

    Raises:
        DialError: as `dial`.
    """
    transport: trio.SocketStream | None = None
    try:
        with trio.fail_after(limits.connect_timeout):
            transport = await trio.open_tcp_stream(endpoint.host, endpoint.port)
        stream = trio.SSLStream(transport, tls.context, server_hostname=tls.host_name(endpoint), https_compatible=True)
        with trio.fail_after(limits.handshake_timeout):
            await stream.do_handshake()
        certificate = stream.getpeercert(binary_form=True)
        assert not isinstance(certificate, dict), "binary form"
        refusal = tls.check(endpoint, certificate)
        if refusal is not None:
            raise DialError(refusal, untrusted=True)
    except BaseException as error:
        if transport is not None:
            await trio.aclose_forcefully(transport)
        no_tls = isinstance(error, trio.TooSlowError | trio.BrokenResourceError) and transport is not None
        if no_tls and await _speaks_http(endpoint):
            text = f"{endpoint} is an HTTP port, with /health and /metrics; name the node's own port instead"
            raise DialError(text) from None
        if isinstance(error, trio.TooSlowError):
            raise DialError(f"{endpoint} did not answer in time") from None
        if isinstance(error, OSError | ValueError):
            raise DialError(f"failed to connect: {endpoint}: {why(error)}") from error  # scripts match on it
        if isinstance(error, trio.BrokenResourceError):
            raise _of_tls(endpoint, error.__cause__ or error) from error
        raise
    return stream


def _of_tls(endpoint: Endpoint, error: BaseException) -> DialError:
    """What ended a handshake: trust, or, where the connection was reset or ended, the network."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return DialError(f"the certificate of {endpoint} is refused: {_refusal(error)}", untrusted=True)
    untrusted = isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError)
    return DialError(f"TLS with {endpoint} failed: {why(error)}", untrusted=untrusted)


async def _speaks_http(endpoint: Endpoint) -> bool:
    """Whether a port that did not finish TLS answers to HTTP: the mistake of a digit in a port number."""
    with trio.move_on_after(_PROBE_TIMEOUT):
        try:
            async with await trio.open_tcp_stream(endpoint.host, endpoint.port) as stream:
                await stream.send_all(b"GET /ping HTTP/1.0\r\n\r\n")
                answer = await stream.receive_some(16)
                return answer.startswith(b"HTTP/") and b" 400" not in answer  # which ports of ours answer to HTTP
        except (OSError, trio.BrokenResourceError):
            pass
    return False


def _refusal(error: ssl.SSLCertVerificationError) -> str:
    if error.verify_code not in _OTHER_NAMES:
        return error.verify_message
    return (
        f"{error.verify_message.rstrip('.')}; connect by a name that it holds, or accept every certificate that the "
        "authority has signed (verify=ca in a waltz:// address, ...ssl.verifyHost: false elsewhere)"
    )


def all_refused(error: BaseException) -> bool:
    """Whether every address of the name refused: Trio wraps one error for each that it tried."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(all_refused, error.exceptions))
    if isinstance(error, ConnectionRefusedError):
        return True
    return isinstance(error, OSError) and error.__cause__ is not None and all_refused(error.__cause__)


def why(error: BaseException) -> str:
    """The root of an error that may wrap one error per address tried."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, OSError) and error.__cause__ is not None and not error.strerror:
        return why(error.__cause__)
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {_refusal(error)}"
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    if isinstance(error, OSError) and (error.errno or 0) > 0:
        return os.strerror(error.errno or 0)  # Trio puts the address before it, which is said already
    return str(getattr(error, "strerror", None) or error)
