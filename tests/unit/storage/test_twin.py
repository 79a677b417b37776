"""Any conversation with a storage node goes as with the node that is made of lists."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.model.storage_twin import CLOSED, NONE, OURS, Rules, StorageTwin
from tests.storage_desk import KEY, Desk, Wire, some
from tests.twin_0132.storage import StorageNode0132
from tests.vectors.check_storage_sessions import _matches
from waltz_core.base.edge import Port
from waltz_core.storage.node import StorageNode
from waltz_core.wire import admin_messages as admin
from waltz_core.wire import storage_messages as wire
from waltz_testing.simulation.disk import SimDisk

IDS = st.tuples(st.integers(-1, 6), st.integers(-(2**63), 2**63 - 1), st.sampled_from([0, 0, 0, 1, 2, -1]))
PLACES = st.integers(-3, 30)
OFFLINE = st.sampled_from([False, False, False, True])
PARTITIONS = st.lists(st.sampled_from([0, 0, 1, 1, 5]), max_size=3).map(tuple)


@st.composite
def append_requests(draw: st.DrawFn) -> Any:
    ids = draw(IDS)
    first, count = draw(st.integers(0, 20)), draw(st.integers(0, 7))
    records = some(first, count, draw(st.sampled_from([0, 30, 90])), draw(st.integers(0, 9)))
    if count > 2 and draw(st.booleans()):
        records = records[:2] + records[3:]
    return wire.AppendRequest(*ids, records, draw(OFFLINE))


def requests(kind: type, *fields: Any) -> Any:
    return st.builds(lambda ids, *rest: kind(*ids, *rest), IDS, *fields)


COUNTS = st.integers(-1, 12)
STORAGE = st.one_of(
    append_requests(),
    append_requests(),
    append_requests(),
    requests(wire.LastSessionInfoRequest, OFFLINE),
    requests(wire.MaxTransactionIdRequest, OFFLINE),
    requests(wire.SetLowWaterMarkRequest, PLACES, OFFLINE),
    requests(wire.TruncateRequest, PLACES, OFFLINE),
    requests(wire.RecordRequest, PLACES),
    requests(wire.RecordHeaderRequest, PLACES),
    requests(wire.RecordListRequest, PLACES, COUNTS),
    requests(wire.RecordHeaderListRequest, PLACES, COUNTS),
    requests(wire.SuccessResponse),
    st.builds(lambda key: wire.OpenRequest(-1, -1, -1, key, 2), st.sampled_from([KEY, UUID(int=1)])),
    st.just(wire.OpenRequest(-1, -1, -1, KEY, 3)),
)
ADMIN = st.one_of(
    st.builds(admin.PartitionAssignmentRequest, st.just(3), st.none() | PARTITIONS, st.booleans(), st.booleans()),
    st.builds(admin.PartitionAvailableRequest, st.just(4), st.none() | PARTITIONS, st.booleans()),
    st.builds(admin.RecordListRequest, st.just(5), st.integers(-1, 2), PLACES, COUNTS),
    st.builds(admin.LastSessionInfoRequest, st.just(6), st.integers(-1, 2)),
    st.just(admin.AssignedPartitionStatusRequest(7)),
    st.just(admin.MetricsRequest(8)),
    st.just(admin.AdminSuccessResponse(9)),
    st.just(admin.AdminOpenRequest(-1, KEY, 7)),
)
TALK = st.lists(st.one_of(STORAGE, STORAGE, STORAGE, STORAGE, ADMIN), max_size=40)


@pytest.mark.parametrize(("kind", "rules"), [(StorageNode, OURS), (StorageNode0132, NONE)], ids=["ours", "0.13.2"])
@given(talk=TALK, opened=st.booleans(), threshold=st.sampled_from([200, 400, 10_000]))
@settings(max_examples=80, deadline=None)
def test_any_conversation(kind: type[StorageNode], rules: Rules, talk: list[Any], opened: bool, threshold: int) -> None:
    node = Desk(SimDisk(), KEY, 2, threshold=threshold, kind=kind, codecs=(0,))
    twin = StorageTwin(KEY, 2, rules, threshold)
    wires: dict[Port, Wire] = {}

    def ask(message: Any) -> None:
        port = Port.ADMIN if type(message).__module__.endswith("admin_messages") else Port.STORAGE
        if port not in wires or wires[port].closed:
            twin.opened.discard(port)
            wires[port] = Wire(node, len(node.wires) + 1, port)
            wires[port].greet()
        expected, found = twin.ask(port, message), wires[port].ask(message)
        same = found == CLOSED if expected == CLOSED else _matches(expected, found)
        assert same, f"{message}: {expected} expected, {found} found"

    if opened:
        ask(wire.OpenRequest(-1, -1, -1, KEY, 2))
        ask(admin.AdminOpenRequest(-1, KEY, 2))
    ask(admin.PartitionAssignmentRequest(1, (0,), True, False))
    for message in talk:
        ask(message)
    for partition_id, partition in enumerate(twin.partitions):
        ask(admin.RecordListRequest(2, partition_id, 0, 1000))
        assert node.node.replicas[partition_id].entry.current.assigned == partition.assigned
        assert node.node.replicas[partition_id].session_info() == partition.info


@given(talk=TALK, threshold=st.sampled_from([200, 400]))
@settings(max_examples=30, deadline=None)
def test_a_restart_changes_nothing(talk: list[Any], threshold: int) -> None:
    node = Desk(SimDisk(), KEY, 2, threshold=threshold)
    node.admin(admin.PartitionAssignmentRequest(1, (0, 1), True, False))
    for message in talk:
        (node.admin if type(message).__module__.endswith("admin_messages") else node.storage)(message)
    again = Desk(node.disk, KEY, 2, threshold=threshold)
    for before, after in zip(node.node.replicas, again.node.replicas, strict=True):
        assert after.state is before.state
        assert (after.max_id, after.session_info()) == (before.max_id, before.session_info())
        if before.entry.current.assigned:
            assert after.fence == before.fence
        for one in range(before.max_id + 1):
            assert again.read(before.partition_id, one) == node.read(before.partition_id, one)
