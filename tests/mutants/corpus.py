"""The bugs: one line each, of the kinds that lose, double, reorder or change transactions, or stall a partition."""

# ruff: noqa: E501  # lines of the code as they stand there

from __future__ import annotations

from tests.mutants.aimed import AIMED
from tests.mutants.planted import Mutant

CORPUS: tuple[Mutant, ...] = (
    Mutant(
        "answer kept that judges nothing",
        "client.monitor",
        "        if not self._sent:\n            self._order.clear()\n            self._held_failures.clear()\n",
        "        if not self._sent:\n            self._order.clear()\n",
    ),
    # ---- locks and the order of appends ------------------------------------------------------------------------
    Mutant(
        "lock compare off by one",
        "server.appender",
        "                if mark > request.client_mark:\n                    explained",
        "                if mark > request.client_mark + 1:\n                    explained",
    ),
    Mutant(
        "read locks not compared",
        "locks.table",
        "        for lock_hash in (*write, *read) if read else write:\n            # `slots`",
        "        for lock_hash in write:\n            # `slots`",
    ),
    Mutant(
        "append locks not recorded",
        "locks.table",
        "        for lock_hash in (*write, *append) if append else write:",
        "        for lock_hash in write:",
    ),
    Mutant(
        "lock committed one too low",
        "server.appender",
        "                commit(write, append, at)",
        "                commit(write, append, at - 1)",
    ),
    Mutant(
        "wrong slot on commit",
        "locks.table",
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
        "        self._locks.reset(mark)\n        self._exact.reset(mark)\n",
        "        self._exact.reset(mark)\n",
    ),
    Mutant(
        "own past believed under a new generation",
        "server.ownership",
        "again = self._open_generation not in (None, self.generation)",
        "again = False",
    ),
    Mutant(
        "left-overs of a gap believed",
        "server.ownership",
        "self.foreign = again or (stored != self._announced and stored not in self._attempts)",
        "self.foreign = False",
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
        "(behind if flight.appends else self._flying).append(head)",
        "self._flying.append(head)",
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
        "server.commits",
        "                session.replicate(batch)\n",
        "                session.replicate(batch)\n                appender.voted(min(appender._acked), batch.last)\n",
    ),
    Mutant(
        "flush answered with the uncommitted",
        "server.commits",
        "self._feeds.passed(verdict.token, self._appender.commit_mark)",
        "self._feeds.passed(verdict.token, self._appender.next_id - 1)",
    ),
    Mutant(
        "stale generation accepted",
        "server.intake",
        "if request.req_id[begin:8] == expected",
        "if request.req_id[begin:8] <= expected",
    ),
    Mutant(
        "client id of another taken over",
        "server.claims",
        "        if owner != name:\n            return owner\n",
        "",
    ),
    Mutant(
        "refused mount counts",
        "server.requests",
        "                if not self._claim(conn, message):\n                    continue\n",
        "                if not self._claim(conn, message):\n"
        "                    conn.net_sequence = message.seq_num\n"
        "                    continue\n",
    ),
    Mutant(
        "request id of another accepted",
        "server.intake",
        "begin = 4 if peer.carries_others or not self._rules.own_request_ids else 0",
        "begin = 4",
    ),
    # ---- sessions and recovery ------------------------------------------------------------------------------------
    Mutant(
        "session id not bumped",
        "server.ownership",
        "session_id = metadata.session_id + 1",
        "session_id = max(metadata.session_id, 0)",
    ),
    Mutant(
        "newer generation overlooked",
        "server.ownership",
        "if metadata.generation > self.generation:",
        "if metadata.generation > self.generation + 1:",
    ),
    Mutant(
        "vote of a new replica",
        "store.arrivals",
        "    Case.NEW: (Keep.OWN, OUTSIDE),\n",
        "    Case.NEW: (Keep.OWN, Standing(counted=True, vouched=False, may_vote=True)),\n",
    ),
    Mutant(
        "new replica keeps what it has",
        "store.arrivals",
        "    Case.NEW: (Keep.OWN, OUTSIDE),\n",
        "    Case.NEW: (Keep.OWN, _OUTSIDE_AS_IT_IS),\n",
    ),
    Mutant(
        "replica that was set back counts",
        "store.arrivals",
        "    Case.SET_BACK: (Keep.OWN, OUTSIDE),\n",
        "    Case.SET_BACK: (Keep.OWN, UNPROVEN),\n",
    ),
    Mutant(
        "replica that lost its end counts",
        "store.arrivals",
        "rules.rolled_back_is_absent and mark < info.local_low_water_mark\n",
        "rules.rolled_back_is_absent and mark < info.local_low_water_mark - 9\n",
    ),
    Mutant(
        "tail of an unnamed session kept",
        "store.arrivals",
        "return Case.TOOK_PART if info.session_id == entry.session_id else",
        "return Case.TOOK_PART if info.session_id <= entry.session_id + 1 else",
    ),
    Mutant(
        "absent replicas forgotten",
        "store.quorum",
        "if support + absent >= quorum and blocked is None:",
        "if support + absent > quorum and blocked is None:",
    ),
    Mutant(
        "truncated one too far",
        "store.levelling",
        "out.append(Truncate(member.replica, resolved))",
        "out.append(Truncate(member.replica, resolved - 1))",
    ),
    Mutant(
        "tail not cut before the mark",
        "store.levelling",
        "    if member.mark > resolved:\n",
        "    if member.mark > resolved + 1:\n",
    ),
    Mutant(
        "open before the states are written",
        "store.recovery",
        "            self._hand_over(named, out)\n",
        "            self._hand_over(level, out)\n",
    ),
    Mutant(
        "copy counted before it is written",
        "store.levelling",
        "        member.mark += member.writing\n",
        "        member.mark += member.writing + 1\n",
    ),
    Mutant(
        "catch-up begins one too late",
        "store.followers",
        "first, count = link.next, min(self._config.copy_count_max, self._commit_mark - link.next + 1)",
        "first, count = link.next + 1, min(self._config.copy_count_max, self._commit_mark - link.next)",
    ),
    Mutant(
        "vote of what was sent, not of what was answered",
        "store.followers",
        "self._notes.put(Voted(link.replica, link.acked))",
        "self._notes.put(Voted(link.replica, link.next - 1))",
    ),
    Mutant(
        "metadata set back is believed",
        "store.recovery",
        "if self._at.rules.rewound_metadata_stops and fence > self._at.session_id:",
        "if self._at.rules.rewound_metadata_stops and fence > self._at.session_id + 100:",
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
        "        for subscription in self._live:\n            self._lag(subscription)\n        self._live.clear()",
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
        "            mark = self._seen\n        fields = (",
        "            mark = self._seen\n        mark += 1\n        fields = (",
    ),
    Mutant(
        "mark above the log accepted",
        "server.appender",
        "            if request.client_mark > known:\n",
        "            if request.client_mark < known - (1 << 62):\n",
    ),
    Mutant(
        "taker in flight not blamed",
        "server.appender",
        "        blocking_id = taken.get(lock_hash, -1)\n",
        "        blocking_id = -1\n",
    ),
    Mutant(
        "exact takings believed too far back",
        "locks.exact",
        "self.floor = self._blocks.popleft().ids[-1]",
        "self.floor = self._blocks.popleft().ids[0]",
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
        "        SyncFile(segment.data_path),\n        SyncDirectory(where.directory),\n",
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
        "storage.replica_files",
        "            *self.durable.fence_operations(session_id, self.entry.current, self.belongs()),\n",
        "",
    ),
    Mutant(
        "fence off by one",
        "storage.permission",
        "    if message.session_id < fence:\n        return fenced",
        "    if message.session_id < fence - 1:\n        return fenced",
    ),
    Mutant(
        "append out of order accepted",
        "storage.appends",
        "if run is not None and (not run.parts or run.first == next_id):",
        "if run is not None and (not run.parts or run.first <= next_id):",
    ),
    Mutant(
        "truncation below the mark",
        "storage.truncation",
        "    if last_kept < floor:\n",
        "    if last_kept < floor - 3:\n",
    ),
    Mutant(
        "durable mark ahead of the log",
        "storage.replica",
        "yield from files.write_side(*files.mark_operations(files.max_id))\n",
        "yield from files.write_side(*files.mark_operations(files.max_id + 1))\n",
    ),
    Mutant(
        "mark not lowered before a truncation",
        "storage.truncation",
        "yield from files.write(*files.mark_operations(last_kept, last.first_id))",
        "yield from files.write(*files.durable.create_missing())",
    ),
    Mutant(
        "low-water mark not written",
        "storage.truncation",
        "yield from files.update_control(message.session_id, mark, highest, current.flags)",
        "yield from files.update_control(message.session_id, current.low_water_mark, highest, current.flags)",
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
    # ---- a second look, at what is done with answers, names and the past ----------------------------------------------
    Mutant(
        "newest answer taken for the oldest",
        "store.replica_link",
        "last, size, round_number = self.flight.popleft()",
        "last, size, round_number = self.flight.pop()",
    ),
    Mutant(
        "tail dropped before it is committed",
        "store.replica_link",
        "self._batches[0].last <= committed:",
        "self._batches[0].last >= committed:",
    ),
    Mutant(
        "tail let go one too early",
        "store.replica_link",
        "while self._batches and self._batches[0].last < below:",
        "while self._batches and self._batches[0].last <= below:",
    ),
    Mutant(
        "lost replica goes unnoticed",
        "store.session",
        "        if following:\n            self._end(",
        "        if False:\n            self._end(",
    ),
    Mutant(
        "lost replica comes back into its session",
        "store.session",
        "        link.state = LinkState.LOST\n        self._routes",
        "        link.state = LinkState.DIALING\n        self._routes",
    ),
    Mutant(
        "records copied unchecked",
        "store.copies",
        "item.transaction_id != first + at or crc32(item.data) != item.checksum & 0xFFFFFFFF",
        "False",
    ),
    Mutant(
        "states of replicas asked about all the time",
        "server.states_write",
        "min(max(self._min_ms, self._pause_ms * 2), self._max_ms)",
        "self._min_ms",
    ),
    Mutant(
        "damaged source asked again and again",
        "store.levelling",
        "        member.denied.add(source)\n",
        "        member.denied.clear()\n",
    ),
    Mutant(
        "damaged source of a follower asked again and again",
        "store.followers",
        "        link.denied.add(read.source)\n",
        "",
    ),
    Mutant(
        "damaged record costs its replica",
        "store.session",
        "if read.source == read.target or refusal.fence is not None:",
        "if True:",
    ),
    Mutant(
        "closing mark one too high",
        "store.metadata",
        "            state = ReplicaState(replica_id, state.session_id, resolved)",
        "            state = ReplicaState(replica_id, state.session_id, resolved + 1)",
    ),
    Mutant(
        "absent replica named as taking part",
        "store.metadata",
        "            state = ReplicaState(replica_id, state.session_id, resolved)",
        "            state = ReplicaState(replica_id, session_id, UNRESOLVED)",
    ),
    Mutant(
        "lost compare-and-set taken for done",
        "store.recovery",
        "        if isinstance(event, CasDone):\n            self._metadata = self._writing",
        "        if True:\n            self._metadata = self._writing",
    ),
    Mutant(
        "metadata written without its version",
        "server.ownership",
        "self._out.put(ZkSet(ticket, self._path, encode_partition_metadata(self._metadata), version))",
        "self._out.put(ZkSet(ticket, self._path, encode_partition_metadata(self._metadata), -1))",
    ),
    Mutant(
        "named before it is marked", "store.recovery", "if m.alive and m.clean and m.marked}", "if m.alive and m.clean}"
    ),
    Mutant(
        "decision above the voters",
        "store.decision",
        "    lowest = min(voters)\n",
        "    lowest = max(voters)\n",
    ),
    Mutant(
        "replicas that lost commits are believed",
        "server.partition",
        "if ownership.known and mark < commits.mark:",
        "if ownership.known and mark < -1:",
    ),
    Mutant(
        "answer for another request",
        "store.pool",
        "pending = self._pending.pop(answer.seq_num, None)",
        "pending = self._pending.pop(next(iter(self._pending), answer.seq_num), None)",
    ),
    Mutant(
        "silent storage node waited for",
        "store.pool",
        "        if overdue is not None and now >= overdue:",
        "        if overdue is not None and now >= overdue + 10**9:",
    ),
    Mutant(
        "old connection takes the new mount with it",
        "server.members",
        "if known is not None and known[0] == conn:",
        "if known is not None:",
    ),
    Mutant(
        "older mount wins",
        "server.members",
        "(generation, net_sequence) > known[1:]",
        "(generation, net_sequence) < known[1:]",
    ),
    Mutant(
        "payload of another partition",
        "server.data_cache",
        "                key = (partition_id, transaction_id)\n",
        "                key = (0, transaction_id)\n",
    ),
    Mutant(
        "feed continued where the client was ahead",
        "client.partition",
        "return min(self._delivered, self._seen)",
        "return max(self._delivered, self._seen)",
    ),
    Mutant(
        "more delivered than there is room for",
        "client.partition",
        "            run = run[: max(room, 0)]\n",
        "            run = run[: max(room, 0) + 1]\n",
    ),
    Mutant(
        "lock failure believed too early",
        "client.monitor",
        "while failures and failures[0][0] <= seen:",
        "while failures and failures[0][0] <= seen + 2:",
    ),
    Mutant(
        "attempt forgotten by the feed",
        "client.monitor",
        "            committed.append((attempt[2], seen))\n",
        "            committed.append((attempt[2], seen - 1))\n",
    ),
    Mutant(
        "feed id not checked",
        "client.monitor",
        "            if record.transaction_id != seen + 1:\n",
        "            if record.transaction_id < seen:\n",
    ),
    Mutant(
        "control struct written over the one that counts",
        "storage.control",
        "return struct_place(self.partition_id, 1 - self._slot)",
        "return struct_place(self.partition_id, self._slot)",
    ),
    Mutant(
        "older slot of a side file counts",
        "storage.side",
        "return max(slots, key=lambda slot: slot.counter, default=None)",
        "return min(slots, key=lambda slot: slot.counter, default=None)",
    ),
    Mutant(
        "mark of other files believed",
        "storage.side",
        "if slot is None or slot.belongs != belongs or",
        "if slot is None or",
    ),
    Mutant(
        "damage cut as a torn write",
        "storage.segment_opening",
        "        if bad_id <= self._floor:\n            return False\n",
        "        if bad_id <= self._floor:\n            return True\n",
    ),
    Mutant(
        "rot above the mark cut as a torn write",
        "storage.segment_opening",
        " and (self._mark is None or may_be_torn(window, at, bad_id))",
        "",
    ),
    Mutant(
        "good records cut behind a bad one",
        "storage.segment_opening",
        "        follower = resync(window, 0, bad_id)\n",
        "        follower = None\n",
    ),
    Mutant(
        "index believed",
        "storage.segment_opening",
        "        if record_size < 0:\n            return beginning\n",
        "        if record_size < 0:\n            record_size = 40\n",
    ),
    Mutant(
        "sources of a repair need not agree",
        "storage.repair",
        "agreed = all(one == vouched[0] for one in vouched)",
        "agreed = True",
    ),
    Mutant(
        "failed disk goes on",
        "storage.replica_files",
        "            self.state = State.STOPPED\n",
        "            self.state = State.OPEN\n",
    ),
    # ---- cluster, wire, admission --------------------------------------------------------------------------------------
    Mutant(
        "client id taken twice",
        "cluster.coordinator",
        "encode_id_counter(number), taken.stat.version)",
        "encode_id_counter(number), -1)",
    ),
    Mutant(
        "assignment written over a newer one",
        "cluster.registration",
        "encode_partition_assignment(assignment), view.stat.version)",
        "encode_partition_assignment(assignment), -1)",
    ),
    Mutant(
        "server overlooked between two reads",
        "cluster.coordinator",
        "if reading.torn or listed.cversion != data.cversion:",
        "if reading.torn:",
    ),
    Mutant(
        "frame limit not kept",
        "wire.connection",
        "or found_version != version or not 0 <= length <= limit:",
        "or found_version != version or length < 0:",
    ),
    Mutant(
        "surplus bytes overlooked",
        "wire.connection",
        "                if stop != end:\n                    if not",
        "                if stop > end:\n                    if not",
    ),
    Mutant(
        "unfinished frame loses a byte",
        "wire.connection",
        "                self._gatherer.keep(buffer, at, HEADER_SIZE + length)\n                return\n            if length:",
        "                self._gatherer.keep(buffer, at + 1, HEADER_SIZE + length)\n                return\n            if length:",
    ),
    Mutant(
        "served without an opening",
        "storage.storage_port",
        "        if context.rules.open_required and not caller.opened:\n            why",
        "        if False:\n            why",
    ),
    Mutant(
        "session out of reach accepted",
        "storage.permission",
        "message.session_id > highest + SESSION_LEAP_MAX and",
        "message.session_id > highest + (SESSION_LEAP_MAX << 31) and",
    ),
    Mutant(
        "session that came to nothing confirmed",
        "store.last_resort",
        "        if len(here) >= needed:\n            return session_id, vain",
        "        if here:\n            return session_id, vain",
    ),
    Mutant(
        "accepted limbo keeps its vote",
        "storage.acceptance",
        "yield from files.update_control(-1, *marks, current.flags)",
        "yield from files.update_control(current.session_id, *marks, current.flags)",
    ),
    Mutant(
        "cut below the log start",
        "store.intake",
        "out.append(Truncate(member.replica, max(mark, member.start - 1)))",
        "out.append(Truncate(member.replica, mark))",
    ),
    Mutant(
        "damage below the log start counts",
        "storage.opening",
        "        self._out.forgive(self._start.first_id)\n",
        "",
    ),
    Mutant(
        "session number used again",
        "store.recovery",
        "marked_by == self._at.session_id and not self._at.failed",
        "marked_by > self._at.session_id and not self._at.failed",
    ),
    Mutant(
        "generation given out again after a restoration",
        "operations.backup",
        "generation + GENERATIONS_GAP",
        "generation",
    ),
    # ---- reads of the committed mark ---------------------------------------------------------------------------
    Mutant(
        "mark of a question that left before the call",
        "client.data",
        "self._mark_calls.append((_following(self._sequence), token))",
        "self._mark_calls.append((self._mark_question or _following(self._sequence), token))",
    ),
    # ---- submits ----------------------------------------------------------------------------------------------
    Mutant(
        "a decline is believed as it is",
        "client.submitter",
        "if not wait.begun.confirm or (wait.confirmed is not None and mark >= wait.confirmed):",
        "if True:",
    ),
    Mutant(
        "a decline is confirmed by the question of somebody else",
        "client.submitter",
        "            self._to_ask[wait] = None\n",
        "            self._asked[wait] = None\n",
    ),
    Mutant(
        "a slot is given back before the outcome",
        "client.submitter",
        "            self._enter(wait, _Stage.LEFT)\n            self._leave_gate(wait, now, out)\n            return\n",
        "            self._enter(wait, _Stage.LEFT)\n            self._leave_gate(wait, now, out)\n",
    ),
    Mutant(
        "no limit while a lock is waited for",
        "client.submitter",
        "_UNLIMITED = (_Stage.DECIDING, ",
        "_UNLIMITED = (_Stage.BLOCKED, _Stage.DECIDING, ",
    ),
    # ---- views that apply the feed ----------------------------------------------------------------------------
    Mutant(
        "a transaction that failed once is given up",
        "client.applier",
        "        if self._failed < self._attempts:\n",
        "        if False:\n",
    ),
    Mutant(
        "poison is passed over",
        "client.applier",
        "            self._end(out)\n        else:  # another",
        "            self._state = _State.IDLE\n            out.append(TakeNext())\n        else:  # another",
    ),
    Mutant(
        "the rest of a batch is passed over",
        "client.applier",
        "        if mark >= self._batch.last_id:\n",
        "        if mark >= self._last_id and (self._poison is None or mark >= self._poison):\n",
    ),
    Mutant(
        "a batch is left to a view that is down",
        "client.applier",
        "                case ViewDown():\n                    self._pause(now)\n",
        "                case ViewDown():\n                    self._state = _State.IDLE\n                    out.append(TakeNext())\n",
    ),
    Mutant(
        "a key is believed for any request",
        "client.submitter",
        "        if entry.request_hash != wait.begun.request_hash:\n",
        "        if False:\n",
    ),
    Mutant(
        "a key is kept one transaction too long",
        "client.keys",
        "    return transaction_id > mark - window\n",
        "    return transaction_id >= mark - window\n",
    ),
    Mutant(
        "the gate lets in who leads one queue",
        "client.gate",
        "return all(",
        "return any(",
    ),
    # ---- marks confirmed by a quorum -----------------------------------------------------------------------------
    Mutant(
        "mark answered by a server that may be deposed",
        "server.reads",
        "if self._ownership.known and self._rules.marks_confirmed:",
        "if self._ownership.known and not self._rules.marks_confirmed:",
    ),
    Mutant(
        "mark confirmed by the vote of an append that left before the question",
        "store.followers",
        "self._confirmations.heard(link.replica, link.answered())",
        "link.answered(), self._confirmations.heard(link.replica, self._confirmations.wanted)",
    ),
    Mutant(
        "mark confirmed by one storage node",
        "store.confirmations",
        "self.confirmed = sorted(self._heard.values(), reverse=True)[self._quorum - 1]",
        "self.confirmed = max(self._heard.values())",
    ),
    Mutant(
        "mark confirmed by a session that ended",
        "server.reads",
        "        self._marks.session_ended()\n",
        "",
    ),
    # ---- clients of 0.13.2 ---------------------------------------------------------------------------------------
    Mutant(
        "mount forgotten when its partition is let go",
        "server.feeds",
        "if isinstance(barrier, Mount) and self._rules.waiting_mounts_answered:",
        "if isinstance(barrier, Flush) and self._rules.waiting_mounts_answered:",
    ),
    *AIMED,
)
"""A survivor names a missing scenario."""

QUICK = ("committed when sent", "lock compare off by one", "one vote too few")
"""Found within seconds: they run with the tests."""
