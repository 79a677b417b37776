"""Znode codecs: round trips, garbage, limits."""

from __future__ import annotations

from collections.abc import Callable
from struct import pack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz_core.base.errors import ConfigError, ProtocolError
from waltz_core.base.ids import Endpoint, ReplicaId
from waltz_core.zookeeper import znodes
from waltz_core.zookeeper.modified_utf8 import decode_modified_utf8, encode_modified_utf8
from waltz_core.zookeeper.paths import cluster_paths
from waltz_core.zookeeper.znodes import (
    UNRESOLVED,
    ClusterParams,
    ConnectionMetadata,
    GroupDescriptor,
    PartitionAssignment,
    PartitionMetadata,
    ReplicaAssignments,
    ReplicaState,
    ServerDescriptor,
    ServerPartitions,
    StoreParams,
)

ints = st.integers(-(2**31), 2**31 - 1)
longs = st.integers(-(2**63), 2**63 - 1)
texts = st.text(st.characters(exclude_categories=()), max_size=12)


def lists(element: st.SearchStrategy[Any], key: Callable[[Any], Any] | None = None) -> st.SearchStrategy[Any]:
    found = st.lists(element, max_size=5, unique_by=key) if key else st.lists(element, max_size=5)
    return found.map(tuple)


def first(entry: tuple[Any, ...]) -> Any:
    return entry[0]


replica_ids = st.builds(ReplicaId, ints, texts)
states = st.builds(ReplicaState, replica_ids, longs, longs | st.just(UNRESOLVED))
CODECS: list[tuple[st.SearchStrategy[Any], Callable[[Any], bytes], Callable[[bytes], Any]]] = [
    (ints, znodes.encode_id_counter, znodes.decode_id_counter),
    (st.builds(ClusterParams, texts, ints), znodes.encode_cluster_params, znodes.decode_cluster_params),
    (
        st.builds(ServerDescriptor, ints, st.builds(Endpoint, texts, ints), lists(ints), st.binary(max_size=5)),
        znodes.encode_server_descriptor,
        znodes.decode_server_descriptor,
    ),
    (
        st.builds(
            PartitionAssignment,
            ints,
            ints,
            lists(st.builds(ServerPartitions, ints, lists(st.tuples(ints, ints))), lambda found: found.server_id),
        ),
        znodes.encode_partition_assignment,
        znodes.decode_partition_assignment,
    ),
    (
        st.builds(StoreParams, st.binary(min_size=16, max_size=16), ints),
        znodes.encode_store_params,
        znodes.decode_store_params,
    ),
    (
        st.builds(GroupDescriptor, lists(st.tuples(texts, ints), first)),
        znodes.encode_group_descriptor,
        znodes.decode_group_descriptor,
    ),
    (
        st.builds(ConnectionMetadata, lists(st.tuples(texts, ints), first)),
        znodes.encode_connection_metadata,
        znodes.decode_connection_metadata,
    ),
    (
        st.builds(ReplicaAssignments, lists(st.tuples(texts, lists(ints)), first)),
        znodes.encode_replica_assignments,
        znodes.decode_replica_assignments,
    ),
    (replica_ids, znodes.encode_replica_id, znodes.decode_replica_id),
    (states, znodes.encode_replica_state, znodes.decode_replica_state),
    (
        st.builds(PartitionMetadata, ints, longs, lists(states, lambda state: state.replica_id)),
        znodes.encode_partition_metadata,
        znodes.decode_partition_metadata,
    ),
]
NAMES = [encode.__name__.removeprefix("encode_") for _, encode, _ in CODECS]


def combined(text: str) -> str:
    """A pair of surrogates and the character they stand for are one thing in UTF-16."""
    return text.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "surrogatepass")


@pytest.mark.parametrize(("records", "encode", "decode"), CODECS, ids=NAMES)
@given(data=st.data())
def test_what_is_written_is_read(
    records: st.SearchStrategy[Any],
    encode: Callable[[Any], bytes],
    decode: Callable[[bytes], Any],
    data: st.DataObject,
) -> None:
    record = data.draw(records)
    encoded = encode(record)
    again = decode(encoded)
    assert encode(again) == encoded or encode(decode(encode(again))) == encode(again)


@pytest.mark.parametrize(("records", "encode", "decode"), CODECS, ids=NAMES)
@given(data=st.data())
def test_garbage_and_cut_data_raise_only_protocol_errors(
    records: st.SearchStrategy[Any],
    encode: Callable[[Any], bytes],
    decode: Callable[[bytes], Any],
    data: st.DataObject,
) -> None:
    encoded = bytearray(encode(data.draw(records)))
    for at in data.draw(st.lists(st.integers(0, len(encoded) - 1), max_size=3)):
        encoded[at] ^= data.draw(st.integers(1, 255))
    cut = bytes(encoded[: data.draw(st.integers(0, len(encoded)))])
    for damaged in (bytes(encoded), cut, data.draw(st.binary(max_size=40))):
        try:
            decode(damaged)
        except ProtocolError as problem:
            assert str(problem)  # noqa: PT017


def test_a_huge_count_is_refused_before_anything_is_allocated_for_it() -> None:
    for decode, head in (
        (znodes.decode_group_descriptor, b"\x01"),
        (znodes.decode_replica_assignments, b"\x01"),
        (znodes.decode_replica_assignments, b"\x01" + pack(">iHi", 1, 0, 2**31 - 1)),
        (znodes.decode_partition_metadata, b"\x01" + pack(">iq", 1, 1)),
        (znodes.decode_partition_assignment, b"\x03" + pack(">ii", 1, 1)),
        (znodes.decode_server_descriptor, b"\x01" + pack(">iHi", 1, 0, 1)),
    ):
        with pytest.raises(ProtocolError):
            decode(head + pack(">i", 2**31 - 1))


@pytest.mark.parametrize(
    "write",
    [
        lambda: znodes.encode_id_counter(2**31),
        lambda: znodes.encode_replica_state(ReplicaState(ReplicaId(0, "a"), 2**63, 0)),
        lambda: znodes.encode_store_params(StoreParams(b"short", 1)),
        lambda: znodes.encode_cluster_params(ClusterParams("x" * 65536, 1)),
    ],
)
def test_what_does_not_fit_is_not_written(write: Callable[[], bytes]) -> None:
    with pytest.raises(ProtocolError):
        write()


def test_the_extension_of_a_descriptor_is_what_the_original_ignores() -> None:
    plain = ServerDescriptor(1, Endpoint("h", 80), (3,))
    marked = ServerDescriptor(1, Endpoint("h", 80), (3,), b"more")
    assert znodes.encode_server_descriptor(marked) == znodes.encode_server_descriptor(plain) + b"more"


def test_a_cluster_key_is_written_as_a_uuid() -> None:
    assert StoreParams(bytes(range(16)), 1).key_text() == "00010203-0405-0607-0809-0a0b0c0d0e0f"


def test_replica_assignments_answer_by_partition() -> None:
    assignments = ReplicaAssignments((("b:1", (0, 1)), ("a:1", (1,)), ("c:1", ())))
    assert assignments.storages_of(1) == ("b:1", "a:1")
    assert assignments.storages_of(2) == ()
    assert assignments.by_partition() == {0: ("b:1",), 1: ("b:1", "a:1")}


def test_a_partition_that_is_named_twice_by_a_node_is_held_once() -> None:
    assignments = ReplicaAssignments((("b:1", (1, 1)), ("a:1", (1,))))
    assert assignments.by_partition() == {1: assignments.storages_of(1)} == {1: ("b:1", "a:1")}


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("A", b"A"),
        ("\0", b"\xc0\x80"),
        ("é", b"\xc3\xa9"),
        ("☃", b"\xe2\x98\x83"),
        ("😀", b"\xed\xa0\xbd\xed\xb8\x80"),
        ("\ud800", b"\xed\xa0\x80"),
    ],
)
def test_modified_utf8_differs_from_utf8_in_nul_and_beyond_the_basic_plane(text: str, data: bytes) -> None:
    assert encode_modified_utf8(text) == data
    assert decode_modified_utf8(data) == text


@given(texts)
def test_every_text_survives_modified_utf8(text: str) -> None:
    assert decode_modified_utf8(encode_modified_utf8(text)) == combined(text)


@pytest.mark.parametrize(
    "data", [b"\x80", b"\xf0\x9f\x98\x80", b"\xc3", b"\xe2\x98", b"\xc3\x28", b"\xe2\x28\x83", b"\xff"]
)
def test_malformed_text_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_modified_utf8(data)


@pytest.mark.parametrize("root", ["", "/", "waltz", "/waltz/", "/a//b", " /a", "/a "])
def test_a_root_that_the_original_refuses_is_refused(root: str) -> None:
    with pytest.raises(ConfigError, match=r"cluster\.root"):
        cluster_paths(root)


def test_every_path_is_below_the_root() -> None:
    paths = cluster_paths("/env/waltz")
    assert paths.ids == "/env/waltz/ids"
    assert paths.partition(12) == "/env/waltz/store/partition/12"
    assert paths.partitions == "/env/waltz/store/partition"
    assert (paths.groups, paths.connections) == ("/env/waltz/store/group", "/env/waltz/store/connection")
    assert paths.admin_lock == "/env/waltz/store/adminLock"
