"""Who may keep a connection, and for how long."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.storage_desk import KEY, Wire, desk
from waltz_core.access.admission import UNLIMITED, Admission, Eviction, Places, Silence, owner_of
from waltz_core.base.alarms import Alarms
from waltz_core.base.edge import Port, Report
from waltz_core.wire import storage_messages as wire

HALF_AN_HOUR = 30 * 60_000
KEEP_ALIVE = 600_000
TIMES = Places(unproven_ms=30_000, idle_ms=HALF_AN_HOUR)


class Desk(Admission):
    """Admission with the process's heap of alarms, which the test rings."""

    def __init__(self, places: Places = UNLIMITED) -> None:
        self.alarms: Alarms[Silence] = Alarms()
        super().__init__(self.alarms, places)

    def ring(self, now: int) -> list[Eviction]:
        """Alarms that are due by now; what must end."""
        looks = [self.due(now, conn) for (conn,) in self.alarms.due(now)]
        return [eviction for eviction in looks if eviction is not None]


def conns(evicted: list[Eviction]) -> list[int]:
    return [one.conn for one in evicted]


def test_who_asks_for_nothing_ends_after_its_time_and_not_before() -> None:
    admission = Desk(TIMES)
    admission.accepted(0, 1, "a")
    admission.accepted(5, 2, "a")
    admission.heard(29_000, 1)  # keep-alives are no request
    assert admission.alarms.next() == 30_000
    assert admission.ring(29_999) == []
    [one] = admission.ring(30_000)
    assert one == Eviction(1, "it has asked for nothing within 30 s")
    assert admission.alarms.next() == 30_005
    admission.gone(2)
    assert admission.alarms.next() is None


def test_who_asked_once_stays_as_long_as_keep_alives_come() -> None:
    admission = Desk(TIMES)
    admission.accepted(0, 1, "a")
    admission.proven(1_000, 1)
    for now in range(KEEP_ALIVE, 24 * 3_600_000, KEEP_ALIVE):
        admission.heard(now, 1)
        assert admission.ring(now) == []
    last = 24 * 3_600_000 - KEEP_ALIVE
    assert admission.ring(last + HALF_AN_HOUR - 1) == []
    assert admission.alarms.next() == last + HALF_AN_HOUR
    assert conns(admission.ring(last + HALF_AN_HOUR)) == [1]
    assert admission.alarms.next() is None


def test_a_newcomer_takes_the_place_of_the_oldest_that_asked_for_nothing() -> None:
    admission = Desk(Places(count_max=3))
    for conn in (1, 2, 3):
        assert admission.accepted(0, conn, f"host{conn}") == []
    admission.proven(0, 1)
    assert conns(admission.accepted(0, 4, "b")) == [2]
    assert conns(admission.accepted(0, 5, "b")) == [3]
    admission.proven(0, 4)
    admission.proven(0, 5)
    [refused] = admission.accepted(0, 6, "b")
    assert refused == Eviction(6, "3 connections are open, the limit")
    admission.gone(6)  # as the process says when it has closed it
    admission.gone(1)
    assert admission.accepted(0, 7, "b") == []


def test_an_address_that_has_its_share_displaces_only_itself() -> None:
    admission = Desk(Places(count_max=100, per_address_max=2))
    admission.accepted(0, 1, "honest")
    admission.accepted(0, 2, "greedy")
    admission.accepted(0, 3, "greedy")
    [gives_up] = admission.accepted(0, 4, "greedy")
    assert gives_up == Eviction(2, "2 connections from greedy are open, the limit for one address")
    admission.proven(0, 3)
    admission.proven(0, 4)
    assert conns(admission.accepted(0, 5, "greedy")) == [5]
    assert admission.accepted(0, 6, "honest") == []


def test_an_address_gets_the_places_back_of_connections_that_ended() -> None:
    admission = Desk(Places(count_max=100, per_address_max=2))
    for conn in range(1, 9, 2):
        assert admission.accepted(0, conn, "a") == []
        assert admission.accepted(0, conn + 1, "a") == []
        admission.proven(0, conn)
        admission.proven(0, conn + 1)
        admission.gone(conn)
        admission.gone(conn + 1)


def test_where_an_address_has_its_share_no_member_behind_it_yields() -> None:
    admission = Desk(Places(count_max=100, per_address_max=1))
    assert admission.accepted(0, 1, "a", member=True) == []
    assert admission.accepted(0, 2, "a") == []
    assert conns(admission.accepted(0, 3, "a")) == [2]


def test_where_an_address_has_its_share_who_has_long_been_silent_yields() -> None:
    """Connections whose peers are gone would keep a new client of their address out for half an hour."""
    admission = Desk(Places(per_address_max=3, idle_ms=HALF_AN_HOUR))
    for conn in (1, 2, 3):
        admission.accepted(0, conn, "a")
        admission.proven(0, conn)
    admission.accepted(0, 4, "b")
    admission.proven(0, 4)
    admission.heard(1_000, 1)
    half = HALF_AN_HOUR // 2
    assert conns(admission.accepted(half - 1, 5, "a")) == [5]
    [gone] = admission.accepted(half, 6, "a")
    assert gone == Eviction(2, "3 connections from a are open, the limit for one address, and it has been silent")
    assert conns(admission.accepted(half, 7, "a")) == [6]
    admission.proven(half, 7)
    assert conns(admission.accepted(half, 8, "a")) == [3]
    admission.proven(half, 8)
    assert conns(admission.accepted(half + 999, 9, "a")) == [9]
    assert conns(admission.accepted(half + 1_000, 10, "a")) == [1]


def test_where_no_place_is_left_who_has_long_been_silent_yields_unless_it_is_a_member() -> None:
    admission = Desk(Places(count_max=2, idle_ms=HALF_AN_HOUR))
    admission.accepted(0, 1, "server", member=True)
    admission.accepted(0, 2, "a")
    for conn in (1, 2):
        admission.proven(0, conn)
    [gone] = admission.accepted(HALF_AN_HOUR // 2, 3, "b")
    assert gone == Eviction(2, "it has been silent, and its place is needed")
    admission.proven(HALF_AN_HOUR // 2, 3)
    assert conns(admission.accepted(HALF_AN_HOUR // 2, 4, "c")) == [4]


def test_members_are_under_no_quota_and_have_places_of_their_own() -> None:
    admission = Desk(Places(count_max=4, reserved=2, per_address_max=1))
    for conn in (1, 2):
        assert admission.accepted(0, conn, f"host{conn}") == []
        admission.proven(0, conn)
    assert conns(admission.accepted(0, 3, "host3")) == [3]
    assert admission.accepted(0, 4, "rack", member=True) == []
    assert admission.accepted(0, 5, "rack", member=True) == []
    admission.proven(0, 4)
    assert conns(admission.accepted(0, 6, "host6")) == [6], "no client displaces a member, proven or not"
    assert conns(admission.accepted(0, 7, "rack", member=True)) == [5]


def test_without_roles_nothing_is_reserved() -> None:
    places = Places(count_max=4, reserved=2)
    assert places.for_members(False).reserved == 0
    assert places.for_members(True) == places


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.sampled_from(["a", "b", "c"]), st.booleans(), st.integers(0, 20_000)),
        max_size=80,
    )
)
def test_counts_hold_whatever_comes(steps: list[tuple[int, str, bool, int]]) -> None:
    places = Places(count_max=6, reserved=2, per_address_max=3, unproven_ms=30_000, idle_ms=60_000)
    admission, now, last = Desk(places), 0, 0
    alive: dict[int, tuple[str, bool]] = {}
    for what, address, member, pause in steps:
        now += pause
        for one in admission.ring(now):
            del alive[one.conn]
        evicted = []
        due = admission.alarms.next()
        assert due is None or due > now
        some = next(iter(alive), 0)
        if what < 2:
            last += 1
            alive[last] = address, member
            evicted += admission.accepted(now, last, address, member=member)
        elif what == 2:
            admission.proven(now, some)
        elif what == 3:
            admission.heard(now, some)
        else:
            admission.gone(some)
            alive.pop(some, None)
        for one in evicted:
            del alive[one.conn]
        strangers = [host for host, known in alive.values() if not known]
        assert len(alive) <= places.count_max
        assert max(map(strangers.count, strangers), default=0) <= places.per_address_max
        assert len(strangers) <= places.count_max - places.reserved
    for conn in list(alive):
        admission.gone(conn)
    assert admission.ring(now + 10**9) == []
    assert admission.alarms.next() is None


def test_the_address_is_that_of_the_host() -> None:
    assert [owner_of(peer) for peer in ("10.0.0.1:4000", "host:4", "test", "")] == ["10.0.0.1", "host", "test", ""]
    assert owner_of("[::ffff:10.0.0.1]:4") == "10.0.0.1"
    assert owner_of("[2001:db8::1]:4") == owner_of("[2001:db8::ffff:0:1:2]:5") == "2001:db8::/64"
    assert owner_of("[2001:db8:0:1::1]:4") == "2001:db8:0:1::/64"
    assert owner_of("[fe80::1%eth0]:4") == "fe80::1%eth0"


# ---- on a storage node -----------------------------------------------------------------------


def test_on_a_storage_node_the_cluster_key_is_the_proof() -> None:
    made = desk(places=Places(count_max=3, unproven_ms=30_000))  # the desk itself has one to the admin port
    silent = Wire(made, 50, Port.STORAGE)
    server = made.dial(Port.STORAGE)
    made.emitted.clear()
    late = made.dial(Port.STORAGE)
    assert (silent.closed, server.closed, late.closed) == (True, False, False)
    [line] = [one.text for one in made.emitted if isinstance(one, Report)]
    assert line == "connection of test closed: it has asked for nothing, and its place is needed"
    assert late.ask(wire.OpenRequest(-1, -1, -1, KEY, 2)) == wire.SuccessResponse(-1, -1, -1)
    refused = Wire(made, 51, Port.STORAGE)
    assert refused.closed
    assert not server.closed


def test_a_storage_node_ends_no_connection_that_has_shown_the_key_for_being_idle() -> None:
    made = desk(places=TIMES)
    silent, server = Wire(made, 50, Port.STORAGE), made.dial(Port.STORAGE)
    made.now += 30_000
    made.step()
    assert (silent.closed, server.closed) == (True, False)
    made.now += 24 * 3_600_000
    made.step()
    assert not server.closed
