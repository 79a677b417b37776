"""With journals in mode `sync`, nothing commits without its decision on disk."""

from __future__ import annotations

from typing import Any

from tests.model.durable import split
from tests.model.invariants.base import Invariant
from waltz_core.server.journal_format import APPENDED, Mode


class Journalled(Invariant):
    """Whoever commits a record, also in a later session: the journal of the server that decided it has its locks.

    At the end a reader of the files finds every decision that was durable and was not deleted.
    """

    def on_commit(self, partition: int, transaction_id: int, body: bytes, server: Any, session: Any) -> None:
        if self.observer.cluster.journal is not Mode.SYNC or not body:
            return
        req_id = split(body)[1]
        token = self.observer.token_of(body)
        key = partition, transaction_id, bytes(req_id)
        found = [journal.decisions[key] for journal in self.observer.cluster.journals if key in journal.decisions]
        self.require(bool(found), f"{partition}/{transaction_id} committed without a decision in any journal")
        self.observer.counts["journalled"] += 1
        if token is None:
            return
        for one in found:
            same = (
                one.verdict == APPENDED,
                one.write_locks == token.write_locks,
                one.read_locks == token.read_locks,
                one.append_locks == token.append_locks,
                token.client_mark is None or one.client_mark == token.client_mark,
                one.size == len(token.data),
            )
            self.require(all(same), f"{token} was journalled as {one}")
            self.require(one.lock_mark <= one.client_mark or not one.write_locks, f"appended against its locks: {one}")

    def at_end(self) -> None:
        for journal in self.observer.cluster.journals:
            problem = journal.problem()
            self.require(not problem, f"the journal of {journal.node.name}: {problem}")
