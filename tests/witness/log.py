"""The log as its own witness: whether what clients saw and what disks hold can be one serial history.

Waltz's log is the claimed serial order, so the check is one replay of it. Segment files are read here by a
reader of their own, written from the format, not with the code under test. Clients of real processes write down
what they ask and what they are told (`Journal`), and put into each payload what the server was told about it:
client mark and lock names. Simulated runs know all that, and come with the same attempts and entries.
"""

from __future__ import annotations

import bisect
import json
import struct
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs

Lock = tuple[str, int]

_SEGMENT_HEADER = 128
_HEAD = struct.Struct(">q16siii")  # transaction id, request id, header, data size, data checksum
_SUM = struct.Struct(">i")


@attrs.frozen
class Entry:
    """One transaction as a disk holds it."""

    transaction_id: int
    req_id: bytes
    header: int
    data: bytes

    @property
    def generation(self) -> int:
        """Generation of the partition in which the client sent it."""
        return int.from_bytes(self.req_id[4:8], "big", signed=True)


@attrs.frozen
class Payload:
    """What one append of a test says about itself."""

    name: str  # of this attempt, unique
    mark: int  # highest id that the decision was based on
    write: tuple[Lock, ...] = ()
    read: tuple[Lock, ...] = ()
    append: tuple[Lock, ...] = ()
    body: Any = None  # for the application

    def dumps(self) -> bytes:
        """As bytes for the log."""
        return json.dumps([self.name, self.mark, self.write, self.read, self.append, self.body]).encode()

    @classmethod
    def loads(cls, data: bytes) -> Payload:
        """From bytes of the log."""
        name, mark, *locks, body = json.loads(data)
        write, read, append = (tuple((str(kind), int(number)) for kind, number in names) for names in locks)
        return cls(name, mark, write, read, append, body)


def read_replica(directory: Path, partition: int) -> list[Entry]:
    """The log of one partition on one storage node's disk, up to the first record that is not whole."""
    found: list[Entry] = []
    for path in sorted((directory / str(partition)).glob("*.seg")):
        data = path.read_bytes()
        at = _SEGMENT_HEADER
        while len(data) - at >= _HEAD.size:
            transaction_id, req_id, header, size, _ = _HEAD.unpack_from(data, at)
            end = at + _HEAD.size + size
            if size < 0 or end + _SUM.size > len(data):
                break
            if zlib.crc32(data[at:end]) != _SUM.unpack_from(data, end)[0] & 0xFFFFFFFF:
                break
            found.append(Entry(transaction_id, req_id, header, data[at + _HEAD.size : end]))
            at = end + _SUM.size
    return found


def read_archive(root: Path, partition: int) -> list[Entry]:
    """What an archive of Parquet files holds of a partition, from id 0 on."""
    import pyarrow.parquet as pq  # only runs that archive need it

    columns = ["transaction_id", "client_id", "generation", "seq", "header", "data"]
    found: dict[int, Entry] = {}
    for path in sorted(root.rglob(f"partition={partition}/*.parquet")):
        for row in pq.ParquetFile(path).read(columns).to_pylist():
            req_id = struct.pack(">4i", row["client_id"], row["generation"], partition, row["seq"])
            entry = Entry(row["transaction_id"], req_id, row["header"], row["data"])
            assert found.setdefault(entry.transaction_id, entry) == entry, f"{path} contradicts another file: {entry}"
    return [found[number] for number in sorted(found)]


def join_archive(archived: Sequence[Entry], copy: Sequence[Entry]) -> list[Entry]:
    """A replica with what it has given up in front, out of the archive; what both hold must be equal."""
    if not copy:
        return []
    first = copy[0].transaction_id
    assert first <= len(archived), f"the archive ends at {len(archived) - 1}, the replica begins at {first}"
    for kept, entry in zip(archived[first:], copy, strict=False):
        assert kept == entry, f"archive and replica differ: {kept}, {entry}"
    return [*archived[:first], *copy]


class Journal:
    """What one client asks and is told, one line each; a line that was written survives `kill -9`."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def invoked(self, partition: int, payload: Payload) -> None:
        """An append is about to be sent. A body that is a mapping is kept: it says what the decision read."""
        *asked, body = json.loads(payload.dumps())
        self._write(["invoked", partition, *asked, *([body] if isinstance(body, dict) else [])])

    def committed(self, name: str, transaction_id: int) -> None:
        """The client was told that it is in the log."""
        self._write(["committed", name, transaction_id])

    def failed(self, name: str, why: str, blocking_id: int = -1) -> None:
        """The client was told that it is not, and never will be, in the log."""
        self._write(["failed", name, why, blocking_id])

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def _write(self, line: list[Any]) -> None:
        self._file.write(json.dumps([time.monotonic_ns(), *line]).encode() + b"\n")


@attrs.define
class Attempt:
    """One append as its client saw it."""

    partition: int
    payload: Payload
    invoked: int
    returned: int | None = None  # ns; None = no outcome was told
    transaction_id: int | None = None
    why: str = ""  # it failed, with this reason
    blocking_id: int = -1


@attrs.define
class Verdict:
    """What a check counted."""

    log: dict[int, int] = attrs.field(factory=dict)  # partition → length
    committed: int = 0
    failed: Counter[str] = attrs.field(factory=Counter)
    unknown_in_log: int = 0
    unknown_lost: int = 0
    conflicts_true: int = 0  # refused, and a transaction did take one of its locks
    conflicts_false: int = 0  # refused by the lock table's imprecision
    in_cycle_check: int = 0  # transactions on lists, among which no cycle was found
    generations: dict[int, int] = attrs.field(factory=dict)  # partition → highest seen in the log


def read_journals(paths: Iterable[Path]) -> dict[str, Attempt]:
    """All attempts of some clients by name; a last line that a kill cut in half is left out."""
    attempts: dict[str, Attempt] = {}
    for path in paths:
        lines = path.read_bytes().split(b"\n")
        for number, line in enumerate(lines):
            if not line:
                continue
            try:
                at, what, *rest = json.loads(line)
            except ValueError:
                assert number == len(lines) - 1, f"{path}: line {number + 1} is broken"
                continue
            if what == "invoked":
                partition, name, mark, write, read, append, *body = rest
                asked = [name, mark, write, read, append, body[0] if body else None]
                payload = Payload.loads(json.dumps(asked).encode())
                assert name not in attempts, f"{name} was invoked twice"
                attempts[name] = Attempt(partition, payload, at)
                continue
            attempt = attempts[rest[0]]
            assert attempt.returned is None, f"{rest[0]} got two outcomes"
            attempt.returned = at
            if what == "committed":
                attempt.transaction_id = rest[1]
            else:
                attempt.why, attempt.blocking_id = rest[1], rest[2]
    return attempts


def check(
    replicas: Mapping[int, Sequence[Sequence[Entry]]],
    marks: Mapping[int, int],
    attempts: Mapping[str, Attempt],
    applied: Mapping[str, Mapping[int, Sequence[tuple[int, str]]]],
    *,
    payload_of: Callable[[bytes], Payload] | None = None,
    told: Mapping[tuple[object, ...], Sequence[int]] | None = None,
) -> Verdict:
    """Judge everything that a run left behind.

    Args:
        replicas: partition → its log on each storage node.
        marks: partition → committed mark that a server told after everything had ended.
        attempts: from the journals of all clients.
        applied: client → partition → (id, name) pairs that its database holds, in order of application.
        payload_of: what a payload in the log says about itself; by default `Payload.loads`.
        told: whoever tells marks → the marks it told, in order.

    Raises:
        AssertionError: something cannot be explained by one serial history; the text says what.
    """
    for who, sequence in (told or {}).items():
        for before, after in pairwise(sequence):
            assert after >= before, f"the mark that {who} tells falls from {before} to {after}"
    verdict = Verdict()
    where: dict[str, tuple[int, int]] = {}
    for partition, copies in replicas.items():
        log = _committed_log(partition, copies, marks[partition])
        verdict.log[partition] = len(log)
        payloads = [(payload_of or Payload.loads)(entry.data) for entry in log]
        for number, payload in enumerate(payloads):
            earlier = where.setdefault(payload.name, (partition, number))
            assert earlier == (partition, number), f"{payload.name} is in the log twice: {earlier}, {partition, number}"
        _check_generations(partition, log, verdict)
        _check_locks(partition, payloads)
        _classify_conflicts(partition, payloads, attempts, verdict)
        for client, partitions in applied.items():
            _check_view(client, partition, payloads, partitions.get(partition, ()))
    _check_outcomes(attempts, where, verdict)
    for partition in replicas:
        _check_real_time(partition, attempts, where)
    return verdict


_SLOT = struct.Struct(">4sQiqqI")  # of a side file: magic, counter, what it was written beside, size of the rest


def read_start(directory: Path, partition: int) -> int:
    """The log start of a partition on a storage node that is down."""
    path = directory / str(partition) / "waltz.start"
    data = path.read_bytes() if path.exists() else b""
    best = -1, 0
    for at in range(0, len(data), 4096):  # two slots, of which the valid one with the higher counter counts
        magic, counter, _, _, _, size = _SLOT.unpack_from(data, at)
        end = at + _SLOT.size + size
        if magic == b"WZS1" and struct.unpack_from(">I", data, end)[0] == zlib.crc32(data[at:end]):
            best = max(best, (counter, struct.unpack_from(">q", data, end - size)[0]))
    return best[1]


def check_disks(
    replicas: Mapping[int, Sequence[Sequence[Entry]]],
    marks: Mapping[int, int],
    acknowledged: Mapping[tuple[int, int], bytes],
    starts: Mapping[int, Sequence[int]] | None = None,
) -> None:
    """Judge the disks of a cluster whose clients did not name their appends, and some of whose nodes may be behind.

    Args:
        replicas: partition → its log on each storage node.
        marks: partition → committed mark that a server told at the end.
        acknowledged: (partition, id) → payload that was acknowledged as that transaction.
        starts: partition → log start of each storage node; what is below the highest was given up.

    Raises:
        AssertionError: an id is missing, or not on a majority of the disks, or other bytes than those acknowledged.
    """
    by_id: dict[int, list[dict[int, Entry]]] = {}
    given_up: dict[int, int] = {}
    for partition, logs in replicas.items():
        own = (starts or {}).get(partition, [0] * len(logs))
        given_up[partition] = max(own)
        by_id[partition] = [{entry.transaction_id: entry for entry in log} for log in logs]
        for number, log in enumerate(logs):
            ids = [entry.transaction_id for entry in log]
            first = ids[0] if ids else own[number]
            assert first <= own[number], f"partition {partition}: replica {number} begins at {first}, not {own[number]}"
            dense = ids == list(range(first, first + len(log)))
            assert dense, f"partition {partition}: ids of replica {number} are not dense"
    for (partition, number), data in acknowledged.items():
        assert number <= marks.get(partition, number), f"{partition}/{number} was acknowledged and is not committed"
        if number < given_up[partition]:
            continue
        copies = [log[number].data for log in by_id[partition] if number in log]
        found = sum(copy == data for copy in copies)
        assert 2 * found > len(replicas[partition]), f"{partition}/{number} was acknowledged, and is on {found} disks"
    for partition, mark in marks.items():
        for number in range(given_up[partition], mark + 1):
            held = Counter(log[number] for log in by_id[partition] if number in log)
            count = max(held.values(), default=0)
            assert 2 * count > len(replicas[partition]), f"{partition}/{number} is committed and on {count} disks"


def _committed_log(partition: int, copies: Sequence[Sequence[Entry]], mark: int) -> list[Entry]:
    """Dense ids, and the same bytes on every replica up to the committed mark."""
    for number, copy in enumerate(copies):
        assert len(copy) > mark, f"partition {partition}: replica {number} ends at {len(copy) - 1}, committed is {mark}"
        ids = [entry.transaction_id for entry in copy]
        assert ids == list(range(len(copy))), f"partition {partition}: ids of replica {number} are not dense"
    first = list(copies[0][: mark + 1])
    for number, copy in enumerate(copies):
        for one, other in zip(first, copy, strict=False):
            assert one == other, f"partition {partition}: replicas 0 and {number} differ: {one}, {other}"
    return first


def _check_generations(partition: int, log: Sequence[Entry], verdict: Verdict) -> None:
    highest = -1
    for entry in log:
        assert entry.generation >= highest, f"partition {partition}: the generation falls at {entry.transaction_id}"
        highest = entry.generation
    verdict.generations[partition] = highest


def _check_locks(partition: int, payloads: Sequence[Payload]) -> None:
    """Nobody wrote or appended, after the mark of a committed transaction, a lock that it read or wrote."""
    last: dict[Lock, int] = {}
    for number, payload in enumerate(payloads):
        assert payload.mark < number, f"partition {partition}: {number} was decided from a later mark, {payload.mark}"
        for lock in (*payload.write, *payload.read):
            taken = last.get(lock, -1)
            assert taken <= payload.mark, (
                f"partition {partition}: {number} ({payload.name}) was decided at mark {payload.mark}, "
                f"but {taken} ({payloads[taken].name}) took {lock}"
            )
        for lock in (*payload.write, *payload.append):
            last[lock] = number


def _classify_conflicts(
    partition: int, payloads: Sequence[Payload], attempts: Mapping[str, Attempt], verdict: Verdict
) -> None:
    takers: dict[Lock, list[int]] = {}
    for number, payload in enumerate(payloads):
        for lock in (*payload.write, *payload.append):
            takers.setdefault(lock, []).append(number)
    for attempt in attempts.values():
        if attempt.partition != partition or attempt.why != "LockConflictError":
            continue
        true = False
        for lock in (*attempt.payload.write, *attempt.payload.read):
            ids = takers.get(lock, [])
            later = bisect.bisect_right(ids, attempt.payload.mark)
            true = true or (later < len(ids) and ids[later] <= attempt.blocking_id)
        verdict.conflicts_true += true
        verdict.conflicts_false += not true


def _check_outcomes(attempts: Mapping[str, Attempt], where: Mapping[str, tuple[int, int]], verdict: Verdict) -> None:
    """Acknowledged: in the log, once, there. Failed: never. Unknown: at most once. Nothing that nobody sent."""
    for name in where:
        assert name in attempts, f"{name} is in the log and nobody sent it"
    for name, attempt in attempts.items():
        found = where.get(name)
        if attempt.transaction_id is not None:
            told = attempt.partition, attempt.transaction_id
            assert found == told, f"{name} was acknowledged as {told}, the log has it at {found}"
            verdict.committed += 1
        elif attempt.why:
            assert found is None, f"{name} was told to have failed ({attempt.why}), the log has it at {found}"
            verdict.failed[attempt.why] += 1
        elif found is not None:
            assert found[0] == attempt.partition, f"{name} is in the wrong partition, {found}"
            verdict.unknown_in_log += 1
        else:
            verdict.unknown_lost += 1


def _check_real_time(partition: int, attempts: Mapping[str, Attempt], where: Mapping[str, tuple[int, int]]) -> None:
    """What was acknowledged before another append was invoked stands before it in the log."""
    events: list[tuple[int, int, str]] = []
    for name, attempt in attempts.items():
        if attempt.partition == partition and name in where:
            events.append((attempt.invoked, 1, name))
            if attempt.transaction_id is not None and attempt.returned is not None:
                events.append((attempt.returned, 0, name))
    highest, holder = -1, ""
    for _, invoked, name in sorted(events):
        number = where[name][1]
        if invoked:
            assert number > highest, f"{name} ({number}) was invoked after {holder} ({highest}) was acknowledged"
        elif number > highest:
            highest, holder = number, name


def _check_view(client: str, partition: int, log: Sequence[Payload], applied: Sequence[tuple[int, str]]) -> None:
    """What a client applied is the log from its beginning, each transaction once, none missing."""
    for number, (transaction_id, name) in enumerate(applied):
        assert transaction_id == number, f"{client}, partition {partition}: applied {transaction_id} as number {number}"
        assert number < len(log), f"{client}, partition {partition}: applied {number}, committed are {len(log)}"
        assert name == log[number].name, f"{client}, partition {partition}: {number} is {log[number].name}, not {name}"
