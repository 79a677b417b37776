"""What callers ask for: requests of HTTP, read into typed calls. Nothing is guessed, and what is unknown is refused.

GET  /topics                                    every topic that the caller may use
GET  /topics/T                                  one
GET  /topics/T/partition?of=KEY                 which partition a key belongs to
GET  /topics/T/partitions/P/mark                the committed mark
GET  /topics/T/partitions/P/records?first=…     a range of records
GET  /topics/T/partitions/P/feed?after=…        records from a mark on, as server-sent events or by WebSocket
GET  /topics/T/partitions/P/socket              a WebSocket: appends, and with after=… a feed
POST /topics/T/partitions/P/append              one record, with locks
"""

from __future__ import annotations

import base64
import binascii
import enum
import re
import zlib
from collections.abc import Mapping
from typing import Any, TypeAlias

from waltz_core.base.lock import Lock
from waltz_core.base.record import record
from waltz_core.gateway import json_text
from waltz_core.gateway.door import Caller
from waltz_core.gateway.keyed import Key, parse_key
from waltz_core.gateway.problems import Problem, RequestError, refused
from waltz_core.gateway.topics import Place, Topic, Topics, place_of

COUNT_MAX = 1000
_COUNT = 100
_LOCKS_MAX = 1000
_KINDS = ("write", "read", "append")
_FORMS = ("json", "text", "base64")
_FIELDS = frozenset({*_FORMS, "header", "locks", "mark", "key"})
_INT_32 = range(-(1 << 31), 1 << 31)
_INT_64 = range(-(1 << 63), 1 << 63)
_ID_MAX = (1 << 63) - 1


class Form(enum.Enum):
    """How a payload stands in JSON."""

    JSON = "json"
    TEXT = "text"
    BASE64 = "base64"


@record
class ListTopics:
    """All topics."""


@record
class ShowTopic:
    """One topic."""

    topic: Topic


@record
class FindPartition:
    """Which partition of a topic a key belongs to."""

    topic: Topic
    key: str

    @property
    def number(self) -> int:
        """It, by the same rule as `partition_of` of a client."""
        return zlib.crc32(self.key.encode()) % len(self.topic.partitions)


@record
class ReadMark:
    """How far a partition is committed."""

    place: Place


@record
class ReadRecords:
    """A range of records."""

    place: Place
    first: int
    count: int
    form: Form


@record
class FollowFeed:
    """Records from a mark on, without an end."""

    place: Place
    after: int | None  # None: only what is new
    form: Form


@record
class OpenSocket:
    """A WebSocket for appends to a partition, and for its feed."""

    place: Place
    feed: FollowFeed | None


@record
class Append:
    """One record."""

    place: Place
    payload: bytes
    header: int
    write: tuple[Lock, ...]
    read: tuple[Lock, ...]
    append: tuple[Lock, ...]
    mark: int | None  # of the state that the decision was based on
    key: Key | None


Call: TypeAlias = ListTopics | ShowTopic | FindPartition | ReadMark | ReadRecords | FollowFeed | OpenSocket | Append


@record
class Asked:
    """A request, as far as it is looked at here."""

    method: str
    path: str  # decoded
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]  # names in lower case


def route(topics: Topics, asked: Asked) -> Call | Place:
    """What a request asks for; the place of an append, whose body is still to be read.

    Raises:
        RequestError: there is nothing under this path, or its parameters cannot be used.
    """
    parts = asked.path.split("/")[1:]
    if parts[0] != "topics" or len(parts) > 5:
        raise _nothing(asked.path)
    if len(parts) == 1:
        _only(asked, "GET")
        return ListTopics()
    topic = topics.topic(parts[1])
    if topic is None:
        raise RequestError(no_such_topic(parts[1]))
    match parts[2:]:
        case []:
            _only(asked, "GET")
            return ShowTopic(topic)
        case ["partition"]:
            _only(asked, "GET", "of")
            return FindPartition(topic, _utf_8(_one(asked, "of"), "of"))
        case ["partitions", number, "append"]:
            _only(asked, "POST")
            return place_of(topic, number)
        case ["partitions", number, "mark"]:
            _only(asked, "GET")
            return ReadMark(place_of(topic, number))
        case ["partitions", number, "records"]:
            _only(asked, "GET", "first", "count", "payload")
            first = _whole(_one(asked, "first"), "first", 0, _ID_MAX)
            count = _whole(_one(asked, "count", str(_COUNT)), "count", 1, COUNT_MAX)
            return ReadRecords(place_of(topic, number), first, count, _form(asked))
        case ["partitions", number, "socket"]:
            _only(asked, "GET", "after", "payload")
            place, form = place_of(topic, number), _form(asked)
            return OpenSocket(place, FollowFeed(place, _after(asked), form) if "after" in asked.query else None)
        case ["partitions", number, "feed"]:
            _only(asked, "GET", "after", "payload")
            return FollowFeed(place_of(topic, number), _after(asked), _form(asked))
    raise _nothing(asked.path)


def _nothing(path: str) -> RequestError:
    return refused(404, "no-such-page", f"there is nothing under {path[:100]!r}; /openapi.json says what there is")


def _only(asked: Asked, method: str, *names: str) -> None:
    if asked.method != method and not (method == "GET" and asked.method == "HEAD"):
        raise refused(405, "wrong-method", f"{asked.path[:100]} takes {method}, not {asked.method[:20]}")
    for name in asked.query:
        if name not in names:
            known = f"known: {', '.join(names)}" if names else "there are none here"
            raise refused(400, "unknown-parameter", f"unknown parameter {name[:40]!r}; {known}")


def _one(asked: Asked, name: str, default: str | None = None) -> str:
    values = asked.query.get(name, [])
    if len(values) > 1:
        raise refused(400, "bad-parameter", f"{name} stands there {len(values)} times")
    if not values and default is None:
        raise refused(400, "missing-parameter", f"the parameter {name} is missing")
    return values[0] if values else str(default)


def _whole(text: str, name: str, least: int, most: int) -> int:
    if not re.fullmatch(r"-?[0-9]{1,19}", text) or not least <= int(text) <= most:
        raise refused(
            400, "bad-parameter", f"{name} must be a whole number from {least} to {most}, found {text[:40]!r}"
        )
    return int(text)


def _after(asked: Asked) -> int | None:
    """Where a feed begins; what a browser says when it connects again comes before what its page once asked for."""
    text = asked.headers.get("last-event-id") or _one(asked, "after")
    return None if text == "tail" else _whole(text, "after", -1, _ID_MAX)


def _form(asked: Asked) -> Form:
    text = _one(asked, "payload", Form.BASE64.value)
    if text not in _FORMS:
        raise refused(400, "bad-parameter", f"payload must be json, text or base64, found {text[:40]!r}")
    return Form(text)


def access_problem(caller: Caller, call: Call | Place) -> Problem | None:
    """Why a caller may not do that. A topic that he may not use is as one that there is not."""
    match call:
        case ListTopics():
            return None
        case ShowTopic(topic) | FindPartition(topic):
            allowed, what = caller.knows(topic.name), "use"
        case Place(topic) | Append(Place(topic)):
            allowed, what = caller.appends(topic.name), "append to"
        case ReadMark(Place(topic)):
            allowed, what = caller.knows(topic.name), "use"
        case ReadRecords(Place(topic)) | FollowFeed(Place(topic)):
            allowed, what = caller.reads(topic.name), "read"
        case OpenSocket(Place(topic), feed):
            allowed = caller.knows(topic.name) if feed is None else caller.reads(topic.name)
            what = "use" if feed is None else "read"
    if allowed:
        return None
    if not caller.knows(topic.name):
        return no_such_topic(topic.name)
    return Problem(403, "not-allowed", f"{caller.who} may not {what} topic {topic.name}")


def no_such_topic(name: str) -> Problem:
    """There is none of this name, for this caller."""
    return Problem(404, "no-such-topic", f"there is no topic {name[:100]!r} for you")


def feed_problem(call: FollowFeed, mark: int) -> Problem | None:
    """Why a feed cannot begin where it should."""
    if call.after is None or call.after <= mark:
        return None
    return Problem(
        409, "mark-ahead", f"mark {call.after} is not committed yet: the log ends at {mark}", more=(("mark", mark),)
    )


# ---- appends -------------------------------------------------------------------------------------------


def read_append(place: Place, content_type: str, body: bytes) -> Append:
    """An append from the body of its request.

    Raises:
        RequestError: something in it cannot be used.
    """
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise refused(415, "not-json", "an append is sent as Content-Type: application/json")
    try:
        value = json_text.parse(body)
    except ValueError as error:
        raise refused(400, "bad-json", f"the body is no JSON: {error}") from None
    return append_of(place, value)


def read_message(caller: Caller, place: Place, text: str) -> tuple[int | str | None, Append | Problem]:
    """An append from a message of a WebSocket, and the text or number by which its caller names it."""
    try:
        value = json_text.parse(text)
    except ValueError as error:
        return None, Problem(400, "bad-json", f"the message is no JSON: {error}")
    ref = value.pop("ref", None) if isinstance(value, dict) else None
    if type(ref) is not int and (type(ref) is not str or len(ref) > 200):
        return None, Problem(
            400, "bad-append", "a message has ref, a whole number or short text that its answer repeats"
        )
    try:
        return ref, access_problem(caller, place) or append_of(place, value)
    except RequestError as error:
        return ref, error.problem


def append_of(place: Place, value: Any) -> Append:
    """An append from a JSON value; errors as `read_append`."""
    if not isinstance(value, dict):
        raise _bad("the body must be an object")
    for name in value:
        if name not in _FIELDS:
            raise _bad(f"unknown member {name[:40]!r}; known: {', '.join(sorted(_FIELDS))}")
    forms = [name for name in _FORMS if name in value]
    if len(forms) != 1:
        raise _bad(f"exactly one of json, text and base64 holds the payload, found {' and '.join(forms) or 'none'}")
    key = _key(place.topic, value.get("key"))
    header = _number(value.get("header", 0), "header", _INT_32)
    mark = value.get("mark")
    if mark is not None:
        mark = _number(mark, "mark", range(-1, 1 << 63))
    write, read, append = _locks(value.get("locks", {}))
    if (write or read) and mark is None:
        raise _bad("write and read locks need mark: the last transaction of the state that the decision was based on")
    payload = _payload(place.topic, forms[0], value[forms[0]], key)
    if key is None:
        _refuse_key_inside(place.topic.key_field, payload)
    return Append(place, payload, header, write, read, append, mark, key)


def _bad(text: str) -> RequestError:
    return refused(400, "bad-append", text)


def _number(value: Any, name: str, among: range) -> int:
    if type(value) is not int or value not in among:
        raise _bad(f"{name} must be a whole number from {among.start} to {among.stop - 1}, found {str(value)[:40]!r}")
    return value


def _utf_8(text: str, name: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise refused(400, "bad-text", f"{name} holds half of a surrogate pair, which is no text") from None
    return text


def _key(topic: Topic, value: Any) -> Key | None:
    if value is None:
        if topic.keys_required:
            raise _bad(f"topic {topic.name} takes appends with an idempotency key only: key = MARK:TEXT")
        return None
    key = parse_key(value) if isinstance(value, str) else None
    if key is None:
        raise _bad(
            "key must be MARK:TEXT, such as 41:order-4711: the committed mark from before the first attempt, and 1 to "
            f"128 letters, digits, '.', '_', '~' and '-'; found {str(value)[:60]!r}"
        )
    return key


def _locks(value: Any) -> tuple[tuple[Lock, ...], tuple[Lock, ...], tuple[Lock, ...]]:
    if not isinstance(value, dict) or not all(kind in _KINDS for kind in value):
        raise _bad('locks must be an object with write, read and append, such as {"write": [["account", 7]]}')
    lists = [value.get(kind, []) for kind in _KINDS]
    if sum(len(locks) for locks in lists if isinstance(locks, list)) > _LOCKS_MAX:  # before each is looked at
        raise _bad(f"more than {_LOCKS_MAX} locks in one append")
    write, read, append = (_locks_of(locks, kind) for locks, kind in zip(lists, _KINDS, strict=True))
    return write, read, append


def _locks_of(value: Any, kind: str) -> tuple[Lock, ...]:
    if not isinstance(value, list):
        raise _bad(f'locks.{kind} must be a list of locks, such as [["account", 7]]')
    return tuple(_lock(item, kind) for item in value)


def _lock(value: Any, kind: str) -> Lock:
    if not isinstance(value, list) or len(value) != 2 or not isinstance(value[0], str) or not value[0]:
        raise _bad(f'a lock is its name and its id, such as ["account", 7], found {str(value)[:60]!r} in locks.{kind}')
    return Lock(_utf_8(value[0], "the name of a lock"), _number(value[1], "the id of a lock", _INT_64))


def _refuse_key_inside(field: str, payload: bytes) -> None:
    """An append without a key takes no lock on one: a record that carries it all the same would hide the key's own."""
    if field.encode() not in payload and b"\\" not in payload:  # how else a name may be written
        return
    try:
        value = json_text.parse(payload)
    except ValueError:
        return
    carried = value.get(field) if isinstance(value, dict) else None
    if isinstance(carried, str) and parse_key(carried) is not None:
        raise _bad(
            f"{field} of the payload is an idempotency key, {carried!r}, and the append has none, so that a repeat of "
            f"that key would find this record: send it as key, or leave {field} out"
        )


def _payload(topic: Topic, form: str, value: Any, key: Key | None) -> bytes:
    if key is not None:
        if not isinstance(value, dict) or form != Form.JSON.value:
            raise _bad("an append with a key has an object as its json: the record carries the key")
        if value.setdefault(topic.key_field, key.text) != key.text:
            raise _bad(f"json.{topic.key_field} differs from key: leave it out, and the gateway puts the key there")
    if form == Form.JSON.value:
        try:
            return json_text.write(value).encode()
        except ValueError as error:
            raise _bad(f"json: {error}") from None
    if not isinstance(value, str):
        raise _bad(f"{form} must be text, found {str(value)[:40]!r}")
    if form == Form.TEXT.value:
        return _utf_8(value, "text").encode()
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise _bad("base64 cannot be decoded") from None
