"""One connection to a port of a node, from its greeting to its answers: what tools and readers share, without I/O.

    GREETING ──codec agreed──▶ OPENING ──the node accepts──▶ READY
                                  └─────the node refuses────▶ REFUSED (final)

Protocols that have no opening request go from GREETING to READY. A driver sends what `hello`, `receive` and `encode`
return, and reads until `state` is READY or there is an answer; requests are answered in their order.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Collection
from typing import Generic, TypeVar

from waltz_core.base.record import record
from waltz_core.wire.admin_messages import AdminFailureResponse, AdminSuccessResponse
from waltz_core.wire.client_messages import ErrorResponse
from waltz_core.wire.connection import Connection
from waltz_core.wire.frame import FRAME_SIZE_MAX_STORAGE
from waltz_core.wire.shared import FailureCode
from waltz_core.wire.storage_messages import FailureResponse, SuccessResponse
from waltz_core.wire.table import WireProtocol

M = TypeVar("M")

# 0.13.2 has texts only: "Provided cluster key is inconsistent with key in control file."
_OF_ANOTHER_CLUSTER = "is inconsistent with"


class PortState(enum.Enum):
    """How far a connection is."""

    GREETING = "agrees on a codec"
    OPENING = "shows that it belongs to the cluster"
    READY = "takes requests"
    REFUSED = "is not let in"


@record
class Refusal:
    """A failure that a node answered with; `code` and `detail` mean something for codec 1 and 5 only."""

    message: str
    code: int
    detail: int  # what the code says; -1 for none
    wrong_cluster: bool = False


def refusal_of(answer: object) -> Refusal | None:
    """What an answer of any port refuses; None if it grants."""
    match answer:
        case FailureResponse() | AdminFailureResponse():
            message = answer.message or "refused without a reason"
            foreign = answer.code == FailureCode.WRONG_CLUSTER
            if answer.code == FailureCode.OTHER:
                foreign = _OF_ANOTHER_CLUSTER in message
            return Refusal(message, answer.code, answer.detail, foreign)
        case ErrorResponse():
            return Refusal(answer.message or "refused without a reason", answer.code, -1)
        case _:
            return None


def _refusal_to_open(answer: object) -> Refusal | None:
    """Why we are not let in: nothing but a grant is one."""
    if isinstance(answer, SuccessResponse | AdminSuccessResponse):
        return None
    return refusal_of(answer) or Refusal(f"unexpected answer {type(answer).__name__}", FailureCode.OTHER, -1)


class PortSession(Generic[M]):
    """See the top of this file.

    Args:
        protocol: of the port.
        text: what our greeting says, for people.
        versions: codecs that we offer.
        opening: the request that shows the cluster's key, for ports that ask for it.
        frame_size_max: largest body that we accept.
    """

    __slots__ = ("_answers", "_connection", "_opening", "more", "refusal", "state")

    def __init__(
        self,
        protocol: WireProtocol[M],
        text: str,
        versions: Collection[int],
        opening: M | None = None,
        frame_size_max: int = FRAME_SIZE_MAX_STORAGE,
    ) -> None:
        self._connection: Connection[M] = Connection(protocol, text, versions, frame_size_max)
        # Takes bytes of a node that is READY, of which all answers so far were taken: adds those that came. Errors as
        # `receive`; nothing is sent in turn. The connection's own method, without a call of ours.
        self.more: Callable[[bytes, list[M]], None] = self._connection.receive
        self._opening = opening
        self._answers: deque[M] = deque()
        self.state = PortState.GREETING
        self.refusal: Refusal | None = None  # why it is REFUSED

    @property
    def version(self) -> int:
        """Codec agreed on."""
        assert self._connection.version is not None
        return self._connection.version

    def hello(self) -> bytes:
        """What is sent first."""
        return self._connection.hello()

    def receive(self, data: bytes | bytearray) -> bytes:
        """Take bytes of the node; returns the bytes to send in turn.

        Raises:
            ProtocolError: bytes that no correct node sends; the connection must be closed. Answers before them count.
        """
        answers: list[M] = []
        try:
            self._connection.receive(data, answers)
        finally:
            self._answers += answers
        reply = bytearray()
        if self.state is PortState.GREETING and self._connection.version is not None:
            self.state = PortState.READY if self._opening is None else PortState.OPENING
            if self._opening is not None:
                self._connection.encode(self._opening, reply)
        if self.state is PortState.OPENING and self._answers:
            self.refusal = _refusal_to_open(self._answers.popleft())
            self.state = PortState.READY if self.refusal is None else PortState.REFUSED
        return bytes(reply)

    def encode(self, request: M) -> bytes:
        """The bytes of a request; errors as `encode_into`."""
        out = bytearray()
        self.encode_into(request, out)
        return bytes(out)

    def encode_into(self, request: M, out: bytearray) -> None:
        """Append the bytes of a request to those of others.

        Raises:
            ProtocolError: the codec agreed on has no such request.
        """
        assert self.state is PortState.READY, self.state
        self._connection.encode(request, out)

    def answer(self) -> M | None:
        """The oldest answer that was not taken yet; None while there is none."""
        return self._answers.popleft() if self._answers and self.state is PortState.READY else None

    def take(self) -> list[M]:
        """All answers that were not taken yet."""
        if not self._answers or self.state is not PortState.READY:
            return []
        answers = list(self._answers)
        self._answers.clear()
        return answers
