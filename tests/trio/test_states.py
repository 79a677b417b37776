"""State in memory: journalled for those who apply, read-only for those who decide."""

from __future__ import annotations

import contextlib
import copy
import json
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

import waltz_trio as waltz
from waltz_trio.client.states import Journal, wrapped

KEYS = st.sampled_from("abc")
LEAVES = st.integers(0, 3) | st.text("xy", max_size=2)
STATES = st.dictionaries(
    KEYS,
    st.recursive(
        LEAVES | st.sets(st.integers(0, 3)),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
        max_leaves=8,
    ),
)
STEPS = st.lists(st.tuples(st.integers(0, 30), KEYS, LEAVES, st.integers(-2, 3)), max_size=12)


def act(state: Any, steps: list[tuple[int, str, Any, int]]) -> list[str]:
    """Wander through a state and change it; the same for a plain one and a wrapped one. Returns what went wrong."""
    said = []
    here = state
    for kind, key, leaf, at in steps:
        try:
            here = one(state, here, kind, key, leaf, at)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            said.append(type(error).__name__)
            here = state
    return said


def one(state: Any, here: Any, kind: int, key: str, leaf: Any, at: int) -> Any:
    if isinstance(here, str | int | tuple):
        return state
    ways: list[Callable[[], Any]]
    if hasattr(here, "keys"):
        ways = [
            lambda: here[key],
            lambda: here.__setitem__(key, leaf),
            lambda: here.__delitem__(key),
            lambda: here.pop(key, None) and None,
            lambda: here.setdefault(key, [leaf]),
            lambda: here.update({key: {leaf: 1}}),
            lambda: here.__setitem__(key, here.get("a")),
            lambda: here.__setitem__(key, [here.get("b"), (here.get("c"), 1)]),
            lambda: here.clear(),
            lambda: here.popitem() and None,
            lambda: next(iter(here.values()), None),
            lambda: here.get(key),
        ]
    elif hasattr(here, "append"):
        ways = [
            lambda: here[at],
            lambda: here.append(leaf),
            lambda: here.append({key: leaf}),
            lambda: here.insert(at, leaf),
            lambda: here.pop() and None,
            lambda: here.pop(at) and None,
            lambda: here.__setitem__(at, leaf),
            lambda: here.__setitem__(slice(at, None), [leaf]),
            lambda: here.__delitem__(at),
            lambda: here.extend([leaf, leaf]),
            lambda: here.reverse(),
            lambda: here.sort(key=str),
            lambda: here.clear(),
            lambda: here.remove(leaf),
        ]
    else:
        ways = [
            lambda: here.add(leaf),
            lambda: here.discard(leaf),
            lambda: here.remove(leaf),
            lambda: here.update([leaf, 9]),
            lambda: here.clear(),
        ]
    return ways[kind % len(ways)]() or state


@given(STATES, STEPS, st.booleans())
def test_a_journalled_state_changes_as_a_plain_one_and_can_be_taken_back(
    state: dict[str, Any], steps: list[tuple[int, str, Any, int]], fails: bool
) -> None:
    plain, before = copy.deepcopy(state), copy.deepcopy(state)
    journal = Journal()
    said = act(wrapped(state, journal), steps)
    assert said == act(plain, steps)
    assert state == plain
    json.dumps(state, default=list)  # no wrapper was left in it
    if fails:
        assert journal.take_back()
        assert state == before
    else:
        journal.forget()
        assert journal.take_back()
        assert state == plain


@given(STATES, STEPS)
def test_a_read_only_state_never_changes(state: dict[str, Any], steps: list[tuple[int, str, Any, int]]) -> None:
    before = copy.deepcopy(state)
    for step in steps:
        with contextlib.suppress(waltz.StateReadOnlyError):
            act(wrapped(state, None), [step])
        assert state == before


CHANGES: dict[type, list[Callable[[Any], Any]]] = {
    dict: [
        lambda it: it.__setitem__("b", [7]),
        lambda it: it.__setitem__("new", 7),
        lambda it: it.__delitem__("b"),
        lambda it: it.pop("b").append(7),
        lambda it: it.pop("d").update(x=7),
        lambda it: it.pop("new", 7),
        lambda it: it.popitem()[1].update(x=7),
        lambda it: it.setdefault("new", []).append(7),
        lambda it: it.setdefault("b", []).append(7),
        lambda it: it.update(b=7, new=8),
        lambda it: it.__ior__({"new": 7}) and None,
        lambda it: it.clear(),
        lambda it: [each.append(7) for key, each in it.items() if key == "b"],
        lambda it: it.get("b").append(7),
    ],
    list: [
        lambda it: it.append(7),
        lambda it: it.insert(1, 7),
        lambda it: it.insert(-1, 7),
        lambda it: it.extend([7, 8]),
        lambda it: it.__iadd__([7, 8]) and None,
        lambda it: it.pop().append(7),
        lambda it: it.pop(-1).append(7),
        lambda it: it.pop(0).append(7),
        lambda it: it.pop(1).append(7),
        lambda it: it.pop(-2).append(7),
        lambda it: it.__setitem__(0, 7),
        lambda it: it.__setitem__(-1, 7),
        lambda it: it.__setitem__(slice(0, 2), [7]),
        lambda it: it.__delitem__(0),
        lambda it: it.__delitem__(slice(1, None)),
        lambda it: it.remove([1]),
        lambda it: it.reverse(),
        lambda it: it.sort(),
        lambda it: it.sort(reverse=True),
        lambda it: it.sort(key=lambda each: -each[0]),
        lambda it: it.clear(),
        lambda it: [each.append(7) for each in it],
        lambda it: [each.append(7) for each in it[1:]],
    ],
    set: [
        lambda it: it.add(7),
        lambda it: it.add(1),
        lambda it: it.discard(1),
        lambda it: it.discard(7),
        lambda it: it.remove(1),
        lambda it: it.pop() and None,
        lambda it: it.update([1, 7], {8}),
        lambda it: it.clear(),
        lambda it: it.__ior__({7}) and None,
        lambda it: it.__isub__({1}) and None,
        lambda it: it.__iand__({1}) and None,
    ],
}
"""Each way to change a state, and what was read from it, or taken out of it."""


@pytest.mark.parametrize(
    "state", [{"a": 1, "b": [1], "d": {"x": 1}}, [[1], [3], [2]], {1, 2, 3}], ids=lambda state: type(state).__name__
)
def test_each_change_is_that_of_a_plain_state_and_can_be_taken_back(state: Any) -> None:
    for number, change in enumerate(CHANGES[type(state)]):
        for deep in (False, True):
            plain, whole = {"in": copy.deepcopy(state)}, {"in": copy.deepcopy(state)}
            journal = Journal()
            seen = wrapped(whole, journal)["in"] if deep else wrapped(whole["in"], journal)
            assert change(seen) == change(plain["in"]), number
            assert whole == plain, number
            assert journal.take_back(), number
            assert whole == {"in": state}, number


COPIES: list[Callable[[Any], Any]] = [
    lambda it: it["d"].copy(),
    lambda it: copy.copy(it["d"]),
    lambda it: it["d"] | {"y": 2},
    lambda it: {"l": (it["l"] + [4])[0]},
    lambda it: {"l": copy.copy(it["l"])[0]},
    lambda it: {"l": it["l"].copy()[0]},
    lambda it: it["d"] | it["d"],
    lambda it: it.copy()["d"],
]
"""Each gives a dict whose "l" is a list of the state, or a copy of that."""


@pytest.mark.parametrize("number", range(len(COPIES)))
def test_a_copy_lets_nothing_in_it_be_changed_unnoticed(number: int) -> None:
    state: dict[str, Any] = {"l": [[1], [2]], "d": {"l": [1], "deep": {"s": {1}, "l": [[1]]}, "c": Counter("a")}}
    before = copy.deepcopy(state)
    copied = COPIES[number](wrapped(state, None))
    with contextlib.suppress(waltz.StateReadOnlyError):
        copied["l"].append(7)
    with contextlib.suppress(waltz.StateReadOnlyError, KeyError):
        copied["deep"]["s"].add(7)
    with contextlib.suppress(waltz.StateReadOnlyError, KeyError):
        copied["deep"]["l"][0].append(7)
    assert state == before, "what decides changes nothing"
    journal = Journal()
    seen = wrapped(state, journal)
    copied = COPIES[number](seen)
    copied["l"].append(7)
    seen["copied"] = copied
    seen["counted"] = Counter(x=copied["l"])
    json.dumps(state, default=list)  # no wrapper is in it
    assert not isinstance(state["counted"]["x"], type(seen["l"]))
    assert 7 in state["l"][0] or 7 in state["d"]["l"], "a shallow copy, as of a plain state"
    assert journal.take_back()
    assert state == before


def test_what_was_read_from_the_state_goes_back_into_it_as_it_is() -> None:
    state: dict[str, Any] = {"a": [1], "b": {"x": [2]}, "c": [], "d": {}}
    seen = wrapped(state, Journal())
    seen["in list"] = [seen["a"], [seen["b"]]]
    seen["in dict"] = {"k": seen["a"], "deep": {"k": seen["b"]}}
    seen["in tuple"] = (1, (seen["a"],), [seen["b"]])
    seen["c"].append([seen["a"]])
    seen["c"].insert(0, (seen["a"],))
    seen["c"].extend([seen["b"]])
    seen["c"][0:0] = [[seen["b"]]]
    seen["c"][1] = seen["a"]
    seen["d"].setdefault("k", [seen["a"]])
    seen["d"].update(l=seen["b"])
    a, b = state["a"], state["b"]
    assert state["in list"][0] is a
    assert state["in dict"]["k"] is a
    json.dumps(state)  # which takes no wrapper
    assert state["c"] == [[b], a, [a], b]
    assert state["d"] == {"k": [a], "l": b}


def test_objects_that_can_be_changed_in_place_are_put_back() -> None:
    @attrs.define
    class Account:
        balance: int

    state = {"account": Account(5), "queue": deque([1]), "accounts": [Account(1)]}
    journal = Journal()
    seen = wrapped(state, journal)
    seen["account"].balance -= 3
    seen["queue"].append(2)
    seen["accounts"][0].balance = 9
    assert state["account"] == Account(2)
    assert journal.take_back()
    assert state == {"account": Account(5), "queue": deque([1]), "accounts": [Account(1)]}


def test_of_a_set_its_members_are_taken_back_and_not_what_is_changed_inside_one() -> None:
    @attrs.define(eq=False)
    class Account:
        balance: int

    kept, added, removed = Account(5), Account(1), Account(2)
    state = {"accounts": {kept, removed}}
    journal = Journal()
    seen = wrapped(state, journal)
    for account in seen["accounts"]:
        assert account in (kept, removed), "the members themselves"
        account.balance = 9
    seen["accounts"].add(added)
    seen["accounts"].discard(removed)
    assert state == {"accounts": {kept, added}}
    assert journal.take_back()
    assert state == {"accounts": {kept, removed}}
    assert (kept.balance, removed.balance) == (9, 9)


def test_an_object_that_cannot_be_copied_is_said_to_stay_changed() -> None:
    class Stubborn:
        value = 0

        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError

    journal = Journal()
    wrapped({"x": Stubborn()}, journal)["x"].value = 1
    assert not journal.take_back()
    assert journal.take_back()


def test_other_kinds_of_dictionaries_keep_their_defaults() -> None:
    grouped: defaultdict[str, list[int]] = defaultdict(list)
    journal = Journal()
    wrapped(grouped, journal)["a"].append(1)
    assert grouped == {"a": [1]}
    journal.take_back()
    assert grouped == {}
    assert wrapped(grouped, None)["b"] == []
    assert grouped == {}, "reading a default keeps nothing"
    counted: Counter[str] = Counter()
    wrapped(counted, journal)["a"] += 1
    assert (wrapped(counted, None)["a"], wrapped(counted, None)["b"]) == (1, 0)
    with pytest.raises(KeyError):
        wrapped({}, None)["missing"]


class Case(dict[str, int]):
    """Looks away where others look twice."""

    def __setitem__(self, key: str, value: int) -> None:
        super().__setitem__(key.lower(), value)


class Adding(dict[str, int]):
    def update(self, *others: Any, **more: Any) -> None:
        for key, value in dict(*others, **more).items():
            self[key] = self.get(key, 0) + value


class Got(dict[str, int]):
    def __getitem__(self, key: str) -> int:
        return 7


class Tagging(list[Any]):
    def append(self, value: Any) -> None:
        super().append(("tag", value))


class Sorting(list[Any]):
    def sort(self, **options: Any) -> None:
        raise AssertionError


class Lower(set[str]):
    def add(self, value: str) -> None:
        super().add(value.lower())


class Gone(set[str]):
    def difference_update(self, *others: Any) -> None:
        raise AssertionError


class SubCounter(Counter[str]):
    def subtract(self, *others: Any, **more: Any) -> None:
        raise AssertionError


@pytest.mark.parametrize("kind", [Case, Adding, Got, Tagging, Sorting, Lower, Gone, SubCounter])
def test_a_class_whose_own_methods_would_be_passed_over_is_refused(kind: type[Any]) -> None:
    told = f"{kind.__name__} cannot be the state of a DictView, or be in it: its own .* would be passed over"
    with pytest.raises(TypeError, match=told):
        waltz.DictView(lambda txn, state: None, kind())
    for state in ({"a": kind()}, [kind()]):
        for journal in (None, Journal()):
            with pytest.raises(TypeError, match=told):
                wrapped(state, journal)[next(iter(state)) if isinstance(state, dict) else 0]
    filled: dict[str, Any] = {}
    for value in (kind(), [kind()], {"x": (kind(),)}):
        with pytest.raises(TypeError, match=told):
            wrapped(filled, Journal())["a"] = value
    with pytest.raises(TypeError, match=told):
        wrapped([], Journal()).append(kind())
    assert filled == {}


def test_classes_that_change_as_what_they_are_do_are_states() -> None:
    class Named(dict[str, int]):
        def total(self) -> int:
            return sum(self.values())

        def __missing__(self, key: str) -> int:
            return 7

    for made in (Named, OrderedDict[str, int], type("Rows", (list,), {}), type("Names", (set,), {})):
        state: dict[str, Any] = {"a": made()}
        assert wrapped(state, Journal())["a"] == made()
        waltz.DictView(lambda txn, state: None, made())
    assert wrapped(Named(), None)["x"] == 7


COUNTS: list[Callable[[Any], Any]] = [
    lambda it: it.update("aab"),
    lambda it: it.update({"a": 2, "c": 1}, b=3),
    lambda it: it.update(),
    lambda it: it.subtract("aab", d=1),
    lambda it: it.subtract({"a": 5}),
    lambda it: it.__iadd__(Counter("abz")),
    lambda it: it.__isub__(Counter("aaz")),
    lambda it: it.__ior__(Counter("aaaaz")),
    lambda it: it.__iand__(Counter("ay")),
    lambda it: it.setdefault("a", 9),
    lambda it: it.__delitem__("nothing"),
    lambda it: it.__delitem__("a"),
    lambda it: it.pop("b"),
]


@pytest.mark.parametrize("number", range(len(COUNTS)))
@pytest.mark.parametrize("kind", [Counter, type("Votes", (Counter,), {})])
def test_a_counter_in_the_state_counts(kind: type[Counter[str]], number: int) -> None:
    plain = kind("aaabby")
    COUNTS[number](plain)
    state = {"c": kind("aaabby")}
    journal = Journal()
    COUNTS[number](wrapped(state, journal)["c"])
    assert state["c"] == plain
    assert type(state["c"]) is kind
    assert list(state["c"].items()) == list(plain.items())
    assert journal.take_back()
    assert state == {"c": Counter("aaabby")}
    if plain != state["c"]:
        with pytest.raises(waltz.StateReadOnlyError):
            COUNTS[number](wrapped(state, None)["c"])
        assert state == {"c": Counter("aaabby")}


def test_a_counter_is_read_as_one() -> None:
    counts = Counter("aaabbc")
    seen, other = wrapped({"c": counts}, None)["c"], wrapped(Counter("ab"), None)
    assert (seen.most_common(1), seen.most_common(), seen.total()) == ([("a", 3)], counts.most_common(), 6)
    assert sorted(seen.elements()) == list("aaabbc")
    assert (seen + other, seen - other, seen & other, seen | other) == (
        counts + Counter("ab"),
        counts - Counter("ab"),
        counts & Counter("ab"),
        counts | Counter("ab"),
    )
    assert (seen == counts, seen["nothing"], Counter(seen)) == (True, 0, counts)


def test_what_is_read_behaves_as_what_it_wraps() -> None:
    state: dict[str, Any] = {"d": {"x": 1}, "l": [1, 2, 3], "s": {1, 2}}
    seen = wrapped(state, None)
    assert dict(seen["d"]) == {"x": 1} == seen["d"]
    assert repr(seen) == repr(state)
    assert (seen["l"][1:], seen["l"] + [4], sorted(seen["l"]), seen["l"] < [2]) == (
        [2, 3],
        [1, 2, 3, 4],
        [1, 2, 3],
        True,
    )
    assert (seen["s"] | {3}, seen["s"].union([3]), seen["s"] & {1}) == ({1, 2, 3}, {1, 2, 3}, {1})
    assert (seen["s"].issubset({1, 2, 3}), seen["s"].issuperset({1}), seen["s"].difference([1])) == (True, True, {2})
    assert seen["s"].intersection([1]) == {1}
    assert seen["d"] | {"y": 2} == {"x": 1, "y": 2}
    assert copy.deepcopy(seen) == copy.copy(seen) == seen.copy() == state
    assert type(copy.deepcopy(seen)) is type(seen.copy()["d"]) is dict
    assert 1 in seen["s"]
    assert len(seen["l"]) == 3
    with pytest.raises(waltz.StateReadOnlyError):
        seen["d"] |= {"y": 2}
