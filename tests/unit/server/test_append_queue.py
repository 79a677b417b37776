"""Whose appends come next, what a barrier stands behind, and how much is in flight beside a light client."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from waltz_core.base.ids import make_req_id, req_client, req_sequence
from waltz_core.locks.table import LockTable
from waltz_core.server.append_queue import AppendQueue, Run, Sender
from waltz_core.server.appender import Appender, Committed, Dropped, Passed, Verdict
from waltz_core.wire.client_messages import AppendRequest, Refusal

A, B, C = "a:1", "b:1", "c:1"
HEAVY, LIGHT, THIRD = 1, 2, 3


def sender(client: int, owner: str = "", *, conn: int | None = None, carries_others: bool = False) -> Sender:
    return Sender(client if conn is None else conn, client, owner, carries_others)


def appends(client: int, first: int, count: int, *, size: int = 1, locks: int = 0) -> list[AppendRequest]:
    write = tuple(range(locks))
    return [
        AppendRequest(make_req_id(client, 1, 0, number), 1 << 40, write, (), (), 0, bytes(size), 0)
        for number in range(first, first + count)
    ]


class Desk:
    """An appender and what it launched."""

    def __init__(self, *, batch: int = 1_000) -> None:
        self.appender = Appender(
            LockTable(1_000, 3, 1 << 41),
            1 << 41,
            batch_count_max=batch,
            batch_bytes_max=1 << 20,
            flight_bytes_max=16 << 20,
        )
        self.appender.opened(2, [A, B, C])
        self.queue = self.appender.queue
        self.verdicts: list[Verdict] = []
        self.now = 0
        self._sent: dict[int, int] = {}

    def send(self, client: int, count: int = 1, owner: str = "", *, size: int = 1, conn: int | None = None) -> None:
        first = self._sent.get(client, 0)
        self._sent[client] = first + count
        self.appender.enqueue(sender(client, owner, conn=conn), [*appends(client, first, count, size=size)], self.now)

    def launch(self) -> list[int]:
        """Clients of the appends of the next batch."""
        batch = self.appender.launch(self.verdicts, self.now)
        return [] if batch is None else [req_client(one.req_id) for one in self.appender.newest.appends]

    def launch_all(self) -> list[int]:
        clients: list[int] = []
        while batch := self.launch():
            clients += batch
        return clients

    def commit_all(self) -> list[tuple[int, int]]:
        """All that waits, however long it takes."""
        committed = []
        while self.appender.pending:
            self.launch_all()
            committed += self.commit()
            self.now += 10
        return committed

    def commit(self) -> list[tuple[int, int]]:
        """Client and sequence of what is committed now."""
        before = len(self.verdicts)
        for replica in (A, B):
            self.appender.voted(replica, self.appender.next_id - 1)
        self.appender.advance(self.verdicts, self.now)
        new = [one for one in self.verdicts[before:] if isinstance(one, Committed)]
        return [(req_client(one.req_id), req_sequence(one.req_id)) for run in new for one in run.appends]

    def passed(self) -> list[int]:
        return [one.token for one in self.verdicts if isinstance(one, Passed)]


def test_an_append_waits_for_a_turn_of_others_and_not_for_all_they_sent() -> None:
    desk = Desk(batch=150)
    desk.send(HEAVY, 1_000)
    desk.send(LIGHT)
    assert LIGHT in desk.launch()


def test_clients_share_alike_and_owners_however_many_clients_they_have() -> None:
    desk = Desk(batch=400)
    for client in (10, 11, 12):
        desk.send(client, 1_000, "many")
    desk.send(LIGHT, 1_000, "single")
    batch = desk.launch()
    assert batch.count(LIGHT) == 200
    assert {batch.count(client) for client in (10, 11, 12)} <= {0, 100}


def test_appends_with_large_payloads_or_many_locks_take_more_of_a_turn() -> None:
    queue = AppendQueue()
    for number in range(20):
        queue.put(0, sender(1), [*appends(1, number, 1, size=100 << 10)])
        queue.put(0, sender(2), [*appends(2, number, 1, locks=1_000)])
        queue.put(0, sender(3), [*appends(3, number * 100, 100)])
    order: list[int] = []
    while len(order) < 12:
        run = queue.take(0)
        assert isinstance(run, Run)
        queue.used(run, len(run.appends))
        order.append(run.sender.client_id)
    assert order.count(1) <= 5
    assert order.count(2) <= 5
    assert order.count(3) <= 5


def test_appends_of_a_client_stay_in_order_over_all_its_connections() -> None:
    desk = Desk(batch=7)
    for number in range(20):
        desk.send(HEAVY, 13, conn=100 + number)
        desk.send(LIGHT, 2)
    committed = desk.commit_all()
    for client, count in ((HEAVY, 260), (LIGHT, 40)):
        assert [number for one, number in committed if one == client] == list(range(count))


def test_beside_a_light_client_the_others_have_little_in_flight() -> None:
    desk = Desk()
    for _ in range(20):
        desk.send(HEAVY, 700)
        desk.send(LIGHT)
        batch = desk.launch_all()
        assert LIGHT in batch
        assert desk.appender.in_flight <= 250 + 100
        desk.commit()
        desk.now += 10


def test_one_that_is_heavy_alone_or_beside_others_like_it_fills_the_flight() -> None:
    alone = Desk()
    alone.send(HEAVY, 3_000)
    assert len(alone.launch_all()) == 3_000
    alike = Desk()
    for _ in range(4):
        for client in (HEAVY, THIRD):
            alike.send(client, 700)
        alike.launch_all()
    assert alike.appender.in_flight == 5_600


def test_beside_a_light_client_the_others_keep_a_pace_and_are_woken_for_it() -> None:
    desk = Desk()
    desk.send(HEAVY, 2_000)
    desk.launch_all()
    desk.commit()
    others = 0
    for _ in range(20):
        desk.send(HEAVY, 300)
        desk.send(LIGHT)
        batch = desk.launch_all()
        assert LIGHT in batch
        others += len(batch) - 1
        due = desk.queue.due(desk.now)
        assert due is not None
        assert 0 < due - desk.now <= 20
        desk.commit()
        desk.send(THIRD, 200)
        assert desk.launch_all() == [], "nor does somebody who has sent nothing before"
        desk.now = due
    assert 10 * desk.now - 200 <= others <= 10 * desk.now + 200


def test_who_has_few_appends_under_way_is_light_however_many_share_its_address() -> None:
    desk = Desk()
    for client in range(100, 140):
        desk.send(client, 100)
    desk.launch_all()
    desk.send(LIGHT, 20)
    for client in range(100, 140):
        desk.send(client, 100)
    batch = desk.launch_all()
    assert batch.count(LIGHT) == 20
    assert len(batch) <= 20 + 200


def test_a_second_after_a_light_client_has_waited_for_anything_all_is_launched_again() -> None:
    desk = Desk()
    desk.send(HEAVY, 700)
    desk.launch_all()
    desk.send(LIGHT)
    desk.send(HEAVY, 2_000)
    assert len(desk.launch_all()) < 500
    desk.now += 5_000
    assert len(desk.launch_all()) <= 100, "a disk may take so long: others who have not heard of it send ahead"
    desk.commit()
    assert len(desk.launch_all()) <= 350
    desk.now += 999
    assert len(desk.launch_all()) <= 350
    desk.now += 1
    assert len(desk.launch_all()) > 1_000


def test_the_second_begins_when_its_append_is_decided() -> None:
    desk = Desk()
    desk.send(HEAVY, 700)
    desk.launch_all()
    desk.send(LIGHT)
    desk.launch_all()
    desk.now += 900
    desk.launch()
    desk.commit()
    desk.send(HEAVY, 2_000)
    desk.now += 999
    assert len(desk.launch_all()) <= 350
    desk.now += 1
    assert len(desk.launch_all()) > 1_000


def test_what_lands_makes_room_for_a_turn() -> None:
    desk = Desk()
    desk.send(HEAVY, 700)
    desk.launch_all()
    desk.send(LIGHT)
    desk.send(HEAVY, 2_000)
    desk.launch_all()
    assert desk.launch_all() == []
    desk.commit()
    assert 100 <= len(desk.launch_all()) <= 350


def test_many_small_appends_do_not_fill_the_memory_with_what_is_in_flight() -> None:
    desk = Desk(batch=10)
    desk.send(HEAVY, 1_000)
    desk.launch_all()
    assert desk.appender.in_flight == 160
    desk.commit()
    assert len(desk.launch_all()) == 160


def test_a_barrier_waits_for_its_client_and_for_nobody_else() -> None:
    desk = Desk(batch=100)
    desk.send(HEAVY, 1_000)
    desk.send(LIGHT)
    assert desk.appender.barrier(1, sender(LIGHT)) == 1
    assert desk.appender.barrier(2, sender(HEAVY)) == 2
    desk.launch()
    desk.commit()
    desk.launch()
    assert desk.passed() == []
    desk.commit()
    assert desk.passed() == [1]
    desk.commit_all()
    assert desk.passed() == [1, 2]


def test_a_barrier_of_a_client_waits_for_its_appends_over_another_connection() -> None:
    desk = Desk(batch=100)
    desk.send(LIGHT, 150, conn=7)
    desk.appender.barrier(1, sender(LIGHT, conn=8))
    desk.launch()
    desk.commit()
    assert desk.passed() == []
    desk.launch()
    desk.commit()
    assert desk.passed() == [1]


def test_what_was_in_flight_comes_before_a_barrier_that_was_set_while_the_session_was_closed() -> None:
    desk = Desk()
    desk.send(LIGHT, 3)
    desk.launch()
    desk.appender.closed()
    desk.appender.barrier(1, sender(LIGHT))
    desk.appender.resolved(desk.appender.commit_mark, desk.verdicts)
    desk.appender.opened(2, [A, B])
    desk.launch()
    assert desk.passed() == []
    assert desk.commit() == [(LIGHT, 0), (LIGHT, 1), (LIGHT, 2)]
    assert desk.passed() == [1]


def test_a_barrier_waits_for_connections_that_carry_appends_of_others() -> None:
    """Some of them may be the same client's, who came over a proxy before."""
    desk = Desk(batch=10)
    proxy = sender(HEAVY, carries_others=True)
    desk.appender.enqueue(proxy, [*appends(LIGHT, 0, 25)])
    desk.appender.barrier(1, sender(LIGHT))
    desk.send(THIRD, 25)
    desk.appender.barrier(2, proxy)
    for passed in ([], [], [1], [1], [1], [1, 2]):
        desk.launch()
        desk.commit()
        assert desk.passed() == passed


def test_barriers_of_several_clients_in_the_same_places_are_one() -> None:
    queue = AppendQueue()
    proxy = sender(HEAVY, carries_others=True)
    queue.put(0, proxy, [*appends(LIGHT, 0, 5)])
    assert queue.barrier(1, proxy) == 1
    assert queue.barrier(2, sender(LIGHT)) == 1
    queue.put(0, proxy, [*appends(LIGHT, 5, 5)])
    assert queue.barrier(3, proxy) == 3


def test_barriers_pass_while_no_append_may_be_launched_where_their_client_has_none() -> None:
    desk = Desk(batch=150)
    desk.send(HEAVY, 50)
    desk.send(LIGHT, 100)
    desk.appender.barrier(1, sender(LIGHT))
    desk.send(LIGHT, 1)
    assert len(desk.launch()) == 150
    desk.commit()
    assert desk.passed() == []
    desk.appender.barrier(2, sender(THIRD))
    desk.appender.barrier(3, sender(LIGHT))
    desk.appender.launch_barriers(desk.verdicts)
    assert sorted(desk.passed()) == [1, 2]


def test_a_new_generation_keeps_the_order_of_each_client() -> None:
    desk = Desk(batch=10)
    for client in (HEAVY, LIGHT):
        desk.send(client, 25)
        desk.appender.barrier(client, sender(client))
    desk.launch()
    desk.appender.closed()
    desk.appender.restart(1 << 42, 1, desk.verdicts)
    assert desk.queue.held.total == 40
    desk.appender.opened(2, [A, B])
    committed = desk.commit_all()
    rest = [number for client, number in committed if client == HEAVY]
    assert rest == sorted(rest)
    assert [number for client, number in committed if client == LIGHT][-15:] == list(range(10, 25))
    assert sorted(desk.passed()) == [HEAVY, LIGHT]


def test_a_partition_that_goes_drops_all_that_waits() -> None:
    desk = Desk()
    desk.send(HEAVY, 150)
    desk.appender.barrier(1, sender(HEAVY))
    desk.send(LIGHT, 3)
    desk.appender.drop_queue(desk.verdicts)
    dropped = [one for one in desk.verdicts if isinstance(one, Dropped)]
    assert sum(len(one.requests) for one in dropped) == 153
    assert {one.refusal for one in dropped} == {Refusal.NOT_SERVED}
    assert (desk.queue.queued, desk.queue.queued_bytes, desk.queue.held.total) == (0, 0, 0)


STEPS = st.one_of(
    st.tuples(st.just("send"), st.integers(0, 3), st.sampled_from([1, 3, 120, 400])),
    st.tuples(st.just("proxy"), st.integers(0, 3), st.sampled_from([1, 120])),
    st.tuples(st.just("barrier"), st.integers(0, 3), st.just(0)),
    st.tuples(st.just("launch"), st.just(0), st.just(0)),
    st.tuples(st.just("commit"), st.just(0), st.just(0)),
    st.tuples(st.just("pass"), st.just(0), st.just(0)),
    st.tuples(st.just("end"), st.just(0), st.sampled_from([0, 1, 50])),
    st.tuples(st.just("wait"), st.just(0), st.just(0)),
)


class Watched(Desk):
    """Knows what was sent, and what each barrier stands behind."""

    def __init__(self) -> None:
        super().__init__(batch=70)
        self.sent: dict[int, int] = {}
        self.ways: dict[tuple[int, str], list[int]] = {}  # client and what it was sent over → sequences
        self.committed: list[tuple[int, int]] = []
        self.behind: dict[int, dict[int, int]] = {}  # token → client → appends that must be decided before it
        self._looked = 0

    def do(self, token: int, what: str, client: int, count: int) -> None:
        """A step."""
        if what == "wait":
            self.now += 600
        elif what == "end":
            self._end(count)
        elif what == "pass":
            self.appender.launch_barriers(self.verdicts)
        elif what in ("launch", "commit"):
            getattr(self, what)()
        else:
            self._say(token, what, client, count)
        self.look()

    def _say(self, token: int, what: str, client: int, count: int) -> None:
        via = sender(9, carries_others=True) if what == "proxy" else sender(client, f"owner{client // 2}")
        if what != "barrier":
            first = self.sent.get(client, 0)
            self.sent[client] = first + count
            self.ways.setdefault((client, what), []).extend(range(first, first + count))
            self.appender.enqueue(via, [*appends(client, first, count)], self.now)
        if what != "send":  # who comes over a proxy may have come over another connection before
            standing = self.behind.setdefault(self.appender.barrier(token, via), {})
            for one in self.sent if what == "proxy" else [client]:
                standing[one] = max(standing.get(one, 0), self.sent.get(one, 0))

    def _end(self, count: int) -> None:
        self.appender.closed()
        mark = min(self.appender.commit_mark + count, self.appender.next_id - 1)
        self.appender.resolved(mark, self.verdicts)
        self.appender.opened(2, [A, B])

    def look(self) -> None:
        """At what became of them."""
        for verdict in self.verdicts[self._looked :]:
            if isinstance(verdict, Committed):
                self.committed += [(req_client(one.req_id), req_sequence(one.req_id)) for one in verdict.appends]
            elif isinstance(verdict, Passed):
                for client, count in self.behind.pop(verdict.token).items():
                    assert {number for one, number in self.committed if one == client} >= {*range(count)}
        self._looked = len(self.verdicts)


@given(st.lists(STEPS, max_size=40))
def test_nothing_is_lost_doubled_or_reordered_and_no_barrier_is_early(steps: list[tuple[str, int, int]]) -> None:
    desk = Watched()
    for token, step in enumerate(steps):
        desk.do(token, *step)
    desk.now += 10_000
    while desk.appender.pending:
        desk.do(0, "launch", 0, 0)
        desk.do(0, "commit", 0, 0)
        desk.now += 10  # beside a light client, others keep a pace
    assert not desk.behind
    assert (desk.queue.queued, desk.queue.queued_bytes, desk.queue.held.total) == (0, 0, 0)
    assert len(desk.committed) == sum(desk.sent.values())
    for (client, _), sent in desk.ways.items():
        assert [number for one, number in desk.committed if one == client and number in {*sent}] == sent
