"""A tree of znodes with the rules of ZooKeeper: versions, sessions, sequences, one-shot watches, multi.

The model behind the embedded store and the simulator. It knows neither time nor connections: when a session
ends is the caller's decision. Answers are those of a server that applies one request after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import assert_never

from waltz_core.base.edge import (
    ZkChildren,
    ZkCreate,
    ZkDelete,
    ZkDone,
    ZkError,
    ZkFailed,
    ZkGet,
    ZkMulti,
    ZkRequest,
    ZkSet,
    ZkStat,
)
from waltz_core.base.record import record


@record
class Znode:
    """One node as it stands; what `ZnodeTree.describe` and saving give out."""

    path: str
    data: bytes | None
    version: int
    created: int  # children ever created; the reported cversion counts deletions too
    num_children: int
    ephemeral_owner: int
    czxid: int  # creation
    mzxid: int  # last change of data
    pzxid: int  # last change of children

    @property
    def cversion(self) -> int:
        """Child creations and deletions."""
        return 2 * self.created - self.num_children


@record
class StoredTree:
    """What a tree needs to go on after a restart; ephemeral nodes and sessions are gone by then."""

    zxid: int
    znodes: tuple[Znode, ...]  # parents before children


class _Node:
    """One node of the tree."""

    __slots__ = ("children", "created", "czxid", "data", "mzxid", "owner", "pzxid", "version")

    def __init__(self, data: bytes | None, owner: int, zxid: int) -> None:
        self.data = data
        self.owner = owner
        self.czxid = self.mzxid = self.pzxid = zxid
        self.version = 0
        self.created = 0
        self.children: dict[str, _Node] = {}

    def stat(self) -> ZkStat:
        return ZkStat(self.version, 2 * self.created - len(self.children), self.owner, self.czxid)


class _RefusedError(Exception):
    """A request that is not carried out."""

    def __init__(self, error: ZkError) -> None:
        super().__init__(error.value)
        self.error = error


class _Changes:
    """What one request did so far: how to take it back, and which watches it fires in the end."""

    def __init__(self) -> None:
        self.undo: list[Callable[[], None]] = []
        self.data_fired: list[str] = []
        self.children_fired: list[str] = []


class ZnodeTree:
    """The nodes, the sessions, and who watches what."""

    def __init__(self, stored: StoredTree | None = None) -> None:
        self._root = _Node(None, 0, 0)
        self._zxid = 0
        self._ephemerals: dict[int, dict[str, None]] = {}
        self._data_watches: dict[str, dict[int, None]] = {}
        self._child_watches: dict[str, dict[int, None]] = {}
        self._fired: dict[tuple[int, str], None] = {}
        if stored is not None:
            self._restore(stored)

    # ---- sessions ----------------------------------------------------------------------------

    def open_session(self) -> int:
        """A new session; its id is positive and not used again by this tree."""
        self._zxid += 1
        self._ephemerals[self._zxid] = {}
        return self._zxid

    def has_session(self, session_id: int) -> bool:
        """Whether the session lives."""
        return session_id in self._ephemerals

    def close_session(self, session_id: int) -> tuple[str, ...]:
        """End a session: its watches go, then its ephemeral nodes; returns their paths."""
        if session_id not in self._ephemerals:
            return ()
        owned = tuple(self._ephemerals.pop(session_id))
        self.forget_watches(session_id)
        self._zxid += 1
        changes = _Changes()
        for path in owned:
            self._remove(path, changes)
        self._fire(changes)
        return owned

    def forget_watches(self, session_id: int) -> None:
        """Drop all watches of a session, also those that fired and were not taken: its connection broke."""
        for watches in (self._data_watches, self._child_watches):
            for path in [path for path, who in watches.items() if session_id in who]:
                del watches[path][session_id]
                if not watches[path]:
                    del watches[path]
        for key in [key for key in self._fired if key[0] == session_id]:
            del self._fired[key]

    def fired(self) -> list[tuple[int, str]]:
        """(session, path) of the watches that fired since the last call, in order."""
        fired, self._fired = list(self._fired), {}
        return fired

    # ---- looking from outside ----------------------------------------------------------------

    def describe(self) -> tuple[Znode, ...]:
        """Every node below the root, depth first, sorted by name."""
        return tuple(
            Znode(
                path,
                node.data,
                node.version,
                node.created,
                len(node.children),
                node.owner,
                node.czxid,
                node.mzxid,
                node.pzxid,
            )
            for path, node in _walk("", self._root)
        )

    def stored(self) -> StoredTree:
        """What must be saved: everything but sessions and their ephemeral nodes."""
        root = self._root
        top = Znode("/", root.data, root.version, root.created, 0, 0, root.czxid, root.mzxid, root.pzxid)
        return StoredTree(self._zxid, (top, *(node for node in self.describe() if node.ephemeral_owner == 0)))

    def _restore(self, stored: StoredTree) -> None:
        self._zxid = stored.zxid
        for saved in stored.znodes:
            node = self._root
            if saved.path != "/":
                parent, name = self._parent(saved.path)
                parent.children[name] = node = _Node(saved.data, 0, saved.czxid)
            node.data, node.version, node.created = saved.data, saved.version, saved.created
            node.mzxid, node.pzxid = saved.mzxid, saved.pzxid

    # ---- requests ----------------------------------------------------------------------------

    def apply(self, session_id: int, request: ZkRequest) -> ZkDone | ZkFailed:
        """Carry out one request of a session."""
        if session_id not in self._ephemerals:
            return ZkFailed(request.ticket, ZkError.EXPIRED)
        try:
            match request:
                case ZkGet():
                    return self._get(session_id, request)
                case ZkChildren():
                    return self._list(session_id, request)
                case ZkMulti(operations=operations):
                    return self._write(session_id, request.ticket, operations, single=False)
                case _:
                    return self._write(session_id, request.ticket, (request,), single=True)
        except _RefusedError as refused:
            return ZkFailed(request.ticket, refused.error)

    def _get(self, session_id: int, request: ZkGet) -> ZkDone:
        if request.watch:
            self._data_watches.setdefault(request.path, {})[session_id] = None
        node = self._node(request.path)
        return ZkDone(request.ticket, node.stat(), data=node.data)

    def _list(self, session_id: int, request: ZkChildren) -> ZkDone:
        node = self._node(request.path)
        if request.watch:
            self._child_watches.setdefault(request.path, {})[session_id] = None
        return ZkDone(request.ticket, node.stat(), children=tuple(sorted(node.children)))

    def _write(
        self, session_id: int, ticket: int, operations: tuple[ZkCreate | ZkSet | ZkDelete, ...], *, single: bool
    ) -> ZkDone:
        """All operations or none; a refused one uses up a transaction id too, as in ZooKeeper."""
        self._zxid += 1
        changes = _Changes()
        answer = ZkDone(ticket)
        try:
            for operation in operations:
                match operation:
                    case ZkCreate():
                        answer = self._create(session_id, ticket, operation, changes)
                    case ZkSet():
                        answer = self._set(ticket, operation, changes)
                    case ZkDelete():
                        answer = self._delete(ticket, operation, changes)
                    case _:
                        assert_never(operation)
        except _RefusedError:
            for undo in reversed(changes.undo):
                undo()
            raise
        self._fire(changes)
        return answer if single else ZkDone(ticket)

    def _create(self, session_id: int, ticket: int, request: ZkCreate, changes: _Changes) -> ZkDone:
        parent, name = self._parent(request.path)
        if parent.owner:
            raise _RefusedError(ZkError.REFUSED)  # ephemeral nodes have no children
        path = request.path
        if request.sequential:
            suffix = f"{parent.created:010d}"
            name, path = name + suffix, path + suffix
        if name in parent.children:
            raise _RefusedError(ZkError.NODE_EXISTS)
        before = parent.pzxid
        node = _Node(request.data, session_id if request.ephemeral else 0, self._zxid)
        parent.children[name] = node
        parent.created += 1
        parent.pzxid = self._zxid
        if request.ephemeral:
            self._ephemerals[session_id][path] = None

        def undo() -> None:
            del parent.children[name]
            parent.created -= 1
            parent.pzxid = before
            self._ephemerals[session_id].pop(path, None)

        changes.undo.append(undo)
        changes.data_fired.append(path)
        changes.children_fired.append(_parent_path(path))
        return ZkDone(ticket, node.stat(), path=path)

    def _set(self, ticket: int, request: ZkSet, changes: _Changes) -> ZkDone:
        node = self._node(request.path)
        if request.version not in (-1, node.version):
            raise _RefusedError(ZkError.BAD_VERSION)
        data, version, mzxid = node.data, node.version, node.mzxid
        node.data, node.version, node.mzxid = request.data, node.version + 1, self._zxid

        def undo() -> None:
            node.data, node.version, node.mzxid = data, version, mzxid

        changes.undo.append(undo)
        changes.data_fired.append(request.path)
        return ZkDone(ticket, node.stat())

    def _delete(self, ticket: int, request: ZkDelete, changes: _Changes) -> ZkDone:
        node = self._node(request.path)
        if node is self._root:
            raise _RefusedError(ZkError.REFUSED)
        if request.version not in (-1, node.version):
            raise _RefusedError(ZkError.BAD_VERSION)
        if node.children:
            raise _RefusedError(ZkError.NOT_EMPTY)
        self._remove(request.path, changes)
        owned = self._ephemerals.get(node.owner, {})
        if request.path in owned:
            del owned[request.path]
            changes.undo.append(lambda: owned.update({request.path: None}))
        return ZkDone(ticket)

    def _remove(self, path: str, changes: _Changes) -> None:
        parent, name = self._parent(path)
        node = parent.children.pop(name)
        before, parent.pzxid = parent.pzxid, self._zxid

        def undo() -> None:
            parent.children[name] = node
            parent.pzxid = before

        changes.undo.append(undo)
        changes.data_fired.append(path)
        changes.children_fired += path, _parent_path(path)

    def _fire(self, changes: _Changes) -> None:
        for watches, paths in ((self._data_watches, changes.data_fired), (self._child_watches, changes.children_fired)):
            for path in paths:
                for session_id in watches.pop(path, ()):
                    self._fired[session_id, path] = None

    # ---- finding nodes -----------------------------------------------------------------------

    def _node(self, path: str) -> _Node:
        if path == "/":
            return self._root
        parent, name = self._parent(path)
        if name not in parent.children:
            raise _RefusedError(ZkError.NO_NODE)
        return parent.children[name]

    def _parent(self, path: str) -> tuple[_Node, str]:
        """The parent node of `path`, which need not exist itself, and its last name."""
        first, *names = path.split("/")
        if first or not names or "" in names:
            raise _RefusedError(ZkError.REFUSED)
        node = self._root
        for name in names[:-1]:
            if name not in node.children:
                raise _RefusedError(ZkError.NO_NODE)
            node = node.children[name]
        return node, names[-1]


def _parent_path(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _walk(path: str, node: _Node) -> Iterator[tuple[str, _Node]]:
    for name, child in sorted(node.children.items()):
        yield f"{path}/{name}", child
        yield from _walk(f"{path}/{name}", child)
