"""A proxy as a whole: events in, everything that leaves it in the same step."""

from __future__ import annotations

import gc

import pytest

from tests.unit.cluster.coordinators import PATHS, ROOT
from tests.unit.proxy.node_desk import CLIENT, GENERATION, IDENTITY, MARK, NodeDesk, append, mount, record
from waltz_core.access.roles import Access
from waltz_core.base.edge import (
    CloseConn,
    Closed,
    Dial,
    Ended,
    Level,
    Report,
    Send,
    Shutdown,
    WallClock,
    Writable,
    ZkChanged,
    ZkChildren,
    ZkGet,
    ZkState,
    ZkStateChanged,
)
from waltz_core.base.ids import Endpoint, make_req_id
from waltz_core.cluster.registration import OUR_MARK
from waltz_core.proxy.cache import (
    SILENCE_MS,
    CacheData,
    CacheFailed,
    CacheRead,
    CacheWrite,
    CacheWritten,
    encode_entry,
)
from waltz_core.proxy.node import BlocksTaken, IdsRead, ProxyEvent
from waltz_core.proxy.state import BLOCK_SIZE
from waltz_core.server.refusals import refusal
from waltz_core.wire import client_messages as messages
from waltz_core.zookeeper.znodes import (
    ClusterParams,
    PartitionAssignment,
    ServerDescriptor,
    ServerPartitions,
    encode_cluster_params,
    encode_partition_assignment,
    encode_server_descriptor,
)


def range_of(conn: int, first: int, last: int = MARK) -> messages.RecordRangeRequest:
    return messages.RecordRangeRequest(make_req_id(CLIENT + conn, -1, 0, 1), first, last, 0, 0, False)


def payload_of(conn: int, transaction_id: int) -> messages.TransactionDataRequest:
    return messages.TransactionDataRequest(make_req_id(CLIENT + conn, -1, 0, transaction_id), transaction_id)


def statistics(number: int) -> messages.StatisticsRequest:
    return messages.StatisticsRequest(make_req_id(CLIENT + 1, -1, 0, number), -1, ("append-queue-size",))


# ---- what leaves in the step in which it became possible ---------------------------------------


def test_the_mark_is_asked_for_in_the_step_that_tells_of_a_server() -> None:
    """Nothing else of a server is wanted yet: the question opens the connection."""
    desk = NodeDesk()
    desk.cluster.server()
    (dial,) = [effect for effect in desk.join() if isinstance(effect, Dial)]
    assert dial.endpoint.host == "host"
    desk.connect()
    asked = [messages.ClusterInfoRequest, messages.HighWaterMarkRequest]
    assert [type(message) for _, message in desk.asked] == asked


def test_the_mark_is_asked_for_anew_when_nothing_can_be_read_behind_it() -> None:
    desk = NodeDesk()
    desk.join()
    desk.connect()
    conn, question = desk.take(messages.HighWaterMarkRequest)
    desk.say(conn, messages.HighWaterMarkResponse(question.req_id, MARK))
    _, beginning = desk.serve_range(readable=False)
    assert (beginning.first_id, beginning.last_id) == (0, -1)
    out, probe = desk.serve_range(readable=False)
    assert (probe.first_id, probe.last_id) == (MARK + 1, MARK)
    assert [(type(effect), effect.conn) for effect in out] == [(Send, conn)]
    asked = [messages.ClusterInfoRequest, messages.HighWaterMarkRequest]
    assert [type(message) for _, message in desk.asked] == asked


def test_a_mark_that_is_refused_upstream_is_asked_for_again_after_a_pause() -> None:
    desk = NodeDesk()
    desk.join()
    desk.connect()
    conn, question = desk.take(messages.HighWaterMarkRequest)
    desk.say(conn, messages.ErrorResponse(question.req_id, messages.ErrorCode.NOT_ALLOWED, "may not read"))
    desk.asked.clear()
    desk.step()
    assert desk.asked == []
    desk.now += 500
    desk.step()
    assert [type(message) for _, message in desk.asked] == [messages.HighWaterMarkRequest]


def test_the_flush_of_a_mount_leaves_in_the_step_of_the_mount() -> None:
    desk = NodeDesk()
    upstream = desk.start()
    desk.accept(1)
    out = desk.say(1, mount(1))
    assert [(type(effect), effect.conn) for effect in out] == [(Send, upstream)]
    assert [type(message) for _, message in desk.asked] == [messages.FlushRequest]
    out = desk.answer_flush()
    assert [(type(effect), effect.conn) for effect in out] == [(Send, 1)]
    assert desk.read(out, 1) == [messages.MountResponse(mount(1).req_id, messages.PartitionState.READY)]


def test_appends_that_waited_leave_as_soon_as_the_upstream_connection_takes_data() -> None:
    desk = NodeDesk()
    upstream = desk.start()
    desk.mounted(1)
    assert desk.step(Writable(upstream, False)) == []
    assert desk.say(1, append(1, 1), append(1, 2)) == []
    assert desk.node.snapshot(desk.now).partitions[0].queued == 2

    out = desk.step(Writable(upstream, True))

    assert [(type(effect), effect.conn) for effect in out] == [(Send, upstream)]
    assert desk.asked == [(upstream, append(1, 1)), (upstream, append(1, 2))]


def test_payloads_above_what_one_step_sends_leave_in_the_next() -> None:
    desk = NodeDesk(out_bytes_max=1)
    desk.start()
    desk.accept(1)
    desk.say(1, payload_of(1, 5))
    desk.serve_range()
    sent = [len(desk.read(desk.say(1, *[payload_of(1, 5)] * 3), 1))]  # all from memory
    while desk.node.deadline() == desk.now:
        sent.append(len(desk.read(desk.step(), 1)))
        assert sent[-1], "it wakes for nothing"
    assert sent == [1, 1, 1]


# ---- where the log begins ----------------------------------------------------------------------


@pytest.mark.parametrize("archived", [True, False])
def test_below_the_log_start_is_read_only_what_the_server_has_from_an_archive(archived: bool) -> None:
    desk = NodeDesk()
    desk.start(log_start=4, archived=archived)
    desk.accept(1)
    told = desk.read(desk.say(1, range_of(1, 2)), 1)
    if archived:
        assert told == []
        out, read = desk.serve_range(log_start=4)
        assert (read.first_id, read.last_id) == (2, MARK)
        (answer,) = desk.read(out, 1)
        assert isinstance(answer, messages.RecordRangeResponse)
        assert tuple(answer.records) == tuple(map(record, range(2, MARK + 1)))
    else:
        assert desk.asked == []
        (answer,) = told
        assert isinstance(answer, messages.ErrorResponse)
        assert answer.code == messages.ErrorCode.BEFORE_START


# ---- what clients append -------------------------------------------------------------------------


def test_an_append_with_too_many_locks_is_refused_or_ends_its_connection() -> None:
    desk = NodeDesk(locks_max=2)
    upstream = desk.start()
    desk.mounted(1)
    text = "an append with 3 locks, more than server.locksMax of this proxy"
    large = append(1, 1, locks=3, named=True)
    out = desk.say(1, large, append(1, 2, locks=2))
    assert desk.read(out, 1) == [refusal(large.req_id, messages.Refusal.TOO_LARGE, text)]
    assert desk.asked == [(upstream, append(1, 2, locks=2))]
    desk.asked.clear()

    out = desk.say(1, append(1, 3, locks=3))

    assert [type(effect) for effect in out] == [Report, CloseConn]
    assert out[1] == CloseConn(1, f"partition 0: {text}")
    assert desk.asked == []


def test_while_an_append_awaits_its_verdict_upstream_what_others_ask_has_a_part_of_the_time() -> None:
    """A server does the same. A proxy took all that was asked at once, and appends through it came to a quarter."""
    desk = NodeDesk()
    desk.start()
    desk.mounted(1)
    asked = [messages.ServerPartitionsAssignmentRequest(make_req_id(CLIENT, GENERATION, 0, 1))] * 1_000
    answered = []
    for conn in (2, 3):
        desk.accept(conn)
        desk.say(1, *[append(1, 1)] * (conn - 2))
        answered.append(len(desk.read(desk.say(conn, *asked), conn)))
        while desk.node.deadline() == desk.now:
            answered[-1] += len(desk.read(desk.step(), conn))
    assert answered == [1_000, 34]

    desk.now += 2_000  # by itself it asks for the verdict
    answered[-1] += len(desk.read(desk.step(), 3))
    desk.answer_flush()
    desk.now += 60
    while answered[-1] < 1_000:
        due = desk.node.deadline()
        assert due is not None
        desk.now = max(desk.now, due)
        answered[-1] += len(desk.read(desk.step(), 3))
    assert desk.now < 3_100


# ---- what tools ask ----------------------------------------------------------------------------


def queued(answers: list[messages.ClientMessage]) -> list[float]:
    sizes = []
    for answer in answers:
        assert isinstance(answer, messages.StatisticsResponse)
        sizes += [each.value for each in answer.statistics]
    return sizes


def test_tools_that_ask_in_one_step_are_answered_from_one_snapshot_and_the_next_from_another() -> None:
    """It tells of every partition: who asks again and again must not have it taken for each question."""
    desk = NodeDesk()
    upstream = desk.start()
    desk.mounted(1)
    desk.step(Writable(upstream, False))
    out = desk.say(1, statistics(1), append(1, 1), statistics(2))
    assert queued(desk.read(out, 1)) == [0, 0]
    assert queued(desk.read(desk.say(1, statistics(3)), 1)) == [1]


def test_tools_are_told_the_wall_clock_and_how_much_was_read_upstream() -> None:
    desk = NodeDesk()
    desk.start()
    desk.accept(1)
    assert desk.step(WallClock(500_000)) == []
    (answer,) = desk.read(desk.say(1, statistics(1)), 1)
    assert isinstance(answer, messages.StatisticsResponse)
    assert answer.time_ms == desk.now + 500_000
    desk.say(1, range_of(1, 5))
    desk.serve_range()
    assert desk.node.snapshot(desk.now).fetched == MARK - 4


def test_tools_are_told_why_a_partition_is_not_as_good_as_its_server() -> None:
    request = messages.PartitionStatusRequest(make_req_id(CLIENT + 1, -1, -1, 1))
    health = messages.ServerPartitionsHealthStatRequest(make_req_id(CLIENT + 1, -1, -1, 2))

    def told(desk: NodeDesk) -> tuple[messages.PartitionStatus, bool]:
        status, healthy = desk.read(desk.say(1, request, health), 1)
        assert isinstance(status, messages.PartitionStatusResponse)
        assert isinstance(healthy, messages.ServerPartitionsHealthStatResponse)
        ((partition_id, well),) = healthy.health
        assert partition_id == status.partitions[0].partition_id == 0
        return status.partitions[0], well

    desk = NodeDesk()
    desk.accept(1)
    opening, ready = messages.ServedState.OPENING, messages.ServedState.READY
    assert told(desk) == (messages.PartitionStatus(0, -1, opening, 0, -1, -(2**63), "upstream: not open"), False)
    upstream = desk.start()
    assert told(desk) == (messages.PartitionStatus(0, GENERATION, ready, 0, -1, MARK, None), True)
    desk.step(Closed(upstream, "gone"))
    why = "upstream: no connection to its server"
    assert told(desk) == (messages.PartitionStatus(0, GENERATION, opening, 0, -1, MARK, why), False)


# ---- the disk ----------------------------------------------------------------------------------


def test_a_disk_that_fails_ends_the_cache_and_everything_is_read_upstream() -> None:
    desk = NodeDesk(cache_bytes=1 << 20, data_cache_bytes=0)
    desk.start()
    desk.accept(1)
    desk.say(1, payload_of(1, 5))
    out, _ = desk.serve_range()
    entry = encode_entry(0, 5, [record(5)])
    assert [effect for effect in out if not isinstance(effect, Send)] == [CacheWrite(0, entry)]
    (read,) = desk.say(1, payload_of(1, 5))
    assert isinstance(read, CacheRead)
    assert [type(effect) for effect in desk.step(CacheData(0, read.token, entry))] == [Send]
    assert desk.node.snapshot(desk.now).cache_bytes == len(entry)

    (line,) = desk.step(CacheFailed("no space left"))

    text = "the cache on the disk is given up: no space left; what it held is read upstream again"
    assert line == Report(Level.WARNING, text)
    assert desk.node.snapshot(desk.now).cache_bytes == 0
    assert [type(effect) for effect in desk.say(1, payload_of(1, 5))] == [Send]
    out, again = desk.serve_range()
    assert (again.first_id, again.last_id) == (5, 5)
    assert [(type(effect), effect.conn) for effect in out] == [(Send, 1)], "and it is not written any more"


def test_a_disk_that_answers_nothing_is_given_up_and_who_waits_for_it_is_served_from_upstream() -> None:
    desk = NodeDesk(cache_bytes=1 << 20, data_cache_bytes=0)
    desk.start()
    desk.accept(1)
    desk.say(1, payload_of(1, 5))
    desk.serve_range()
    entry = encode_entry(0, 5, [record(5)])
    assert reports_after(desk, SILENCE_MS - 1, CacheWritten(len(entry))) == []
    assert reports_after(desk, SILENCE_MS) == [], "a disk that owes nothing may be silent"
    (read,) = desk.say(1, payload_of(1, 5))
    assert isinstance(read, CacheRead)
    assert reports_after(desk, SILENCE_MS - 1) == []

    (line,) = reports_after(desk, 1)

    text = "the cache on the disk is given up: it has answered nothing for 5 s; what it held is read upstream again"
    assert line == Report(Level.WARNING, text)
    out, again = desk.serve_range()
    assert (again.first_id, again.last_id) == (5, 5)
    assert [(type(effect), effect.conn) for effect in out] == [(Send, 1)]
    assert desk.step(CacheData(0, read.token, entry)) == [], "it comes too late"
    assert reports_after(desk, 2 * SILENCE_MS, CacheFailed("no space left")) == [], "given up once"


def reports_after(desk: NodeDesk, passed_ms: int, *events: ProxyEvent) -> list[Report]:
    """What is said after a while; a connection upstream may be kept alive beside it."""
    desk.now += passed_ms
    return [effect for effect in desk.step(*events) if isinstance(effect, Report)]


# ---- its root ----------------------------------------------------------------------------------


def test_a_root_that_is_not_there_yet_is_looked_for_again() -> None:
    desk = NodeDesk()
    desk.own.remove(PATHS.assignment)
    desk.zk(ZkStateChanged(ZkState.CONNECTED, desk.own_session))
    due = desk.node.deadline()
    assert due is not None
    desk.now = due
    out = desk.step()
    assert out
    assert {type(effect) for effect in out} <= {ZkGet, ZkChildren}


def test_another_proxy_in_its_root_is_not_dialed() -> None:
    """Its connection would have the id of one upstream: bytes of either would be taken for those of the other."""
    desk = NodeDesk()
    desk.own.server()
    desk.join()
    assert len(desk.dials) == 1, "upstream alone"
    desk.own.server()
    desk.zk(ZkChanged(PATHS.servers))
    assert len(desk.dials) == 1


def another_in_its_root(desk: NodeDesk, mark: bytes) -> None:
    """The descriptor of another proxy appears, with this behind what 0.13.2 reads of it."""
    descriptor = ServerDescriptor(99, Endpoint("other", 7000), (), mark)
    desk.own.put(f"{PATHS.servers}/s_0000000099", encode_server_descriptor(descriptor))


def test_a_proxy_that_was_started_later_in_its_root_ends_it_and_nothing_is_written_over() -> None:
    """Each would give all partitions to itself, again and again, and the servers heed the later one alone."""
    desk = NodeDesk()
    desk.start()
    desk.accept(1)
    other = PartitionAssignment(2, 1, (ServerPartitions(99, ((0, GENERATION),)),))
    another_in_its_root(desk, OUR_MARK + (2).to_bytes(4))
    desk.own.put(PATHS.servers, encode_partition_assignment(other))
    out = desk.zk(ZkChanged(PATHS.servers))
    assert [effect.reason for effect in out if isinstance(effect, Ended)] == [
        f"another proxy was started in {ROOT}, at other:7000: one at a time, each in a root of its own"
    ]
    assert [effect.conn for effect in out if isinstance(effect, CloseConn)] == [1]
    assert desk.own.assignment()[0] == other


@pytest.mark.parametrize("mark", [OUR_MARK, OUR_MARK + (1).to_bytes(4), OUR_MARK + bytes(3)])
def test_a_proxy_that_was_started_before_in_its_root_is_written_over(mark: bytes) -> None:
    desk = NodeDesk()
    another_in_its_root(desk, mark)
    desk.own.put(PATHS.servers, encode_partition_assignment(PartitionAssignment(2, 1, (ServerPartitions(99, ()),))))
    desk.start()
    (owner,) = desk.own.assignment()[0].servers
    assert (owner.server_id != 99, owner.partitions) == (True, ((0, GENERATION),))


def test_its_descriptor_says_which_start_it_is() -> None:
    desk = NodeDesk()
    desk.join()
    (descriptor,) = desk.own.descriptors().values()
    assert descriptor.extension == OUR_MARK + (1).to_bytes(4)


def test_without_upstream_a_client_mounts_whose_id_is_of_the_time_in_which_the_proxy_is_alone() -> None:
    """What another process in its root carried may be under way, also of one that comes while ZooKeeper is away."""
    desk = NodeDesk()
    upstream = desk.start()
    desk.step(IdsRead(CLIENT), IdsRead(CLIENT))
    desk.step(Closed(upstream, "gone"))
    assert desk.mounts(1), "its id is behind what was given out when the proxy was alone"
    desk.zk(ZkStateChanged(ZkState.SUSPENDED))
    assert not desk.mounts(2)
    desk.zk(ZkStateChanged(ZkState.CONNECTED, desk.own_session))
    desk.step(IdsRead(CLIENT))
    assert not desk.mounts(3)
    desk.step(IdsRead(CLIENT))
    assert desk.mounts(4)
    another_in_its_root(desk, OUR_MARK)
    desk.zk(ZkChanged(PATHS.servers))
    desk.step(IdsRead(CLIENT), IdsRead(CLIENT))
    assert not desk.mounts(5)


def test_the_generations_of_the_cluster_stand_in_its_root() -> None:
    desk = NodeDesk()
    desk.join()
    assert [server.partitions for server in desk.own.assignment()[0].servers] == [()]
    desk = NodeDesk()
    desk.start()
    assert [server.partitions for server in desk.own.assignment()[0].servers] == [((0, GENERATION),)]


def test_clients_may_have_the_ids_of_a_new_block() -> None:
    desk = NodeDesk()
    desk.start()
    desk.accept(1)
    blocks = (IDENTITY, IDENTITY + BLOCK_SIZE - 1), (200_000, 200_001)
    assert desk.step(BlocksTaken(blocks)) == []
    desk.say(1, mount(1, 200_000))
    assert [type(message) for _, message in desk.asked] == [messages.FlushRequest]


def test_a_client_id_that_was_not_given_out_here_is_refused() -> None:
    desk = NodeDesk()
    desk.start()
    desk.accept(1)
    for client_id in (IDENTITY, IDENTITY + BLOCK_SIZE):
        conn = client_id - IDENTITY + 5
        desk.accept(conn)
        asked = mount(conn, client_id)
        out = desk.say(conn, asked)
        problem = f"client id {client_id} was not given out by this proxy: take one where its clients do"
        assert [type(effect) for effect in out] == [Report, Send]
        assert out[0].text.startswith("refused: ")
        assert out[0].text.endswith(problem)
        assert desk.read(out, conn) == [messages.ErrorResponse(asked.req_id, messages.ErrorCode.NOT_ALLOWED, problem)]
        assert desk.asked == []


def test_nothing_is_kept_of_a_client_that_has_gone() -> None:
    """Each had subscribed to changes of the cluster, which is remembered with what it may do."""

    def kept() -> int:
        gc.collect()
        return sum(isinstance(each, Access) for each in gc.get_objects())

    desk = NodeDesk()
    desk.start()
    before = kept()
    clients = range(1, 9)
    for conn in clients:
        desk.accept(conn)
        desk.say(conn, messages.ClusterInfoRequest(make_req_id(-1, -1, -1, 1), False, True))
    assert kept() == before + len(clients)
    for conn in clients:
        desk.step(Closed(conn, "gone"))
    assert kept() == before


def test_another_cluster_upstream_ends_it() -> None:
    desk = NodeDesk()
    desk.accept(1)
    desk.cluster.put(ROOT, encode_cluster_params(ClusterParams("other", 1)))
    out = desk.join()
    (ended,) = [effect for effect in out if isinstance(effect, Ended)]
    assert ended.reason == (
        "this root is a proxy's of cluster 'test' with 1 partitions, but upstream is 'other' with 1 partitions: "
        "give it a root of its own"
    )
    assert [effect.conn for effect in out if isinstance(effect, CloseConn)] == [1]
    assert not [effect for effect in out if isinstance(effect, Dial)]


def test_asked_to_end_it_leaves_its_root_and_closes_what_clients_have() -> None:
    desk = NodeDesk()
    desk.start()
    desk.accept(1)
    assert len(desk.own.descriptors()) == 1
    out = desk.zk(Shutdown())
    assert [effect.reason for effect in out if isinstance(effect, Ended)] == [""]
    assert [effect for effect in out if isinstance(effect, CloseConn)] == [CloseConn(1, "the proxy ends")]
    assert desk.own.descriptors() == {}
