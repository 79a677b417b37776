"""Requests of a gateway: what each path means, and that everything else is refused with a reason."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz_core.base.errors import ConfigError
from waltz_core.base.lock import Lock
from waltz_core.gateway import calls, json_text
from waltz_core.gateway.calls import Asked, Form, append_of, read_append, route
from waltz_core.gateway.door import ALL, Caller
from waltz_core.gateway.keyed import Key
from waltz_core.gateway.problems import Problem, RequestError
from waltz_core.gateway.topics import Place, Topic, Topics
from waltz_trio.client.values import key_partition

PAY = Topic("pay", "a.yml", (4, 5, 6))
STRICT = Topic("strict", "b.yml", (0,), "order", keys_required=True)
TOPICS = Topics([PAY, STRICT])
AT = Place(PAY, 1, 5)


def asked(path: str, query: str = "", method: str = "GET", **headers: str) -> Asked:
    pairs: dict[str, list[str]] = {}
    for part in filter(None, query.split("&")):
        name, _, value = part.partition("=")
        pairs.setdefault(name, []).append(value)
    return Asked(method, path, pairs, {name.replace("_", "-"): value for name, value in headers.items()})


def problem_of(given: Asked) -> Problem:
    with pytest.raises(RequestError) as caught:
        route(TOPICS, given)
    return caught.value.problem


@pytest.mark.parametrize(
    ("given", "call"),
    [
        (asked("/topics"), calls.ListTopics()),
        (asked("/topics", method="HEAD"), calls.ListTopics()),
        (asked("/topics/pay"), calls.ShowTopic(PAY)),
        (asked("/topics/pay/partition", "of=7"), calls.FindPartition(PAY, "7")),
        (asked("/topics/pay/partitions/1/mark"), calls.ReadMark(AT)),
        (asked("/topics/pay/partitions/1/records", "first=0"), calls.ReadRecords(AT, 0, 100, Form.BASE64)),
        (
            asked("/topics/pay/partitions/1/records", "first=5&count=7&payload=text"),
            calls.ReadRecords(AT, 5, 7, Form.TEXT),
        ),
        (asked("/topics/pay/partitions/1/feed", "after=-1"), calls.FollowFeed(AT, -1, Form.BASE64)),
        (asked("/topics/pay/partitions/1/feed", "after=tail&payload=json"), calls.FollowFeed(AT, None, Form.JSON)),
        (
            asked("/topics/pay/partitions/1/feed", "after=tail", last_event_id="9"),
            calls.FollowFeed(AT, 9, Form.BASE64),
        ),
        (asked("/topics/pay/partitions/1/append", method="POST"), AT),
    ],
)
def test_a_path_is_a_call(given: Asked, call: Any) -> None:
    assert route(TOPICS, given) == call


READ = [
    ("/topics", ""),
    ("/topics/pay", ""),
    ("/topics/pay/partition", "of=x"),
    ("/topics/pay/partitions/1/mark", ""),
    ("/topics/pay/partitions/1/records", "first=0"),
    ("/topics/pay/partitions/1/feed", "after=1"),
    ("/topics/pay/partitions/1/socket", "after=1"),
]
"""All that is only read, each with what it needs."""


@pytest.mark.parametrize(
    ("given", "status", "code"),
    [
        (asked("/"), 404, "no-such-page"),
        (asked("/topics/"), 404, "no-such-topic"),
        (asked("/topics/nobody"), 404, "no-such-topic"),
        (asked("/topics/../pay"), 404, "no-such-topic"),
        (asked("/topics/pay/other"), 404, "no-such-page"),
        (asked("/topics/pay/partitions/1/mark/x"), 404, "no-such-page"),
        (asked("/topics/pay/partitions/3/mark"), 404, "no-such-partition"),
        (asked("/topics/pay/partitions/-1/mark"), 404, "no-such-partition"),
        (asked("/topics/pay/partitions/1e0/mark"), 404, "no-such-partition"),
        (asked("/topics/pay/partitions/١/mark"), 404, "no-such-partition"),
        (asked("/topics/pay/partitions/1/append"), 405, "wrong-method"),
        *((asked(path, query, method="POST"), 405, "wrong-method") for path, query in READ),
        *((asked(path, f"{query}&x=1"), 400, "unknown-parameter") for path, query in READ),
        (asked("/topics/pay/partitions/1/append", "x=1", method="POST"), 400, "unknown-parameter"),
        (asked("/topics/pay/partitions/1/records"), 400, "missing-parameter"),
        (asked("/topics/pay/partitions/1/records", "first=1&first=2"), 400, "bad-parameter"),
        (asked("/topics/pay/partitions/1/records", "first=-1"), 400, "bad-parameter"),
        (asked("/topics/pay/partitions/1/records", "first=0&count=1001"), 400, "bad-parameter"),
        (asked("/topics/pay/partitions/1/records", "first=0&count=0"), 400, "bad-parameter"),
        (asked("/topics/pay/partitions/1/records", "first=9223372036854775808"), 400, "bad-parameter"),
        (asked("/topics/pay/partitions/1/records", "first=0&payload=xml"), 400, "bad-parameter"),
        (asked("/topics/pay/partitions/1/socket", "payload=xml"), 400, "bad-parameter"),
        (asked("/topics/pay/partitions/1/feed"), 400, "missing-parameter"),
        (asked("/topics/pay/partitions/1/feed", "after=-2"), 400, "bad-parameter"),
        (asked("/topics/pay/partitions/1/feed", "after=1", last_event_id="x"), 400, "bad-parameter"),
    ],
)
def test_what_is_no_call_is_refused_with_a_word_for_programs(given: Asked, status: int, code: str) -> None:
    problem = problem_of(given)
    assert (problem.status, problem.code) == (status, code)


@given(key=st.text(st.characters(exclude_categories=["Cs"])))
def test_a_key_has_the_partition_that_a_client_gives_it(key: str) -> None:
    assert calls.FindPartition(PAY, key).number == key_partition(key, 3)


# ---- appends -------------------------------------------------------------------------------------------


def test_an_append_with_everything() -> None:
    value = {
        "json": {"amount": 1},
        "header": -3,
        "locks": {"write": [["account", 7]], "read": [["rate", -1]], "append": [["day", 20]]},
        "mark": 41,
        "key": "40:order-1",
    }
    assert read_append(AT, "application/json; charset=utf-8", json.dumps(value).encode()) == calls.Append(
        AT,
        b'{"amount":1,"idempotencyKey":"40:order-1"}',
        -3,
        (Lock("account", 7),),
        (Lock("rate", -1),),
        (Lock("day", 20),),
        41,
        Key("40:order-1", 40),
    )


@pytest.mark.parametrize(
    ("body", "payload"),
    [
        (b'{"text": "\xc3\xa4"}', b"\xc3\xa4"),
        (b'{"text": ""}', b""),
        (b'{"base64": "AAE="}', b"\0\1"),
        (b'{"json": [1.10, 1e2, -0.0, "\\ud800", null, true]}', b'[1.10,1e2,-0.0,"\\ud800",null,true]'),
        (b'{"json": 123456789012345678901234567890}', b"123456789012345678901234567890"),
    ],
)
def test_payloads_go_as_they_came(body: bytes, payload: bytes) -> None:
    assert read_append(AT, "application/json", body).payload == payload


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"1", b'{"json":1,"text":"x"}', b"{}", b'{"text":1}', b'{"base64":"A"}',
        b'{"base64":"\\u00e4"}',
        b'{"text":"x","more":1}', b'{"text":"x","text":"y"}', b'{"json":NaN}', b'{"json":Infinity}', b"\xff",
        b'{"text":"\\ud800"}', b'{"text":"x","header":1.0}', b'{"text":"x","header":true}',
        b'{"text":"x","header":2147483648}',
        b'{"text":"x","mark":-2}', b'{"text":"x","mark":"1"}', b'{"text":"x","mark":9223372036854775808}',
        b'{"text":"x","locks":[]}', b'{"text":"x","locks":{"write":7}}', b'{"text":"x","locks":{"hold":[]}}',
        b'{"text":"x","locks":{"append":[["a"]]}}', b'{"text":"x","locks":{"append":[["a",1.5]]}}',
        b'{"text":"x","locks":{"append":[["",1]]}}', b'{"text":"x","locks":{"append":[["\\ud800",1]]}}',
        b'{"text":"x","locks":{"append":[["a",9223372036854775808]]}}', b'{"text":"x","locks":{"write":[["a",1]]}}',
        b'{"text":"x","locks":{"read":[["a",1]]}}', b'{"base64":"AA!A="}', b'{"base64":"AAA=\\n"}',
        b'{"text":"x","key":"1:a"}', b'{"json":[],"key":"1:a"}', b'{"json":{},"key":"a"}', b'{"json":{},"key":1}',
        b'{"json":{"idempotencyKey":"2:b"},"key":"1:a"}', b'{"json":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)  # fmt: skip
def test_what_is_no_append_is_refused(body: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        read_append(AT, "application/json", body)
    assert caught.value.problem.status == 400
    assert len(caught.value.problem.detail) < 300


def test_the_partition_of_no_key_is_asked_for_in_vain() -> None:
    with pytest.raises(RequestError, match="the parameter of is missing"):
        route(TOPICS, asked("/topics/pay/partition"))


@pytest.mark.parametrize(
    "body",
    [
        {"json": {"a": 1, "idempotencyKey": "-1:o1"}},
        {"text": '{"idempotencyKey": "-1:o1"}'},
        {"text": '{"idempotency\\u004bey": "-1:o1"}'},
        {"base64": base64.b64encode(b'{"idempotencyKey":"-1:o1"}').decode()},
    ],
)
def test_a_key_that_is_only_in_the_payload_is_refused(body: dict[str, Any]) -> None:
    """A repeat of an append that was committed with this key found that record, and was told that it was refused."""
    with pytest.raises(
        RequestError, match=r"idempotencyKey of the payload is an idempotency key, '-1:o1', and the app"
    ):
        append_of(AT, body)


def test_a_name_of_the_key_may_be_written_in_any_way_that_json_has() -> None:
    place = Place(Topic("ledger", "a.yml", (0,), "ledger/key"), 0, 0)
    with pytest.raises(RequestError, match="ledger/key of the payload is an idempotency key"):
        append_of(place, {"text": r'{"ledger\/key": "-1:o1"}'})


@pytest.mark.parametrize(
    "body",
    [
        {"json": {"idempotencyKey": "no mark"}},
        {"json": {"idempotencyKey": 7}},
        {"json": [{"idempotencyKey": "-1:o1"}]},
        {"json": {"inside": {"idempotencyKey": "-1:o1"}}},
        {"text": "the idempotencyKey"},
        {"base64": base64.b64encode(b'{"idempotencyKey":\xff').decode()},
    ],
)
def test_what_no_repeat_takes_for_a_key_is_no_key(body: dict[str, Any]) -> None:
    assert append_of(AT, body).key is None


def test_more_locks_than_accepted_are_refused() -> None:
    with pytest.raises(RequestError, match="more than 1000 locks"):
        append_of(AT, {"text": "x", "locks": {"append": [["a", 1]] * 1001}})
    with pytest.raises(RequestError, match="more than 1000 locks"):  # they are counted before each is looked at
        append_of(AT, {"text": "x", "locks": {"write": [None] * 600, "read": [None] * 600}, "mark": 1})


def test_a_page_of_another_site_cannot_send_an_append_as_a_form() -> None:
    with pytest.raises(RequestError) as caught:
        read_append(AT, "text/plain", b'{"text":"x"}')
    assert caught.value.problem.status == 415


def test_a_topic_can_demand_keys_and_say_where_they_stand() -> None:
    place = Place(STRICT, 0, 0)
    with pytest.raises(RequestError, match="takes appends with an idempotency key only"):
        append_of(place, {"json": {}})
    assert append_of(place, {"json": {}, "key": "1:a"}).payload == b'{"order":"1:a"}'
    assert append_of(place, {"json": {"order": "1:a"}, "key": "1:a"}).payload == b'{"order":"1:a"}'


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False, allow_infinity=False),
    lambda below: st.lists(below) | st.dictionaries(st.text(), below),
    max_leaves=20,
)


@given(VALUES)
def test_json_comes_out_as_it_went_in(value: Any) -> None:
    text = json_text.write(json_text.parse(json.dumps(value)))
    assert json.loads(text) == value
    assert "\n" not in text
    text.encode()


# ---- who may ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("caller", "allowed"),
    [
        (Caller("r", ("pay",), ()), "list show find mark records feed"),
        (Caller("a", (), ("pay",)), "list show find mark append"),
        (Caller("all", (ALL,), (ALL,)), "list show find mark records feed append"),
        (Caller("other", ("strict",), ("strict",)), "list"),
    ],
)
def test_what_a_caller_may(caller: Caller, allowed: str) -> None:
    every: dict[str, calls.Call | Place] = {
        "list": calls.ListTopics(),
        "show": calls.ShowTopic(PAY),
        "find": calls.FindPartition(PAY, "x"),
        "mark": calls.ReadMark(AT),
        "records": calls.ReadRecords(AT, 0, 1, Form.JSON),
        "feed": calls.FollowFeed(AT, -1, Form.JSON),
        "append": AT,
    }
    problems = {name: calls.access_problem(caller, call) for name, call in every.items()}
    assert [name for name, problem in problems.items() if problem is None] == allowed.split()
    status = 403 if caller.knows("pay") else 404
    assert {problem.status for problem in problems.values() if problem is not None} <= {status}


def test_a_message_of_a_socket_appends_for_who_may_append() -> None:
    """A socket with a feed is opened by who may read: what comes through it is held against his roles once more."""
    text = '{"ref":7,"text":"x"}'
    ref, refused = calls.read_message(Caller("r", ("pay",), ()), AT, text)
    assert isinstance(refused, Problem)
    assert (ref, refused.status, refused.code) == (7, 403, "not-allowed")
    ref, append = calls.read_message(Caller("a", (), ("pay",)), AT, text)
    assert isinstance(append, calls.Append)
    assert (ref, append.payload) == (7, b"x")


@pytest.mark.parametrize(("ref", "taken"), [("a" * 200, True), ("a" * 201, False), (1.5, False), ([], False)])
def test_a_message_of_a_socket_is_named_by_a_number_or_short_text(ref: object, taken: bool) -> None:
    found, append = calls.read_message(Caller("a", (), ("pay",)), AT, json.dumps({"ref": ref, "text": "x"}))
    assert isinstance(append, calls.Append) == taken
    assert found == (ref if taken else None)


def test_a_feed_begins_within_the_log() -> None:
    assert calls.feed_problem(calls.FollowFeed(AT, 5, Form.JSON), 5) is None
    assert calls.feed_problem(calls.FollowFeed(AT, None, Form.JSON), -1) is None
    problem = calls.feed_problem(calls.FollowFeed(AT, 6, Form.JSON), 5)
    assert problem is not None
    assert (problem.status, problem.code) == (409, "mark-ahead")


@pytest.mark.parametrize(
    ("topics", "text"),
    [
        ([Topic("a/b", "x", (0,))], "letters, digits"),
        ([Topic("..", "x", (0,))], "letters, digits"),
        ([Topic("a", "x", (0,)), Topic("a", "x", (1,))], "twice"),
        ([Topic("a", "x", ())], "no partitions"),
        ([Topic("a", "x", (0, 1)), Topic("b", "x", (1,))], "belongs to topic 'a' and again to 'b'"),
        ([Topic("a", "x", (0, 0))], "again"),
    ],
)
def test_topics_are_told_apart(topics: list[Topic], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Topics(topics)
