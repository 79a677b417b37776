"""State in memory, as functions of the application see it: journalled for `apply`, read-only for `decide`.

Dicts, lists and sets are handed out wrapped, at every depth. For `apply`, each change goes straight into the state, and
how to take it back goes into a journal: a transaction whose `apply` fails in the middle leaves nothing behind, at a
cost that grows with what it changed, not with the size of the state. Other objects that could be changed in place
are copied when they are read, so that they can be put back; members of a set are not, for a copy that replaced one
would be another member. For `decide` and `read`, every change is refused.

Dict, list and set stand in one file: what they share, and how one hands out the others, is most of each.
"""

from __future__ import annotations

import copy
import datetime
import decimal
import enum
import functools
import uuid
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, MutableMapping, MutableSequence, MutableSet
from typing import Any, NoReturn

from waltz_core.base.errors import StateReadOnlyError

_PLAIN = frozenset(
    {int, str, bytes, float, bool, complex, type(None), frozenset, decimal.Decimal, uuid.UUID}
    | {datetime.datetime, datetime.date, datetime.time, datetime.timedelta}
)
"""Types whose values cannot be changed in place."""

_MISSING = object()


class Journal:
    """How to take back what one transaction has changed."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []
        self._whole = True

    def note(self, undo: Callable[[], object]) -> None:
        """Something was changed; `undo` takes it back."""
        self._undo.append(undo)

    def note_object(self, value: object, put_back: Callable[[Any], object]) -> None:
        """An object was handed out that may be changed in place."""
        try:
            copied = copy.deepcopy(value)
        except Exception:  # any value can be handed out, but this one not put back
            self._whole = False
        else:
            self._undo.append(lambda: put_back(copied))

    def forget(self) -> None:
        """The transaction is applied."""
        self._undo.clear()
        self._whole = True

    def take_back(self) -> bool:
        """Undo everything, the last change first; False if something could not be put back."""
        whole = self._whole
        for undo in reversed(self._undo):
            undo()
        self.forget()
        return whole


def wrapped(state: Any, journal: Journal | None) -> Any:
    """A dict, list or set that notes changes, or with no journal refuses them; anything else as it is."""
    wrapper = _WRAPPERS.get(type(state))
    if wrapper is None:
        if not isinstance(state, dict | list | set):
            return state
        wrapper = _wrapper_of(type(state))
    return wrapper(state, journal)


def can_be_wrapped(state: object) -> bool:
    """The state itself is a dict, a list or a set.

    Raises:
        TypeError: it is of a class of its own that changes in another way than these.
    """
    if not isinstance(state, dict | list | set):
        return False
    _wrapper_of(type(state))
    return True


@functools.cache
def _wrapper_of(kind: type) -> type[_Wrapper]:
    """What wraps a class.

    Raises:
        TypeError: it has methods of its own where a wrapper has others, which would be passed over.
    """
    base, changes = next((base, changes) for base, changes in _CHANGES.items() if issubclass(kind, base))
    for name in changes:
        owner = next(owner for owner in kind.__mro__ if name in vars(owner))
        if owner not in _WRAPPERS:
            raise TypeError(
                f"{kind.__name__} cannot be the state of a DictView, or be in it: its own {name} would be passed over, "
                f"for a {base.__name__} is handed out wrapped; use a {base.__name__} and a function for what "
                f"{kind.__name__} does, or an object that holds the {base.__name__}"
            )
    return _WRAPPERS[base]


class _Wrapper:
    """What dicts, lists and sets have in common."""

    __slots__ = ("_base", "_journal")
    __hash__ = None  # type: ignore[assignment]  # as of what it wraps

    def __init__(self, base: Any, journal: Journal | None) -> None:
        self._base, self._journal = base, journal

    def __len__(self) -> int:
        return len(self._base)

    def __contains__(self, item: object) -> bool:
        return _raw(item) in self._base

    def __eq__(self, other: object) -> bool:
        return bool(self._base == _raw(other))

    def __repr__(self) -> str:
        return repr(self._base)

    def __copy__(self) -> Any:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self._base, memo)

    def __reduce__(self) -> Any:
        return copy.copy, (self._base,)

    def copy(self) -> Any:
        """A copy that is nobody's state. What is in it is handed out as if it were read from the state.

        Where nothing may be changed it has no wrappers, and dicts, lists and sets in it are copies, too.
        """
        return _unshared(self._base) if self._journal is None else self._with_parts()

    def _with_parts(self) -> Any:
        """A copy, with what is in it as it is handed out for `apply`."""
        return self._base.copy()

    def _note(self, undo: Callable[[], object]) -> None:
        """Before each change."""
        if self._journal is None:
            _refuse()
        self._journal.note(undo)

    def _out(self, value: Any, put_back: Callable[[Any], object]) -> Any:
        """Hand a value out of the state."""
        kind = type(value)
        if kind in _PLAIN:
            return value
        if isinstance(value, dict | list | set):
            return wrapped(value, self._journal)
        if self._journal is not None and not isinstance(value, enum.Enum):
            self._journal.note_object(value, put_back)
        return value


def _refuse() -> NoReturn:
    raise StateReadOnlyError(
        "the state given to `decide` or `read` cannot be changed: return an Append, and change the state in `apply`"
    )


def _unshared(value: Any) -> Any:
    """A dict, list or set as a copy, with those in it; anything else as it is."""
    if isinstance(value, dict | list):
        copied: Any = value.copy()
        if _PLAIN.issuperset(map(type, value.values() if isinstance(value, dict) else value)):
            return copied  # found out without a loop in Python: large states are mostly made of such
        for at, part in list(value.items()) if isinstance(value, dict) else enumerate(value):
            if type(part) not in _PLAIN:
                copied[at] = _unshared(part)
        return copied
    return value.copy() if isinstance(value, set) else value


def _copy(value: Any) -> Any:
    return value.copy() if isinstance(value, _Wrapper) else value


def _raw(value: Any) -> Any:
    """The value without wrappers, also inside new lists, dicts and sets, which stay the same objects."""
    if isinstance(value, _Wrapper):
        return value._base
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind not in _WRAPPERS and isinstance(value, dict | list | set):
        _wrapper_of(type(value))  # refused where it is put, not where it is handed out
    if isinstance(value, list):
        for at, item in enumerate(value):
            if (raw := _raw(item)) is not item:
                value[at] = raw
    elif isinstance(value, dict):
        for key, item in value.items():
            if (raw := _raw(item)) is not item:
                value[key] = raw
    elif kind is tuple:
        raws = tuple(map(_raw, value))
        return value if all(raw is item for raw, item in zip(raws, value, strict=True)) else raws
    return value


class _Dict(_Wrapper, MutableMapping[Any, Any]):
    __slots__ = ()

    def __getitem__(self, key: Any) -> Any:
        base = self._base
        value = base.get(key, _MISSING)
        if type(value) in _PLAIN:
            return value
        if value is _MISSING:
            value = self._default(key)
        return self._out(value, lambda old: base.__setitem__(key, old))

    def _default(self, key: Any) -> Any:
        """KeyError, or what a defaultdict or another kind of dict has in place of a missing key."""
        base = self._base
        if self._journal is None and isinstance(base, defaultdict) and base.default_factory is not None:
            return base.default_factory()  # not kept
        value = base[key]
        if key in base:
            self._note(lambda: base.pop(key, None))
        return value

    def __setitem__(self, key: Any, value: Any) -> None:
        base = self._base
        old = base.get(key, _MISSING)
        self._note((lambda: base.pop(key, None)) if old is _MISSING else (lambda: base.__setitem__(key, old)))
        base[key] = _raw(value)

    def __delitem__(self, key: Any) -> None:
        base, old = self._base, self._base.get(key, _MISSING)
        if self._journal is None or old is not _MISSING:
            self._note(lambda: base.__setitem__(key, old))  # behind all others: the order is not kept
        del base[key]

    def pop(self, key: Any, default: Any = _MISSING) -> Any:
        if key not in self._base and default is not _MISSING:
            return default
        value = self[key] if key in self._base else None  # handed out first: what is changed in it can be taken back
        del self[key]
        return value

    def popitem(self) -> tuple[Any, Any]:
        for key in reversed(self._base):
            return key, self.pop(key)
        raise KeyError("popitem(): the dictionary is empty")

    def clear(self) -> None:
        base, old = self._base, dict(self._base) if self._journal is not None else {}
        self._note(lambda: base.update(old))
        base.clear()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._base)

    def _with_parts(self) -> Any:
        copied = self._base.copy()
        for key in self._base:
            copied[key] = self[key]
        return copied

    def __or__(self, other: Any) -> Any:
        return self.copy() | _copy(other)

    def __ior__(self, other: Any) -> Any:
        self.update(other)
        return self

    def get(self, key: Any, default: Any = None) -> Any:
        return self[key] if key in self._base else default

    def setdefault(self, key: Any, default: Any = None) -> Any:
        if key not in self._base:
            self[key] = default
        return self[key]


class _Counter(_Dict):
    """Counts are added where a dict would put others in their place."""

    __slots__ = ()

    def update(self, other: Any = (), /, **counts: Any) -> None:
        for key, count in Counter(other, **counts).items():
            self[key] = self.get(key, 0) + count

    def subtract(self, other: Any = (), /, **counts: Any) -> None:
        for key, count in Counter(other, **counts).items():
            self[key] = self.get(key, 0) - count

    def most_common(self, n: int | None = None) -> list[tuple[Any, int]]:
        return self._counted().most_common(n)

    def elements(self) -> Iterator[Any]:
        return self._counted().elements()

    def total(self) -> int:
        return self._counted().total()

    def __add__(self, other: Any) -> Any:
        return self._counted() + _raw(other)

    def __sub__(self, other: Any) -> Any:
        return self._counted() - _raw(other)

    def __and__(self, other: Any) -> Any:
        return self._counted() & _raw(other)

    def __iadd__(self, other: Any) -> Any:
        return self._become(self._counted() + _raw(other))

    def __isub__(self, other: Any) -> Any:
        return self._become(self._counted() - _raw(other))

    def __ior__(self, other: Any) -> Any:
        return self._become(self._counted() | _raw(other))

    def __iand__(self, other: Any) -> Any:
        return self._become(self._counted() & _raw(other))

    def _counted(self) -> Counter[Any]:
        return Counter(self._base)

    def _become(self, counts: Counter[Any]) -> Any:
        for key in [key for key in self._base if key not in counts]:
            del self[key]
        for key, count in counts.items():
            self[key] = count
        return self


class _List(_Wrapper, MutableSequence[Any]):
    __slots__ = ()

    def __getitem__(self, at: Any) -> Any:
        base, value = self._base, self._base[at]
        if isinstance(at, slice):
            return [self[index] for index in range(*at.indices(len(base)))]
        return self._out(value, lambda old: base.__setitem__(at, old))

    def __setitem__(self, at: Any, value: Any) -> None:
        if isinstance(at, slice):
            self._note_whole()
            self._base[at] = [_raw(item) for item in value]
        else:
            base, old = self._base, self._base[at]
            self._note(lambda: base.__setitem__(at, old))
            base[at] = _raw(value)

    def __delitem__(self, at: Any) -> None:
        self._note_whole()
        del self._base[at]

    def insert(self, index: int, value: Any) -> None:
        self._note_whole()
        self._base.insert(index, _raw(value))

    def append(self, value: Any) -> None:
        self._note(self._base.pop)
        self._base.append(_raw(value))

    def pop(self, index: int = -1) -> Any:
        base = self._base
        value = self[index] if -len(base) <= index < len(base) else None  # as in `_Dict.pop`
        if index == -1 and base:
            old = base[-1]
            self._note(lambda: base.append(old))
        else:
            self._note_whole()
        base.pop(index)
        return value

    def clear(self) -> None:
        self._note_whole()
        self._base.clear()

    def reverse(self) -> None:
        self._note_whole()
        self._base.reverse()

    def sort(self, *, key: Callable[[Any], Any] | None = None, reverse: bool = False) -> None:
        self._note_whole()
        self._base.sort(key=key, reverse=reverse)

    def _with_parts(self) -> Any:
        copied = self._base.copy()
        copied[:] = self
        return copied

    def __add__(self, other: Any) -> Any:
        return self.copy() + _copy(other)

    def __lt__(self, other: Any) -> bool:
        return bool(self._base < _raw(other))

    def _note_whole(self) -> None:
        base, old = self._base, self._base[:] if self._journal is not None else []
        self._note(lambda: base.__setitem__(slice(None), old))


class _Set(_Wrapper, MutableSet[Any]):
    __slots__ = ()

    @classmethod
    def _from_iterable(cls, items: Iterable[Any]) -> Any:
        return set(items)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._base)

    def add(self, value: Any) -> None:
        base = self._base
        if self._journal is None or value not in base:
            self._note(lambda: base.discard(value))
            base.add(value)

    def discard(self, value: Any) -> None:
        base = self._base
        if self._journal is None or value in base:
            self._note(lambda: base.add(value))
            base.discard(value)

    def update(self, *others: Iterable[Any]) -> None:
        for other in others:
            for value in other:
                self.add(value)

    def union(self, *others: Iterable[Any]) -> Any:
        return self._base.union(*map(_raw, others))

    def intersection(self, *others: Iterable[Any]) -> Any:
        return self._base.intersection(*map(_raw, others))

    def difference(self, *others: Iterable[Any]) -> Any:
        return self._base.difference(*map(_raw, others))

    def issubset(self, other: Iterable[Any]) -> bool:
        return bool(self._base.issubset(_raw(other)))

    def issuperset(self, other: Iterable[Any]) -> bool:
        return bool(self._base.issuperset(_raw(other)))


def _changing(base: type, abstract: type, *more: str) -> tuple[str, ...]:
    return (*more, *(name for name in vars(abstract) if callable(vars(base).get(name))))


_WRAPPERS: dict[type, type[_Wrapper]] = {dict: _Dict, list: _List, set: _Set, Counter: _Counter}
_WRAPPERS |= {defaultdict: _Dict, OrderedDict: _Dict}
_OF_DICT = _changing(dict, MutableMapping, "__getitem__", "__ior__")
_CHANGES: dict[type, tuple[str, ...]] = {
    Counter: (*_OF_DICT, "subtract", "__iadd__", "__isub__", "__iand__"),
    dict: _OF_DICT,
    list: _changing(list, MutableSequence, "__imul__", "sort"),
    set: _changing(set, MutableSet, "update", *(name for name in vars(set) if name.endswith("_update"))),
}
"""Methods of which a wrapper has its own."""
