"""The audit: nothing fails on sound logs, and every planted fault is in the right row."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import attrs
import pytest

from tests.spark.logs import make_log, make_records, random_payloads, write_control, write_segments
from waltz_core.base.ids import ReqId
from waltz_core.storage.record_codec import encode_record
from waltz_spark.archive.archive import plan_archive, run_archive
from waltz_spark.audit.audit import AuditReport, run_audit, to_html
from waltz_spark.base.errors import OptionError
from waltz_spark.base.runners import Here
from waltz_spark.read.options import parse_options
from waltz_trio.cli.main import main

COUNT = 25_000


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Three replicas and an archive."""
    make_log(tmp_path / "a", [random_payloads(COUNT), random_payloads(300)], threshold=400_000)
    for name in ("b", "c"):
        shutil.copytree(tmp_path / "a", tmp_path / name)
    options = parse_options({"directory": str(tmp_path / "a")})
    run_archive(plan_archive(options, str(tmp_path / "archive"), range_count=10_000), Here())
    return tmp_path


def run(log: Path, *names: str, archive: bool = True, judge_locks: bool = False) -> AuditReport:
    directories = [str(log / name) for name in names or "abc"]
    return run_audit(directories, str(log / "archive") if archive else None, Here(), judge_locks=judge_locks)


def failed(report: AuditReport) -> list[tuple[str, int]]:
    return [(one.check, one.partition) for one in report.findings if one.status == "failed"]


def change_record(path: Path, at: int, data: bytes) -> None:
    """Replace the data of a record of a segment by others of the same length, with checksums that fit."""
    content = bytearray(path.read_bytes())
    (record,) = make_records(0, [data], first=int(path.stem) + at)
    index = path.with_suffix(".idx").read_bytes()
    place = int.from_bytes(index[128 + 8 * at : 136 + 8 * at], "big")
    encoded = encode_record(attrs.evolve(record, req_id=ReqId(bytes(content[place + 8 : place + 24]))))
    content[place : place + len(encoded)] = encoded
    path.write_bytes(content)


def test_nothing_fails_on_a_sound_log(log: Path) -> None:
    report = run(log)
    assert report.passed
    assert {one.status for one in report.findings} == {"passed"}
    looked = {(one.check, one.partition): one.looked_at for one in report.findings}
    for check in ("dense and sound", "request ids at most once", "replicas equal", "hash chain", "archive equals log"):
        assert (looked[check, 0], looked[check, 1]) == (COUNT, 300)


@pytest.mark.parametrize("names", ["abc", "a"])
def test_a_sound_log_without_any_journal_is_unproven_unless_that_is_left_out(log: Path, names: str) -> None:
    report = run(log, *names, judge_locks=True)
    (one,) = [one for one in report.findings if one.status == "unproven"]
    assert (one.check, one.partition, one.looked_at) == ("serializable by locks", -1, 0)
    assert one.scope == f"0 of {COUNT + 300:,} records: no decision journal"
    assert "server.journal.directory" in one.detail
    assert "--journal" in one.detail
    assert "--no-journal" in one.detail
    assert (report.verdict, report.left_out) == ("unproven", ())
    left_out = run(log, *names)
    assert (left_out.verdict, left_out.left_out) == ("passed", ("serializability",))
    assert "serializable by locks" not in {one.check for one in left_out.findings}


def test_what_is_wrong_is_said_of_a_log_without_a_journal_too(log: Path) -> None:
    change_record(log / "b" / "1" / "0000000000000000000.seg", 5, bytes(len(random_payloads(300)[5])))
    assert run(log, judge_locks=True).verdict == "failed"


def test_a_changed_record_with_fitting_checksums_is_found_by_comparison(log: Path) -> None:
    path = log / "b" / "1" / "0000000000000000000.seg"
    size = len(random_payloads(300)[123])
    change_record(path, 123, bytes(size))
    report = run(log)
    assert failed(report) == [("replicas equal", 1), ("archive equals log", 1)]
    details = {one.check: one.detail for one in report.findings if one.status == "failed"}
    assert details["replicas equal"] == "differ from id 123 on"
    assert str(log / "b") in details["archive equals log"]


def test_a_damaged_record_is_found_where_it_is(log: Path) -> None:
    path = log / "c" / "0" / "0000000000000000000.seg"
    data = bytearray(path.read_bytes())
    data[9000] ^= 4
    path.write_bytes(data)
    report = run(log, archive=False)
    assert failed(report)[0] == ("dense and sound", 0)
    assert next(one.scope for one in report.findings if one.status == "failed").startswith(f"{log / 'c'}, ")


def test_a_request_that_was_committed_twice_is_named(tmp_path: Path) -> None:
    records = make_records(0, random_payloads(50))
    records[40] = attrs.evolve(records[40], req_id=records[7].req_id)
    write_segments(tmp_path / "a", 0, records)
    write_control(tmp_path / "a", [50])
    report = run(tmp_path, "a", archive=False)
    (found,) = [one for one in report.findings if one.status == "failed"]
    assert (found.check, found.detail) == ("request ids at most once", "request 8/1/7 again in transaction 40")


def test_a_directory_that_cannot_be_read_is_a_finding(log: Path) -> None:
    sorted((log / "b" / "0").glob("*.seg"))[1].unlink()
    report = run(log)
    assert failed(report) == [("readable", -1)]
    assert "the next segment" in report.findings[0].detail


def test_what_could_not_be_compared_is_unproven(log: Path) -> None:
    for name in ("a", "b", "c"):
        write_control(log / name, [12_000, 300])
    report = run(log, "a")
    assert (report.verdict, report.passed) == ("unproven", False)
    assert [(one.check, one.partition) for one in report.findings if one.status == "unproven"] == [
        ("archive equals log", 0)
    ]
    assert report.coverage.whole, "the archive has been read back where the replica is not believed"


def test_what_stands_behind_the_mark_of_a_directory_is_unproven(log: Path) -> None:
    for name in ("a", "b", "c"):
        write_control(log / name, [12_000, 0])
    report = run(log, archive=False)
    unproven = {(one.partition, one.looked_at): one for one in report.findings if one.status == "unproven"}
    assert set(unproven) == {(0, 12_000), (1, 0)}
    assert unproven[0, 12_000].scope == f"ids 0 to 11999 of ids 0 to {COUNT - 1}"
    assert "13,000 records were not looked at: they are in files" in unproven[0, 12_000].detail
    assert report.verdict == "unproven"
    assert (report.coverage.records, report.coverage.known) == (12_000, COUNT + 300)
    assert str(report.coverage).startswith(f"12,000 of {COUNT + 300:,} records (47.43 %), 0 of 2 partitions, 3 sources")


def test_a_partition_that_no_place_holds_and_a_log_without_a_record_are_unproven(tmp_path: Path) -> None:
    write_segments(tmp_path / "a", 0, make_records(0, [b"x"]))
    write_control(tmp_path / "a", [1, None])
    report = run(tmp_path, "a", archive=False)
    (one,) = [one for one in report.findings if one.status == "unproven"]
    assert (one.partition, one.detail) == (1, "no place that was named holds this partition")
    write_control(tmp_path / "b", [0, 0])
    for partition in ("0", "1"):
        (tmp_path / "b" / partition).mkdir()
    report = run(tmp_path, "b", archive=False)
    assert (report.verdict, report.coverage.percent) == ("unproven", 0.0)


def test_ids_that_two_of_three_replicas_hold_are_compared_in_those(log: Path) -> None:
    write_control(log / "a", [12_000, 300])
    path = log / "c" / "0" / sorted(one.name for one in (log / "c" / "0").glob("*.seg"))[-1]
    at = COUNT - 1 - int(path.stem)
    change_record(path, at, bytes(len(random_payloads(COUNT)[COUNT - 1])))
    report = run(log, archive=False)
    (one,) = [one for one in report.findings if one.check == "replicas equal" and one.partition == 0]
    assert (one.status, one.looked_at, one.detail) == ("failed", COUNT, f"differ from id {COUNT - 1} on")


def test_a_broken_chain_is_a_finding(log: Path) -> None:
    path = min((log / "archive").rglob("*.json"))
    commit = json.loads(path.read_text())
    commit["files"][0]["sha256"] = "11" * 32
    path.write_text(json.dumps(commit))
    assert failed(run(log)) == [("hash chain", -1)]


def test_the_page_stands_alone_and_escapes_what_it_shows(log: Path) -> None:
    page = to_html(attrs.evolve(run(log, "a"), places=("<b>here</b>",)))
    assert "&lt;b&gt;here&lt;/b&gt;" in page
    assert "http" not in page
    assert "Passed." in page
    assert "25,300 of 25,300 records (100 %), 2 of 2 partitions, 2 sources" in page
    assert "Serializability was left out." in page
    page = to_html(run(log, "a", judge_locks=True))
    assert "Nothing failed, but not everything was looked at." in page
    assert "left out" not in page


def test_the_command_prints_a_table_and_writes_the_page(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["spark", "audit", "--directory", str(log / "a"), "--directory", str(log / "b"), "--jobs", "1"]
    assert main([*call, "--html", str(tmp_path / "audit.html"), "--no-journal"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("passed: 25,300 of 25,300 records (100 %), 2 of 2 partitions, 2 sources: ")
    assert "; serializability left out; " in last
    assert (tmp_path / "audit.html").read_text().startswith("<!doctype html>")
    change_record(log / "b" / "1" / "0000000000000000000.seg", 5, bytes(len(random_payloads(300)[5])))
    assert main([*call, "--json"]) == 1
    assert not json.loads(capsys.readouterr().out)["passed"]


def test_a_page_that_cannot_be_written_hides_no_verdict(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing was printed, and the status was that of a log with which something is wrong."""
    (tmp_path / "full.html").symlink_to("/dev/full")
    call = ["spark", "audit", "--directory", str(log / "a"), "--jobs", "1", "--no-journal", "--html"]
    assert main([*call, str(tmp_path / "full.html"), "--json"]) == 4
    output = capsys.readouterr()
    assert json.loads(output.out)["verdict"] == "passed"
    assert output.err == f"Error: --html {tmp_path / 'full.html'}: No space left on device\n"

    for page in (tmp_path, tmp_path / "absent" / "audit.html"):
        assert main([*call, str(page)]) == 2
        output = capsys.readouterr()
        assert output.out == ""
        assert output.err == f"Error: --html {page}: expected a file in a directory that can be written to\n"

    (log / "a" / "1" / "0000000000000000000.seg").unlink()
    assert main([*call, str(tmp_path / "full.html")]) == 1
    assert "FAILED: " in capsys.readouterr().out


def test_the_command_says_that_serializability_is_unproven_and_what_to_do(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["spark", "audit", "--directory", str(log / "a"), "--jobs", "1"]
    assert main(call) == 3
    *_, row, detail, last = capsys.readouterr().out.splitlines()
    assert row.split()[:5] == ["serializable", "by", "locks", "unproven", "0"]
    assert "give those of all servers (--journal)" in detail
    assert last.startswith("unproven: 25,300 of 25,300 records (100 %)")
    assert main([*call, "--json"]) == 3
    answer = json.loads(capsys.readouterr().out)
    assert (answer["verdict"], answer["serializability_judged"], answer["left_out"]) == ("unproven", False, [])
    assert main([*call, "--json", "--no-journal"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["verdict"], answer["left_out"]) == ("passed", ["serializability"])
    assert main([*call, "--journal", str(log), "--no-journal"]) == 2
    assert "--no-journal" in capsys.readouterr().err


def test_nothing_to_audit_is_an_error() -> None:
    with pytest.raises(OptionError, match="say what to audit"):
        run_audit([], None, Here())
