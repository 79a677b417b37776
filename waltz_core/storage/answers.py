"""Answers of the storage port that many requests share."""

from __future__ import annotations

from waltz_core.base.errors import StorageError
from waltz_core.storage.context import NodeContext
from waltz_core.storage.refusals import Refusal
from waltz_core.storage.transcode import Incoming
from waltz_core.wire import storage_messages as wire
from waltz_core.wire.shared import FailureCode


def succeed(context: NodeContext, conn: int, message: Incoming) -> None:
    """It is done, and durable."""
    answer = wire.SuccessResponse(message.session_id, message.seq_num, message.partition_id)
    context.replies.put((conn, answer))


def fail(context: NodeContext, conn: int, message: Incoming, why: StorageError) -> None:
    """It is not done; a peer that knows codes gets the code, any peer the text."""
    code, detail = (why.code, why.detail) if isinstance(why, Refusal) else (FailureCode.OTHER, -1)
    ids = message.session_id, message.seq_num, message.partition_id
    context.reply(conn, wire.FailureResponse(*ids, str(why), code=code, detail=detail))
