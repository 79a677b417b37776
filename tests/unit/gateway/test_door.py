"""Who is let in at a gateway, what he may have under way, and what he is told."""

from __future__ import annotations

import json

import pytest

from waltz_core.base.errors import (
    BeforeStartError,
    ClientAheadError,
    ClientFailedError,
    ClusterError,
    ConfigError,
    PartitionNotFoundError,
)
from waltz_core.gateway import replies
from waltz_core.gateway.calls import Form
from waltz_core.gateway.door import ALL, Caller, Door, Rule, Visit, bearer, token_hash
from waltz_core.gateway.keyed import Done
from waltz_core.gateway.problems import Outcome, Problem
from waltz_core.gateway.quotas import Limits, Quotas
from waltz_core.gateway.replies import Record
from waltz_core.gateway.topics import Place, Topic

RULES = (
    Rule("", token_hash("s3cret"), ("pay",), (), "reader"),
    Rule("shop-*", "", ("orders",), ("pay", "orders")),
)
LOCAL = {"host": "localhost:7950"}


def visit(token: str | None = None, names: tuple[str, ...] = (), **headers: str) -> Visit:
    return Visit(
        "127.0.0.1:5", {**LOCAL, **{name.replace("_", "-"): text for name, text in headers.items()}}, names, token
    )


def entered(door: Door, it: Visit) -> Caller:
    caller = door.enter(it)
    assert isinstance(caller, Caller), caller
    return caller


def code(door: Door, it: Visit) -> tuple[int, str]:
    problem = door.enter(it)
    assert isinstance(problem, Problem), problem
    return problem.status, problem.code


def test_without_rules_everybody_on_this_machine_may_do_everything() -> None:
    assert entered(Door(None), visit()) == Caller("127.0.0.1", (ALL,), (ALL,))


@pytest.mark.parametrize("host", ["", "gateway.example", "localhost.evil.example:7950", "10.0.0.1:7950"])
def test_without_rules_the_host_header_names_this_machine(host: str) -> None:
    assert code(Door(None), visit(host=host)) == (421, "wrong-host")
    assert entered(Door(RULES), visit("s3cret", host=host)).who == "reader"


def test_a_token_is_one_that_is_known() -> None:
    door = Door(RULES)
    assert entered(door, visit("s3cret")) == Caller("reader", ("pay",), ())
    assert code(door, visit("S3cret")) == (401, "unknown-token")
    assert code(door, visit("wrong", ("shop-1",))) == (401, "unknown-token")
    assert code(door, visit()) == (401, "who-are-you")


def test_a_certificate_is_known_by_its_name() -> None:
    door = Door(RULES)
    assert entered(door, visit(names=("shop-7",))) == Caller("shop-7", ("orders",), ("pay", "orders"))
    assert code(door, visit(names=("bank",))) == (401, "who-are-you")
    both = entered(door, visit("s3cret", ("shop-7",)))
    assert (both.who, both.reads("pay"), both.appends("orders")) == ("reader", True, True)


def test_a_pattern_of_certificates_is_for_the_whole_name() -> None:
    door = Door([Rule("bank", "", (ALL,), (ALL,))])
    assert entered(door, visit(names=("other", "bank"))).who == "bank"
    assert code(door, visit(names=("bank.evil.example",))) == (401, "who-are-you")


def test_all_rules_that_match_a_caller_count() -> None:
    """Of one token written in either case, too; and without a name it is told apart by what is kept of it."""
    token = token_hash("s3cret")
    door = Door(
        [
            Rule("", token, ("pay",), ()),
            Rule("", token.upper(), (), ("orders",)),
            Rule("shop-*", "", ("stock",), ()),
            Rule("*-7", "", (), ("audit",)),
        ]
    )
    assert entered(door, visit("s3cret")) == Caller(f"token {token[:8]}", ("pay",), ("orders",))
    assert entered(door, visit(names=("shop-7",))) == Caller("shop-7", ("stock",), ("audit",))


def test_pages_of_other_sites_are_sent_away_unless_they_are_named() -> None:
    door = Door(None, ["https://shop.example"])
    entered(door, visit(origin="http://localhost:7950"))
    entered(door, visit(origin="https://shop.example", sec_fetch_site="cross-site"))
    for origin in ("https://evil.example", "null", "", "https://shop.example.evil", "http://shop.example"):
        assert code(door, visit(origin=origin)) == (403, "foreign-page")
    for site in ("cross-site", "same-site"):
        assert code(door, visit(sec_fetch_site=site)) == (403, "foreign-page")
    entered(door, visit(sec_fetch_site="none"))
    assert door.shared_with(visit(origin="https://shop.example")) == (
        ("Vary", "Origin"),
        ("Access-Control-Allow-Origin", "https://shop.example"),
        ("Access-Control-Expose-Headers", "Retry-After"),
    )
    assert door.shared_with(visit(origin="https://evil.example")) == (("Vary", "Origin"),)
    assert Door(None).shared_with(visit(origin="https://shop.example")) == ()


@pytest.mark.parametrize(
    ("header", "token"),
    [("Bearer abc", "abc"), ("bearer  abc ", "abc"), ("Bearer ", None), ("Basic abc", None), ("", None), ("abc", None)],
)
def test_a_bearer_token_stands_in_its_header(header: str, token: str | None) -> None:
    assert bearer({"authorization": header}) == token


def test_appends_under_way_are_counted_for_each_and_for_all() -> None:
    quotas = Quotas(Limits(appends_max=3, appends_per_caller=2, bytes_max=100))

    def take(who: str, size: int) -> tuple[int, str, int] | None:
        problem = quotas.take(who, size)
        if problem is None:
            return None
        assert problem.outcome is Outcome.REFUSED
        return problem.status, problem.code, problem.retry_after

    assert take("a", 10) is None
    assert take("a", 10) is None
    assert take("a", 1) == (429, "too-many-appends", 1)
    assert take("b", 81) == (503, "full", 1)
    assert take("b", 80) is None
    assert take("c", 0) == (503, "full", 1)
    quotas.give_back("b", 80)
    quotas.give_back("a", 10)
    quotas.give_back("a", 10)
    assert (quotas.appends, quotas.size) == (0, 0)
    assert take("a", 1_000) is None, "one that is larger than all may be, where nothing else is"


def test_a_caller_with_several_appends_under_way_holds_no_more_bytes_than_he_leaves_free() -> None:
    quotas = Quotas(Limits(appends_max=100, appends_per_caller=50, bytes_max=100))
    assert quotas.take("flood", 40) is None
    assert quotas.take("flood", 10) is None
    problem = quotas.take("flood", 10)
    assert problem is not None
    assert (problem.status, problem.code, problem.outcome) == (429, "too-many-appends", Outcome.REFUSED)
    assert quotas.take("honest", 50) is None
    quotas.give_back("flood", 40)
    quotas.give_back("flood", 10)
    assert quotas.take("flood", 50) is None, "what was given back counts no more"
    quotas.give_back("flood", 50)
    assert quotas.take("flood", 1) is None
    for _ in range(9):  # beside one that is under way for long
        assert quotas.take("flood", 20) is None, "what was given back counts no more"
        quotas.give_back("flood", 20)


# ---- what is told ----------------------------------------------------------------------------------------

AT = Place(Topic("pay", "a", (4, 5)), 1, 5)


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (BeforeStartError(5, "the log begins at 7"), 410, "before-start"),
        (ClientAheadError(5, 9, 3), 409, "mark-ahead"),
        (PartitionNotFoundError("x"), 502, "no-such-partition"),
        (ClientFailedError("secret address"), 503, "cluster-unreachable"),
        (ConfigError("secret path"), 503, "cluster-unreachable"),
        (ClusterError("x"), 502, "cluster-problem"),
        (ValueError("too many bytes"), 400, "bad-append"),
        (KeyError("x"), 500, "gateway-failed"),
    ],
)
def test_an_error_of_the_client_is_a_problem(error: Exception, status: int, said: str) -> None:
    problem = replies.problem_of(error, Outcome.REFUSED)
    assert (problem.status, problem.code, problem.outcome) == (status, said, Outcome.REFUSED)
    assert "secret" not in problem.detail


def test_an_error_behind_a_send_leaves_the_outcome_open() -> None:
    assert replies.problem_of(ValueError("x"), Outcome.UNKNOWN) == Problem(
        500, "gateway-failed", "the gateway failed; its log says how", Outcome.UNKNOWN
    )


def test_problems_say_when_to_come_again_and_how_to_show_who_one_is() -> None:
    reply = replies.of_problem(replies.too_slow(Outcome.UNKNOWN, 1.5))
    assert (reply.status, reply.content_type) == (504, "application/problem+json")
    assert dict(reply.headers) == {"Retry-After": "2"}
    assert json.loads(reply.text)["outcome"] == "unknown"
    assert json.loads(reply.text)["retryAfter"] == 2
    assert "with its key" in reply.text
    for outcome in (Outcome.REFUSED, None):
        assert "is not known" not in replies.too_slow(outcome, 1.5).detail
    assert "WWW-Authenticate" in dict(replies.of_problem(Problem(401, "x", "y")).headers)


def test_answers_are_json() -> None:
    assert json.loads(replies.of_append(AT, Done(7, repeated=False)).text) == {
        "topic": "pay", "partition": 1, "id": 7, "repeated": False,
    }  # fmt: skip
    assert [replies.of_append(AT, Done(7, repeated=each)).status for each in (False, True)] == [201, 200]
    records = [Record(1, 0, b'{"a":\n1.10}'), Record(2, -1, b"\xff"), Record(3, 0, b"NaN")]
    assert json.loads(replies.of_records(AT, 9, records, Form.JSON).text) == {
        "topic": "pay",
        "partition": 1,
        "mark": 9,
        "records": [
            {"id": 1, "header": 0, "json": {"a": 1.1}},
            {"id": 2, "header": -1, "base64": "/w=="},
            {"id": 3, "header": 0, "base64": "TmFO"},
        ],
    }
    topics = replies.of_topics([AT.topic, Topic("other", "a", (0,))], Caller("x", (), ("pay",)))
    assert [topic["topic"] for topic in json.loads(topics.text)["topics"]] == ["pay"]
    for caller, may in ((Caller("x", (), ("pay",)), (False, True)), (Caller("x", ("pay",), ()), (True, False))):
        said = json.loads(replies.of_topic(AT.topic, caller).text)
        assert (said["read"], said["append"]) == may


@pytest.mark.parametrize("data", [b"a\nb\rc", b"\n\nevent: problem\n\n", "\u2028".encode(), b"\xff\n"])
@pytest.mark.parametrize("form", Form)
def test_no_payload_leaves_its_line_of_an_event(data: bytes, form: Form) -> None:
    text = replies.event_text(Record(5, 0, data), form)
    assert text.split("\n")[0] == "id: 5"
    assert text.count("\n") == 3
    assert "\r" not in text
