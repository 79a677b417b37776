"""What calls come to, as JSON: answers, problems, records. One form for HTTP, server-sent events and WebSocket."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from typing import Any

from waltz_core.base.errors import (
    BeforeStartError,
    ClientAheadError,
    ClientClosedError,
    ClientFailedError,
    ConfigError,
    PartitionNotFoundError,
    WaltzError,
)
from waltz_core.base.record import record
from waltz_core.gateway import json_text
from waltz_core.gateway.calls import Form
from waltz_core.gateway.door import Caller
from waltz_core.gateway.keyed import Done
from waltz_core.gateway.problems import Outcome, Problem
from waltz_core.gateway.topics import Place, Topic

JSON = "application/json"
PROBLEM_JSON = "application/problem+json"
RETRY_AFTER = 2  # seconds, where a cluster does not answer


@record
class Reply:
    """An answer of HTTP, as far as it is decided here."""

    status: int
    content_type: str
    text: str
    headers: tuple[tuple[str, str], ...] = ()


@record
class Record:
    """One committed transaction, as callers get it."""

    transaction_id: int
    header: int
    data: bytes


def of_problem(problem: Problem) -> Reply:
    """A problem, after RFC 9457."""
    headers: tuple[tuple[str, str], ...] = ()
    if problem.retry_after:
        headers = (("Retry-After", str(problem.retry_after)),)
    if problem.status == 401:
        headers = (*headers, ("WWW-Authenticate", 'Bearer realm="waltz gateway"'))
    return Reply(problem.status, PROBLEM_JSON, json_text.write(members_of(problem)), headers)


def members_of(problem: Problem) -> dict[str, Any]:
    """What stands in a problem."""
    members: dict[str, Any] = {"status": problem.status, "code": problem.code, "detail": problem.detail}
    if problem.outcome is not None:
        members["outcome"] = problem.outcome.value
    if problem.retry_after:
        members["retryAfter"] = problem.retry_after
    return members | dict(problem.more)


def of_topics(topics: Iterable[Topic], caller: Caller) -> Reply:
    """The topics that a caller may know of."""
    return _json({"topics": [_topic(topic, caller) for topic in topics if caller.knows(topic.name)]})


def of_topic(topic: Topic, caller: Caller) -> Reply:
    """One topic."""
    return _json(_topic(topic, caller))


def _topic(topic: Topic, caller: Caller) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "partitions": len(topic.partitions),
        "read": caller.reads(topic.name),
        "append": caller.appends(topic.name),
        "keyField": topic.key_field,
        "keysRequired": topic.keys_required,
    }


def of_partition(topic: Topic, number: int) -> Reply:
    """Which partition a key belongs to."""
    return _json({"topic": topic.name, "partition": number})


def of_mark(place: Place, mark: int) -> Reply:
    """A committed mark."""
    return _json({**_place(place), "mark": mark})


def of_records(place: Place, mark: int, records: Sequence[Record], form: Form) -> Reply:
    """A range of records."""
    head = json_text.write({**_place(place), "mark": mark})
    listed = ",".join(record_text(each, form) for each in records)
    return Reply(200, JSON, f'{head[:-1]},"records":[{listed}]}}')


def of_append(place: Place, done: Done) -> Reply:
    """An append that is in the log: 201 for a new record, 200 for one that was there already."""
    return _json(append_members(place, done), 200 if done.repeated else 201)


def append_members(place: Place, done: Done) -> dict[str, Any]:
    """The answer to an append that is in the log."""
    return {**_place(place), "id": done.transaction_id, "repeated": done.repeated}


def _place(place: Place) -> dict[str, Any]:
    return {"topic": place.topic.name, "partition": place.number}


def _json(value: object, status: int = 200) -> Reply:
    return Reply(status, JSON, json_text.write(value))


def record_text(each: Record, form: Form) -> str:
    """A record in one line. A payload that is not of the form that was asked for stands there as base64."""
    head = f'{{"id":{each.transaction_id},"header":{each.header},'
    try:
        if form is Form.JSON:
            return f'{head}"json":{json_text.write(json_text.parse(each.data))}}}'
        if form is Form.TEXT:
            return f'{head}"text":{json_text.write(each.data.decode())}}}'
    except ValueError:
        pass
    return f'{head}"base64":"{base64.b64encode(each.data).decode()}"}}'


def begin_event(mark: int) -> str:
    """How a feed begins: its id is where a browser goes on that connects again before it has a record."""
    return f": from {mark} on\nid: {mark}\n\n"


def event_text(each: Record, form: Form) -> str:
    """A record as a server-sent event; its id is where a browser goes on that connects again."""
    return f"id: {each.transaction_id}\ndata: {record_text(each, form)}\n\n"


def event_texts(records: Sequence[Record], form: Form) -> bytes:
    """Some of them."""
    return "".join([event_text(each, form) for each in records]).encode()


def problem_event(problem: Problem) -> str:
    """A problem as the last event of a feed."""
    return f"event: problem\ndata: {json_text.write(members_of(problem))}\n\n"


# ---- messages of a WebSocket ---------------------------------------------------------------------------


def record_message(each: Record, form: Form) -> str:
    """A record of the feed."""
    return f'{{"record":{record_text(each, form)}}}'


def append_message(ref: int | str, place: Place, done: Done) -> str:
    """An append that is in the log; `ref` is what its caller named it by."""
    return json_text.write({"append": append_members(place, done), "ref": ref})


def problem_message(problem: Problem, ref: int | str | None = None) -> str:
    """A problem of an append, or, without `ref`, of the feed or of a message that names none."""
    named = {} if ref is None else {"ref": ref}
    return json_text.write({"problem": members_of(problem), **named})


# ---- errors of the client ------------------------------------------------------------------------------


def problem_of(error: Exception, outcome: Outcome | None = None) -> Problem:
    """What an error of the client means for who asked.

    Args:
        error: it.
        outcome: of an append, as far as it was heard.
    """
    match error:
        case BeforeStartError():
            return Problem(410, "before-start", error.text, outcome)
        case ClientAheadError():
            return Problem(409, "mark-ahead", str(error), outcome)
        case PartitionNotFoundError():
            return Problem(
                502, "no-such-partition", "the cluster has no such partition: gateway.topics is wrong", outcome
            )
        case ClientClosedError() | ClientFailedError() | ConfigError():
            return unreachable(outcome)
        case WaltzError():
            return Problem(502, "cluster-problem", str(error), outcome)
        case ValueError() if outcome is Outcome.REFUSED:
            return Problem(400, "bad-append", str(error), outcome)
    return Problem(500, "gateway-failed", "the gateway failed; its log says how", outcome)


def unreachable(outcome: Outcome | None = None) -> Problem:
    """The cluster of a topic does not answer."""
    return Problem(
        503, "cluster-unreachable", "the cluster of this topic does not answer the gateway", outcome, RETRY_AFTER
    )


def too_slow(outcome: Outcome | None, seconds: float) -> Problem:
    """The cluster did not answer in time."""
    what = "whether the record was appended is not known: repeat it with its key" if outcome is Outcome.UNKNOWN else ""
    detail = f"the cluster did not answer within {seconds:g} s"
    return Problem(504, "too-slow", f"{detail}; {what}" if what else detail, outcome, RETRY_AFTER)
