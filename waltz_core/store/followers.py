"""Replicas that follow the log of an open session: what each is sent, what it voted for, who still owns the log.

Each batch is encoded once and kept in the `Tail`; every replica reads it from there at its own pace, limited by
the bytes it has not answered. One that falls behind the tail is caught up: committed records are read from another
replica and appended to it, until it meets the tail again. A source that cannot give out a record is put aside until
the record comes from another replica; if no source is left, all are asked again after a while.

Answers come in the order of the appends, so an answer always is a vote for the oldest append in flight. A vote also
confirms that the session is still the newest one (`Confirmations`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from waltz_core.base.alarms import SetsAlarms
from waltz_core.base.log import Record
from waltz_core.base.outbox import Emits
from waltz_core.base.record import record
from waltz_core.store.confirmations import Confirmations
from waltz_core.store.replica_link import Batch, LinkState, ReplicaLink, Tail
from waltz_core.store.requests import CatchUpRead, Replication, Requests
from waltz_core.store.routes import ReadRoutes
from waltz_core.store.session_notes import ReplicaLags, Voted
from waltz_core.wire.records import RecordRun

_ASK_AGAIN_MS = 10_000  # after so long a source that could not give out a record is asked for it again
_RECORD_OVERHEAD = 40  # bytes around the payload of a record


@record
class SessionConfig:
    """Limits of a store session."""

    link_flight_bytes_max: int = 8 << 20  # appends sent to one replica and not answered
    tail_bytes_max: int = 16 << 20  # batches kept for replicas that are slower than the quorum
    copy_count_max: int = 1000  # records per step of a catch-up


@record
class AskSourcesAgain:
    """No source could give out what a replica needs next: all of them are asked again."""

    replica: str


class Followers:
    """Sends the log to every replica that is level, from the moment the session is open at `mark`."""

    __slots__ = (
        "_alarms",
        "_all",
        "_asking_again",
        "_commit_mark",
        "_config",
        "_confirmations",
        "_links",
        "_notes",
        "_quorum",
        "_replications",
        "_requests",
        "_routes",
        "_tail",
    )

    def __init__(
        self,
        mark: int,
        quorum: int,
        links: Mapping[str, ReplicaLink],
        routes: ReadRoutes,
        requests: Requests,
        notes: Emits[Voted | ReplicaLags],
        alarms: SetsAlarms[AskSourcesAgain],
        config: SessionConfig,
    ) -> None:
        self._commit_mark = mark
        self._tail = Tail(mark + 1, config.tail_bytes_max)
        self._quorum = quorum
        self._confirmations = Confirmations(quorum)
        self._links = links
        self._all = tuple(links.values())
        self._routes = routes
        self._requests = requests
        self._notes = notes
        self._alarms = alarms
        self._config = config
        self._replications = {replica: Replication(replica) for replica in links}
        self._asking_again: set[str] = set()  # replicas whose sources will be asked again

    def replicate(self, batch: Batch) -> None:
        """A batch for every replica that follows the log."""
        self._tail.add(batch, self._commit_mark)

    def committed(self, mark: int) -> None:
        """The quorum holds everything up to `mark`."""
        self._commit_mark = mark

    def confirm(self) -> int:
        """Begin a round: it is confirmed once a quorum has answered what is sent from now on."""
        return self._confirmations.want()

    @property
    def confirmed(self) -> int:
        """The newest round that is."""
        return self._confirmations.confirmed

    def feed(self, now: int) -> None:
        """Once per step: send each replica what it lacks, and ask those that the wanted round needs."""
        end, confirmations = self._tail.end, self._confirmations
        asks = confirmations.wanted != confirmations.confirmed
        following = LinkState.FOLLOWING
        for link in self._all:
            if link.state is following:
                if link.next < end:
                    self._follow(now, link)
                if asks and confirmations.must_ask(link.replica, link.last_round):
                    confirmations.ask(link.replica)
                    self._requests.check_fence(link.replica)
        kept = self._tail.kept
        if kept and kept[0].last <= self._commit_mark:
            self._release()

    def voted(self, link: ReplicaLink) -> bool:
        """The oldest append in flight is durable there; returns whether anything follows from that in this step.

        Of three votes on an append the second one commits it. Nothing follows yet from the first, whose note waits for
        that, nor any more from the third, unless a mark waits to be confirmed or the replica lags.
        """
        if link.state is not LinkState.FOLLOWING:
            return True
        confirmations = self._confirmations
        asked = confirmations.wanted != confirmations.confirmed
        round_number = link.answered()
        if round_number:  # before the first round nothing can be confirmed
            confirmations.heard(link.replica, round_number)
        counts = link.acked > self._commit_mark
        decides = counts and self._holders() >= self._quorum
        follows = decides or asked or link.next < self._tail.end
        if follows or counts:
            self._notes.put(Voted(link.replica, link.acked))
        return follows

    def _holders(self) -> int:
        """How many replicas hold something that is not committed yet."""
        count, mark = 0, self._commit_mark
        for link in self._all:
            if link.acked > mark:
                count += 1
        return count

    def checked(self, replica: str) -> None:
        """A replica answered that no later session has been there."""
        self._confirmations.answered(replica)

    def copied(self, read: CatchUpRead, records: Sequence[Record]) -> None:
        """Records came that a replica lacks."""
        link = self._links[read.target]
        link.copying = False
        if records and link.state is LinkState.FOLLOWING and link.next == read.first:
            link.denied.clear()  # they may well have the next one
            self._requests.append_records(self._replications[link.replica], link.replica, records)
            size = (
                records.size(_RECORD_OVERHEAD)
                if isinstance(records, RecordRun)
                else sum(len(item.data) + _RECORD_OVERHEAD for item in records)
            )
            link.sent(records[-1].transaction_id, size, self._confirmations.wanted)

    def denied(self, read: CatchUpRead) -> None:
        """A source could not give out what a replica needs next."""
        link = self._links[read.target]
        link.copying = False
        link.denied.add(read.source)

    def ask_sources_again(self, replica: str) -> None:
        """It is time to."""
        self._asking_again.discard(replica)
        self._links[replica].denied.clear()

    def _follow(self, now: int, link: ReplicaLink) -> None:
        """Send a replica what it lacks: from the tail, or copied from another replica."""
        tail = self._tail
        while link.next < tail.end and link.flight_bytes < self._config.link_flight_bytes_max:
            batch = tail.at(link.next)
            if batch is None:
                if not link.copying and link.next <= self._commit_mark:
                    self._catch_up(now, link)
                return
            self._requests.replicate(self._replications[link.replica], batch)
            link.sent(batch.last, len(batch.encoded), self._confirmations.wanted)

    def _catch_up(self, now: int, link: ReplicaLink) -> None:
        """Copy committed records that the tail does not hold any more from another replica."""
        first, count = link.next, min(self._config.copy_count_max, self._commit_mark - link.next + 1)
        source = self._routes.choose(
            lambda name: (
                name not in (link.replica, *link.denied) and self._links[name].start <= first <= self._links[name].acked
            )
        )
        if source is None:
            self._report_lag(now, link, first)
            return
        link.copying = True
        self._requests.read_records(source, CatchUpRead(source, link.replica, first), first, count)

    def _report_lag(self, now: int, link: ReplicaLink, transaction_id: int) -> None:
        if not link.denied or link.replica in self._asking_again:
            return
        self._asking_again.add(link.replica)
        self._alarms.set(AskSourcesAgain(link.replica), now + _ASK_AGAIN_MS)
        reason = f"transaction {transaction_id} cannot be read from {', '.join(sorted(link.denied))}"
        if reason != link.blocked:
            link.blocked = reason
            self._notes.put(ReplicaLags(link.replica, reason))

    def _release(self) -> None:
        """Batches that every following replica was sent need not be kept."""
        below = self._commit_mark + 1  # which is not behind the end of the tail
        for link in self._all:
            if link.next < below and link.state is LinkState.FOLLOWING:
                below = link.next
        self._tail.release(below)
