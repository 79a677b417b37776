"""Who may see the console."""

from __future__ import annotations

import pytest

from waltz_core.access.roles import Role, Roles, Rule
from waltz_core.access.web import Door, Visit, may_read, refusal

HERE = {"host": "localhost:7900"}
RULES = Roles((Rule("ann", Role.ADMIN), Rule("bob", Role.CLIENT, read=((1, 1),)), Rule("eve", Role.SERVER)))


def visit(peer: str = "127.0.0.1:5", top: bool = False, token: str = "", **headers: str) -> Visit:
    sent = {**HERE, **{name.replace("_", "-"): value for name, value in headers.items()}}
    return Visit(peer, sent, top, None, token)


def secure(name: str) -> Visit:
    return Visit("10.0.0.9:5", {"host": "db1:7901"}, False, RULES.access((name,) if name else (), "10.0.0.9:5"))


@pytest.mark.parametrize(
    "welcome",
    [
        visit(),
        visit("[::1]:5", host="[::1]:80"),
        visit("[::ffff:127.0.0.1]:5", host="127.0.0.1"),
        visit(origin="http://localhost:7900", sec_fetch_site="same-origin"),
        visit(sec_fetch_site="none"),
        visit(top=True, sec_fetch_site="cross-site"),  # a link to the page
    ],
)
def test_who_is_on_this_machine_and_says_so_is_let_in(welcome: Visit) -> None:
    assert refusal(Door.LOOPBACK, welcome) is None


@pytest.mark.parametrize(
    ("stranger", "status", "why"),
    [
        (visit("10.0.0.9:5"), 403, "on this machine alone"),
        (visit(host="rebound.example:7900"), 421, "not this machine"),
        (visit(host="localhost.evil.example"), 421, "not this machine"),
        (visit(host=""), 421, "not this machine"),
        (visit(origin="https://evil.example"), 403, "other sites"),
        (visit(origin="null"), 403, "other sites"),
        (visit(origin="http://localhost:1234"), 403, "other sites"),  # another program's page on this machine
        (visit(sec_fetch_site="cross-site"), 403, "another site"),
        (visit(sec_fetch_site="same-site"), 403, "another site"),
    ],
)
def test_strangers_and_pages_of_others_are_refused_with_the_reason(stranger: Visit, status: int, why: str) -> None:
    refused = refusal(Door.LOOPBACK, stranger)
    assert refused is not None
    assert refused.status == status
    assert why in refused.why


def test_a_token_must_be_the_one_that_was_printed() -> None:
    assert refusal(Door.LOOPBACK, visit(token="right"), "right") is None
    for wrong in ("", "wrong", "right "):
        refused = refusal(Door.LOOPBACK, visit(token=wrong), "right")
        assert refused is not None
        assert refused.status == 403


def test_behind_certificates_a_role_is_needed() -> None:
    for name in ("ann", "bob", "eve"):
        assert refusal(Door.CERTIFICATE, secure(name)) is None
    for name in ("mallory", ""):
        refused = refusal(Door.CERTIFICATE, secure(name))
        assert refused is not None
        assert "no role" in refused.why
    assert refusal(Door.CERTIFICATE, visit()) is not None


def test_off_is_off() -> None:
    refused = refusal(Door.OFF, visit())
    assert refused is not None
    assert refused.status == 404


def test_the_log_is_shown_to_whom_may_read_it() -> None:
    assert may_read(secure("ann"), 0, certificates_asked=True) is None
    assert may_read(secure("bob"), 1, certificates_asked=True) is None
    assert may_read(secure("bob"), 0, certificates_asked=True) is not None
    assert may_read(secure("eve"), 1, certificates_asked=True) is not None
    assert may_read(visit(), 0, certificates_asked=False) is None
    refused = may_read(visit(), 0, certificates_asked=True)
    assert refused is not None
    assert "waltz console" in refused.why


def test_without_rules_a_certificate_is_enough() -> None:
    open_door = Visit("10.0.0.9:5", {"host": "x"}, False, Roles().access(("ann",), "10.0.0.9:5"))
    assert refusal(Door.CERTIFICATE, open_door) is None
    assert may_read(open_door, 3, certificates_asked=True) is None
