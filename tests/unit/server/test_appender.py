"""Ids, locks, votes, barriers and what becomes of appends when a session ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import hypothesis.strategies as st
from hypothesis import given

from tests.twin_0132.locks import HeldLockTable
from tests.twin_0132.server import Appender0132
from waltz_core.base.ids import ReqId, make_req_id
from waltz_core.base.lock import Conflict, LockKind
from waltz_core.locks.exact import UNEXPLAINED, Explanation
from waltz_core.locks.table import LockTable
from waltz_core.server.append_queue import Append, Sender
from waltz_core.server.appender import Appender, Committed, Dropped, Passed, Refused, Verdict
from waltz_core.store.replica_link import Batch
from waltz_core.wire.client_messages import AppendRequest, NamedAppendRequest, Refusal

A, B, C = "a:1", "b:1", "c:1"


TABLE_OF: dict[type[Appender], type[LockTable]] = {Appender: LockTable, Appender0132: HeldLockTable}


def append(
    sequence: int,
    *,
    mark: int = -1,
    write: Sequence[int] = (),
    read: Sequence[int] = (),
    appended: Sequence[int] = (),
    data: bytes = b"x",
    generation: int = 1,
) -> AppendRequest:
    return AppendRequest(
        make_req_id(7, generation, 0, sequence), mark, tuple(write), tuple(read), tuple(appended), 0, data, 0
    )


def appender_with(
    mark: int = -1, *, batch: int = 10, opened: bool = True, flight: int = 1 << 20, kind: type[Appender] = Appender
) -> Appender:
    found = kind(
        TABLE_OF[kind](1000, 3, mark),
        mark,
        batch_count_max=batch,
        batch_bytes_max=1 << 20,
        flight_bytes_max=flight,
    )
    if opened:
        found.opened(2, [A, B, C])
    return found


def sender(client_id: int, owner: str = "") -> Sender:
    return Sender(client_id, client_id, owner)


def launch(appender: Appender) -> tuple[Batch | None, list[Verdict]]:
    out: list[Verdict] = []
    return appender.launch(out), out


def vote(appender: Appender, mark: int, *replicas: str) -> list[Verdict]:
    for replica in replicas:
        appender.voted(replica, mark)
    out: list[Verdict] = []
    appender.advance(out)
    return out


def committed_ids(verdicts: Sequence[Verdict]) -> list[int]:
    return [n for v in verdicts if isinstance(v, Committed) for n in range(v.first, v.last + 1)]


def req_ids(records: Sequence[Append]) -> list[ReqId]:
    return [r.req_id for r in records]


def test_a_vote_below_quorum_commits_nothing() -> None:
    appender = appender_with()
    appender.enqueue(sender(1), [append(1), append(2)])
    launch(appender)

    assert vote(appender, 1, A) == []
    assert appender.commit_mark == -1


def test_a_quorum_commits_in_order_and_gives_dense_ids() -> None:
    appender = appender_with()
    first, second = append(1), append(2)
    appender.enqueue(sender(1), [first, second])
    batch, _ = launch(appender)
    assert batch is not None
    assert (batch.first, batch.last) == (0, 1)

    (committed,) = vote(appender, 1, A, B)

    assert isinstance(committed, Committed)
    assert (committed.first, committed.last) == (0, 1)
    assert req_ids(committed.appends) == [first.req_id, second.req_id]


def test_several_batches_fly_at_once_and_commit_up_to_the_second_best_vote() -> None:
    appender = appender_with(batch=1)
    appender.enqueue(sender(1), [append(n) for n in range(3)])
    for _ in range(3):
        launch(appender)
    assert appender.in_flight == 3

    appender.voted(A, 2)
    assert committed_ids(vote(appender, 1, B)) == [0, 1]
    assert committed_ids(vote(appender, 2, C)) == [2]


def test_the_window_of_bytes_in_flight_holds_launches_back() -> None:
    appender = appender_with(batch=1, flight=100)
    appender.enqueue(sender(1), [append(n, data=bytes(80)) for n in range(3)])
    assert launch(appender)[0] is not None
    assert launch(appender)[0] is None
    vote(appender, 0, A, B)
    assert launch(appender)[0] is not None


def test_a_conflict_is_refused_with_the_estimate_and_equal_marks_pass() -> None:
    appender = appender_with()
    appender.enqueue(sender(1), [append(1, write=[5])])
    launch(appender)
    vote(appender, 0, A, B)

    behind = append(2, mark=-1, read=[5])
    appender.enqueue(sender(9), [behind, append(3, mark=0, write=[5])])
    batch, verdicts = launch(appender)

    assert verdicts == [Refused(9, behind, 0)]
    assert batch is not None
    assert batch.count == 1


def test_a_full_count_of_refused_appends_does_not_hold_up_those_behind() -> None:
    appender = appender_with(batch=2)
    appender.enqueue(sender(1), [append(1, write=[5])])
    launch(appender)
    vote(appender, 0, A, B)

    refused = [append(n, mark=-1, write=[5]) for n in range(2, 6)]
    appender.enqueue(sender(1), [*refused, append(6)])
    batch, verdicts = launch(appender)

    assert verdicts == [Refused(1, one, 0) for one in refused]
    assert batch is not None
    assert batch.count == 1


def test_an_append_lock_is_never_compared_and_stands_in_the_way_of_what_reads_or_writes() -> None:
    appender = appender_with()
    last = append(3, write=[5])
    appender.enqueue(sender(1), [append(1, appended=[5]), append(2, appended=[5]), last])
    batch, verdicts = launch(appender)
    assert batch is not None
    assert batch.count == 2
    assert verdicts == [Refused(1, last, 1)]


def test_what_depends_on_an_append_in_flight_is_refused_and_holds_nobody_up() -> None:
    appender = appender_with(batch=2)
    late = append(3, read=[6], mark=-1)
    appender.enqueue(sender(1), [append(1, write=[5]), append(2, write=[6]), late, append(4, write=[7])])
    launch(appender)
    batch, verdicts = launch(appender)
    assert batch is not None
    assert batch.first == 2
    assert batch.count == 1
    assert verdicts == [Refused(1, late, 1)]


def test_only_the_very_same_lock_stands_in_the_way_of_an_append_in_flight() -> None:
    found = Appender(LockTable(1, 3, -1), -1, batch_count_max=10, batch_bytes_max=1 << 20, flight_bytes_max=1 << 20)
    found.opened(2, [A, B, C])
    found.enqueue(sender(1), [append(1, write=[5]), append(2, write=[6])])
    batch, _ = launch(found)
    assert batch is not None
    assert batch.count == 2


def test_a_lock_is_free_again_when_its_append_went_back_to_the_queue() -> None:
    appender = appender_with()
    appender.enqueue(sender(1), [append(1, write=[5])])
    launch(appender)
    appender.closed()
    appender.resolved(-1, [])
    appender.opened(2, [A, B, C])
    batch, verdicts = launch(appender)
    assert batch is not None
    assert batch.count == 1
    assert verdicts == []


def test_a_lock_taken_twice_in_flight_is_held_until_the_second_commits() -> None:
    appender = appender_with(batch=1)
    appender.enqueue(sender(1), [append(1, appended=[5]), append(2, appended=[5])])
    launch(appender)
    launch(appender)
    vote(appender, 0, A, B)
    late = append(3, mark=0, write=[5])
    appender.enqueue(sender(1), [late])
    assert launch(appender) == (None, [Refused(1, late, 1)])


def test_as_0_13_2_nothing_overtakes_an_append_that_waits_for_a_lock() -> None:
    appender = appender_with(kind=Appender0132)
    appender.enqueue(sender(1), [append(1, write=[5]), append(2, write=[5], mark=5), append(3)])
    launch(appender)

    assert launch(appender) == (None, [])
    assert appender.queue.queued == 2
    vote(appender, 0, A, B)
    appender.enqueue(sender(1), [append(4, write=[5])])
    batch, verdicts = launch(appender)
    assert batch is not None
    assert batch.count == 2
    assert verdicts == []
    vote(appender, 2, A, B)
    _, verdicts = launch(appender)
    assert [type(verdict) for verdict in verdicts] == [Refused]


def test_an_append_without_locks_fails_below_minus_one() -> None:
    appender = appender_with()
    request = append(1, mark=-2)
    appender.enqueue(sender(1), [request])
    assert launch(appender) == (None, [Refused(1, request, -1)])


def test_a_barrier_passes_when_everything_before_it_is_decided() -> None:
    appender = appender_with()
    appender.enqueue(sender(1), [append(1)])
    appender.barrier(77, sender(1))
    launch(appender)
    appender.enqueue(sender(1), [append(2)])
    launch(appender)

    assert vote(appender, -1, A, B) == []
    assert [type(v) for v in vote(appender, 0, A, B)] == [Committed, Passed]
    assert committed_ids(vote(appender, 1, A, B)) == [1]


def test_barriers_between_appends_make_no_small_batches() -> None:
    appender = appender_with()
    for number in range(5):
        appender.enqueue(sender(1), [append(number)])
        appender.barrier(number, sender(1))
    batch, _ = launch(appender)
    assert batch is not None
    assert batch.count == 5
    assert launch(appender) == (None, [])
    assert vote(appender, 3, A, B)[1:] == []
    assert vote(appender, 4, A, B)[1:] == [Passed(number) for number in range(5)]


def test_barriers_one_behind_the_other_are_one() -> None:
    appender = appender_with()
    assert appender.barrier(1, sender(1)) == 1
    assert appender.barrier(2, sender(1)) == 1
    appender.enqueue(sender(1), [append(1)])
    assert appender.barrier(3, sender(1)) == 3
    _, passed = launch(appender)
    assert passed == [Passed(1)]
    assert appender.barrier(4, sender(1)) == 3
    assert [type(v) for v in vote(appender, 0, A, B)] == [Committed, Passed]
    assert appender.barrier(5, sender(1)) == 5


def test_what_waits_is_counted_by_who_sent_it() -> None:
    appender = appender_with()
    appender.enqueue(sender(1, "a"), [append(1), append(2)])
    appender.enqueue(sender(2, "b"), [append(3)])
    assert (appender.queue.held.total, appender.queue.held.greedy(1, 2), appender.queue.held.greedy(2, 2)) == (
        3,
        True,
        False,
    )
    launch(appender)
    assert appender.queue.held.total == 0
    appender.closed()
    appender.resolved(-1, [])
    assert appender.queue.held.total == appender.queue.queued == 3
    assert appender.queue.bytes_held.total == appender.queue.queued_bytes
    appender.drop_queue([])
    assert (appender.queue.held.total, appender.queue.bytes_held.total) == (0, 0)


def test_a_barrier_waits_for_an_open_session() -> None:
    appender = appender_with(opened=False)
    appender.barrier(1, sender(1))
    assert launch(appender) == (None, [])
    appender.opened(1, [A])
    assert launch(appender) == (None, [Passed(1)])


def test_what_goes_back_to_the_queue_comes_before_what_was_queued_meanwhile() -> None:
    appender = appender_with(batch=2)
    requests: list[Append] = [append(n) for n in range(5)]
    appender.enqueue(sender(1), requests[:2])
    launch(appender)
    appender.enqueue(sender(1), requests[2:])
    appender.closed()
    appender.resolved(-1, [])
    appender.opened(2, [A, B])

    verdicts: list[Verdict] = []
    while appender.queue.queued:
        launch(appender)
        verdicts += vote(appender, appender.next_id - 1, A, B)
    committed = [request for verdict in verdicts if isinstance(verdict, Committed) for request in verdict.appends]
    assert req_ids(committed) == req_ids(requests)


def test_what_the_next_session_resolved_is_committed_and_the_rest_is_tried_again_in_order() -> None:
    appender = appender_with()
    requests: list[Append] = [append(n, write=[n]) for n in range(4)]
    appender.enqueue(sender(1), requests[:3])
    launch(appender)
    appender.barrier(5, sender(1))
    appender.enqueue(sender(1), requests[3:])
    launch(appender)
    appender.closed()

    verdicts: list[Verdict] = []
    appender.resolved(0, verdicts)
    assert committed_ids(verdicts) == [0]
    assert appender.next_id == 1
    assert appender.queue.queued == 4

    appender.opened(2, [A, B])
    batch, _ = launch(appender)
    assert batch is not None
    assert (batch.first, batch.count) == (1, 3)
    verdicts = vote(appender, 3, A, B)
    assert [type(v) for v in verdicts] == [Committed, Passed]


def test_barriers_pass_without_appends_and_not_before_them() -> None:
    appender = appender_with()
    appender.barrier(1, sender(1))
    appender.enqueue(sender(1), [append(1)])
    appender.barrier(2, sender(1))
    out: list[Verdict] = []
    appender.launch_barriers(out)
    assert out == [Passed(1)]
    assert (appender.queue.queued, appender.pending, appender.busy) == (2, 2, True)


def test_after_a_gap_in_ownership_nothing_in_flight_is_believed() -> None:
    appender = appender_with()
    appender.enqueue(sender(1), [append(1, write=[3])])
    launch(appender)
    appender.barrier(9, sender(1))
    appender.enqueue(sender(1), [append(2, generation=1), append(3, generation=2, mark=10)])
    appender.closed()

    dropped: list[Verdict] = []
    appender.restart(10, 2, dropped)

    (gone,) = dropped
    assert isinstance(gone, Dropped)
    assert gone.refusal is Refusal.GENERATION
    assert [request.req_id for request in gone.requests] == [make_req_id(7, 1, 0, 2)]

    assert (appender.commit_mark, appender.next_id) == (10, 11)
    assert appender.queue.queued == 2  # the barrier and the append of the new generation
    appender.opened(1, [A])
    batch, verdicts = launch(appender)
    assert verdicts == [Passed(9)] or verdicts == []
    assert batch is not None
    assert batch.first == 11


def test_a_mark_above_the_log_is_refused() -> None:
    appender = appender_with(mark=4)
    appender.enqueue(sender(1), [append(1, mark=5, read=[3]), append(2, mark=5), append(3, mark=4, write=[3])])
    batch, verdicts = launch(appender)
    assert batch is not None
    assert batch.count == 1
    for number, gone in enumerate(verdicts, 1):
        assert isinstance(gone, Dropped)
        assert [one.req_id for one in gone.requests] == [make_req_id(7, 1, 0, number)]
    assert isinstance(gone, Dropped)
    assert number == 2
    assert (gone.refusal, gone.text[:47]) == (Refusal.OTHER, "decided at mark 5, but the log ends at 4: whose")

    old = appender_with(mark=4, kind=Appender0132)
    old.enqueue(sender(1), [append(1, mark=5, read=[3])])
    found, verdicts = launch(old)
    assert found is not None
    assert not verdicts


def test_a_late_replica_votes_from_where_it_joined() -> None:
    appender = appender_with(opened=False)
    appender.opened(2, [A, B])
    appender.enqueue(sender(1), [append(1)])
    launch(appender)
    appender.joined(C, -1)
    assert committed_ids(vote(appender, 0, C, A)) == [0]


def test_a_dropped_queue_holds_no_bytes() -> None:
    appender = appender_with(opened=False)
    appender.enqueue(sender(1), [append(1, data=bytes(10))])
    assert appender.queue.queued_bytes == 10
    dropped: list[Verdict] = []
    appender.drop_queue(dropped)
    (gone,) = dropped
    assert isinstance(gone, Dropped)
    assert (gone.refusal, len(gone.requests)) == (Refusal.NOT_SERVED, 1)
    assert (appender.queue.queued_bytes, appender.pending) == (0, 0)


@given(st.data())
def test_every_append_gets_exactly_one_verdict_whatever_happens(data: st.DataObject) -> None:
    """Random locks, votes and session ends; at the end everything is decided, once, in order."""
    appender = appender_with(batch=3)
    verdicts: list[Verdict] = []
    sent: list[ReqId] = []
    marks = {A: -1, B: -1, C: -1}
    sequence = 0
    for _ in range(data.draw(st.integers(1, 40))):
        action = data.draw(st.sampled_from(["append", "vote", "end", "barrier"]))
        if action == "append":
            sequence += 1
            locks = data.draw(st.lists(st.integers(0, 3), max_size=2))
            request = append(sequence, write=locks, mark=appender.commit_mark - data.draw(st.integers(0, 1)))
            sent.append(request.req_id)
            appender.enqueue(sender(1), [request])
        elif action == "vote":
            replica = data.draw(st.sampled_from(sorted(marks)))
            marks[replica] = data.draw(st.integers(marks[replica], appender.next_id - 1))
            appender.voted(replica, marks[replica])
        elif action == "end":
            appender.closed()
            mark = data.draw(st.integers(appender.commit_mark, appender.next_id - 1))
            appender.resolved(mark, verdicts)
            marks = dict.fromkeys(marks, mark)
            appender.opened(2, marks)
        else:
            appender.barrier(sequence, sender(1))
        appender.advance(verdicts)
        appender.launch(verdicts)
        assert appender.busy == bool(appender.pending)
    while appender.pending:
        for replica in marks:
            appender.voted(replica, appender.next_id - 1)
        appender.advance(verdicts)
        appender.launch(verdicts)
    decided = [v.request.req_id for v in verdicts if isinstance(v, Refused)]
    for verdict in verdicts:
        if isinstance(verdict, Committed):
            decided += req_ids(verdict.appends)
    assert sorted(decided) == sorted(sent)
    assert committed_ids(verdicts) == list(range(len(committed_ids(verdicts))))


LOCKS = st.lists(st.integers(0, 3), max_size=2)
Step: TypeAlias = (
    tuple[Literal["append"], list[int], list[int], list[int], int]
    | tuple[Literal["launch"]]
    | tuple[Literal["vote"], int]
    | tuple[Literal["lose"], int]
)
STEPS = st.one_of(
    st.tuples(st.just("append"), LOCKS, LOCKS, LOCKS, st.integers(0, 4)),
    st.tuples(st.just("launch")),
    st.tuples(st.just("vote"), st.integers(0, 3)),
    st.tuples(st.just("lose"), st.integers(0, 3)),
)


@given(st.lists(STEPS, max_size=80), st.sampled_from([1, 7, 1000]), st.sampled_from([Appender, Appender0132]))
def test_whatever_is_in_flight_no_committed_append_missed_a_lock(
    steps: list[Step], size: int, kind: type[Appender]
) -> None:
    """Marks are those of clients that lag by a few; sessions end with any part of the flight committed."""
    found = kind(TABLE_OF[kind](size, 3, -1), -1, batch_count_max=3, batch_bytes_max=9999, flight_bytes_max=9999)
    found.opened(2, [A, B, C])
    log: list[Append] = []
    verdicts: list[Verdict] = []
    for number, step in enumerate(steps):
        match step:
            case ("append", write, read, appended, lag):
                mark = max(-1, found.commit_mark - lag)
                found.enqueue(sender(1), [append(number, mark=mark, write=write, read=read, appended=appended)])
            case ("launch",):
                found.launch(verdicts)
            case ("vote", count):
                mark = min(found.next_id - 1, found.commit_mark + count)
                found.voted(A, mark)
                found.voted(B, mark)
                found.advance(verdicts)
            case ("lose", count):
                found.closed()
                found.resolved(min(found.next_id - 1, found.commit_mark + count), verdicts)
                found.opened(2, [A, B, C])
    for verdict in verdicts:
        if isinstance(verdict, Committed):
            assert verdict.first == len(log)
            log += verdict.appends
    last: dict[int, int] = {}
    for number, request in enumerate(log):
        wanted = (*(request.write_locks or ()), *(request.read_locks or ()))
        assert max([last.get(lock, -1) for lock in wanted], default=-1) <= request.client_mark
        last.update(dict.fromkeys((*(request.write_locks or ()), *(request.append_locks or ())), number))


# ---- why -----------------------------------------------------------------------------------------


def named(
    sequence: int, mark: int, *, write: Sequence[int] = (), read: Sequence[int] = (), appended: Sequence[int] = ()
) -> NamedAppendRequest:
    req_id = make_req_id(7, 1, 0, sequence)
    return NamedAppendRequest(req_id, mark, tuple(write), tuple(read), tuple(appended), 0, b"x", 0)


def refusal_of(appender: Appender, request: NamedAppendRequest) -> tuple[int, Explanation]:
    appender.enqueue(sender(1), [request])
    _, out = launch(appender)
    (refused,) = [verdict for verdict in out if isinstance(verdict, Refused)]
    return refused.mark, refused.why


def with_log(*takings: int, slots: int = 1000, exact: int = 100, mark: int = -1) -> Appender:
    """A log in which transaction `mark` + 1 took the first of the locks, and so on."""
    appender = Appender(
        LockTable(slots, 3, mark),
        mark,
        batch_count_max=10,
        batch_bytes_max=1 << 20,
        flight_bytes_max=1 << 20,
        exact_locks=exact,
    )
    appender.opened(2, [A, B, C])
    for at, lock in enumerate(takings, start=mark + 1):
        appender.enqueue(sender(1), [append(at, mark=at - 1, appended=[lock])])
        launch(appender)
        vote(appender, at, A, B)
    return appender


def test_a_refusal_names_the_lock_with_the_highest_bound_and_who_took_it() -> None:
    appender = with_log(5, 6, 7, 8)
    found = refusal_of(appender, named(9, 0, write=[1, 6], read=[8, 7]))
    assert found == (3, Explanation(LockKind.READ, 0, 8, Conflict.TRUE, 3))


def test_a_lock_taken_in_flight_is_a_true_conflict() -> None:
    appender = with_log(5)
    appender.enqueue(sender(1), [append(8, mark=0, write=[6])])
    launch(appender)
    assert refusal_of(appender, named(9, 0, write=[6])) == (
        1,
        Explanation(LockKind.WRITE, 0, 6, Conflict.TRUE, 1),
    )


def test_a_shared_slot_is_a_false_conflict() -> None:
    appender = with_log(5, 6, 7, slots=1)
    assert refusal_of(appender, named(9, 1, write=[5])) == (
        2,
        Explanation(LockKind.WRITE, 0, 5, Conflict.FALSE, -1),
    )


def test_the_newest_taker_is_blamed_although_the_bound_is_that_of_another_lock() -> None:
    appender = with_log(5, 5, 6, 7, slots=1)
    assert refusal_of(appender, named(9, -1, read=[5])) == (
        3,
        Explanation(LockKind.READ, 0, 5, Conflict.TRUE, 1),
    )


def test_a_true_conflict_is_named_before_a_false_one_with_the_same_bound_or_a_higher_one() -> None:
    appender = with_log(5, 6, slots=1)
    assert refusal_of(appender, named(9, -1, write=[9, 5], read=[6])) == (
        1,
        Explanation(LockKind.WRITE, 1, 5, Conflict.TRUE, 0),
    )
    appender = with_log(5, 6, 7)
    appender._locks.commit([77], [], 2)  # its slots only, as a stranger takes them
    assert refusal_of(appender, named(9, 0, write=[6, 77])) == (
        2,
        Explanation(LockKind.WRITE, 0, 6, Conflict.TRUE, 1),
    )
    assert refusal_of(appender, named(9, 1, write=[6, 77])) == (
        2,
        Explanation(LockKind.WRITE, 1, 77, Conflict.FALSE, -1),
    )


def test_only_appends_with_a_lock_that_can_refuse_them_have_a_lock_that_is_named() -> None:
    assert refusal_of(with_log(5), named(9, -5, appended=[5])) == (-1, UNEXPLAINED)


def test_a_step_refuses_so_much_and_the_next_one_goes_on() -> None:
    """Ten thousand refusals stood in one step, in which no other partition did anything."""
    appender = with_log(5)
    requests = [named(each, -1, write=[5]) for each in range(1_000)]
    appender.enqueue(sender(1), [*requests, append(9, mark=0, write=[5])])
    refused, steps, batch = 0, 0, None
    while batch is None:
        appender.begin(steps)
        assert appender.unfinished is False
        batch, out = launch(appender)
        assert len(out) <= 334
        refused, steps = refused + len(out), steps + 1
        assert appender.unfinished is (batch is None)
    assert (refused, steps, batch.count) == (1_000, 3, 1)


def test_locks_are_a_part_of_what_refusals_cost_and_so_is_what_has_no_locks() -> None:
    appender = with_log(5)
    locks = [5, *range(100, 600)]
    cases: list[tuple[list[Append], int]] = [
        ([named(each, -1, write=locks) for each in range(100)], 4),
        ([append(each, mark=9) for each in range(500)], 400),
        ([append(each, mark=-2) for each in range(500)], 400),
    ]
    for requests, most in cases:
        appender.begin(0)
        appender.enqueue(sender(1), requests)
        assert len(launch(appender)[1]) == most
        while appender.queue:
            appender.begin(0)
            launch(appender)


def test_what_would_take_too_long_to_explain_is_refused_as_unknown() -> None:
    appender = with_log(5, slots=1, exact=1_000_000)
    for _ in range(100):
        appender._exact.took(range(1, 8_193, 2), [0] * 4_096)
    request = named(9, -1, write=[8])
    told = [refusal_of(appender, request)[1].conflict for _ in range(100)]
    known = told.count(Conflict.FALSE)
    assert told == [Conflict.FALSE] * known + [Conflict.UNKNOWN] * (100 - known)
    assert 0 < known < 100
    appender.begin(1_000)
    assert refusal_of(appender, request)[1] == Explanation(LockKind.WRITE, 0, 8, Conflict.FALSE, -1)


def test_before_its_memory_nobody_knows_whether_a_conflict_was_true() -> None:
    moved = with_log(5, mark=99)
    assert refusal_of(moved, named(9, 98, write=[6])) == (
        99,
        Explanation(LockKind.WRITE, 0, 6, Conflict.UNKNOWN, -1),
    )
    assert refusal_of(moved, named(9, 98, write=[5])) == (
        100,
        Explanation(LockKind.WRITE, 0, 5, Conflict.TRUE, 100),
    )
