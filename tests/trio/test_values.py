"""Codecs, locks, retries, transactions."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import enum
import json
import math
import pickle
import random
import sys
import uuid
import warnings
from decimal import Decimal
from typing import Any

import attrs
import msgspec
import numpy
import pytest

import waltz_trio as waltz
from waltz_core.base.ids import ReqId
from waltz_trio.client import values
from waltz_trio.client.values import lock_hashes

REQ = ReqId(b"\0" * 16)


class Colour(enum.Enum):
    RED = "red"


@attrs.frozen
class Leaf:
    n: int


@attrs.frozen
class Tree:
    name: str
    leaves: list[Leaf]
    colour: Colour = Colour.RED
    data: bytes = b""
    pair: tuple[int, str] = (0, "")
    more: tuple[float, ...] = ()
    named: dict[str, Leaf] = attrs.field(factory=dict)
    parent: Tree | None = None
    maybe: bool | None = None
    anything: Any = None


TREE = Tree(
    "æ", [Leaf(1), Leaf(2)], Colour.RED, b"\0\xff", (3, "x"), (1.5, 2.0), {"a": Leaf(4)}, Tree("p", []), True, [1, "2"]
)


def test_json_carries_attrs_classes_and_back() -> None:
    codec = waltz.Json(Tree)
    assert codec.loads(codec.dumps(TREE)) == TREE
    assert codec.dumps(Tree("x", [])).startswith(b'{"name":"x","leaves":[]')
    assert repr(codec) == "Json(Tree)"


def test_json_without_a_class_carries_plain_values() -> None:
    codec = waltz.Json()
    assert codec.loads(codec.dumps({"a": [1, None, "é"]})) == {"a": [1, None, "é"]}
    assert repr(codec) == "Json()"


@pytest.mark.parametrize(
    ("cls", "value", "name"),
    [
        (dict, {"account": 7, "parts": [1, None]}, "dict"),
        (list, [1, "two"], "list"),
        (tuple, (1, 2), "tuple"),
        (str, "æ", "str"),
        (int, -3, "int"),
        (float, 0.5, "float"),
        (bool, True, "bool"),
        (bytes, b"\0", "bytes"),
        (Colour, Colour.RED, "Colour"),
        (list[Leaf], [Leaf(1)], "list[tests"),
        (dict[str, int], {"a": 1}, "dict[str, int]"),
        (int | None, None, "int | None"),
    ],
)
def test_json_of_a_type_carries_its_values_and_refuses_others(cls: Any, value: Any, name: str) -> None:
    codec = waltz.Json(cls)
    assert codec.loads(codec.dumps(value)) == value
    assert type(codec.loads(codec.dumps(value))) is type(value)
    assert repr(codec).startswith(f"Json({name}"), repr(codec)
    with pytest.raises((TypeError, ValueError)):
        codec.loads(b'{"other": [{}]}' if cls is not dict else b"[1]")
    with pytest.raises(TypeError, match=r"expected .*, found .*object"):
        codec.dumps(object())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [1, {"deep": float("-inf")}]])
def test_json_refuses_what_is_no_number_in_json(value: Any) -> None:
    with pytest.raises(ValueError, match="NaN and infinities have no place in JSON, found in"):
        waltz.Json().dumps(value)


def test_json_takes_whole_numbers_of_other_libraries() -> None:
    assert waltz.Json().dumps({"n": numpy.int64(1 << 62)}) == b'{"n":4611686018427387904}'
    seven: Any = numpy.uint8(7)
    assert waltz.Json(int).dumps(seven) == b"7"
    with pytest.raises(TypeError, match="expected int, found True"):
        waltz.Json(int).dumps(True)


@pytest.mark.parametrize(
    ("value", "hint"),
    [("text", r"Utf8\(\)"), ({"a": 1}, r"Json\(dict\)"), (Leaf(1), r"Json\(Leaf\)"), (object(), "CODEC")],
)
def test_a_value_without_a_codec_names_the_codec_that_is_missing(value: Any, hint: str) -> None:
    with pytest.raises(TypeError, match=rf"a payload is bytes, found .*Append\(value, {hint}, \.\.\.\)"):
        waltz.Raw().dumps(value)


@attrs.frozen
class Payment:
    amount: Decimal = Decimal(0)
    at: datetime.datetime | None = None
    by_colour: dict[Colour, int] = attrs.field(factory=dict)
    id: uuid.UUID | None = None
    tip: int = attrs.field(default=0, validator=attrs.validators.ge(0))


@pytest.mark.parametrize(
    ("codec", "text", "told"),
    [
        (waltz.Json(Tree), "[]", "Tree: expected dict, found [] (list)"),
        (waltz.Json(Tree), '{"name": 1, "leaves": []}', "Tree.name: expected str, found 1 (int)"),
        (
            waltz.Json(Tree),
            '{"name": "x"}',
            "Tree: expected a field leaves, found {'name': 'x'} (dict); to read what has none, give the field",
        ),
        (
            waltz.Json(Tree),
            '{"name": "x", "leaves": [{"n": 1}, {"n": "1"}]}',
            "Tree.leaves[1].n: expected int, found '1' (str)",
        ),
        (
            waltz.Json(Tree),
            '{"name": "x", "leaves": [{"n": true}]}',
            "Tree.leaves[0].n: expected int, found True (bool)",
        ),
        (
            waltz.Json(Tree),
            '{"name": "x", "leaves": [], "named": {"a": {"n": 1, "m": 2}}}',
            "Tree.named['a']: Leaf has no field m; to read it without, write Json(..., unknown=\"ignore\")",
        ),
        (
            waltz.Json(Tree),
            '{"name": "x", "leaves": [], "pair": [1]}',
            "Tree.pair: expected 2 items, found 1: [1] (list)",
        ),
        (
            waltz.Json(Tree),
            '{"name": "x", "leaves": [], "pair": [1, 2]}',
            "Tree.pair[1]: expected str, found 2 (int)",
        ),
        (
            waltz.Json(Tree),
            '{"name": "x", "leaves": [], "parent": {"name": "y", "leaves": [], "more": [0.5, null]}}',
            "Tree.parent.more[1]: expected int or float, found None (NoneType)",
        ),
        (
            waltz.Json(Tree),
            '{"name": "x", "leaves": [], "data": "?"}',
            "Tree.data: expected base64 of bytes, found '?' (str): ",
        ),
        (
            waltz.Json(Tree),
            '{"name": "x", "leaves": [], "colour": "blue"}',
            "Tree.colour: expected one of Colour, 'red', found 'blue' (str)",
        ),
        (waltz.Json(Payment), '{"amount": "3,50"}', "Payment.amount: expected a Decimal, found '3,50' (str)"),
        (waltz.Json(Payment), '{"at": "noon"}', "Payment.at: expected a datetime, found 'noon' (str)"),
        (waltz.Json(Payment), '{"id": "7"}', "Payment.id: expected a UUID, found '7' (str)"),
        (
            waltz.Json(list[Payment]),
            '[{"by_colour": {"red": 1, "blue": 2}}]',
            "value[0].by_colour['blue']: expected a key of Colour, red, found 'blue'",
        ),
        (waltz.Json(list[Payment]), '[{}, {"tip": -1}]', "value[1]: 'tip' must be >= 0: -1"),
        (waltz.Json(dict[int, Leaf]), '{"7": {"n": null}}', "value['7'].n: expected int, found None (NoneType)"),
        (waltz.Json(int), '"7"', "value: expected int, found '7' (str)"),
        (waltz.Json(), "nonsense", "expected JSON, found b'nonsense' (bytes): Expecting value: line 1"),
        (waltz.Json(), "", "expected JSON, found b'' (bytes): Expecting value: line 1"),
    ],
)
def test_json_says_where_what_it_reads_does_not_fit(codec: waltz.Json[Any], text: str, told: str) -> None:
    with pytest.raises((TypeError, ValueError)) as refused:
        codec.loads(text.encode())
    assert str(refused.value).startswith(told)


def test_json_refuses_classes_and_fields_it_cannot_carry() -> None:
    @attrs.frozen
    class Odd:
        what: set[int]

    @attrs.frozen
    class Either:
        what: int | str

    with pytest.raises(TypeError, match="cannot carry set, only None"):
        waltz.Json(set)
    with pytest.raises(TypeError, match="expected Tree"):
        waltz.Json(Tree).dumps(Leaf(1))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="no place in JSON"):
        waltz.Json(Odd).dumps(Odd({1}))
    with pytest.raises(TypeError, match="cannot carry"):
        waltz.Json(Odd).loads(b'{"what": [1]}')
    with pytest.raises(TypeError, match="only unions with None"):
        waltz.Json(Either).loads(b'{"what": 1}')


def test_raw_and_text() -> None:
    assert waltz.Raw().dumps(bytearray(b"x")) == b"x"  # type: ignore[arg-type]
    assert waltz.Raw().loads(b"y") == b"y"
    with pytest.raises(TypeError):
        waltz.Raw().dumps("text")  # type: ignore[arg-type]
    assert waltz.Utf8().loads(waltz.Utf8().dumps("æ")) == "æ"


def test_a_transaction_loads_what_is_there() -> None:
    transaction = waltz.Transaction(1, 5, 2, REQ, b"abc")
    assert transaction.load() == b"abc"
    assert transaction.load(waltz.Utf8()) == "abc"
    assert repr(transaction) == "Transaction(partition=1, id=5, header=2)"


def test_the_header_chooses_among_codecs() -> None:
    codecs = waltz.Codecs({2: waltz.Utf8()})
    assert waltz.Transaction(1, 5, 2, REQ, b"abc").load(codecs) == "abc"
    with pytest.raises(waltz.UnknownHeaderError) as found:
        waltz.Transaction(1, 5, 3, REQ, b"abc").load(codecs)
    assert found.value.header == 3
    assert waltz.Transaction(1, 5, 3, REQ, b"abc").load(waltz.Codecs({}, default=waltz.Raw())) == b"abc"


def test_a_payload_that_does_not_decode_names_its_transaction() -> None:
    with pytest.raises(waltz.PayloadInvalidError, match="partition 1: the payload of transaction 5") as found:
        waltz.Transaction(1, 5, 0, REQ, b"\xff").load(waltz.Utf8())
    assert isinstance(found.value.__cause__, UnicodeDecodeError)


def test_a_payload_that_was_not_fetched_is_an_error_of_the_program() -> None:
    with pytest.raises(RuntimeError, match=r"was not fetched: use `await txn\.fetch\(\)`, or prefetch"):
        waltz.Transaction(1, 5, 0, REQ, None).load()


def test_locks_are_hashed_as_the_lock_itself_does() -> None:
    locks: list[waltz.Lock | tuple[str, int]] = [waltz.Lock("account", 7), ("account", -1), ("", 0), ("account", 7)]
    assert lock_hashes(locks) == (
        waltz.Lock("account", 7).wire(),
        waltz.Lock("account", -1).wire(),
        0,
        waltz.Lock("account", 7).wire(),
    )


def test_two_lock_names_with_one_hash_are_warned_about() -> None:
    values._names.clear()
    values._of_name.cache_clear()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        lock_hashes([("Aa", 1)])
        lock_hashes([("BB", 1)])
        lock_hashes([("BB", 2)])
    assert [str(warning.message) for warning in found] == [
        "lock names 'Aa' and 'BB' have the same hash: their locks conflict with each other"
    ]


def test_pauses_grow_up_to_their_cap() -> None:
    retry = waltz.Retry(base=0.1, factor=2, cap=1, jitter=0)
    rng = random.Random(1)
    assert [retry.delay(attempt, rng) for attempt in range(1, 7)] == [0.1, 0.2, 0.4, 0.8, 1, 1]
    jittered = [waltz.Retry(base=1, jitter=0.5).delay(1, rng) for _ in range(100)]
    assert 0.5 <= min(jittered) < max(jittered) <= 1


@pytest.mark.parametrize(
    ("limit", "error", "text"),
    [
        ({"attempts": 0}, ValueError, "Retry: attempts is at least 1, not 0"),
        ({"attempts": "3"}, TypeError, r"Retry: attempts is a number, found '3' \(str\)"),
        ({"give_up_after": None}, TypeError, "give_up_after is a number, found None .*; leave it out for no limit"),
        ({"give_up_after": -1}, ValueError, "give_up_after is at least 0, not -1"),
        ({"base": float("nan")}, ValueError, "base is at least 0, not nan"),
        ({"base": True}, TypeError, "base is a number, found True"),
        ({"factor": 0.5}, ValueError, "factor is from 1 to 1000, not 0.5"),
        ({"jitter": 2}, ValueError, "jitter is from 0 to 1, not 2"),
        ({"cap": -1}, ValueError, "cap is at least 0, not -1"),
        ({"base": math.inf, "cap": math.inf}, ValueError, "base and cap are both infinite"),
    ],
)
def test_a_retry_that_has_no_limits_is_refused_when_it_is_made(
    limit: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        waltz.Retry(**limit)


def test_limits_of_a_retry_may_be_as_large_as_a_float_can_be() -> None:
    largest = sys.float_info.max
    for base, cap in ((1, largest), (largest, largest), (largest, math.inf), (math.inf, largest)):
        assert waltz.Retry(base=base, cap=cap, factor=1000, jitter=0).delay(70, random.Random()) == 10**12
    assert waltz.Retry(base=math.inf, jitter=0).delay(1, random.Random()) == 5


def test_limits_of_a_retry_may_be_of_any_real_type() -> None:
    three: Any = numpy.int64(3)
    retry = waltz.Retry(attempts=three, base=numpy.float64(1), factor=1000, jitter=0)
    assert [retry.delay(attempt, random.Random()) for attempt in (1, 70)] == [1, 5]


def test_a_batch_knows_its_ends() -> None:
    transactions = tuple(waltz.Transaction(0, n, 0, REQ, b"") for n in (4, 5, 6))
    batch = waltz.Batch(0, transactions)
    assert (batch.first_id, batch.last_id, len(batch), list(batch)) == (4, 6, 3, list(transactions))


# ---- receipts ------------------------------------------------------------------------------------


def test_a_receipt_counts_as_its_transaction_id_and_is_never_taken_for_a_decline() -> None:
    receipt = waltz.Receipt(3, 0)
    assert receipt
    assert (receipt, max(receipt, 5), receipt + 1, f"{receipt:d}", {0: "x"}[receipt]) == (0, 5, 1, "0", "x")
    assert type(receipt.transaction_id) is int
    assert receipt == waltz.Receipt(3, 0)
    assert receipt != waltz.Receipt(2, 0)
    assert receipt != waltz.Receipt(3, 0, attempts=2)
    assert receipt != 1
    assert hash(receipt) == hash(0)


def test_a_receipt_can_be_shown_and_carried_elsewhere() -> None:
    receipt = waltz.Receipt(3, 7, 2, 1, {"balance": 5})
    assert repr(receipt) == ("Receipt(partition=3, transaction_id=7, attempts=2, conflicts=1, value={'balance': 5})")
    assert repr(waltz.Receipt(3, 7)) == "Receipt(partition=3, transaction_id=7, attempts=1, conflicts=0)"
    again = pickle.loads(pickle.dumps(receipt))
    assert (again, again.value) == (receipt, {"balance": 5})
    assert json.dumps(receipt) == "7"


@attrs.frozen
class Ledger:
    by_account: dict[int, int]
    named: dict[str, int] = attrs.field(factory=dict)


def leaf(n: Any) -> Leaf:
    """One that may hold what its type does not allow."""
    return Leaf(n)


def ledger(by_account: Any, named: Any) -> Ledger:
    """The same, of a ledger."""
    return Ledger(by_account, named)


@attrs.frozen
class Hidden:
    n: int
    twice: int = attrs.field(init=False, default=0)


@attrs.frozen
class Kinds:
    text: str = ""
    data: bytes = b""
    maybe: bytes | None = None
    several: tuple[bytes, ...] = ()
    both: tuple[str, bytes] = ("", b"")
    named: dict[str, list[bytes]] = attrs.field(factory=dict)
    by_number: dict[int, int] | None = None


class Struct(msgspec.Struct):
    data: bytes = b""


def kinds(**fields: Any) -> Kinds:
    return Kinds(**fields)


@attrs.frozen
class Case:
    """What holds other classes."""

    first: Kinds
    structs: list[Struct] = attrs.field(factory=list)


ENCODE = "expected bytes, found 'abcd' (str): encode the text, or declare it as str"
DECODE = "expected str, found b'abcd' (bytes): decode the bytes, or declare it as bytes"


@pytest.mark.parametrize(
    ("codec", "value", "text"),
    [
        (waltz.Json(Kinds), kinds(text=b"abcd"), f"Kinds.text: {DECODE}"),
        (waltz.Json(Kinds), kinds(data="abcd"), f"Kinds.data: {ENCODE}"),
        (waltz.Json(Kinds), kinds(maybe="abcd"), f"Kinds.maybe: {ENCODE}"),
        (waltz.Json(Kinds), kinds(several=(b"", "abcd")), f"Kinds.several[1]: {ENCODE}"),
        (waltz.Json(Kinds), kinds(both=("", "abcd")), f"Kinds.both[1]: {ENCODE}"),
        (waltz.Json(Kinds), kinds(both=(b"abcd", b"")), f"Kinds.both[0]: {DECODE}"),
        (waltz.Json(Kinds), kinds(named={"a": [b"", "abcd"]}), f"Kinds.named['a'][1]: {ENCODE}"),
        (waltz.Json(Struct), Struct("abcd"), f"Struct.data: {ENCODE}"),  # type: ignore[arg-type]
        (waltz.Json(Case), Case(kinds(named={"a": ["abcd"]})), f"Case.first.named['a'][0]: {ENCODE}"),
        (waltz.Json(Case), Case(Kinds(), [Struct(), Struct("abcd")]), f"Case.structs[1].data: {ENCODE}"),  # type: ignore[arg-type]
        (waltz.Json(list[bytes]), [b"", "abcd"], f"value[1]: {ENCODE}"),
        (waltz.Json(dict[int, Kinds]), {7: kinds(text=b"abcd")}, f"value[7].text: {DECODE}"),
    ],
)
def test_text_where_bytes_belong_is_no_base64(codec: waltz.Json[Any], value: Any, text: str) -> None:
    """It would be read again, as other bytes: the log would have what nobody wrote."""
    for good in (Kinds(), Struct(b"a"), Case(Kinds()), [b"a"], {7: Kinds()}):  # also by a codec that has written before
        with contextlib.suppress(TypeError):
            codec.dumps(good)
    with pytest.raises(TypeError) as caught:
        codec.dumps(value)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    "value", [Kinds(), kinds(several=(b"a",), both=("a", b"b"), named={"a": [b"c"]}, by_number={1: 2}), Struct(b"a")]
)
def test_bytes_and_text_in_their_places_are_carried(value: Any) -> None:
    codec = waltz.Json(type(value))
    assert codec.loads(codec.dumps(value)) == value


@pytest.mark.parametrize(
    ("codec", "value", "text"),
    [
        (waltz.Json(Leaf), leaf("7"), r"Leaf\(n='7'\) \(Leaf\) could be written, but not read again by Json\(Leaf\)"),
        (waltz.Json(dict[str, int]), {"account": "7"}, r"expected int, found '7' \(str\)"),
        (waltz.Json(list[int]), [1, 2.5], r"expected int, found 2.5 \(float\)"),
        (waltz.Json(Tree), attrs.evolve(TREE, leaves=[Leaf(1), leaf(None)]), "expected int, found None"),
        (waltz.Json(list[float]), [1.5, 10**400], "too large to convert to float"),
        (waltz.Json(Hidden), Hidden(1), "unexpected keyword argument 'twice'"),
        (
            waltz.Json(dict),
            {7: 100},
            r"value: keys of a dict are text in JSON, found 7 \(int\): write str\(7\), or name",
        ),
        (waltz.Json(), [{"a": {None: 1}}], r"value\[0\]\['a'\]: keys of a dict are text in JSON, found None"),
        (waltz.Json(Ledger), ledger({1: 2}, {3: 4}), r"Ledger.named: keys of a dict are text in JSON, found 3 \(int\)"),
        (
            waltz.MsgPack(Leaf),
            leaf("7"),
            r"Leaf\(n='7'\) \(Leaf\) could be written, but not read again: Expected `int`",
        ),
    ],
)
def test_what_could_not_be_read_again_is_refused_before_it_stops_every_view(codec: Any, value: Any, text: str) -> None:
    for good in (Leaf(1), {"a": 1}, [1], TREE, Ledger({1: 2}, {})):  # also by a codec that has written before
        with contextlib.suppress(TypeError):
            codec.dumps(good)
    with pytest.raises(TypeError, match=text):
        codec.dumps(value)


@attrs.frozen
class Branch(Leaf):
    more: int = 0


@attrs.frozen
class Stem:
    leaf: Leaf


class Vat(enum.Enum):
    """Of which JSON has one as it is, and the other as a text."""

    NONE = 0
    FULL = Decimal("0.19")
    PAIR = ("pair", 2)


@attrs.frozen
class Sale:
    amount: int
    vat: Vat


def positive(number: int) -> int:
    if number < 0:
        raise ValueError("negative")
    return number


@dataclasses.dataclass
class Checked:
    n: int

    def __post_init__(self) -> None:
        positive(self.n)


@attrs.define
class CheckedAttrs:
    n: int

    def __attrs_post_init__(self) -> None:
        positive(self.n)


@attrs.define
class Validated:
    n: int = attrs.field(validator=attrs.validators.ge(0), on_setattr=attrs.setters.NO_OP)


@attrs.define
class Converted:
    n: int = attrs.field(converter=positive, on_setattr=attrs.setters.NO_OP)


@attrs.define(init=False)
class OwnInit:
    n: int

    def __init__(self, n: int) -> None:
        positive(n)
        self.__attrs_init__(n)


@dataclasses.dataclass(init=False)
class OwnDataInit:
    n: int

    def __init__(self, n: int) -> None:
        positive(n)
        self.n = n


@dataclasses.dataclass
class Inner:
    n: int


class Derived(Inner):
    def __init__(self, n: int) -> None:
        positive(n)
        super().__init__(n)


class DerivedAttrs(Leaf):
    def __init__(self, n: int) -> None:
        positive(n)
        super().__init__(n)


def made(cls: Any, n: int) -> Any:
    """Of a class that would refuse it."""
    value = cls(1)
    object.__setattr__(value, "n", n)
    return value


CHECKED = (*(Checked, CheckedAttrs, Validated, Converted, OwnInit, OwnDataInit, Derived, DerivedAttrs),)


@pytest.mark.parametrize("cls", CHECKED)
def test_a_class_that_checks_its_fields_is_read_again_each_time(cls: Any) -> None:
    """Its value was changed since it was made: it could be written, and would have stopped every view."""
    codec = waltz.Json(list[cls])
    assert codec.loads(codec.dumps([cls(1)]))[0].n == 1
    with pytest.raises(TypeError, match=r"could be written, but not read again .*: value\[1\]"):
        codec.dumps([cls(1), made(cls, -5)])


def test_an_enum_is_read_again_each_time_unless_json_has_all_of_its_values() -> None:
    sales, kinds = waltz.Json(Sale), waltz.Json(Vat)
    assert sales.loads(sales.dumps(Sale(1, Vat.NONE))) == Sale(1, Vat.NONE)
    with pytest.raises(TypeError, match=r"not read again by Json\(Sale\): Sale.vat: expected one of Vat, 0, Decimal"):
        sales.dumps(Sale(1, Vat.FULL))
    kinds.dumps(Vat.NONE)
    with pytest.raises(TypeError, match="not read again"):
        kinds.dumps(Vat.PAIR)


def test_a_field_without_a_type_is_refused_when_the_codec_is_made() -> None:
    bare: Any = attrs.make_class("Bare", ["x"])
    with pytest.raises(TypeError, match=r"Json cannot carry Bare: its field x has no type.*; write x: TYPE = attrs"):
        waltz.Json(bare)
    typed: Any = attrs.make_class("Typed", {"x": attrs.field(type=int)})
    assert waltz.Json(typed).loads(waltz.Json(typed).dumps(typed(7))) == typed(7)


TYPES: tuple[Any, ...] = (
    *(Vat, Sale, dict[Colour, int], dict[Colour, Leaf], *CHECKED),
    *(int, str, bool, bytes, float, list, tuple, dict, Any, Decimal, datetime.date, datetime.datetime),
    *(Colour, Leaf, Branch, Stem, Tree, Ledger, int | None, Leaf | None),
    *(list[int], list[float], list[Leaf], list[int | None], tuple[int, ...], tuple[int, str], tuple[Stem, ...]),
    *(dict[str, int], dict[int, int], dict[str, Leaf], dict[int, list[Leaf]]),
)
MADE: tuple[Any, ...] = (
    *(Vat.NONE, Vat.FULL, Vat.PAIR, Sale(1, Vat.NONE), Sale(1, Vat.FULL), {Vat.FULL: 1}, {Colour.RED: Leaf(1)}),
    *(made(cls, n) for cls in CHECKED for n in (1, -1)),
    *(1, True, "x", "1", b"x", 1.5, None, Decimal(1), datetime.date(2026, 1, 2), datetime.datetime(2026, 1, 2), TREE),
    *(1 << 53, -(1 << 53), (1 << 53) + 1, 10**400, [10**400], -(10**400)),
    *([1], [True], ["x"], [None], [1, 2.5], (1,), (1, "x"), (1, True), [b"x"], [[1], {"a": (1,)}], [{1: 1}]),
    *(
        {"a": 1},
        {1: 1},
        {"a": True},
        {True: 1},
        {None: 1},
        {"a": "x"},
        {"a": {1: 1}},
        {1: [Leaf(1)]},
        {1: [1]},
        {Colour.RED: 1},
    ),
    *(
        Colour.RED,
        Leaf(1),
        leaf("x"),
        leaf(True),
        leaf(None),
        Branch(1),
        [Leaf(1)],
        [leaf("x")],
        [Branch(1)],
        {"a": Leaf(1)},
    ),
    *(
        Stem(Leaf(1)),
        Stem(Branch(1)),
        Stem(leaf("x")),
        (Stem(Leaf(1)),),
        (Stem(Branch(1)),),
        {"a": Branch(1)},
        ledger({1: 1}, {1: 1}),
        ledger({1: 1}, {}),
    ),
    *(attrs.evolve(TREE, parent=attrs.evolve(TREE, leaves=[Branch(1)])), attrs.evolve(TREE, anything={1: 1})),
)


@pytest.mark.parametrize("cls", TYPES, ids=str)
def test_what_is_written_can_be_read_again_whatever_is_written(cls: Any) -> None:
    """By a codec that has written before, which does not read again what surely fits: it is in the log then."""
    written = 0
    for value in MADE:
        codec = waltz.Json(cls)
        codec._tried = True
        try:
            data = codec.dumps(value)
        except (TypeError, ValueError):
            continue
        written += 1
        read = codec.loads(data)
        assert codec.loads(codec.dumps(read)) == read, value
    assert written


def test_keys_of_a_dict_come_back_as_their_type_says() -> None:
    codec = waltz.Json(Ledger)
    assert codec.loads(codec.dumps(Ledger({-7: 100, 8: 0}))) == Ledger({-7: 100, 8: 0})
    colours = waltz.Json(dict[Colour, int])
    assert colours.loads(b'{"red":1}') == {Colour.RED: 1}
    assert colours.loads(colours.dumps({Colour.RED: 1})) == {Colour.RED: 1}
    nested = waltz.Json(list[dict[Colour, dict[int, Leaf]]])
    assert nested.loads(nested.dumps([{Colour.RED: {1: Leaf(2)}}])) == [{Colour.RED: {1: Leaf(2)}}]
    with pytest.raises(TypeError, match=r"value: keys of a dict are text in JSON, found <Colour.RED"):
        waltz.Json(dict).dumps({Colour.RED: 1})
    with pytest.raises(TypeError, match=r"keys of a dict are text in JSON, found <Vat.PAIR"):
        waltz.Json(dict[Vat, int]).dumps({Vat.PAIR: 1})
    with pytest.raises(ValueError, match="two keys of a dict would be the same text"):
        waltz.Json(dict[Any, Any]).dumps({Colour.RED: 1, "red": 2})
    with pytest.raises(ValueError, match="expected a whole number as a key, found '07'"):
        codec.loads(b'{"by_account":{"07":1}}')
    with pytest.raises(TypeError, match="Json cannot carry a dict with keys of float"):
        waltz.Json(dict[float, int])


@attrs.frozen
class Nested:
    count: int
    below: list[Nested] = attrs.field(factory=list)


def test_an_error_deep_in_a_value_takes_no_longer_than_the_value() -> None:
    """It doubled with every level once: nobody could have waited for this one."""
    text = '{"count": "1"}'
    for _ in range(40):
        text = f'{{"count": 1, "below": [{text}]}}'
    with pytest.raises(TypeError, match=r"^Nested(\.below\[0\]){40}\.count: expected int, found '1' \(str\)$"):
        waltz.Json(Nested).loads(text.encode())
