"""Idempotency keys: who carries one, for how long, and what counts as one request."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import random
import uuid
from decimal import Decimal
from typing import Any

import attrs
import pytest

from waltz_core.base.lock import key_lock
from waltz_core.client.keys import KeyEntry, KeyTable, check_key, request_hash

UTC = datetime.UTC


@attrs.frozen
class Move:
    account: int
    amount: float


@dataclasses.dataclass
class Step:
    account: int
    amount: float


class Colour(enum.Enum):
    RED = "red"


# ---- the window --------------------------------------------------------------------------------------


def test_the_first_transaction_with_a_key_counts() -> None:
    table = KeyTable(window=10)
    table.apply(0, "a", b"one")
    table.apply(1, "b", b"two")
    table.apply(2, "a", b"three")
    assert table.find("a", 2) == KeyEntry(0, b"one")
    assert table.find("b", 2) == KeyEntry(1, b"two")
    assert table.find("c", 2) is None


def test_a_key_is_forgotten_when_the_window_has_passed() -> None:
    table = KeyTable(window=3)
    table.apply(0, "a", b"one")
    table.apply(1, None)
    assert table.find("a", 2) == KeyEntry(0, b"one")
    assert table.find("a", 3) is None
    table.apply(2, None)
    table.apply(3, "a", b"two")
    assert table.find("a", 3) is None, "it came while the first was remembered, so it was no new request"
    table.apply(4, "a", b"three")
    assert table.find("a", 4) == KeyEntry(4, b"three")
    assert len(table) == 1


@pytest.mark.parametrize("seed", range(50))
def test_the_table_says_what_the_log_says(seed: int) -> None:
    rng = random.Random(seed)
    table, log = KeyTable(window := rng.randint(1, 8)), []
    for transaction_id in range(60):
        key = rng.choice(["a", "b", "c", None])
        log.append(key)
        table.apply(transaction_id, key)
        first: dict[str, int] = {}
        for at, each in enumerate(log):
            if each is not None and (each not in first or first[each] < at - window):
                first[each] = at
        for each in "abc":
            kept = each in first and first[each] > transaction_id - window
            assert table.find(each, transaction_id) == (KeyEntry(first[each], b"") if kept else None)
        assert len(table) <= window + 1


# ---- keys and their locks ------------------------------------------------------------------------------


def test_the_lock_of_a_key_is_the_same_for_ever() -> None:
    assert (key_lock("order-4711").name, key_lock("order-4711").id) == ("waltz.key", 1674509874979094931)
    assert key_lock("order-4711") != key_lock("order-4712")


@pytest.mark.parametrize(
    ("key", "error", "text"),
    [
        (7, TypeError, "a key is text, found 7"),
        ("", ValueError, "1 to 255 bytes, found 0"),
        ("é" * 128, ValueError, "1 to 255 bytes, found 256"),
        ("\ud800", ValueError, "UTF-8"),
        ("a\0", ValueError, "no NUL"),
    ],
)
def test_what_is_no_key_is_refused(key: object, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        check_key(key)


# ---- requests ------------------------------------------------------------------------------------------

NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((7, 30), [7, 30]),
        (30, 30.0),
        (30, Decimal("30.00")),
        (0.5, Decimal("0.5")),
        (Move(7, 30), {"amount": 30, "account": 7}),
        (Move(7, 30), Step(7, 30)),
        (Colour.RED, "red"),
        (b"x", bytearray(b"x")),
        (NOON, NOON.astimezone(datetime.timezone(datetime.timedelta(hours=2)))),
    ],
)
def test_equal_requests_are_one(one: Any, other: Any) -> None:
    assert request_hash(one) == request_hash(other)


def test_different_requests_are_different() -> None:
    requests: list[Any] = [
        None, "", "1", 1, -1, 0.1, b"1", [], [[]], [1], [1, 2], [2, 1], ["12"], ["1", "2"], {}, {"a": 1}, {"a": 2},
        {"a": {}}, [["a", 1]], NOON, NOON.replace(tzinfo=None), NOON.date(), NOON.time(), uuid.UUID(int=1),
        Decimal("0.1"),
    ]  # fmt: skip
    assert len({request_hash(request) for request in requests}) == len(requests)


def test_the_hash_of_a_request_is_the_same_in_every_process() -> None:
    assert request_hash((7, 30, "order-4711", None)).hex() == (
        "26f0ebb9a12ec566c2572ceb681cc0dc3bda8bd02a7e86ef206c3b611f3baa31"
    )


@pytest.mark.parametrize("value", [object(), {1, 2}, float("nan"), Decimal("Infinity"), lambda: 1])
def test_what_has_no_lasting_form_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="a request"):
        request_hash([value])


@pytest.mark.parametrize(
    "number",
    [
        Decimal("1E+999999999"),
        Decimal("-7E-999999999"),
        Decimal("1E+4301"),
        Decimal("3" * 1_000_000),
        Decimal("0." + "3" * 1_000_000),
        10**4300,
        -(7**20_000),
        [{"a": Decimal("1E+99999")}],
    ],
    ids=range(8),
)
def test_a_number_that_is_too_long_to_be_written_is_refused_at_once(number: Any) -> None:
    """One of a few bytes takes hours otherwise, in every member of a view."""
    with pytest.raises(ValueError, match="can be written with 4300 digits, as fractions too"):
        request_hash(number)


@pytest.mark.parametrize(
    ("number", "like"),
    [
        (Decimal("1E+4299"), 10**4299),
        (Decimal("0E+999999999"), 0),
        (Decimal("-0E-999999999"), 0),
        (Decimal("2." + "0" * 100_000), 2),
        (Decimal("1" + "0" * 100 + "E-100"), 1),
        (Decimal("0." + "0" * 50_000), 0),
        (Decimal.from_float(0.1), 0.1),
        (5e-324, Decimal.from_float(5e-324)),
        (True, 1),
    ],
    ids=range(9),
)
def test_numbers_of_many_digits_that_can_be_written_are_what_they_equal(number: Any, like: Any) -> None:
    assert request_hash(number) == request_hash(like)
