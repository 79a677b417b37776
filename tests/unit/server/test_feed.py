"""Live, lagging and paused subscriptions; the caches behind them."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from waltz_core.base.ids import make_req_id
from waltz_core.base.log import Record, RecordHeader
from waltz_core.server.data_cache import DataCache
from waltz_core.server.feed import Feed, FeedEffect, ReadHeaders, SendFrames, SendReply
from waltz_core.server.feed_cache import FRAME_SIZE, FeedCache, encode_frames, with_version
from waltz_core.server.members import Members
from waltz_core.server.peer import Peer
from waltz_core.wire.client_messages import FeedSuspended, MountResponse, PartitionState
from waltz_core.wire.connection import CLIENT_PROTOCOL, Connection

REQ = make_req_id(1, 1, 0, 1)
END = FeedSuspended(REQ)


def frames(first: int, count: int) -> bytes:
    return encode_frames(first, (RecordHeader(first + n, REQ, 0) for n in range(count)))


def sent(out: list[FeedEffect], conn: int) -> int:
    return sum(len(e.frames) for e in out if isinstance(e, SendFrames) and e.conn == conn) // FRAME_SIZE


@pytest.mark.parametrize("version", [0, 3])
def test_frames_are_what_the_codec_writes(version: int) -> None:
    codecs = {version}
    connection: Connection[object] = Connection(CLIENT_PROTOCOL, "", codecs)  # type: ignore[arg-type]  # any message
    connection.receive(Connection(CLIENT_PROTOCOL, "", codecs).hello(), [])
    expected = bytearray()
    from waltz_core.wire.client_messages import FeedData

    connection.encode(FeedData(REQ, 5, -2), expected)
    assert with_version(encode_frames(5, [RecordHeader(5, REQ, -2)]), version) == bytes(expected)
    assert with_version(b"", 4) == b""


def test_live_subscriptions_get_the_same_bytes() -> None:
    feed = Feed(FeedCache(1 << 20))
    feed.subscribe(1, REQ, -1, 10, END)
    feed.subscribe(2, REQ, -1, 10, END)
    out: list[FeedEffect] = []
    run = frames(0, 3)
    feed.committed(0, run, out)
    assert out == [SendFrames(1, run), SendFrames(2, run)]
    assert feed.lag() == (2, 0)


def test_a_budget_ends_with_its_closing_message() -> None:
    feed = Feed(FeedCache(1 << 20))
    feed.subscribe(1, REQ, -1, 2, END)
    out: list[FeedEffect] = []
    feed.committed(0, frames(0, 3), out)
    assert out == [SendFrames(1, frames(0, 2)), SendReply(1, END)]
    assert feed.lag() == (0, 0)


def test_a_feed_that_begins_where_the_log_does_is_not_below_it() -> None:
    feed = Feed(FeedCache(1 << 20))
    feed.subscribe(1, REQ, -1, 10, END)
    feed.subscribe(2, REQ, -1, 10, END)
    feed.writable(2, False)
    feed.committed(0, frames(0, 3), [])
    assert (feed.below(0), feed.below(3), feed.below(4)) == (set(), {2}, {1, 2})


def test_a_feed_that_is_replaced_ends_with_its_closing_message_and_a_mount_goes_on() -> None:
    feed = Feed(FeedCache(1 << 20))
    mount = MountResponse(REQ, PartitionState.READY)
    feed.subscribe(1, REQ, -1, 2, mount)
    feed.subscribe(1, REQ, -1, 10, END)
    feed.subscribe(2, REQ, -1, 10, END)
    out: list[FeedEffect] = []
    feed.replace(1)
    feed.serve(0, out)
    run = frames(0, 2)
    feed.committed(0, run, out)
    assert out == [SendReply(1, END), SendFrames(1, run), SendReply(1, mount), SendFrames(2, run)]


def test_the_oldest_feed_of_a_connection_makes_room_with_its_closing_message_and_a_mount_stays() -> None:
    """A client that counts its windows would wait for ever for one that ended without a word."""
    feed = Feed(FeedCache(1 << 20))
    mount = MountResponse(REQ, PartitionState.READY)
    ends = [FeedSuspended(make_req_id(1, 1, 0, number)) for number in range(2, 7)]
    feed.subscribe(1, REQ, -1, 2, mount)
    for end in ends[:4]:
        feed.subscribe(1, end.req_id, -1, 10, end)
    out: list[FeedEffect] = []
    feed.serve(0, out)
    assert out == [SendReply(1, ends[0])]
    feed.subscribe(1, ends[4].req_id, -1, 10, ends[4])
    out.clear()
    feed.serve(0, out)
    assert out == [SendReply(1, ends[1])]


@pytest.mark.parametrize(
    ("first", "count"), [(0, 1024), (1, 1023), (512, 512), (513, 1535), (1023, 1025), (1024, 1024)]
)
def test_what_the_cache_lost_is_read_to_the_end_of_a_block(first: int, count: int) -> None:
    """Or of the next one, if that is near; the smallest cache keeps it until it is sent."""
    feed = Feed(FeedCache(0))
    feed.restart(5000)
    feed.subscribe(1, REQ, first - 1, count, END)
    out: list[FeedEffect] = []
    feed.serve(0, out)
    assert out == [ReadHeaders(first, count)]
    feed.headers(first, frames(first, count))
    for _ in range(2):
        feed.serve(0, out)
    assert sent(out, 1) == count


def test_a_lagging_subscription_reads_what_the_cache_lost_once_for_all() -> None:
    feed = Feed(FeedCache(1 << 20))
    feed.restart(5000)
    feed.subscribe(1, REQ, 10, 100, END)
    feed.subscribe(2, REQ, 10, 100, END)
    out: list[FeedEffect] = []
    feed.serve(0, out)
    assert out == [ReadHeaders(11, 1013)]
    assert feed.deadline(0) is None

    feed.headers(11, frames(11, 1013))
    assert feed.deadline(7) == 7
    out.clear()
    feed.serve(0, out)
    assert sent(out, 1) == sent(out, 2) == 100
    assert out.count(SendReply(1, END)) == 1


def read_firsts(out: list[FeedEffect]) -> list[int]:
    return [effect.first for effect in out if isinstance(effect, ReadHeaders)]


def test_so_many_reads_are_under_way_and_whoever_needs_another_one_waits_his_turn() -> None:
    feed = Feed(FeedCache(1 << 20))
    feed.restart(100_000)
    for conn in range(20):
        feed.subscribe(conn, REQ, 2_000 * conn, 100, END, "many" if conn < 15 else "few")
    out: list[FeedEffect] = []
    for now in (0, 1, 2):
        feed.serve(now, out)
        assert len(read_firsts(out)) == 8
    assert feed.deadline(2) is None, "nobody can go on"
    began = read_firsts(out)
    assert sum(first > 30_000 for first in began) >= 4, "owners take turns"
    for answered in range(12):
        feed.headers(began[answered], frames(began[answered], 100))
        assert feed.deadline(3) == 3
        out.clear()
        feed.serve(3, out)
        (another,) = read_firsts(out)
        began.append(another)
    assert sorted(began) == [2_000 * conn + 1 for conn in range(20)]


def test_whoever_has_what_he_needs_in_the_cache_does_not_wait_for_reads() -> None:
    feed = Feed(FeedCache(1 << 20))
    feed.restart(100_000)
    feed.committed(100_001, frames(100_001, 5), [])
    for conn in range(9):
        feed.subscribe(conn, REQ, 2_000 * conn, 100, END)
    feed.serve(0, [])
    feed.subscribe(9, REQ, 100_000, 5, END)
    out: list[FeedEffect] = []
    feed.serve(1, out)
    assert sent(out, 9) == 5


def test_a_connection_that_takes_no_more_begins_no_read_that_it_waited_for() -> None:
    feed = Feed(FeedCache(1 << 20))
    feed.restart(100_000)
    for conn in range(9):
        feed.subscribe(conn, REQ, 2_000 * conn, 100, END)
    feed.serve(0, [])
    feed.writable(8, False)
    feed.headers(1, frames(1, 100))
    out: list[FeedEffect] = []
    feed.serve(1, out)
    assert read_firsts(out) == []
    feed.writable(8, True)
    feed.serve(2, out)
    assert read_firsts(out) == [16_001]


def test_a_feed_that_ends_waits_for_nothing_and_leaves_its_read_to_be_called_off() -> None:
    feed = Feed(FeedCache(1 << 20))
    feed.restart(100_000)
    feed.subscribe(10, REQ, 0, 100, END)
    for conn in range(10):
        feed.subscribe(conn, REQ, 2_000 * conn, 100, END)
    feed.serve(0, [])
    for conn in (0, 8, 1):
        feed.gone(conn)
    assert feed.needless() == [2_001], "the first one is waited for by another connection"
    assert feed.needless() == []
    assert feed.deadline(1) is None
    feed.called_off(2_001)
    assert feed.deadline(1) == 1
    out: list[FeedEffect] = []
    feed.serve(1, out)
    assert read_firsts(out) == [18_001]
    feed.gone(10)
    feed.subscribe(11, REQ, 0, 100, END)
    feed.serve(2, out)
    assert feed.needless() == [], "it is waited for again"
    feed.gone(11)
    assert feed.needless() == [1]
    feed.read_failed(3, 1)
    feed.subscribe(12, REQ, 0, 100, END)
    assert feed.deadline(3) == 3, "what failed was of no use to anybody"


def test_a_failed_read_is_tried_again_after_a_pause() -> None:
    feed = Feed(FeedCache(1 << 20))
    feed.restart(20)
    feed.subscribe(1, REQ, 10, 100, END)
    out: list[FeedEffect] = []
    feed.serve(0, out)
    feed.read_failed(0, 11)
    out.clear()
    feed.serve(1, out)
    assert out == []
    due = feed.deadline(1)
    assert due is not None
    assert due > 1
    feed.serve(due, out)
    assert out == [ReadHeaders(11, 10)]


def test_a_connection_that_takes_no_more_is_paused_and_resumed_without_a_gap() -> None:
    feed = Feed(FeedCache(1 << 20))
    feed.subscribe(1, REQ, -1, 100, END)
    feed.writable(1, False)
    out: list[FeedEffect] = []
    feed.committed(0, frames(0, 3), out)
    feed.subscribe(1, REQ, 2, 100, END)
    feed.restart(2)
    assert out == []
    feed.writable(1, True)
    feed.serve(0, out)
    assert sent(out, 1) == 3
    feed.committed(3, frames(3, 1), out)
    assert sent(out, 1) == 5


def test_a_blocked_lagging_subscription_waits() -> None:
    feed = Feed(FeedCache(1 << 20))
    feed.restart(10)
    feed.subscribe(1, REQ, -1, 100, END)
    feed.writable(1, False)
    out: list[FeedEffect] = []
    feed.serve(0, out)
    assert out == []
    assert feed.lag() == (0, 1)


def test_a_lost_connection_takes_all_its_subscriptions() -> None:
    feed = Feed(FeedCache(1 << 20))
    feed.subscribe(1, REQ, -1, 100, END)
    feed.restart(10)
    feed.subscribe(1, REQ, 10, 100, END)
    feed.subscribe(1, REQ, 3, 100, END)
    feed.serve(0, [])
    feed.gone(1)
    assert feed.lag() == (0, 0)


def test_a_restart_behind_the_mark_serves_what_was_missed() -> None:
    feed = Feed(FeedCache(1 << 20))
    feed.subscribe(1, REQ, -1, 100, END)
    feed.restart(4)
    out: list[FeedEffect] = []
    feed.serve(0, out)
    assert out == [ReadHeaders(0, 5)]


def test_what_came_and_what_is_there_is_counted() -> None:
    feed = Feed(FeedCache(1 << 20))
    feed.restart(4)
    feed.subscribe(1, REQ, 4, 100, END)
    feed.subscribe(2, REQ, 1, 100, END)
    feed.writable(3, False)
    feed.subscribe(3, REQ, 4, 100, END)
    assert (feed.live_added, feed.lagging_added, feed.lag()) == (1, 2, (1, 2))
    feed.writable(1, False)
    feed.committed(5, frames(5, 1), [])
    assert (feed.live_added, feed.lagging_added, feed.lag()) == (1, 3, (0, 3))
    feed.writable(1, True)
    feed.serve(0, [])
    assert (feed.live_added, feed.lagging_added, feed.lag()) == (2, 3, (1, 2))
    feed.restart(9)
    assert (feed.live_added, feed.lagging_added, feed.lag()) == (2, 4, (0, 3))


@given(st.lists(st.tuples(st.integers(0, 4000), st.integers(1, 1500)), max_size=12), st.integers(0, 5500))
def test_the_cache_never_answers_wrong_frames(runs: list[tuple[int, int]], wanted: int) -> None:
    cache = FeedCache(2 * 1024 * FRAME_SIZE)
    for first, count in runs:
        cache.add(first, frames(first, count))
    found = cache.get(wanted, 100)
    count = len(found) // FRAME_SIZE
    assert found == frames(wanted, count)
    held = {n for first, size in runs for n in range(first, first + size)}
    assert not count or wanted + count - 1 in held
    cache.clear()
    assert cache.get(wanted, 1) == b""


def test_a_smaller_share_evicts() -> None:
    cache = FeedCache(10 * 1024 * FRAME_SIZE)
    cache.add(0, frames(0, 5000))
    cache.limit(0)
    assert cache.get(0, 1) == b""
    assert cache.get(4999, 1) == frames(4999, 1)


def test_the_data_cache_forgets_the_oldest_and_never_keeps_giants() -> None:
    cache = DataCache(4000)
    records = [Record(n, REQ, 0, bytes(100), n) for n in range(30)]
    cache.add(3, 0, records)
    cache.add(3, 99, [Record(99, REQ, 0, bytes(2000), 0)])
    assert cache.get(3, 29) == (bytes(100), 29)
    assert cache.get(3, 0) is None
    assert cache.get(3, 99) is None
    assert cache.misses == 2
    cache.add(3, 29, records[-1:])
    cache.forget(3)
    assert cache.get(3, 29) is None


def test_only_the_newest_mount_speaks_for_a_client() -> None:
    members = Members()

    def speaks(client_id: int | None, net_sequence: int | None) -> bool:
        peer = Peer(1)
        peer.client_id, peer.net_sequence = client_id, net_sequence
        return members.speaks(peer)

    assert not speaks(7, 0)
    assert members.mount(7, 1, 1, 0)
    assert members.mount(7, 2, 1, 1)
    assert not members.mount(7, 1, 1, 0)
    assert members.mount(7, 3, 1, 1)  # equal sequence numbers are both valid
    assert speaks(7, 1)
    assert not speaks(7, None)
    assert not speaks(None, 1)
    members.gone(7, 1)
    assert speaks(7, 1)
    members.gone(7, 2)
    assert not speaks(7, 1)
    assert members.mount(7, 4, 0, 0)
