"""The archive of a simulated cluster, and the process beside each server that keeps it: slow, away, silent, or killed.

The vault is what an object store is: what was committed stays, of two commits to one place one fails. What a process
has in the making dies with it; an answer may be lost although what it answers was done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, get_args

from waltz_core.base.log import Record
from waltz_core.server import archive_calls as calls
from waltz_core.server.archive_frames import FrameReader, encode_message
from waltz_testing.simulation.world import SimNode, World

EFFECTS = get_args(calls.ArchiveEffect)
_ANSWER_MAX = 5  # records in one answer
_AWAY = "the archive is away"
_TROUBLE_MS = 8_000


class Vault:
    """What is archived, by partition; `compared` is told of ids that were found equal to the log's."""

    def __init__(self, partitions: int) -> None:
        self.records: list[list[Record]] = [[] for _ in range(partitions)]
        self.files: list[list[tuple[int, int]]] = [[] for _ in range(partitions)]
        self.cluster_key: bytes | None = None
        self.begins = [0] * partitions  # the first id that an archive says it holds
        self.file_records = 0
        self.damaged: set[tuple[int, int]] = set()  # (partition, id): read as something else
        self.on_commit: Callable[[int, Sequence[Record]], None] = lambda partition, records: None
        self.on_equal: Callable[[int, int, int], None] = lambda partition, first, end: None
        self.commits = 0
        self.reads = 0

    def read(self, partition: int, first: int, count: int) -> list[Record]:
        """As it can be read now."""
        records = self.records[partition][first : first + count]
        return [
            Record(each.transaction_id, each.req_id, each.header ^ 1, b"rot", each.checksum)
            if (partition, each.transaction_id) in self.damaged
            else each
            for each in records
        ]

    def commit(self, partition: int, first: int, records: Sequence[Record]) -> str:
        """Add a file; why it cannot be, if it does not continue what is there."""
        held = self.records[partition]
        if first != len(held):
            return f"the archive goes on at {len(held)}, not at {first}"
        held += records
        self.files[partition].append((first, len(held)))
        self.commits += 1
        self.on_commit(partition, records)
        return ""


class Agent:
    """The process beside one server."""

    def __init__(self, world: World, node: SimNode, vault: Vault, *, slow_ms: int = 30) -> None:
        self.node = node
        self.vault = vault
        self.away = False  # whatever is asked fails
        self.silent = False  # nothing is answered
        self.lost_answers = 0.0  # how often what was done is answered as failed
        self.questions = 0
        self.slow_ms = slow_ms  # the slowest answer
        self._world = world
        self._rng = Random(f"{world.seed}/agent/{node.name}")
        self._life = 0
        self._asked: dict[int, calls.ArchiveAsk] = {}
        self._making: dict[int, tuple[int, list[Record]]] = {}  # partition → first id and records of a file
        # partition → the last piece of its comparison that the server asked for, and where the next one begins. It
        # may go on with another process than it began with, as the real one can.
        self._comparing: dict[int, tuple[int, int]] = {}
        node.plugins |= dict.fromkeys(EFFECTS, self._perform)
        crashed = node.on_crash

        def on_crash() -> None:
            if crashed is not None:
                crashed()
            self._forget()
            self._comparing.clear()

        node.on_crash = on_crash

    def _forget(self) -> None:
        self._life += 1
        self._asked.clear()
        self._making.clear()

    @property
    def asked(self) -> list[int]:
        """Tickets of what it has not answered."""
        return list(self._asked)

    def kill(self) -> None:
        """The process is gone; the next question begins another one."""
        asked = list(self._asked.values())
        self._forget()
        for question in asked:
            self._compare_anew(question)
            self.node.post(calls.ArchiveFailed(question.ticket, "its process ended with status -9"))

    def _compare_anew(self, failed: calls.ArchiveAsk) -> None:
        """A comparison of which a piece has failed must not go on."""
        ticket, _ = self._comparing.get(failed.partition_id, (-1, -1))
        if ticket == failed.ticket:
            del self._comparing[failed.partition_id]

    def _perform(self, effect: Any) -> None:
        if isinstance(effect, calls.ArchiveReset):
            self.kill()
            return
        self.questions += 1
        (question,) = FrameReader().receive(encode_message(effect))
        assert isinstance(question, calls.ArchiveAsk), question
        self._asked[question.ticket] = question
        if isinstance(question, calls.ArchiveCompare):
            _, end = self._comparing.get(question.partition_id, (-1, -1))
            assert question.anew or end == question.first, f"a comparison goes on at {question.first}, not at {end}"
            self._comparing[question.partition_id] = question.ticket, question.first + len(question.records)
        life = self._life

        def act() -> None:
            if life == self._life and question.ticket in self._asked and not self.silent:
                self._answer(question)

        self._world.after(self._rng.randrange(1, self.slow_ms), act)

    def _answer(self, question: Any) -> None:
        answer = calls.ArchiveFailed(question.ticket, _AWAY) if self.away else self._done(question)
        if self._rng.random() < self.lost_answers:
            answer = calls.ArchiveFailed(question.ticket, "nobody knows whether it was done")
        if isinstance(answer, calls.ArchiveFailed):
            self._making.pop(question.partition_id, None)
            self._compare_anew(question)
        del self._asked[question.ticket]
        (decoded,) = FrameReader().receive(encode_message(answer))
        self.node.post(decoded)

    def _done(self, question: Any) -> calls.ArchiveEvent:
        vault, partition = self.vault, question.partition_id
        match question:
            case calls.ArchiveLook(ticket=ticket, cluster_key=key, file_records=per_file):
                assert vault.cluster_key in (None, key)
                vault.cluster_key, vault.file_records = key, vault.file_records or per_file
                self._making.pop(partition, None)
                return calls.ArchiveHolds(
                    ticket, vault.begins[partition], len(vault.records[partition]), vault.file_records
                )
            case calls.ArchiveTake(ticket=ticket, file_first=file_first, first=first, records=records):
                if first == file_first:
                    self._making[partition] = (first, [])
                begun, held = self._making.get(partition, (-1, []))
                if (begun, begun + len(held)) != (file_first, first):
                    return calls.ArchiveFailed(ticket, f"expected a file of {file_first} to {first - 1}")
                held += records
                return calls.ArchiveTaken(ticket)
            case calls.ArchiveCommit(ticket=ticket, first=first, end=end):
                begun, held = self._making.pop(partition, (-1, []))
                if (begun, begun + len(held)) != (first, end):
                    return calls.ArchiveFailed(ticket, f"expected a file of {first} to {end - 1}")
                problem = vault.commit(partition, first, held)
                if problem:
                    return calls.ArchiveFailed(ticket, problem)
                return calls.ArchiveHolds(ticket, 0, len(vault.records[partition]), vault.file_records)
            case calls.ArchiveCompare(ticket=ticket, first=first, records=records):
                if vault.read(partition, first, len(records)) != list(records):
                    return calls.ArchiveFailed(ticket, "it holds other records than the log")
                vault.on_equal(partition, first, first + len(records))
                return calls.ArchiveEqual(ticket)
            case calls.ArchiveRead(ticket=ticket, first=first, count=count):
                found = vault.read(partition, first, min(count, _ANSWER_MAX))
                vault.reads += len(found)
                return (
                    calls.ArchiveData(ticket, found)
                    if found
                    else calls.ArchiveFailed(ticket, f"{first} is not archived")
                )
        raise AssertionError(question)

    # ---- trouble -----------------------------------------------------------------------------

    def draw_troubles(self, before: int) -> None:
        """In some runs the archive is away or silent for a while, loses answers, or its process is killed."""
        rng = self._rng
        self.lost_answers = rng.choice((0.0, 0.0, 0.05, 0.3))
        self.slow_ms = rng.choice((3, 30, 300))
        for trouble in ("away", "silent", "killed", "killed"):
            if rng.random() < 0.4:
                start = rng.randrange(max(1, before - _TROUBLE_MS))
                self._world.after(start, self.kill if trouble == "killed" else self._switch(trouble, True))
                self._world.after(start + rng.randrange(1, _TROUBLE_MS), self._switch(trouble, False))

    def _switch(self, trouble: str, on: bool) -> Callable[[], None]:
        def act() -> None:
            if trouble != "killed":
                setattr(self, trouble, on)

        return act

    def heal(self) -> None:
        """The faults are over."""
        self.away = self.silent = False
        self.lost_answers = 0.0
