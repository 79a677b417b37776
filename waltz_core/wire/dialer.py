"""Who dials a port of another node: when, how long it is waited for, and why it cannot be used.

```
          wanted                stands               lets us in
IDLE ──────────────► DIALING ──────────► GREETING ──────────────► READY
  ▲                     │ failed            │ silent, refused, or    │ the owner gives it up, or
  │ pause over,         │                   ▼ no port of ours        ▼ it makes no sense
  │ nobody wants it     │                CLOSING ◄────────────────────┘
  │                     ▼                   │ the connection has ended
WAITING ◄───────────────┴───────────────────┘
  └──── pause over, still wanted ────► DIALING              dialed once only: ENDED in place of WAITING
```

One machine for every connection that a node opens to another: a server's to its storage nodes (`store/pool.py`), and
those to admin ports for repairs (`wire/admin_link.py`), which are dialed once. The owner knows what is asked and what
an answer means; this knows the connection: its greeting and opening (`PortSession`), the bytes that gather during a
step, the pauses between dials (`Attempts`), and the reason why there is no connection.

* **A connection ends once.** Whoever gives it up asks the driver to close it and waits for `Closed`; until then it is
  CLOSING and nothing is taken from it, so that no successor overlaps it. The reason given first counts: the end of the
  connection that follows from it explains nothing.
* **Every reason pauses alike.** A refused TCP connection, a certificate that has expired, a wrong key, a silent peer:
  none of them looks different from one that is mended in a second, and a dial costs little. So the pauses grow
  to the owner's limit for all of them, and a peer that is back is noticed within it.
* **Silence is bounded** by `greeting_ms` from the connection until the peer has let us in; how long a driver may take
  for TCP and TLS is its own limit.
* **People hear of changes**: one line when the reason is another one, one when the peer can be used again; nothing of
  a peer that nobody wants, nor of one that is dialed once, for which its owner speaks.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Generic, TypeAlias, TypeVar

from waltz_core.base.attempts import Attempts
from waltz_core.base.edge import CloseConn, Dial, Level, Port, Report, Send
from waltz_core.base.errors import HandshakeError, NoCommonVersionError, ProtocolError
from waltz_core.base.ids import Endpoint
from waltz_core.base.outbox import Emits
from waltz_core.wire.frame import LARGE
from waltz_core.wire.port_session import PortSession, PortState
from waltz_core.wire.shared import Trouble

M = TypeVar("M")

DialerEffect: TypeAlias = Dial | Send | CloseConn | Report


class DialState(enum.Enum):
    """See the top of this file."""

    IDLE = "nobody needs it"
    DIALING = "connecting"
    GREETING = "greets, and waits to be let in"
    READY = "usable"
    CLOSING = "waits for the end of the connection"
    WAITING = "waits before the next dial"
    ENDED = "gone for good"


class Dialer(Generic[M]):
    """One peer and the connection to it, if there is one.

    Args:
        name: of the peer, as reports call it.
        kind: what answers there, with an article.
        open_session: makes the protocol's side of each new connection.
        greeting_ms: from the connection until the peer lets us in; None where the owner has a deadline of its own.
        again: pauses between dials; None to dial once.
    """

    __slots__ = (
        "_again",
        "_due",
        "_greeting_ms",
        "_kind",
        "_name",
        "_new_conn",
        "_open_session",
        "_out",
        "_port",
        "buffer",
        "codec",
        "conn",
        "endpoint",
        "session",
        "state",
        "trouble",
        "trouble_kind",
        "wanted",
    )

    def __init__(
        self,
        endpoint: Endpoint,
        port: Port,
        out: Emits[DialerEffect],
        new_conn: Callable[[], int],
        open_session: Callable[[], PortSession[M]],
        *,
        name: str,
        kind: str,
        greeting_ms: int | None = None,
        again: Attempts | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.state = DialState.IDLE
        self.wanted = False
        self.conn: int | None = None  # of the present connection
        self.session: PortSession[M] | None = None  # while there is one that is not given up
        self.codec = 0  # what the connection speaks; 0 while there is none that is READY
        self.buffer = bytearray()  # of this step
        self.trouble = ""  # why it is not READY: the last thing that went wrong
        self.trouble_kind: Trouble | None = None
        self._port = port
        self._out = out
        self._new_conn = new_conn
        self._open_session = open_session
        self._name = name
        self._kind = kind
        self._greeting_ms = greeting_ms
        self._again = again
        self._due: int | None = None

    @property
    def over(self) -> bool:
        """It was given up, or has ended, and is not dialed again."""
        return self._again is None and self.state in (DialState.CLOSING, DialState.ENDED)

    def warning(self, reason: str) -> str:
        """What people read when the peer cannot be used, or for another reason than before."""
        return f"{self._name} cannot be used: {reason}"

    def want(self) -> None:
        """It is needed from now on: dial, unless there is a connection or a pause goes on."""
        self.wanted = True
        if self.state is DialState.IDLE:
            self._dial()

    def dialed(self, now: int) -> None:
        """The connection stands: greet. One that was given up meanwhile may still say so."""
        if self.state is not DialState.DIALING:
            return
        assert self.conn is not None
        self.session = self._open_session()
        self._out.put(Send(self.conn, self.session.hello()))
        self.state = DialState.GREETING
        self._due = None if self._greeting_ms is None else now + self._greeting_ms

    def received(self, data: bytes) -> list[M]:
        """Bytes of the peer; returns the answers in them, also those before a breach of the protocol."""
        session = self.session
        if session is None:
            return []
        if self.state is not DialState.READY:
            return self._greeted(session, data)
        answers: list[M] = []
        try:
            session.more(data, answers)
        except ProtocolError as error:
            self.give_up(self._breach(error), Trouble.PROTOCOL)
        return answers

    def _greeted(self, session: PortSession[M], data: bytes) -> list[M]:
        """Bytes of a peer that has not let us in."""
        trouble, kind = "", Trouble.PROTOCOL
        try:
            self.buffer += session.receive(data)
        except HandshakeError as error:
            trouble = f"it does not greet as {self._kind} does: {error}"
            kind = Trouble.VERSION if isinstance(error, NoCommonVersionError) else Trouble.PROTOCOL
        except ProtocolError as error:
            trouble = self._breach(error)
        if self.state is DialState.GREETING:
            if session.refusal is not None and not trouble:
                trouble, kind = f"it refused to open: {session.refusal.message}", Trouble.REFUSAL
            elif session.state is PortState.READY and not trouble:
                self._ready(session)
        answers = session.take()
        if trouble:
            self.give_up(trouble, kind)
        return answers

    def _breach(self, error: ProtocolError) -> str:
        return f"it sent what {self._kind} never sends: {error}"

    def send(self, message: M) -> None:
        """Gather a message for this step; the peer is READY."""
        assert self.session is not None
        self.session.encode_into(message, self.buffer)

    def pass_on(self, *pieces: bytes) -> None:
        """Gather what is encoded already; the peer is READY. A large piece is handed over as it is, never copied."""
        for piece in pieces:
            if len(piece) < LARGE or self.conn is None:
                self.buffer += piece
            else:
                self.flush()
                self._out.put(Send(self.conn, piece))

    def flush(self) -> None:
        """Hand over what was gathered, as one piece."""
        if self.buffer and self.conn is not None:
            self._out.put(Send(self.conn, self.buffer))
            self.buffer = bytearray()

    def give_up(self, reason: str, kind: Trouble = Trouble.NETWORK) -> None:
        """End the connection, behind what was gathered for it."""
        if self.conn is None or self.state is DialState.CLOSING:
            return
        self._troubled(reason, kind)
        self.flush()
        self._out.put(CloseConn(self.conn, reason))
        self.state = DialState.CLOSING
        self.codec = 0
        self.session = None
        self._due = None

    def closed(self, now: int, reason: str, *, untrusted: bool = False) -> None:
        """The connection ended, or the dial failed."""
        if self.state is not DialState.CLOSING:
            self._troubled(reason, Trouble.TRUST if untrusted else Trouble.NETWORK)
        self.conn = self.session = self._due = None
        self.buffer.clear()
        self.codec = 0
        self.state = DialState.ENDED
        if self._again is not None:
            self.state = DialState.WAITING
            self._due = self._again.pause(now)

    def due(self, now: int) -> None:
        """Dial again when the pause is over; give up a peer that does not greet."""
        if self._due is None or now < self._due:
            return
        self._due = None
        if self.state is DialState.GREETING:
            self.give_up(f"it did not greet within {self._greeting_ms} ms")
            return
        self.state = DialState.IDLE
        if self.wanted:
            self._dial()

    def deadline(self) -> int | None:
        """When `due` has something to do."""
        return self._due

    def _dial(self) -> None:
        self.conn = self._new_conn()
        self.state = DialState.DIALING
        self._out.put(Dial(self.conn, self.endpoint, self._port))

    def _ready(self, session: PortSession[M]) -> None:
        self.state = DialState.READY
        self.codec = session.version
        self.trouble, self.trouble_kind = "", None
        self._due = None
        if self._again is not None and self._again.succeeded():
            self._out.put(Report(Level.INFO, f"{self._name} can be used again"))

    def _troubled(self, reason: str, kind: Trouble) -> None:
        self.trouble, self.trouble_kind = reason, kind
        if self._again is not None and self._again.failed(reason, quiet=not self.wanted):
            self._out.put(Report(Level.WARNING, self.warning(reason)))
