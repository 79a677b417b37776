"""Decision journals as tables, and what they prove about a log."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.lock_names import pack_names
from tests.spark.logs import KEY, make_records, write_control, write_segments
from waltz_core.base.ids import ReqId, make_req_id
from waltz_core.base.lock import Conflict, LockKind
from waltz_core.server.journal_format import (
    CommittedRange,
    Decision,
    Entry,
    Gap,
    SessionOpened,
    Started,
    Synced,
    encode_entry,
)
from waltz_core.wire.client_messages import Refusal
from waltz_spark.audit import audit
from waltz_spark.audit.audit import run_audit
from waltz_spark.base.errors import JournalError, OptionError
from waltz_spark.base.runners import Here, OnSpark
from waltz_spark.read.sources import Sources, read_sources
from waltz_spark.records.journal import Entries, find_journals, read_table
from waltz_spark.spark.journal_source import JournalReader
from waltz_trio.cli.main import main


def write_journal(place: Path, files: Sequence[Sequence[Entry]], *, partition: int = 0, key: bytes = KEY) -> list[Path]:
    """Files as a server leaves them."""
    folder = place / str(partition)
    folder.mkdir(parents=True, exist_ok=True)
    size, paths = -1, []
    for number, entries in enumerate(files):
        started = Started(key, partition, number, size, 1, 2, f"{place.name}:1")
        groups = [part for entry in entries for part in (Synced(), entry)]
        data = b"".join(map(encode_entry, [started, *groups]))
        size = len(data)
        paths.append(folder / f"{number:019d}.journal")
        paths[-1].write_bytes(data)
    return paths


def decision(
    transaction_id: int, req_id: ReqId, *, mark: int = -1, verdict: int = 0, lock_mark: int = -1, **more: Any
) -> Decision:
    conflict = Conflict.FALSE if verdict else Conflict.UNKNOWN
    head = (1, transaction_id, req_id, 5, mark, lock_mark, verdict, conflict, -1, LockKind.NONE, -1)
    return Decision(*head, 1_700_000_000_000_001, 1_700_000_000_000_002, 9, **more)


def req(number: int) -> ReqId:
    return make_req_id(7, 1, 0, number)


def write_log(directory: Path, req_ids: Sequence[ReqId]) -> None:
    records = make_records(0, [b"x"] * len(req_ids))
    changed = [attrs.evolve(one, req_id=req_id) for one, req_id in zip(records, req_ids, strict=True)]
    write_segments(directory, 0, changed)
    write_control(directory, [len(req_ids)])


# ---- reading -------------------------------------------------------------------------------------


def test_a_table_has_everything_that_was_decided(tmp_path: Path) -> None:
    names = pack_names([("stock", 7), None])
    one = decision(3, req(1), write_locks=(9,), append_locks=(-4,), names=names)
    two = attrs.evolve(
        decision(-1, req(2), verdict=Refusal.LOCK, lock_mark=3, read_locks=(9,)), lock_kind=LockKind.READ, lock_index=0
    )
    write_journal(tmp_path / "a", [[SessionOpened(1, 1, 2, 0), one], [CommittedRange(1, 3, 3, 77), two]])
    first, second = find_journals([str(tmp_path / "a")])
    (row,) = read_table(first, second).to_pylist()
    assert (row["transaction_id"], row["seq"], row["verdict"], row["conflict"]) == (3, 1, "appended", None)
    assert (row["write_locks"], row["read_locks"], row["append_locks"]) == ([9], [], [-4])
    assert row["lock_names"] == [{"name": "stock", "id": 7}, None]
    assert (row["received"].microsecond, row["decided"].microsecond, row["committed"].microsecond) == (1, 2, 77)
    assert (row["server"], row["length"], row["header"]) == ("a:1", 9, 5)
    (row,) = read_table(second).to_pylist()
    assert (row["transaction_id"], row["committed"], row["verdict"], row["conflict"]) == (None, None, "lock", "false")
    assert (row["lock_kind"], row["lock_index"], row["lock_mark"], row["lock_names"]) == ("read", 0, 3, None)


def test_partitions_without_any_journal_are_an_error(tmp_path: Path) -> None:
    for partition in (0, 4):
        write_journal(tmp_path / "a", [[decision(0, req(0))]], partition=partition)
    place = {"directory": str(tmp_path / "a")}
    (task,) = JournalReader({**place, "partitions": "0-3"}).partitions()
    assert task.file.partition == 0
    with pytest.raises(OptionError, match="partitions: there is no journal of any of them, but of 0, 4"):
        JournalReader({**place, "partitions": "1,99"}).partitions()


def test_a_torn_end_is_passed_over_only_where_it_can_be(tmp_path: Path) -> None:
    paths = write_journal(tmp_path, [[decision(0, req(0))], [decision(1, req(1)), decision(2, req(2))]])
    whole = paths[1].read_bytes()
    paths[1].write_bytes(whole[:-5])
    paths[0].write_bytes(paths[0].read_bytes() + b"what was never acknowledged")
    files = find_journals([str(tmp_path)])
    assert [len(Entries(file).fixed) for file in files] == [1, 1]
    paths[0].write_bytes(paths[0].read_bytes()[:200])
    with pytest.raises(JournalError, match=f"{paths[0]}, offset 200: it ends here, but had"):
        Entries(files[0])


@pytest.mark.parametrize("at", [100, 110, 160])
def test_damage_names_file_and_offset(tmp_path: Path, at: int) -> None:
    (path,) = write_journal(tmp_path, [[decision(number, req(number)) for number in range(5)]])
    data = bytearray(path.read_bytes())
    data[at] ^= 8
    path.write_bytes(data)
    (file,) = find_journals([str(tmp_path)])
    with pytest.raises(JournalError) as found:
        Entries(file)
    assert found.value.path == str(path)
    assert found.value.offset <= at < found.value.offset + 120


def test_a_missing_file_and_another_cluster_are_errors(tmp_path: Path) -> None:
    paths = write_journal(tmp_path / "a", [[], [], []])
    write_journal(tmp_path / "b", [[]], key=bytes(16))
    with pytest.raises(JournalError, match="of another cluster"):
        find_journals([str(tmp_path / "a"), str(tmp_path / "b")])
    paths[0].unlink()
    assert len(find_journals([str(tmp_path / "a")])) == 2  # the oldest go, that is how it is bounded
    paths[1].unlink()
    write_journal(tmp_path / "a", [[]])
    with pytest.raises(JournalError, match="file 1 before it is missing"):
        find_journals([str(tmp_path / "a")])
    with pytest.raises(JournalError, match="no journal is there"):
        find_journals([str(tmp_path)])


@pytest.mark.slow
def test_the_source_reads_several_servers_by_its_name(tmp_path: Path, spark: Any) -> None:
    for name in ("a", "b"):
        place = tmp_path / name
        write_journal(place, [[decision(n, req(n), write_locks=(n,)) for n in range(3)]])
        write_journal(place, [[decision(9, req(9))]], partition=4)
    places = f"{tmp_path / 'a'},{tmp_path / 'b'}"
    frame = spark.read.format("waltz.journal").option("directory", places).option("partitions", "0-3").load()
    found = {(row["server"], row["seq"], *row["write_locks"]) for row in frame.collect()}
    assert found == {(f"{name}:1", number, number) for name in "ab" for number in range(3)}


def test_journals_are_read_from_any_store(tmp_path: Path) -> None:
    import fsspec

    (path,) = write_journal(tmp_path, [[decision(0, req(0))]])
    fsspec.filesystem("memory").pipe_file(f"/journals/a/0/{path.name}", path.read_bytes())
    (file,) = find_journals(["memory://journals/a"])
    assert len(Entries(file).fixed) == 1


def test_unknown_options_name_the_nearest() -> None:
    with pytest.raises(OptionError, match="did you mean directory"):
        JournalReader({"directry": "x"})
    with pytest.raises(OptionError, match="say what to read"):
        JournalReader({})


# ---- the audit -----------------------------------------------------------------------------------


def found(report: Any, check: str) -> Any:
    (one,) = [one for one in report.findings if one.check == check]
    return one


def statuses(report: Any) -> dict[str, str]:
    return {one.check: one.status for one in report.findings}


@pytest.mark.parametrize("seed", range(12))
def test_every_transaction_is_judged_as_one_by_one(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    count, locks = 60, rng.choice((2, 6, 30))
    entries: list[tuple[int, Decision]] = []
    for number in range(count):
        mark = number - 1 - rng.choice((0, 0, 1, 3, 10))
        lists = [tuple(rng.randrange(locks) - 2 for _ in range(rng.choice((0, 1, 2)))) for _ in range(3)]
        one = decision(number, req(number), mark=mark, write_locks=lists[0], read_locks=lists[1], append_locks=lists[2])
        entries.append((number, one))
    kept = [one for number, one in entries if rng.random() < rng.choice((0.9, 1.0))]
    has_entry = {one.transaction_id for one in kept}
    takers: dict[int, list[int]] = {}
    for one in kept:
        for lock in (*one.write_locks, *one.append_locks):
            takers.setdefault(lock, []).append(one.transaction_id)
    violated = unproven = 0
    for number, one in entries:
        checked = (*one.write_locks, *one.read_locks)
        window = range(max(0, one.client_mark + 1), number)
        if number not in has_entry:
            unproven += 1
        elif any(taker in window for lock in checked for taker in takers.get(lock, ())):
            violated += 1
        elif checked and any(other not in has_entry for other in window):
            unproven += 1
    void = [decision(number, req(1000 + number)) for number in range(0, count, 7)]  # decided, never committed
    everything: list[Entry] = [*kept, *void]
    rng.shuffle(everything)
    write_journal(tmp_path / "a", [everything[:20], everything[20:]])
    write_journal(tmp_path / "b", [[]])
    write_log(tmp_path / "log", [req(number) for number in range(count)])
    report = run_audit([str(tmp_path / "log")], None, Here(), journals=[str(tmp_path / "a"), str(tmp_path / "b")])
    one = found(report, "serializable by locks")
    text = f"ids 0 to 59; {count - violated - unproven} proved, {violated} violated, {unproven} unproven"
    assert (one.scope, one.status) == (text, "failed" if violated else "unproven" if unproven else "passed")
    share = found(report, "decisions journalled")
    assert share.status == ("passed" if len(kept) == count else "unproven")
    assert f"{len(kept)} of {count} have an entry" in share.scope


def test_a_planted_violation_is_named(tmp_path: Path) -> None:
    write_log(tmp_path / "log", [req(number) for number in range(3)])
    decisions = [
        decision(0, req(0), write_locks=(5,)),
        decision(1, req(1), mark=0, append_locks=(6,)),
        decision(2, req(2), mark=0, read_locks=(5, 6)),
    ]
    write_journal(tmp_path / "a", [decisions])
    report = run_audit([str(tmp_path / "log")], None, Here(), journals=[str(tmp_path / "a")])
    assert not report.passed
    one = found(report, "serializable by locks")
    assert one.detail == "transaction 2, decided at mark 0, did not see 1, which took its lock 6"


def test_false_conflicts_are_counted_and_decisions_against_the_table_found(tmp_path: Path) -> None:
    write_log(tmp_path / "log", [req(number) for number in range(3)])
    refused = [
        decision(-1, req(10), mark=0, verdict=Refusal.LOCK, lock_mark=1, write_locks=(5,)),  # true
        decision(-1, req(11), mark=0, verdict=Refusal.LOCK, lock_mark=1, read_locks=(77,)),  # false
        decision(-1, req(12), mark=0, verdict=Refusal.LOCK, lock_mark=40, read_locks=(77,)),  # in flight, perhaps
        decision(-1, req(13), mark=0, verdict=Refusal.GENERATION),
    ]
    decisions = [
        decision(0, req(0)),
        decision(1, req(1), write_locks=(5,), mark=0),
        decision(2, req(2), write_locks=(8,), mark=0, lock_mark=1),
    ]
    write_journal(tmp_path / "a", [[*decisions, *refused, Gap(4, 0, 0, "full")]])
    report = run_audit([str(tmp_path / "log")], None, Here(), journals=[str(tmp_path / "a")])
    assert found(report, "false conflicts").scope == "3 refused because of a lock: 1 falsely, 1 unknown"
    assert found(report, "decisions follow the lock table").status == "failed"
    assert found(report, "decisions journalled").detail == "the journals say that they lack 4 decisions"
    assert found(report, "serializable by locks").status == "passed"


@pytest.mark.slow
def test_executors_judge_alike(tmp_path: Path, spark: Any) -> None:
    write_log(tmp_path / "log", [req(number) for number in range(3)])
    decisions = [decision(number, req(number), mark=0, write_locks=(5,)) for number in range(3)]
    write_journal(tmp_path / "a", [decisions])
    calls = [
        run_audit([str(tmp_path / "log")], None, runner, journals=[str(tmp_path / "a")])
        for runner in (Here(), OnSpark(spark))
    ]
    assert calls[0].findings == calls[1].findings
    assert found(calls[1], "serializable by locks").status == "failed"


def test_journals_that_cannot_be_read_are_findings_and_journals_alone_an_error(tmp_path: Path) -> None:
    write_log(tmp_path / "log", [req(0)])
    write_journal(tmp_path / "a", [[]], key=bytes(16))
    report = run_audit([str(tmp_path / "log")], None, Here(), journals=[str(tmp_path / "a")])
    assert statuses(report)["journal readable"] == "failed"
    (path,) = write_journal(tmp_path / "b", [[decision(0, req(0)), decision(1, req(1))]])
    data = bytearray(path.read_bytes())
    data[120] ^= 1
    path.write_bytes(data)
    report = run_audit([str(tmp_path / "log")], None, Here(), journals=[str(tmp_path / "b")])
    assert found(report, "journal readable").detail.startswith(str(path))
    with pytest.raises(OptionError, match="name a directory"):
        run_audit([], str(tmp_path), Here(), journals=[str(tmp_path / "a")])


@pytest.mark.parametrize("hidden", [True, False])
def test_locks_that_could_not_be_judged_are_unproven_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hidden: bool
) -> None:
    """A server that hides its key, or no copy that can be read: no row said that locks were not judged."""
    write_log(tmp_path / "log", [req(number) for number in range(3)])
    write_journal(tmp_path / "a", [[decision(number, req(number)) for number in range(3)]])

    def keyless(*call: Any) -> Sources:
        return attrs.evolve(read_sources(*call), key=None, ends=(3,), starts=(0,))

    if hidden:
        monkeypatch.setattr(audit, "read_sources", keyless)
    log = tmp_path / ("log" if hidden else "nowhere")
    report = run_audit([str(log)], None, Here(), journals=[str(tmp_path / "a")])
    one = found(report, "serializable by locks")
    assert (one.partition, one.status) == (-1, "unproven")
    assert ("does not show its cluster key" if hidden else "no copy of the log can be read") in one.detail
    assert not report.serializability_judged
    assert report.verdict == ("unproven" if hidden else "failed")
    if hidden:
        assert found(report, "covered").looked_at == 3


def test_the_command_takes_a_journal_of_every_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_log(tmp_path / "log", [req(0), req(1)])
    write_journal(tmp_path / "a", [[decision(0, req(0))]])
    write_journal(tmp_path / "b", [[decision(1, req(1))]])
    call = ["spark", "audit", "--directory", str(tmp_path / "log"), "--jobs", "1", "--json"]
    assert main([*call, "--journal", str(tmp_path / "a"), "--journal", str(tmp_path / "b")]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["serializability_judged"]
    rows = {row["check"]: row for row in answer["findings"]}
    assert rows["serializable by locks"]["status"] == "passed"
    assert rows["decisions journalled"]["scope"] == "ids 0 to 1; 2 of 2 have an entry, 100 %"
    assert main([*call, "--journal", str(tmp_path / "a")]) == 3
    rows = {row["check"]: row for row in json.loads(capsys.readouterr().out)["findings"]}
    assert rows["serializable by locks"]["status"] == "unproven"
    assert rows["decisions journalled"]["scope"].endswith("50 %")
    assert main([*call, "--journal", str(tmp_path / "log" / "0")]) == 1
    assert not json.loads(capsys.readouterr().out)["serializability_judged"]
