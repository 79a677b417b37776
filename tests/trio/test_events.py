"""Events: a class for each header, their formats, and how old readers meet new events."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import sys
import uuid
from decimal import Decimal
from typing import Any, Literal

import attrs
import msgspec
import numpy
import pydantic
import pytest
from google.protobuf.wrappers_pb2 import StringValue

import waltz_trio as waltz
from waltz_core.base.ids import ReqId
from waltz_trio import Avro, Events, MsgPack, Protobuf, UnknownEvent

WHEN = datetime.datetime(2026, 3, 1, 12, 30, 15, 250_000, tzinfo=datetime.UTC)
ID = uuid.UUID("12345678-1234-5678-1234-567812345678")


class Colour(enum.Enum):
    RED = "red"


@attrs.frozen
class Attrs:
    amount: Decimal
    at: datetime.datetime
    id: uuid.UUID
    day: datetime.date = datetime.date(2026, 3, 1)
    hour: datetime.time = datetime.time(8, 30)
    colour: Colour = Colour.RED
    note: str | None = None
    parts: list[int] = attrs.field(factory=list)


@dataclasses.dataclass(frozen=True)
class Data:
    amount: Decimal
    at: datetime.datetime
    id: uuid.UUID
    inner: Attrs | None = None


class Struct(msgspec.Struct, frozen=True):
    amount: Decimal
    at: datetime.datetime
    id: uuid.UUID


class Model(pydantic.BaseModel):
    amount: Decimal
    at: datetime.datetime
    id: uuid.UUID


AMOUNT = Decimal("12.3400")
ATTRS = Attrs(AMOUNT, WHEN, ID, note="æ", parts=[1, 2])
VALUES = [ATTRS, Data(AMOUNT, WHEN, ID, ATTRS), Struct(AMOUNT, WHEN, ID), Model(amount=AMOUNT, at=WHEN, id=ID)]


@pytest.mark.parametrize("codec", [waltz.Json, MsgPack])
@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_classes_of_every_library_come_back_as_they_were(value: Any, codec: Any) -> None:
    of_class = codec(type(value))
    again = of_class.loads(of_class.dumps(value))
    assert again == value
    assert type(again) is type(value)
    assert str(again.amount) == "12.3400", "with its zeros"


@attrs.frozen
class Holder:
    struct: Struct
    model: Model
    many: list[Data]


def test_they_may_hold_each_other() -> None:
    holder = Holder(Struct(AMOUNT, WHEN, ID), Model(amount=AMOUNT, at=WHEN, id=ID), [Data(AMOUNT, WHEN, ID)])
    codec = waltz.Json(Holder)
    assert codec.loads(codec.dumps(holder)) == holder


@pytest.mark.parametrize(
    ("cls", "text"),
    [
        (Decimal, b'"x"'),
        (Decimal, b"1.5"),
        (datetime.datetime, b'"yesterday"'),
        (uuid.UUID, b'"1"'),
        (Struct, b'{"amount": "1"}'),
        (Model, b'{"amount": "1"}'),
        (Model, b"[]"),
        (Data, b'{"amount": "1", "at": "2026-01-01", "id": "x"}'),
    ],
)
def test_json_refuses_what_does_not_fit_them(cls: Any, text: bytes) -> None:
    with pytest.raises((TypeError, ValueError)):
        waltz.Json(cls).loads(text)


def test_a_decimal_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="no place in JSON"):
        waltz.Json(Decimal).dumps(Decimal("NaN"))


# ---- how events change -------------------------------------------------------------------------------


@attrs.frozen
class DepositedV1:
    account: int
    cents: int


@attrs.frozen
class Deposited:
    account: int
    amount: Decimal
    note: str = ""


@attrs.frozen
class Withdrawn:
    account: int
    amount: Decimal


def deposited(old: DepositedV1) -> Deposited:
    return Deposited(old.account, Decimal(old.cents) / 100)


EVENTS = Events({1: DepositedV1, 2: Withdrawn, 3: Deposited}, upcasts={DepositedV1: deposited})


def transaction(header: int, data: bytes) -> waltz.Transaction:
    return waltz.Transaction(0, 7, header, ReqId(bytes(16)), data)


def test_apply_matches_on_the_class_that_the_header_names() -> None:
    append = EVENTS.append(Withdrawn(7, Decimal(5)), write=[("account", 7)], result="x")
    assert (append.header, append.write, append.result) == (2, [("account", 7)], "x")
    event = transaction(2, append.codec.dumps(append.value)).load(EVENTS)
    match event:
        case Withdrawn(account, amount):
            assert (account, amount) == (7, Decimal(5))
        case _:
            pytest.fail(f"{event}")


def test_an_old_event_is_read_as_what_it_has_become() -> None:
    assert transaction(1, b'{"account":7,"cents":150}').load(EVENTS) == Deposited(7, Decimal("1.5"))
    with pytest.raises(TypeError, match="DepositedV1 is an old event"):
        EVENTS.append(DepositedV1(7, 150))


def test_an_unknown_header_stops_or_is_kept() -> None:
    with pytest.raises(waltz.UnknownHeaderError):
        transaction(9, b"?").load(EVENTS)
    tolerant = Events({2: Withdrawn}, unknown="keep")
    event = transaction(9, b"?").load(tolerant)
    assert event == UnknownEvent(9, b"?")
    assert tolerant.of(9).dumps(event) == b"?"


def test_an_unknown_field_stops_or_is_ignored_as_the_codec_says() -> None:
    newer = b'{"account":7,"amount":"5","note":"x","by":"ann"}'
    with pytest.raises(waltz.PayloadInvalidError, match=r"transaction 7 .*Deposited has no field by"):
        transaction(3, newer).load(EVENTS)
    lenient = Events({3: Deposited}, lambda cls: waltz.Json(cls, unknown="ignore"))
    assert transaction(3, newer).load(lenient) == Deposited(7, Decimal(5), "x")
    packed = MsgPack(None).dumps({"account": 7, "amount": "5", "by": "ann"})
    assert transaction(3, packed).load(Events({3: Deposited}, MsgPack)) == Deposited(7, Decimal(5))


def test_a_missing_field_takes_its_default() -> None:
    assert transaction(3, b'{"account":7,"amount":"5"}').load(EVENTS) == Deposited(7, Decimal(5))


def test_what_cannot_be_registered_or_appended_is_refused() -> None:
    with pytest.raises(ValueError, match="Withdrawn has headers 1 and 2"):
        Events({1: Withdrawn, 2: Withdrawn})
    with pytest.raises(TypeError, match="expected an event of DepositedV1, Withdrawn, Deposited, found 5"):
        EVENTS.append(5)
    with pytest.raises(TypeError, match="Json cannot carry set"):
        Events({1: set})
    with pytest.raises(ValueError, match="unknown is 'refuse' or 'keep'"):
        Events({}, unknown="drop")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown is 'refuse' or 'ignore'"):
        waltz.Json(Withdrawn, unknown="drop")  # type: ignore[call-overload]


def events(*arguments: Any, **named: Any) -> Events:
    """A registry, of what its types do not allow."""
    return Events(*arguments, **named)


def codecs(*arguments: Any, **named: Any) -> waltz.Codecs:
    """The same, of codecs."""
    return waltz.Codecs(*arguments, **named)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: events({"1": Withdrawn}), r"a header is a whole number, found '1' \(str\)"),
        (lambda: events([Withdrawn]), r"expected a mapping of headers to classes, such as \{1: Deposit"),
        (lambda: events({1: Withdrawn}, "json"), r"such as Json or MsgPack, found 'json'"),
        (lambda: events({1: Withdrawn}, upcasts={9: 1}), "expected an old class, and what makes a new event of it"),
        (lambda: codecs({"1": waltz.Json()}), r"a header is a whole number, found '1' \(str\)"),
        (lambda: codecs({1: waltz.Json}), r"found the class Json; write Json\(\)"),
        (lambda: codecs([waltz.Json()]), "expected a mapping of headers to codecs"),
        (lambda: codecs({}, default=Withdrawn), r"found the class Withdrawn; write Json\(Withdrawn\)"),
        (lambda: transaction(1, b"{}").load(dict), r"found the class dict; write Json\(dict\)"),  # type: ignore[call-overload]
    ],
)
def test_a_registry_that_no_transaction_could_match_is_refused_when_it_is_made(make: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        make()


def test_headers_of_a_registry_may_be_of_any_whole_type() -> None:
    assert codecs({numpy.int64(1): waltz.Utf8()}).of(1).loads(b"x") == "x"
    with pytest.raises(ValueError, match="a header has 32 bits"):
        waltz.Codecs({1 << 31: waltz.Utf8()})


# ---- other formats -----------------------------------------------------------------------------------


def test_messagepack_refuses_what_does_not_fit() -> None:
    with pytest.raises(TypeError, match="expected Deposited, found 5"):
        MsgPack(Deposited).dumps(5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="amount"):
        MsgPack(Deposited).loads(MsgPack(None).dumps({"account": 7}))


@pytest.mark.parametrize(
    ("cls", "value", "other"),
    [
        (list[int], [1], ["x"]),
        (dict[str, int], {"a": 1}, {"a": "x"}),
        (int | None, None, "x"),
        (int | None, 1, True),
        (tuple[int, str], (1, "x"), ("x", 1)),
        (Literal[1, 2], 2, 3),
        (list[Deposited], [Deposited(7, Decimal(5))], [7]),
    ],
)
def test_messagepack_carries_what_has_parameters(cls: Any, value: Any, other: Any) -> None:
    codec = MsgPack(cls)
    assert codec.loads(codec.dumps(value)) == value
    with pytest.raises(TypeError):
        codec.dumps(other)


def test_protocol_buffers() -> None:
    codec = Protobuf(StringValue)
    assert codec.loads(codec.dumps(StringValue(value="æ"))) == StringValue(value="æ")
    with pytest.raises(TypeError, match="expected StringValue, found 'x'"):
        codec.dumps("x")
    with pytest.raises(waltz.PayloadInvalidError):
        transaction(1, b"\xff").load(codec)
    with pytest.raises(TypeError, match="made by protoc"):
        Protobuf(Deposited)


OLD = {"type": "record", "name": "Paid", "fields": [{"name": "cents", "type": "long"}]}
NEW = {
    "type": "record",
    "name": "Paid",
    "fields": [{"name": "cents", "type": "long"}, {"name": "by", "type": "string", "default": "?"}],
}


def test_avro_and_its_older_schemas() -> None:
    old, new = Avro(OLD), Avro(NEW)
    assert new.loads(new.dumps({"cents": 5, "by": "ann"})) == {"cents": 5, "by": "ann"}
    reader = Avro(NEW, written=OLD)
    assert reader.loads(old.dumps({"cents": 5})) == {"cents": 5, "by": "?"}
    with pytest.raises(ValueError, match="append by the one of a new header"):
        reader.dumps({"cents": 5})
    with pytest.raises(ValueError, match="bytes are left"):
        old.loads(new.dumps({"cents": 5, "by": "ann"}))
    with pytest.raises(ValueError, match="by"):
        old.dumps({"cents": 5, "by": "ann"})


@pytest.mark.parametrize(
    ("module", "make", "extra"),
    [("msgspec", lambda: MsgPack(int), "msgspec"), ("fastavro", lambda: Avro(OLD), "avro")],
)
def test_a_library_that_is_missing_is_named(
    module: str, make: Any, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"pip install 'waltz-log\[{extra}\]'"):
        make()
