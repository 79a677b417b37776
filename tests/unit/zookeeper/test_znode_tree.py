"""The znode tree: the rules of ZooKeeper that the stores' common suite cannot look into."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

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
)
from waltz_core.zookeeper.znode_tree import Znode, ZnodeTree


def tree_with(*paths: str) -> tuple[ZnodeTree, int]:
    """A tree with these nodes, and a session."""
    tree = ZnodeTree()
    session = tree.open_session()
    for path in paths:
        assert isinstance(tree.apply(session, ZkCreate(0, path, None)), ZkDone)
    return tree, session


def error(tree: ZnodeTree, session: int, request: ZkRequest) -> ZkError:
    answer = tree.apply(session, request)
    assert isinstance(answer, ZkFailed)
    assert answer.ticket == request.ticket
    return answer.error


@pytest.mark.parametrize("path", ["", "a", "/a/", "//a", "/a//b"])
def test_malformed_paths_are_refused(path: str) -> None:
    tree, session = tree_with()
    assert error(tree, session, ZkCreate(3, path, None)) is ZkError.REFUSED


def test_the_root_cannot_be_made_or_deleted_but_read_and_written() -> None:
    tree, session = tree_with()
    assert error(tree, session, ZkCreate(1, "/", None)) is ZkError.REFUSED
    assert error(tree, session, ZkDelete(1, "/")) is ZkError.REFUSED
    assert isinstance(tree.apply(session, ZkSet(1, "/", b"x", 0)), ZkDone)
    found = tree.apply(session, ZkGet(1, "/"))
    assert isinstance(found, ZkDone)
    assert found.data == b"x"


def test_deletions_check_the_version_and_the_children() -> None:
    tree, session = tree_with("/p", "/p/c")
    assert error(tree, session, ZkDelete(1, "/p/c", 3)) is ZkError.BAD_VERSION
    assert error(tree, session, ZkDelete(1, "/p")) is ZkError.NOT_EMPTY
    assert tree.apply(session, ZkDelete(1, "/p/c", 0)) == ZkDone(1)


def test_ephemeral_nodes_have_no_children() -> None:
    tree, session = tree_with()
    tree.apply(session, ZkCreate(0, "/e", b"", ephemeral=True))
    assert error(tree, session, ZkCreate(1, "/e/c", b"")) is ZkError.REFUSED


def test_an_ended_session_is_told_so() -> None:
    tree, session = tree_with("/a")
    assert tree.has_session(session)
    assert tree.close_session(session) == ()
    assert not tree.has_session(session)
    assert error(tree, session, ZkGet(5, "/a")) is ZkError.EXPIRED
    assert tree.close_session(session) == ()


def test_the_end_of_a_session_deletes_its_ephemerals_at_one_transaction_id() -> None:
    tree, watcher = tree_with("/p", "/q")
    owner = tree.open_session()
    tree.apply(owner, ZkCreate(0, "/p/x", b"", ephemeral=True))
    tree.apply(owner, ZkCreate(0, "/q/y", b"", ephemeral=True))
    tree.apply(owner, ZkCreate(0, "/q/z", b"", ephemeral=True))
    tree.apply(watcher, ZkDelete(0, "/q/z"))
    tree.apply(watcher, ZkChildren(0, "/p", watch=True))
    assert tree.close_session(owner) == ("/p/x", "/q/y")
    assert tree.fired() == [(watcher, "/p")]
    assert len({node.pzxid for node in tree.describe()}) == 1


def test_watches_of_both_kinds_on_one_node_are_one_piece_of_news() -> None:
    tree, session = tree_with("/p", "/p/c")
    tree.apply(session, ZkGet(0, "/p", watch=True))
    tree.apply(session, ZkChildren(0, "/p", watch=True))
    tree.apply(session, ZkDelete(0, "/p/c"))
    tree.apply(session, ZkDelete(0, "/p"))
    assert tree.fired() == [(session, "/p")]
    assert tree.fired() == []
    tree.apply(session, ZkCreate(0, "/p", b""))
    assert tree.fired() == []


def test_a_broken_connection_loses_watches_and_news() -> None:
    tree, session = tree_with("/p")
    other = tree.open_session()
    for who in (session, other):
        tree.apply(who, ZkGet(0, "/p", watch=True))
        tree.apply(who, ZkChildren(0, "/p", watch=True))
    tree.apply(session, ZkSet(0, "/p", b"", -1))
    tree.forget_watches(session)
    assert tree.fired() == [(other, "/p")]
    tree.apply(session, ZkDelete(0, "/p"))
    assert tree.fired() == [(other, "/p")]


def test_a_refused_transaction_leaves_no_trace_but_its_id() -> None:
    tree, session = tree_with("/p", "/p/c")
    tree.apply(session, ZkCreate(0, "/p/mine", b"", ephemeral=True))
    tree.apply(session, ZkChildren(0, "/p", watch=True))
    before = tree.describe()
    operations = (
        ZkCreate(0, "/p/d", b"", ephemeral=True),
        ZkSet(0, "/p", b"x", 0),
        ZkDelete(0, "/p/c"),
        ZkDelete(0, "/p/mine"),
        ZkDelete(0, "/p/c"),
    )
    zxid = tree.stored().zxid
    assert error(tree, session, ZkMulti(9, operations)) is ZkError.NO_NODE
    assert tree.describe() == before
    assert tree.fired() == []
    assert tree.stored().zxid == zxid + 1
    assert tree.close_session(session) == ("/p/mine",)


def test_a_restored_tree_goes_on_where_it_stopped() -> None:
    tree, session = tree_with("/p", "/p/c")
    tree.apply(session, ZkSet(0, "/p", b"data", 0))
    tree.apply(session, ZkCreate(0, "/p/s_", b"", ephemeral=True, sequential=True))
    again = ZnodeTree(tree.stored())
    found = {node.path: node for node in again.describe()}
    assert list(found) == ["/p", "/p/c"]
    # Its session ended with the process: the coming and going of the ephemeral node is counted.
    assert (found["/p"].version, found["/p"].cversion, found["/p"].data) == (1, 3, b"data")
    fresh = again.open_session()
    assert fresh > session
    answer = again.apply(fresh, ZkCreate(0, "/p/s_", b"", ephemeral=True, sequential=True))
    assert isinstance(answer, ZkDone)
    assert answer.path == "/p/s_0000000002"


class TreeAgainstDictionary(RuleBasedStateMachine):
    """A tree of depth two against two plain dictionaries."""

    @initialize()
    def start(self) -> None:
        self.tree = ZnodeTree()
        self.session = self.tree.open_session()
        self.nodes: dict[str, tuple[bytes | None, int]] = {}
        self.counts: dict[str, int] = {}

    @staticmethod
    def parent(path: str) -> str:
        return path.rpartition("/")[0]

    def children(self, path: str) -> list[str]:
        return [name for name in self.nodes if self.parent(name) == path]

    @rule(path=st.sampled_from(["/a", "/b", "/a/x", "/a/y"]), data=st.sampled_from([None, b"", b"d"]))
    def create(self, path: str, data: bytes | None) -> None:
        answer = self.tree.apply(self.session, ZkCreate(1, path, data))
        if path in self.nodes:
            assert answer == ZkFailed(1, ZkError.NODE_EXISTS)
        elif self.parent(path) and self.parent(path) not in self.nodes:
            assert answer == ZkFailed(1, ZkError.NO_NODE)
        else:
            assert isinstance(answer, ZkDone)
            self.nodes[path] = data, 0
            self.counts[path] = 0
            if self.parent(path):
                self.counts[self.parent(path)] += 1

    @rule(path=st.sampled_from(["/a", "/b", "/a/x"]), data=st.binary(max_size=2), version=st.integers(-1, 2))
    def write(self, path: str, data: bytes, version: int) -> None:
        answer = self.tree.apply(self.session, ZkSet(1, path, data, version))
        if path not in self.nodes:
            assert answer == ZkFailed(1, ZkError.NO_NODE)
        elif version not in (-1, self.nodes[path][1]):
            assert answer == ZkFailed(1, ZkError.BAD_VERSION)
        else:
            self.nodes[path] = data, self.nodes[path][1] + 1
            assert isinstance(answer, ZkDone)

    @rule(path=st.sampled_from(["/a", "/b", "/a/x", "/a/y"]))
    @precondition(lambda self: self.nodes)
    def delete(self, path: str) -> None:
        answer = self.tree.apply(self.session, ZkDelete(1, path))
        if path not in self.nodes:
            assert answer == ZkFailed(1, ZkError.NO_NODE)
        elif self.children(path):
            assert answer == ZkFailed(1, ZkError.NOT_EMPTY)
        else:
            del self.nodes[path], self.counts[path]
            if self.parent(path):
                self.counts[self.parent(path)] += 1

    @rule()
    def restart(self) -> None:
        self.tree = ZnodeTree(self.tree.stored())
        self.session = self.tree.open_session()

    @invariant()
    def agrees(self) -> None:
        found: dict[str, Znode] = {node.path: node for node in self.tree.describe()}
        assert {path: (node.data, node.version) for path, node in found.items()} == self.nodes
        assert {path: node.cversion for path, node in found.items()} == self.counts


TestTreeAgainstDictionary = TreeAgainstDictionary.TestCase


@given(st.lists(st.sampled_from(["/a", "/a/b", "/c"]), max_size=6))
def test_describing_a_tree_changes_nothing(paths: list[str]) -> None:
    tree = ZnodeTree()
    session = tree.open_session()
    answers: list[Any] = [tree.apply(session, ZkCreate(0, path, None)) for path in paths]
    assert len(answers) == len(paths)
    assert tree.describe() == tree.describe()
