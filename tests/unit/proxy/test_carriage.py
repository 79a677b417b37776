"""Which append a proxy carries next, and how much it has under way: whoever waits for each of his own waits for few."""

from __future__ import annotations

from tests.unit.proxy.desk import FakeUpstream, append, peer
from waltz_core.base.ids import ReqId, req_client
from waltz_core.proxy.carriage import Append, Carriage
from waltz_core.wire import client_messages as messages

TURN, WINDOW, PACE = 10, 25, 5
HONEST, FLOOD = 1, 2
HONEST_CONN, FLOOD_CONN = 11, 12


class Office:
    """A carriage, its upstream, and two clients."""

    def __init__(self) -> None:
        self.upstream = FakeUpstream()
        self.carriage = Carriage(0, TURN, WINDOW, PACE)
        self.carriage.mounted(True)
        self.honest, self.flood = peer(HONEST_CONN, HONEST), peer(FLOOD_CONN, FLOOD)
        self.now = 1_000
        self.answered = 0
        self.send()
        self.answer()

    def send(self) -> None:
        self.carriage.send(self.now, self.upstream)

    def put(self, client_id: int, count: int) -> list[Append]:
        who = self.honest if client_id == HONEST else self.flood
        appends = [append(client_id, number) for number in range(count)]
        self.carriage.put(self.now, who, list(appends))
        return appends

    def answer(self, mark: int = 0, *, reached: bool = True) -> list[int]:
        """All flushes are answered; the tokens that are passed then."""
        for req_id in self.upstream.barriers[self.answered :]:
            self.carriage.answered(messages.FlushResponse(req_id, mark))
        self.answered = len(self.upstream.barriers)
        return self.carriage.reached(self.now, mark) if reached else []

    def order(self) -> list[int]:
        return [req_client(one.req_id) for one in self.upstream.carried]


def barriers(office: Office) -> list[ReqId]:
    return office.upstream.barriers


def test_an_append_waits_for_a_turn_of_each_other_client_and_no_more() -> None:
    office = Office()
    office.upstream.full = True
    office.put(FLOOD, 1_000)
    office.send()
    office.put(HONEST, 1)
    office.upstream.full = False
    office.send()
    assert office.order().index(HONEST) <= 2 * TURN


def test_appends_of_one_client_stay_in_their_order() -> None:
    office = Office()
    sent = office.put(FLOOD, 7 * TURN + 3)
    office.put(HONEST, 3)
    office.send()
    for _ in range(10):
        office.answer()
        office.now += 10
        office.send()
    assert [one for one in office.upstream.carried if req_client(one.req_id) == FLOOD] == sent


def test_alone_a_client_has_as_much_under_way_as_it_likes() -> None:
    office = Office()
    office.put(FLOOD, 1_000)
    office.send()
    assert len(office.upstream.carried) == 1_000


def test_all_clients_together_have_a_bounded_part_under_way() -> None:
    """Who mounts waits for what was carried before."""
    office = Office()
    office.put(FLOOD, 100 * WINDOW)
    office.send()
    assert len(office.upstream.carried) == 40 * WINDOW
    token = office.carriage.barrier(office.honest)
    office.send()
    assert token in office.answer()
    office.send()
    assert len(office.upstream.carried) == 80 * WINDOW


def test_beside_a_client_that_waits_for_each_the_others_have_a_bounded_part_under_way() -> None:
    office = Office()
    office.put(FLOOD, 500)
    office.send()
    before = len(office.upstream.carried)
    for _ in range(5):
        office.put(HONEST, 1)
        office.put(FLOOD, 1_000)
        office.send()
        assert office.order()[-1] == HONEST, "it is not held back"
    assert len(office.upstream.carried) == before + 5, "nothing of the flood, of which too much is under way"
    assert office.carriage.hinders(FLOOD)
    assert not office.carriage.hinders(HONEST)
    office.answer()
    office.send()
    assert 0 < len(office.upstream.carried) - before - 5 <= WINDOW + TURN, "and then a little"


def test_beside_such_a_client_the_others_keep_a_pace_and_are_woken_for_it() -> None:
    office = Office()
    office.put(FLOOD, 500)
    office.send()
    office.answer()
    office.send()
    before, begun = len(office.upstream.carried), office.now
    for _ in range(20):
        office.put(FLOOD, 100)
        office.put(HONEST, 1)
        office.send()
        office.answer()
        due = office.carriage.deadline(office.now)
        assert due is not None
        assert office.now < due <= office.now + TURN // PACE + 1
        office.now = due
    others = len(office.upstream.carried) - before - 20
    assert others <= PACE * (office.now - begun) + 2 * TURN
    assert others >= PACE * (office.now - begun) - 2 * TURN


def test_a_flush_leaves_once_much_is_under_way_and_one_at_a_time() -> None:
    office = Office()
    flushes = len(barriers(office))
    office.put(FLOOD, WINDOW // 2)
    office.send()
    assert len(barriers(office)) == flushes
    office.put(FLOOD, 1)
    office.send()
    assert len(barriers(office)) == flushes + 1
    office.put(FLOOD, 100)
    office.send()
    assert len(barriers(office)) == flushes + 1
    office.answer()
    office.send()
    assert len(barriers(office)) == flushes + 2, "for what was carried since"
    office.answer()
    office.send()
    assert len(barriers(office)) == flushes + 2, "there is nothing new to ask about"


def test_what_is_under_way_is_not_decided_before_its_feed_is_here() -> None:
    office = Office()
    office.put(FLOOD, 100)
    office.send()
    office.put(HONEST, 1)
    office.put(FLOOD, 100)
    office.send()
    before = len(office.upstream.carried)
    office.answer(99, reached=False)
    assert office.carriage.reached(office.now, 98) == []
    office.send()
    assert len(office.upstream.carried) == before
    office.carriage.reached(office.now, 99)
    office.send()
    assert len(office.upstream.carried) > before


def test_a_lost_mount_leaves_nothing_under_way() -> None:
    office = Office()
    office.put(FLOOD, 100)
    office.send()
    office.put(HONEST, 1)
    office.put(FLOOD, 100)
    office.send()
    assert office.carriage.lost() == [FLOOD_CONN, HONEST_CONN]
    office.carriage.mounted(False)
    office.carriage.mounted(True)
    before = len(office.upstream.carried)
    office.send()
    assert len(office.upstream.carried) > before
    office.carriage.answered(messages.FlushResponse(barriers(office)[1], 0))  # late, and nobody's any more
    assert office.carriage.reached(office.now, 0) == []


def test_a_barrier_of_a_client_with_nothing_here_passes_the_appends_of_others() -> None:
    office = Office()
    office.put(FLOOD, 100)
    office.send()
    office.put(HONEST, 1)
    office.put(FLOOD, 100)
    office.send()
    flushes = len(barriers(office))
    waits = office.carriage.barrier(office.flood)
    token = office.carriage.barrier(office.honest)
    office.send()
    assert len(barriers(office)) == flushes + 1
    assert office.answer() == [token]
    passed: list[int] = []
    for _ in range(20):
        office.now += 10
        office.send()
        passed += office.answer()
    assert passed == [waits]
    assert len(office.upstream.carried) == 201


def test_a_client_whose_appends_wait_here_has_some_under_way_whatever_a_flush_decides() -> None:
    office = Office()
    office.upstream.full = True
    office.put(FLOOD, 100)
    office.carriage.barrier(office.honest)
    office.send()
    office.answer()
    assert office.carriage.has_under_way(FLOOD)
    office.upstream.full = False
    office.send()
    assert office.carriage.has_under_way(FLOOD)
    office.answer()
    assert not office.carriage.has_under_way(FLOOD)


def test_nothing_is_flushed_again_and_again_while_upstream_takes_nothing() -> None:
    office = Office()
    office.put(FLOOD, 100)
    office.upstream.up = False
    office.carriage.barrier(office.honest)
    office.send()
    due = office.carriage.deadline(office.now)
    assert due is not None
    assert due > office.now
    assert office.carriage.waits, "and it goes on when upstream takes something"


def test_who_is_gone_is_not_disconnected_for_appends_that_left_later() -> None:
    office = Office()
    office.upstream.full = True
    office.put(FLOOD, 3)
    office.carriage.gone(FLOOD_CONN)
    office.upstream.full = False
    office.send()
    assert len(office.upstream.carried) == 3
    assert office.carriage.lost() == []
