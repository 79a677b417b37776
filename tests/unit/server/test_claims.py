"""Whose client id is whose."""

from __future__ import annotations

from waltz_core.server.claims import Claims


def test_an_id_belongs_to_the_name_that_mounted_first() -> None:
    claims = Claims()
    assert claims.mount(7, 1, "orders") is None
    assert claims.mount(7, 2, "stranger") == "orders"
    assert claims.mount(7, 3, "orders") is None
    assert claims.mount(8, 2, "stranger") is None


def test_the_last_connection_takes_the_claim_with_it() -> None:
    claims = Claims()
    claims.mount(7, 1, "orders")
    claims.mount(7, 3, "orders")
    claims.gone(7, 1)
    assert claims.mount(7, 2, "stranger") == "orders"
    claims.gone(7, 3)
    assert claims.mount(7, 2, "stranger") is None


def test_a_connection_that_was_refused_takes_no_claim_with_it() -> None:
    claims = Claims()
    claims.mount(7, 1, "orders")
    claims.mount(7, 2, "stranger")
    claims.gone(7, 2)
    claims.gone(9, 2)
    assert claims.mount(7, 2, "stranger") == "orders"


def test_without_certificates_everybody_has_the_same_name() -> None:
    claims = Claims()
    assert claims.mount(7, 1, "") is None
    assert claims.mount(7, 2, "") is None
