"""Three ways to know a cluster."""

from __future__ import annotations

import random
from typing import Any
from uuid import UUID

from tests.unit.client.desk import A, B, Desk
from tests.unit.cluster.coordinators import REQUESTS, ROOT, World
from waltz_core.base.contract import Tickets
from waltz_core.base.edge import Closed, Report, ZkChanged, ZkState, ZkStateChanged
from waltz_core.base.ids import Endpoint, req_client
from waltz_core.client.calls import CloseClient, ClusterLost, Joined, Open, Phase, ReadMark
from waltz_core.client.link import Kind
from waltz_core.client.membership import ServerMembership, ZkMembership
from waltz_core.client.settings import ClientSettings
from waltz_core.wire.client_messages import (
    ClusterInfoRequest,
    ClusterInfoResponse,
    ErrorCode,
    ErrorResponse,
    MountResponse,
    PartitionState,
    ServerEntry,
)

RPC = Kind.RPC
SEED = Endpoint("seed", 9)
SETTINGS = ClientSettings()


def info(request: ClusterInfoRequest, *servers: ServerEntry, revision: int = 1, client_id: int = 4) -> Any:
    return ClusterInfoResponse(request.req_id, revision, "name", UUID(int=1), 2, client_id, 7, servers)


def asked(desk: Desk, server: Endpoint) -> ClusterInfoRequest:
    (request,) = desk.take(RPC, server)
    assert isinstance(request, ClusterInfoRequest)
    return request


AT_A = ServerEntry(A, ((0, 1), (1, 1)))
AT_B = ServerEntry(B, ((0, 2), (1, 2)))


def joined(*servers: ServerEntry) -> Desk:
    """A client that knows its cluster from the seed."""
    desk = Desk(ServerMembership(SEED, SETTINGS))
    desk.connect()
    desk.send(info(asked(desk, SEED), *servers), kind=RPC, server=SEED)
    return desk


def test_one_server_tells_everything() -> None:
    desk = Desk(ServerMembership(SEED, SETTINGS))
    assert [(dial.endpoint, desk.conns[dial.conn][1]) for dial in desk.dials] == [(SEED, RPC)]
    desk.connect()
    request = asked(desk, SEED)
    assert (request.client_id_wanted, request.subscribe, req_client(request.req_id)) == (True, True, -1)
    told = desk.send(info(request, AT_A), kind=RPC, server=SEED)
    assert told == [Joined("name", 4, 2)]
    assert desk.node.status(1, desk.now).server == A


def test_changes_come_by_themselves_and_older_ones_are_dropped() -> None:
    desk = joined(AT_A)
    request = ClusterInfoRequest(b"x" * 16, False, True)  # type: ignore[arg-type]
    desk.send(info(request, AT_B, revision=3, client_id=-1), kind=RPC, server=SEED)
    assert desk.node.status(0, desk.now).server == B
    desk.send(info(request, AT_A, revision=2, client_id=-1), kind=RPC, server=SEED)
    assert desk.node.status(0, desk.now).server == B


def test_an_answer_without_a_client_id_is_no_answer_to_the_first_question() -> None:
    desk = Desk(ServerMembership(SEED, SETTINGS))
    desk.connect()
    assert desk.send(info(asked(desk, SEED), AT_A, client_id=-1), kind=RPC, server=SEED) == []


def test_a_client_id_that_a_server_owes_is_asked_for_once() -> None:
    """It may take ZooKeeper long; changes of the map, which come by themselves meanwhile, are no answer."""
    desk = Desk(ServerMembership(SEED, SETTINGS))
    desk.connect()
    request = asked(desk, SEED)
    for _ in range(4):
        desk.send(info(request, AT_A, client_id=-1), kind=RPC, server=SEED)
        desk.wait(SETTINGS.silence_ms - 1)
    assert (desk.take(RPC, SEED), desk.closed) == ([], [])
    assert desk.send(info(request, AT_A), kind=RPC, server=SEED) == [Joined("name", 4, 2)]


def test_a_silent_server_that_owes_a_client_id_is_asked_again_over_another_connection_only() -> None:
    desk = Desk(ServerMembership(SEED, SETTINGS))
    desk.connect()
    asked(desk, SEED)
    desk.wait(SETTINGS.silence_ms - 1)
    assert (desk.take(RPC, SEED), desk.closed) == ([], [])
    desk.cut(RPC, SEED)  # with the connection goes what was owed on it
    desk.wait(2_100)
    desk.connect()
    assert asked(desk, SEED).client_id_wanted


def test_a_server_whose_host_is_gone_and_that_owes_a_client_id_is_given_up_although_there_is_no_other() -> None:
    desk = Desk(ServerMembership(SEED, SETTINGS))
    desk.connect()
    asked(desk, SEED)
    desk.wait(SETTINGS.silence_ms + SETTINGS.cluster_answer_ms)
    assert [closed.reason for closed in desk.closed] == ["the server owes an answer and is silent"]
    desk.wait(2_100)
    desk.connect()
    assert asked(desk, SEED).client_id_wanted


def test_a_server_that_joins_its_cluster_is_asked_when_it_said_and_not_later() -> None:
    desk = Desk(ServerMembership(SEED, SETTINGS))
    desk.connect()
    request = asked(desk, SEED)
    desk.send(ErrorResponse(request.req_id, ErrorCode.NOT_READY, "later"), kind=RPC, server=SEED)
    desk.send(info(request, AT_A, client_id=-1), kind=RPC, server=SEED)
    desk.wait(SETTINGS.not_ready_ms)
    assert asked(desk, SEED).client_id_wanted


def test_a_server_that_has_not_joined_is_asked_again() -> None:
    desk = Desk(ServerMembership(SEED, SETTINGS))
    desk.connect()
    request = asked(desk, SEED)
    assert desk.send(ErrorResponse(request.req_id, ErrorCode.NOT_READY, "later"), kind=RPC, server=SEED) == []
    desk.wait(500)
    request = asked(desk, SEED)
    (report,) = desk.send(ErrorResponse(request.req_id, ErrorCode.OTHER, "broken"), kind=RPC, server=SEED)
    assert isinstance(report, Report)
    assert desk.send(ErrorResponse(request.req_id, ErrorCode.OTHER, "again"), kind=RPC, server=SEED) == []


def test_the_map_is_asked_for_now_and_then() -> None:
    desk = joined(AT_A)
    desk.wait(29_999)
    assert desk.take(RPC, SEED) == []
    desk.wait(1)
    request = asked(desk, SEED)
    assert (request.client_id_wanted, req_client(request.req_id)) == (False, 4)


def test_the_next_server_is_asked_when_the_first_is_gone() -> None:
    desk = joined(ServerEntry(A, ((0, 1),)), ServerEntry(B, ((1, 1),)))
    desk.cut(RPC, SEED)
    desk.step()
    assert {dial.endpoint for dial in desk.dials} == {A}
    desk.connect()
    request = asked(desk, A)
    assert not request.client_id_wanted
    desk.send(info(request, AT_B, revision=2, client_id=-1), kind=RPC, server=A)
    assert desk.node.status(0, desk.now).server == B
    desk.wait(5_000)
    assert all(dial.endpoint != SEED for dial in desk.dials), "the seed is not in the map and not needed any more"


def test_a_server_that_does_not_answer_is_left_for_the_next() -> None:
    desk = joined(ServerEntry(A, ((0, 1), (1, 1))))
    desk.wait(30_000)
    asked(desk, SEED)
    desk.wait(10_000)
    assert {dial.endpoint for dial in desk.dials} == {A}
    desk.connect()
    asked(desk, A)
    desk.wait(10_000)
    asked(desk, SEED)


def test_a_seed_that_cannot_be_reached_is_tried_for_ever() -> None:
    desk = Desk(ServerMembership(SEED, SETTINGS))
    for _ in range(5):
        desk.step(Closed(desk.dials.pop().conn, "refused"))
        desk.wait(2_100)
        assert [dial.endpoint for dial in desk.dials] == [SEED]


def test_while_a_partition_has_no_server_others_are_asked() -> None:
    desk = joined(ServerEntry(A, ()), ServerEntry(B, ((0, 1), (1, 1))))
    desk.step(Open(0, -1, True))
    desk.connect()
    (mount,) = desk.take(server=B)
    desk.send(MountResponse(mount.req_id, PartitionState.NOT_READY), server=B)
    desk.wait(30_000)
    desk.connect()
    assert sum(isinstance(m, ClusterInfoRequest) for s in (A, B, SEED) for m in desk.take(RPC, s)) >= 1


def test_in_trouble_the_questions_come_faster() -> None:
    desk = joined(ServerEntry(A, ((0, 1),)), ServerEntry(B, ()))
    desk.step(Open(1, -1, True))
    assert desk.node.status(1, desk.now).phase is Phase.WAITING
    desk.connect()
    desk.wait(2_000)
    desk.connect()
    request = asked(desk, A)
    desk.send(info(request, ServerEntry(A, ()), ServerEntry(B, ()), client_id=-1), kind=RPC, server=A)
    desk.wait(2_000)
    desk.connect()
    asked(desk, B)


def test_a_map_of_a_zookeeper_that_was_restored_is_taken_though_its_revision_is_lower() -> None:
    desk = joined(AT_A)
    desk.step(Open(0, -1, False))
    request = ClusterInfoRequest(b"x" * 16, False, True)  # type: ignore[arg-type]

    def server_after(answer: ServerEntry, revision: int) -> Endpoint | None:
        desk.send(info(request, answer, revision=revision, client_id=-1), kind=RPC, server=SEED)
        return desk.node.status(0, desk.now).server

    assert server_after(ServerEntry(A, ((0, 5), (1, 5))), 40) == A
    assert server_after(ServerEntry(B, ((0, 6), (1, 5))), 2) == B
    # A server that still shows what was before the restore, and one of the new map that is late, change nothing.
    assert server_after(ServerEntry(A, ((0, 5), (1, 5))), 41) == B
    assert server_after(ServerEntry(A, ((1, 5),)), 1) == B
    assert server_after(ServerEntry(A, ((0, 6), (1, 5))), 1) == B
    assert server_after(ServerEntry(A, ((0, 7), (1, 5))), 3) == A


def test_a_partition_that_was_not_heard_of_makes_no_old_map_new() -> None:
    desk = joined(ServerEntry(A, ((0, 1),)))
    desk.step(Open(0, -1, False))
    desk.step(Open(1, -1, False))
    request = ClusterInfoRequest(b"x" * 16, False, True)  # type: ignore[arg-type]

    def servers_after(revision: int, *answer: ServerEntry) -> list[Endpoint | None]:
        desk.send(info(request, *answer, revision=revision, client_id=-1), kind=RPC, server=SEED)
        return [desk.node.status(partition, desk.now).server for partition in (0, 1)]

    assert servers_after(10, ServerEntry(B, ((0, 5),))) == [B, None]
    assert servers_after(8, ServerEntry(A, ((0, 4), (1, 3)))) == [B, None]
    # Nor is what such a map said of it a measure for the next one.
    assert servers_after(9, ServerEntry(A, ((0, 4), (1, 4)))) == [B, None]
    # Where nothing is lower it is new: revisions begin anew in a ZooKeeper that was restored.
    assert servers_after(2, ServerEntry(B, ((0, 5),)), ServerEntry(A, ((1, 4),))) == [B, A]


def suspected(desk: Desk, limit: int = 60_000) -> int:
    """After how long the client asks another server about the cluster; B answers."""
    begin = desk.now
    while not any(isinstance(message, ClusterInfoRequest) for message in desk.sent.get((B, RPC), ())):
        assert desk.now - begin < limit, "nobody else is asked"
        desk.wait(100)
        desk.connect()
    return desk.now - begin


def told_by_one_server() -> Desk:
    """A client that A serves, and that A tells about the cluster."""
    desk = joined(ServerEntry(A, ((0, 1), (1, 1))), ServerEntry(B, ()))
    desk.cut(RPC, SEED)
    desk.step(Open(0, -1, True))
    desk.connect()
    desk.send(info(asked(desk, A), ServerEntry(A, ((0, 1), (1, 1))), ServerEntry(B, ())), kind=RPC, server=A)
    (mount,) = desk.take(server=A)
    desk.send(MountResponse(mount.req_id, PartitionState.READY), server=A)
    assert desk.node.status(0, desk.now).phase is Phase.MOUNTED
    return desk


def test_when_a_server_owes_an_outcome_and_is_silent_another_is_asked_who_serves() -> None:
    """It may be cut off or stopped, and then it is also the one that would have told so."""
    desk = told_by_one_server()
    desk.wait(20_000)
    desk.submit(0)
    assert suspected(desk) <= SETTINGS.suspect_ms + 200
    request = asked(desk, B)
    desk.send(info(request, AT_B, revision=2, client_id=-1), kind=RPC, server=B)
    assert desk.node.status(0, desk.now).server == B


def test_the_same_for_a_mark_that_is_owed() -> None:
    desk = told_by_one_server()
    desk.step(ReadMark(0, "a"))
    assert suspected(desk) <= SETTINGS.suspect_ms + 200


def test_a_client_to_which_nothing_is_owed_asks_nobody_else() -> None:
    desk = told_by_one_server()
    desk.wait(29_000)
    assert (B, RPC) not in desk.sent


def test_a_server_of_0_13_2_cannot_be_the_seed() -> None:
    desk = Desk(ServerMembership(SEED, SETTINGS))
    desk.connect(versions=(4,))
    (lost,) = [effect for effect in desk.told if isinstance(effect, ClusterLost)]
    assert "configure ZooKeeper" in lost.reason


def test_a_server_of_0_13_2_among_ours_is_passed_over() -> None:
    desk = joined(AT_A)
    desk.cut(RPC, SEED)
    desk.step()
    desk.dials.reverse()
    desk.connect(versions=(4,))
    desk.wait(3_000)
    desk.connect()
    reports = [effect for effect in desk.told if isinstance(effect, Report) and "protocol" in effect.text]
    assert len(reports) == 1
    asked(desk, SEED)


def test_other_connections_do_not_disturb_the_questions() -> None:
    desk = joined(AT_A)
    desk.step(Open(0, -1, True))
    desk.connect()
    request = ClusterInfoRequest(b"x" * 16, False, True)  # type: ignore[arg-type]
    desk.send(info(request, AT_B, revision=5, client_id=-1), kind=RPC, server=A)
    assert desk.node.status(0, desk.now).server == B
    desk.send(ErrorResponse(request.req_id, 0, None), kind=RPC, server=SEED)
    assert desk.told[-1] is not None


def test_closing_ends_the_questions() -> None:
    desk = joined(AT_A)
    desk.step(CloseClient())
    assert desk.node.deadline() is None
    membership = desk.node._cluster._membership
    assert membership.deadline() is None
    membership.due(desk.now)
    membership.on_link_lost(desk.now, membership._link)  # type: ignore[attr-defined]
    assert desk.dials == []


# ---- ZooKeeper -----------------------------------------------------------------------------------


class ZkDesk(Desk):
    """A desk whose ZooKeeper requests go to the tree of a small world of servers."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.session = world.tree.open_session()
        super().__init__(ZkMembership(ROOT, Tickets(), random.Random(2)))

    def zk(self, *events: Any) -> None:
        """Deliver events, then answers and changes, until nothing more is asked."""
        told = self.step(*events)
        for _ in range(100):
            found: list[Any] = [self.world.tree.apply(self.session, it) for it in told if isinstance(it, REQUESTS)]
            found += [ZkChanged(path) for session, path in self.world.tree.fired() if session == self.session]
            if not found:
                return
            told = self.step(*found)


def test_the_cluster_is_found_and_followed_through_zookeeper() -> None:
    world = World(2)
    world.server()
    desk = ZkDesk(world)
    assert desk.wait(100_000) == []
    desk.zk(ZkStateChanged(ZkState.CONNECTED, desk.session))
    assert [effect for effect in desk.told if isinstance(effect, Joined)] == [Joined("test", 1, 2)]
    first = desk.node.status(1, desk.now).server
    assert first is not None
    world.server()
    world.tree.fired()
    due = desk.node.deadline()
    assert due is not None
    desk.now = due
    desk.zk()
    assert {desk.node.status(partition, desk.now).server for partition in (0, 1)} > {first}
    desk.step(CloseClient())
    assert desk.node.deadline() is None


def test_a_tree_that_is_no_cluster_ends_the_client() -> None:
    world = World(2)
    world.put(ROOT, b"something else")
    desk = ZkDesk(world)
    desk.zk(ZkStateChanged(ZkState.CONNECTED, desk.session))
    (lost,) = [effect for effect in desk.told if isinstance(effect, ClusterLost)]
    assert lost.reason
    assert [type(effect) for effect in desk.step(ZkStateChanged(ZkState.EXPIRED))] == []


# ---- a cluster that does not answer ----------------------------------------------------------------

HURRIED = ClientSettings(connect_ms=10_000)


def lost(told: list[Any]) -> list[str]:
    return [effect.reason for effect in told if isinstance(effect, ClusterLost)]


def refuse(desk: Desk, why: str) -> None:
    while desk.dials:
        desk.step(Closed(desk.dials.pop(0).conn, why))


def test_a_cluster_that_nobody_serves_is_given_up_in_time_with_the_reason() -> None:
    desk = Desk(ServerMembership(SEED, HURRIED), settings=HURRIED)
    for _ in range(99):
        refuse(desk, "cannot connect to seed:9: Connection refused")
        assert lost(desk.wait(100)) == []
    refuse(desk, "cannot connect to seed:9: Connection refused")
    text = "no cluster answered within 10 s (client.connectTimeout): cannot connect to seed:9: Connection refused"
    assert lost(desk.wait(100)) == [text]
    assert lost(desk.wait(60_000)) == []


def test_a_server_that_is_silent_is_named() -> None:
    desk = Desk(ServerMembership(SEED, HURRIED), settings=HURRIED)
    assert lost(desk.wait(10_000)) == [
        "no cluster answered within 10 s (client.connectTimeout): seed:9: still connecting"
    ]
    desk = Desk(ServerMembership(SEED, HURRIED), settings=HURRIED)
    desk.connect()
    assert lost(desk.wait(10_000)) == ["no cluster answered within 10 s (client.connectTimeout): seed:9: no answer"]


def test_a_server_that_makes_excuses_is_named_with_the_last() -> None:
    desk = Desk(ServerMembership(SEED, HURRIED), settings=HURRIED)
    desk.connect()
    told: list[Any] = []
    while desk.now < HURRIED.connect_ms - 1_000:  # type: ignore[operator]
        for request in desk.take(RPC, SEED):
            desk.send(ErrorResponse(request.req_id, ErrorCode.NOT_READY, "not joined"), kind=RPC, server=SEED)
        told += desk.wait(500)
    (text,) = lost(told + desk.wait(2_000))
    assert text.endswith(": seed:9: does not tell about its cluster: not joined")


def test_a_cluster_that_answered_may_be_away_as_long_as_it_likes() -> None:
    desk = Desk(ServerMembership(SEED, HURRIED), settings=HURRIED)
    desk.connect()
    desk.send(info(asked(desk, SEED), AT_A), kind=RPC, server=SEED)
    desk.cut(RPC, SEED)
    assert lost(desk.wait(60_000)) == []


def test_zookeeper_that_gives_no_session_is_named_and_so_is_a_root_without_a_cluster() -> None:
    def zk() -> ZkMembership:
        return ZkMembership("/waltz", Tickets(), random.Random(1), "zk:2181")

    desk = Desk(zk(), settings=HURRIED)
    (text,) = lost(desk.wait(10_000))
    assert text.endswith("10 s (client.connectTimeout): no session with ZooKeeper at zk:2181")
    desk = Desk(zk(), settings=HURRIED)
    desk.step(ZkStateChanged(ZkState.CONNECTED, 7))
    (text,) = lost(desk.wait(10_000))
    assert text.endswith(": ZooKeeper at zk:2181 answers, and has no cluster at /waltz (cluster.root)")
