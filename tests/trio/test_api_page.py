"""`docs/api.md` says what the module has, and nothing else."""

from __future__ import annotations

import enum
import inspect
import itertools
import re
from pathlib import Path
from typing import Any

import attrs
import pytest

import waltz_trio as waltz
from waltz_trio.client.sql_database import SqlDatabase
from waltz_trio.client.sql_view import SqlView

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
HIDDEN = (waltz.Client, waltz.Application, waltz.Feed, waltz.Batches, waltz.Pending, waltz.PendingMany, waltz.Outcomes)
HEADING = re.compile(r"^### (?:`(?P<call>[^`]+)`|(?P<name>\w+))", re.M)
MEMBER = re.compile(r"^\| `(?P<text>[^`]+)` \|", re.M)
INSTANCE_ATTRIBUTES = {
    "Client": {"cluster", "client_id", "num_partitions"},
    "Application": {"view"},
    "Feed": {"partition", "markers"},
    "Pending": {"partition"},
    "Json": {"cls"},
    "MsgPack": {"cls"},
    "Protobuf": {"cls"},
    "Receipt": {"partition", "attempts", "conflicts", "value"},
    "DictView": {"state", "marks", "threaded", "keys", "apply_many"},
    "SqliteView": {"path", "name", "version", "threaded", "keys", "apply_many"},
    "PostgresView": {"name", "version", "threaded", "keys", "apply_many"},
    "MySqlView": {"name", "version", "threaded", "keys", "apply_many"},
    "View": {"threaded"},
    "KeyedView": {"keys"},
    "Keys": {"window"},
    "ApplyError": {"transaction"},
}


def sections() -> dict[str, tuple[str | None, set[str]]]:
    """Name → (call as written, members as written)."""
    text = PAGE.read_text(encoding="utf-8")
    found = {}
    marks = [*HEADING.finditer(text), None]
    for this, after in itertools.pairwise(marks):
        assert this is not None
        body = text[this.end() : after.start() if after else len(text)]
        call = this["call"]
        name = call.split("(")[0] if call else this["name"]
        assert name not in found, f"{name} stands twice on the page"
        found[name] = call, {match["text"] for match in MEMBER.finditer(body)}
    return found


def written(name: str, target: Any) -> str:
    """A call as the page writes it: names and defaults, no types, no self."""
    parts: list[str] = []
    star = False
    for parameter in inspect.signature(target).parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            parts.append("*")
            star = True
        if parameter.kind is parameter.VAR_POSITIONAL:
            parts.append("*" + parameter.name)
            star = True
            continue
        default = parameter.default
        if default is parameter.empty:
            parts.append(parameter.name)
        elif isinstance(default, waltz.Retry):
            parts.append(f"{parameter.name}=Retry()")
        elif inspect.isclass(default):
            parts.append(f"{parameter.name}={default.__name__}")
        elif isinstance(default, waltz.Raw):
            parts.append(f"{parameter.name}=Raw()")
        else:
            parts.append(f"{parameter.name}={default!r}")
    return f"{name}({', '.join(parts)})"


def members(cls: Any) -> set[str]:
    found = set(INSTANCE_ATTRIBUTES.get(cls.__name__, set()))
    if attrs.has(cls):
        found |= {field.name for field in attrs.fields(cls) if not field.name.startswith("_")}
    if issubclass(cls, enum.Enum):
        return found | {member.name for member in cls}
    if issubclass(cls, waltz.WaltzError):
        parameters = list(inspect.signature(cls.__init__).parameters)[1:]
        return found | {name for name in parameters if name not in ("args", "kwargs")}
    if "__slots__" in vars(cls) and not attrs.has(cls):
        found |= {name for name in cls.__slots__ if not name.startswith("_")}
    inherited = {**vars(SqlDatabase), **vars(SqlView)} if issubclass(cls, SqlView) else {}
    for name, value in {**inherited, **vars(cls)}.items():
        if name.startswith("_"):
            continue
        if isinstance(value, property):
            found.add(name)
        elif inspect.isfunction(value):
            found.add(written(name, value))
    return found


@pytest.mark.parametrize("name", sorted(waltz.__all__))
def test_the_page_has_every_name_with_its_signature_and_members(name: str) -> None:
    found = sections()
    assert name in found, f"{name} is missing on the page"
    call, listed = found[name]
    target = getattr(waltz, name)
    if inspect.isclass(target):
        expected = members(target)
        assert listed == expected, f"missing: {expected - listed}, not there: {listed - expected}"
        plain = issubclass(target, enum.Enum | Exception) or getattr(target, "_is_protocol", False)
        hidden = target in HIDDEN
        assert call == (None if plain or hidden else written(name, target))
    elif inspect.isfunction(target):
        assert call == written(name, target)
    else:
        assert (call, listed) == (None, set())


def test_the_page_has_nothing_else() -> None:
    assert set(sections()) == set(waltz.__all__)
