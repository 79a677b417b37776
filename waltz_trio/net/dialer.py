"""Opening connections: name, TCP, TLS, and the check of who answered."""

from __future__ import annotations

import socket
import ssl

import trio

from waltz_core.ids import Endpoint
from waltz_trio.net.channel import NetLimits, TlsPipe
from waltz_trio.net.listener import tune
from waltz_trio.net.tls import ClientTls


class DialError(Exception):
    """The connection does not stand; the text says why."""


async def dial(endpoint: Endpoint, tls: ClientTls, limits: NetLimits) -> TlsPipe:
    """Connect and shake hands.

    Raises:
        DialError: no connection within the limits, or the peer is not who it must be.
    """
    try:
        with trio.fail_after(limits.connect_timeout):
            stream = await trio.open_tcp_stream(endpoint.host, endpoint.port)
    except trio.TooSlowError:
        raise DialError(f"{endpoint} did not answer within {limits.connect_timeout:.0f} s") from None
    except OSError as error:
        raise DialError(f"cannot connect to {endpoint}: {_why(error)}") from error
    sock = socket.socket(fileno=stream.socket.detach())
    sock.setblocking(False)
    tune(sock)
    pipe = TlsPipe(sock, tls.context, server_side=False, host_name=tls.host_name(endpoint))
    try:
        with trio.fail_after(limits.handshake_timeout):
            await pipe.handshake()
        refusal = tls.check(endpoint, pipe.tls.getpeercert(binary_form=True))
        if refusal is not None:
            raise DialError(refusal)
    except trio.TooSlowError:
        pipe.close()
        raise DialError(f"{endpoint} did not finish the TLS handshake in {limits.handshake_timeout:.0f} s") from None
    except ssl.SSLCertVerificationError as error:
        pipe.close()
        raise DialError(f"the certificate of {endpoint} is refused: {error.verify_message}") from error
    except OSError as error:
        pipe.close()
        raise DialError(f"TLS with {endpoint} failed: {_why(error)}") from error
    except BaseException:
        pipe.close()
        raise
    return pipe


def _why(error: BaseException) -> str:
    """The root of an error that may wrap one error per address tried."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, OSError) and error.__cause__ is not None and not error.strerror:
        return _why(error.__cause__)
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    return str(getattr(error, "strerror", None) or error)
