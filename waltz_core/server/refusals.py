"""Answers to appends that are not in the log and never will be, and about partitions that are not here."""

from __future__ import annotations

from waltz_core.base.ids import ReqId
from waltz_core.base.lock import Conflict, LockKind
from waltz_core.server.appender import Refused
from waltz_core.wire.client_messages import (
    AppendRefused,
    LockFailure,
    NamedAppendRequest,
    Refusal,
    TransactionDataResponse,
)

NOT_SERVED = "the partition is not on this server"
_TEXTS = {
    Refusal.GENERATION: "the request is of another generation of the partition",
    Refusal.NOT_MOUNTED: "this connection has no mount of the partition, or a newer one replaced it",
    Refusal.NOT_SERVED: NOT_SERVED,
}


def payload_not_here(req_id: ReqId, transaction_id: int) -> TransactionDataResponse:
    """The payload of a partition that is not on this server; clients of all versions ask again a little later."""
    # Java: the text of its exception, which clients show but do not parse.
    return TransactionDataResponse(req_id, transaction_id, False, error="partition not ready")


def refusal(req_id: ReqId, why: Refusal, text: str | None = None) -> AppendRefused:
    """An append was refused for another reason than its locks."""
    return AppendRefused(
        req_id, why, -1, Conflict.UNKNOWN, -1, LockKind.NONE, -1, 0, text or _TEXTS.get(why, why.name.lower())
    )


def lock_refusal(verdict: Refused) -> LockFailure | AppendRefused:
    """An append was refused because of its locks; reported in the protocol in which it was asked."""
    request = verdict.request
    if type(request) is not NamedAppendRequest:
        return LockFailure(request.req_id, verdict.mark)
    why = verdict.why
    return AppendRefused(
        request.req_id,
        Refusal.LOCK,
        verdict.mark,
        why.conflict,
        why.blocking_id,
        why.kind,
        why.index,
        why.lock_hash,
        None,
    )
