"""The bugs: one line each, of the kinds that lose, double, reorder or change transactions, or stall a partition."""

# ruff: noqa: E501  # lines of the code as they stand there

from __future__ import annotations

from tests.mutants.planted import Mutant

CORPUS: tuple[Mutant, ...] = (
    # ---- locks and the order of appends ------------------------------------------------------------------------
    Mutant(
        "lock compare off by one",
        "server.appender",
        "                if mark > request.client_mark:\n                    out.append(Refused",
        "                if mark > request.client_mark + 1:\n                    out.append(Refused",
    ),
    Mutant(
        "read locks not compared",
        "locks",
        "        for lock_hash in (*write, *read) if read else write:\n            # `slots`",
        "        for lock_hash in write:\n            # `slots`",
    ),
    Mutant(
        "append locks not recorded",
        "locks",
        "        for lock_hash in (*write, *append) if append else write:",
        "        for lock_hash in write:",
    ),
    Mutant(
        "lock committed one too low",
        "server.appender",
        "locks.commit(write, append, at)",
        "locks.commit(write, append, at - 1)",
    ),
    Mutant(
        "wrong slot on commit",
        "locks",
        "            marks[value % size] = transaction_id\n            value = (value * _MULTIPLIER + _INCREMENT) & _SLOT_MASK\n"
        "            marks[value % size] = transaction_id\n            value",
        "            marks[value % size] = transaction_id\n            value = (value * _MULTIPLIER + _INCREMENT) & _SLOT_MASK\n"
        "            value",
    ),
    Mutant("conflict in flight overlooked", "server.appender", "if holder > mark:", "if -1 < holder < mark:"),
    Mutant(
        "lock in flight never let go",
        "server.appender",
        "if taken.get(lock_hash) == at:",
        "if taken.get(lock_hash) == at + 1:",
    ),
    Mutant(
        "lock table not reset after a gap",
        "server.appender",
        "        self._locks.reset(mark)\n        self.commit_mark = mark",
        "        self.commit_mark = mark",
    ),
    Mutant(
        "left-overs of a gap believed",
        "server.partition",
        "self._foreign = stored != self._announced and stored not in self._attempts",
        "self._foreign = False",
    ),
    Mutant(
        "retry behind what came later",
        "server.appender",
        "self._requeue([*returned, *self._queue])",
        "self._requeue([*self._queue, *returned])",
    ),
    Mutant("append lost on retry", "server.appender", "last.appends.append(request)", "last.appends[-1] = request"),
    Mutant(
        "double apply on retry",
        "server.appender",
        "        self._commit(mark, out)\n        self._return_flights()",
        "        self._commit(max(self.commit_mark, mark - 1), out)\n        self._return_flights()",
    ),
    Mutant(
        "barrier before its appends",
        "server.appender",
        "                if flight.appends:\n                    break\n                queue.popleft()",
        "                queue.popleft()",
    ),
    # ---- commits ------------------------------------------------------------------------------------------------
    Mutant(
        "committed when sent",
        "server.appender",
        "mark = marks[self._quorum - 1]",
        "mark = self.next_id - 1",
    ),
    Mutant(
        "one vote too few",
        "server.appender",
        "mark = marks[self._quorum - 1]",
        "mark = marks[max(self._quorum - 2, 0)]",
    ),
    Mutant("wrong quorum", "store.quorum", "return n // 2 + 1", "return max(1, n // 2)"),
    Mutant(
        "own send counts as a vote",
        "server.partition",
        "            session.replicate(batch)\n",
        "            session.replicate(batch)\n            self._appender.voted(min(self._appender._acked), batch.last)\n",
    ),
    Mutant(
        "flush answered with the uncommitted",
        "server.partition",
        "        barrier = self._barriers.pop(token)\n        mark = self._appender.commit_mark",
        "        barrier = self._barriers.pop(token)\n        mark = self._appender.next_id - 1",
    ),
    Mutant(
        "stale generation accepted",
        "server.partition",
        "if request.req_id[4:8] == expected",
        "if request.req_id[4:8] <= expected",
    ),
    # ---- sessions and recovery ------------------------------------------------------------------------------------
    Mutant(
        "session id not bumped",
        "server.partition",
        "session_id = metadata.session_id + 1",
        "session_id = max(metadata.session_id, 0)",
    ),
    Mutant(
        "newer generation overlooked",
        "server.partition",
        "if metadata.generation > self.generation:",
        "if metadata.generation > self.generation + 1:",
    ),
    Mutant(
        "vote of a new replica",
        "store.recovery",
        "            member.counted = False\n            member.vouched = not rules.kept_records_compared",
        "            member.may_vote = True\n            member.vouched = not rules.kept_records_compared",
    ),
    Mutant(
        "new replica keeps what it has",
        "store.recovery",
        "            member.counted = False\n            member.vouched = not rules.kept_records_compared",
        "            member.counted = False\n            member.vouched = True",
    ),
    Mutant(
        "replica that was set back counts",
        "store.recovery",
        "member.counted = settled or not rules.rolled_back_is_absent",
        "member.counted = True",
    ),
    Mutant(
        "replica that lost its end counts",
        "store.recovery",
        "if member.may_vote and self._rules.rolled_back_is_absent and mark < member.info.local_low_water_mark:",
        "if member.may_vote and self._rules.rolled_back_is_absent and mark < member.info.local_low_water_mark - 9:",
    ),
    Mutant(
        "tail of an unnamed session kept",
        "store.recovery",
        "if rules.later_session_arrival and info.session_id > state.session_id:",
        "if rules.later_session_arrival and info.session_id > state.session_id + 1:",
    ),
    Mutant(
        "absent replicas forgotten",
        "store.quorum",
        "if support + absent >= quorum and blocked is None:",
        "if support + absent > quorum and blocked is None:",
    ),
    Mutant(
        "truncated one too far",
        "store.recovery",
        "out.append(Truncate(member.replica, resolved))",
        "out.append(Truncate(member.replica, resolved - 1))",
    ),
    Mutant(
        "tail not cut before the mark",
        "store.recovery",
        "            if member.mark > resolved:\n",
        "            if member.mark > resolved + 1:\n",
    ),
    Mutant(
        "open before the states are written",
        "store.recovery",
        "            self._hand_over(named, out)\n",
        "            self._hand_over(level, out)\n",
    ),
    Mutant(
        "copy counted before it is written",
        "store.recovery",
        "                    member.mark += member.writing\n",
        "                    member.mark += member.writing + 1\n",
    ),
    Mutant(
        "catch-up begins one too late",
        "store.session",
        "first, count = link.next, min(_COPY_COUNT, self._commit_mark - link.next + 1)",
        "first, count = link.next + 1, min(_COPY_COUNT, self._commit_mark - link.next)",
    ),
    Mutant(
        "vote of what was sent, not of what was answered",
        "store.session",
        "self._notes.append(Voted(link.replica, link.acked))",
        "self._notes.append(Voted(link.replica, link.next - 1))",
    ),
    Mutant(
        "metadata set back is believed",
        "store.recovery",
        "if self._rules.rewound_metadata_stops and fence > self._session_id:",
        "if self._rules.rewound_metadata_stops and fence > self._session_id + 100:",
    ),
    Mutant(
        "generation not raised on a move",
        "cluster.assignment",
        "return (generation + 1 + 2**31)",
        "return (generation + 2**31)",
    ),
    # ---- feed and client -----------------------------------------------------------------------------------------
    Mutant(
        "feed skips one",
        "server.feed",
        "        first = subscription.position + 1\n",
        "        first = subscription.position + 2\n",
    ),
    Mutant(
        "feed from before the restart",
        "server.feed",
        "        self._lagging.extend(self._live)\n        for subscription in self._live:\n            subscription.state = _State.LAGGING\n        self._live.clear()",
        "        pass",
    ),
    Mutant(
        "delivered twice after a reconnect",
        "client.partition",
        "            run = _following(run, self._delivered)\n",
        "            run = list(run)\n",
    ),
    Mutant(
        "request id used twice",
        "client.partition",
        "        self._sequence = sequence = _wrap(self._sequence + 1)\n        req_id = _REQ_ID(",
        "        sequence = _wrap(self._sequence + 1)\n        req_id = _REQ_ID(",
    ),
    Mutant(
        "client mark ahead of the application",
        "client.partition",
        "            self._seen if mark is None else mark,\n",
        "            self._seen if mark is None else mark + 1,\n",
    ),
    Mutant(
        "flush believed before the feed got there",
        "client.monitor",
        "            held.append((mark, ordinal))\n",
        "            held.append((seen, ordinal))\n",
    ),
    Mutant(
        "overtaken one too many",
        "client.monitor",
        "while order and order[0][0] <= ordinal:",
        "while order and order[0][0] <= ordinal + 1:",
    ),
    Mutant(
        "payload of another transaction",
        "server.fetches",
        "TransactionDataResponse(req_id, item.transaction_id, True, item.data, item.checksum)",
        "TransactionDataResponse(req_id, item.transaction_id, True, note.records[0].data, note.records[0].checksum)",
    ),
    # ---- storage ---------------------------------------------------------------------------------------------------
    Mutant(
        "answer before sync",
        "storage.log_files",
        "    plan.operations.append(SyncFile(segment.data_path))\n    return plan",
        "    return plan",
    ),
    Mutant(
        "directory not synced",
        "storage.log_files",
        "        SyncFile(segment.data_path),\n        SyncDirectory(ground.directory),\n",
        "        SyncFile(segment.data_path),\n",
    ),
    Mutant(
        "old segment not synced at a roll",
        "storage.log_files",
        "            plan.operations += (SyncFile(segment.data_path), SyncFile(segment.index_path))\n",
        "",
    ),
    Mutant(
        "failed write taken for done",
        "storage.log_files",
        "            Cut(segment.data_path, end),\n            SyncFile(segment.data_path),\n            Cut(segment.index_path",
        "            SyncFile(segment.data_path),\n            Cut(segment.index_path",
    ),
    Mutant(
        "fence not persisted",
        "storage.custody",
        "            *self._sides.fence_operations(session_id, self.entry.current, self._belongs()),\n",
        "",
    ),
    Mutant(
        "fence off by one",
        "storage.replica",
        "        if message.session_id < self.fence:\n            return fenced",
        "        if message.session_id < self.fence - 1:\n            return fenced",
    ),
    Mutant(
        "append out of order accepted",
        "storage.replica",
        "if run is None or (run.parts and run.first != next_id):",
        "if run is None or (run.parts and run.first > next_id):",
    ),
    Mutant(
        "truncation below the mark",
        "storage.replica",
        "        if last_kept < floor:\n",
        "        if last_kept < floor - 3:\n",
    ),
    Mutant(
        "durable mark ahead of the log",
        "storage.replica",
        "*self._sides.create_missing(), *self._sides.mark_operations(self.max_id, self._belongs())\n",
        "*self._sides.create_missing(), *self._sides.mark_operations(self.max_id + 1, self._belongs())\n",
    ),
    Mutant(
        "mark not lowered before a truncation",
        "storage.replica",
        "yield from self._write(*self._sides.create_missing(), *self._sides.mark_operations(last_kept, lowered))",
        "yield from self._write(*self._sides.create_missing())",
    ),
    Mutant(
        "low-water mark not written",
        "storage.replica",
        "yield from self._update_control(message.session_id, mark, highest, current.flags)",
        "yield from self._update_control(message.session_id, current.low_water_mark, highest, current.flags)",
    ),
    Mutant(
        "checksum not verified",
        "storage.record_codec",
        "        if crc32(buffer[at:end]) != _CHECKSUM.unpack_from(buffer, end)[0]:\n            break",
        "        if crc32(buffer[at:end]) < 0:\n            break",
    ),
    Mutant(
        "checksum of a tail not verified",
        "storage.record_codec",
        "    if crc32(buffer[at:end]) != _CHECKSUM.unpack_from(buffer, end)[0]:\n        return -1",
        "    if crc32(buffer[at:end]) < 0:\n        return -1",
    ),
)
"""A survivor names a missing scenario."""

QUICK = ("committed when sent", "lock compare off by one", "one vote too few")
"""Found within seconds: they run with the tests."""
