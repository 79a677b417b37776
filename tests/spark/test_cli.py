"""`waltz spark`: what people type, what they read, and the exit status."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.logs import make_log, random_payloads, write_control
from waltz_core.storage.segment import HEADER_SIZE
from waltz_spark.archive.freeing import Freed, FreePlan
from waltz_spark.audit.scan import scan
from waltz_spark.base.runners import Here
from waltz_spark.read.options import Options, parse_options
from waltz_spark.records.manifest import read_archive
from waltz_trio.cli.main import main

COUNTS = (400, 0, 90)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    make_log(tmp_path / "log", [random_payloads(count, seed=at) for at, count in enumerate(COUNTS)], threshold=9000)
    return tmp_path / "log"


def test_scan_counts_every_record(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["spark", "scan", "--directory", str(log), "--jobs", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[3] for line in lines[1:4]] == ["400", "0", "90"]
    assert [line.split()[-1] for line in lines[1:4]] == ["sound", "empty", "sound"]
    assert lines[4].startswith("490 records, ")
    assert lines[5] == f"sound: 490 of 490 records (100 %), 3 of 3 partitions, 1 source: {log}"


def test_scan_tells_what_it_left_out(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_control(log, [390, 0, 90])
    assert main(["spark", "scan", "--directory", str(log), "--jobs", "1"]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines[1:4]] == ["unproven", "empty", "sound"]
    assert lines[4].startswith("480 records, ")
    assert lines[5].startswith("10 records behind these are not known to be committed")
    assert lines[6].startswith("unproven: 480 of 490 records (97.95 %), 2 of 3 partitions")
    assert main(["spark", "scan", "--directory", str(log), "--jobs", "1", "--trust", "files"]) == 0
    assert capsys.readouterr().out.splitlines()[4].startswith("490 records, ")


def test_what_lost_its_first_segment_or_a_partition_is_not_sound(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calls = [["spark", name, "--directory", str(log), "--jobs", "1"] for name in ("scan", "audit")]
    calls[1].append("--no-journal")
    first = log / "0" / "0000000000000000000.seg"
    first.rename(log / "kept")
    for call in calls:
        assert main(call) == 1
        answer = capsys.readouterr()
        assert "the log begins at 0: those before it are lost, not freed" in answer.out + answer.err
    (log / "kept").rename(first)
    (log / "2").rename(log / "kept")
    for call in calls:
        assert main(call) == 1
        answer = capsys.readouterr()
        assert "partition 2, transactions 0 to 89, " in answer.out + answer.err


def test_a_scan_of_nothing_is_unproven(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_log(tmp_path / "log", [[]])
    assert main(["spark", "scan", "--directory", str(tmp_path / "log"), "--jobs", "1", "--json"]) == 3
    answer = json.loads(capsys.readouterr().out)
    assert (answer["verdict"], answer["sound"], answer["coverage"]["percent"]) == ("unproven", False, 0.0)


def test_verify_is_unproven_where_no_replica_was_compared(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = str(tmp_path / "archive")
    source = ["--directory", str(log), "--jobs", "1"]
    main(["spark", "archive", *source, "--to", archive])
    capsys.readouterr()
    assert main(["spark", "verify", "--archive", archive, "--jobs", "1"]) == 0
    assert "compared with no replica: name some (-c, --url, --directory)" in capsys.readouterr().out
    write_control(log, [0, 0, 90])
    assert main(["spark", "verify", "--archive", archive, *source]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("90 of 490 records (18 %) equal to those of a replica")
    assert lines[1] == "unproven"


def test_scan_tells_what_is_damaged_and_goes_on(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = log / "2" / "0000000000000000000.seg"
    data = bytearray(path.read_bytes())
    data[1500] ^= 1
    path.write_bytes(data)
    call = ["spark", "scan", "--directory", str(log), "--jobs", "1", "--json"]
    assert main(call) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["sound"]
    assert [one["records"] for one in found["partitions"]][:2] == [400, 0]
    (problem,) = found["partitions"][2]["problems"]
    assert problem.startswith("partition 2, transaction ")
    assert str(path) in problem


def test_no_byte_of_a_record_can_change_unseen(tmp_path: Path) -> None:
    make_log(tmp_path / "log", [[b"debit 100", b"credit 100", b"fee 1"]])
    path = tmp_path / "log" / "0" / "0000000000000000000.seg"
    intact, options = path.read_bytes(), parse_options({"directory": str(tmp_path / "log")})
    assert scan(options, Here()).sound
    for at in range(HEADER_SIZE, len(intact)):
        damaged = bytearray(intact)
        damaged[at] ^= 1
        path.write_bytes(damaged)
        assert not scan(options, Here()).sound, at


def test_archive_verify_and_restore_in_a_row(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive, again = str(tmp_path / "archive"), tmp_path / "again"
    source = ["--directory", str(log), "--jobs", "1"]
    assert main(["spark", "archive", *source, "--to", archive, "--range", "100", "--dry-run"]) == 0
    assert "490 records in 5 files would be written" in capsys.readouterr().out
    assert not (tmp_path / "archive" / "data").exists()
    assert main(["spark", "archive", *source, "--to", archive, "--range", "100", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["records"] == 490
    assert main(["spark", "archive", *source, "--to", archive]) == 0
    assert capsys.readouterr().out.startswith("0 records in 0 files")
    assert main(["spark", "verify", archive, *source]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "5 files with 490 records in 2 partitions, hash chain whole, 490 of 490 records (100 %) equal to those of "
        "a replica",
        "no problem",
    ]
    assert main(["spark", "restore", archive, "--to", str(again), "--jobs", "1"]) == 0
    assert "490 records" in capsys.readouterr().out
    for path in (log / "0").iterdir():
        assert (again / "0" / path.name).read_bytes() == path.read_bytes()
    assert main(["spark", "restore", archive, "--to", str(again), "--jobs", "1"]) == 1
    assert "is not empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("answer", "status", "said"),
    [(b"y\n", 0, ""), (b"n\n", 1, "Error: nothing was freed\n"), (b"\x04", 1, "\nError: nothing was freed\n")],
)
def test_what_was_archived_is_told_whatever_the_answer_is(
    log: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: bytes,
    status: int,
    said: str,
) -> None:
    """The question was in the JSON, Ctrl-D a traceback, and a no hid the result."""
    archive, freed = str(tmp_path / "archive"), (Freed(0, 0, 400),)

    def plan(options: Options, root: str, *, keep_local: int) -> FreePlan:
        return FreePlan(options, read_archive(root), freed, (), ())

    monkeypatch.setattr("waltz_spark.cli.main.plan_free", plan)
    monkeypatch.setattr("waltz_spark.cli.main.run_free", lambda *_: freed)
    ours, its = pty.openpty()
    with open(its, encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        os.write(ours, answer)
        call = ["spark", "archive", "--directory", str(log), "--to", archive, "--jobs", "1", "--free", "--json"]
        assert main(call) == status
    os.close(ours)
    output = capsys.readouterr()
    result = json.loads(output.out)
    assert result["records"] == 490
    assert result.get("freed") == (None if status else [{"partition": 0, "start": 0, "end": 400}])
    question = "partition 0: ids 0 to 399 will be removed from the storage nodes\nGo on? [y/N] "
    assert output.err == question + said


def test_nothing_is_archived_where_nobody_can_be_asked_to_free(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = tmp_path / "archive"
    with open(os.devnull, encoding="utf-8") as nobody:
        monkeypatch.setattr(sys, "stdin", nobody)
        assert main(["spark", "archive", "--directory", str(log), "--to", str(archive), "--free"]) == 1
    assert "add --yes where nobody can be asked" in capsys.readouterr().err
    assert not list(archive.rglob("*.*"))


def test_verify_fails_if_a_file_is_gone(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive = tmp_path / "archive"
    main(["spark", "archive", "--directory", str(log), "--to", str(archive), "--jobs", "1"])
    next(archive.rglob("*.parquet")).unlink()
    assert main(["spark", "verify", str(archive), "--jobs", "1"]) == 1
    assert "1 problems" in capsys.readouterr().out


def test_a_comma_in_the_path_of_a_directory_is_explained(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was said of two other directories that they are not there."""
    comma = tmp_path / "rack 1,2"
    log.rename(comma)
    for command in ("scan", "report"):
        assert main(["spark", command, "--directory", str(comma), "--jobs", "1"]) == 1
        assert f"--directory {comma}: a comma separates directories: give each" in capsys.readouterr().err
    log.symlink_to(comma)
    assert main(["spark", "scan", "--directory", str(log), "--jobs", "1"]) == 0
    # What is not joined needs no link.
    assert main(["spark", "audit", "--directory", str(comma), "--jobs", "1", "--no-journal"]) == 0


def test_a_call_that_cannot_be_meant_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["spark", "scan"]) == 2
    assert "say what to read: -c FILE" in capsys.readouterr().err
    for count in ("0", "-1", "two"):
        assert main(["spark", "scan", "--directory", "x", f"--jobs={count}"]) == 2
        assert f"expected a whole number of at least 1, found '{count}'" in capsys.readouterr().err
    assert main(["spark", "scan", "-o", "directry=x"]) == 1
    assert "did you mean directory?" in capsys.readouterr().err


@pytest.mark.parametrize("number", ["-5", "1.5", "nan", "9223372036854775808", "9" * 5000, ""])
@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("spark archive --directory D --to A", "--range"),
        ("spark archive --directory D --to A", "--keep-last"),
        ("spark archive --directory D --to A --free", "--keep-local"),
        ("prove --seal S --key K", "-p"),
        ("prove --seal S --key K -p 0", "--transaction"),
    ],
)
def test_a_number_that_can_be_none_is_refused_before_anything_is_read(
    command: str, option: str, number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command.split(), option, number]) == 2
    text = capsys.readouterr().err
    assert "expected a whole number of at least " in text
    assert option.strip("-") in text


def test_files_without_an_id_are_refused(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["spark", "archive", "--directory", str(log), "--to", str(tmp_path / "archive"), "--range", "0"]) == 2
    assert "expected a whole number of at least 1, found '0'" in capsys.readouterr().err


@pytest.mark.parametrize("partitions", ["2-1", "2-1,0", "0-9999999999", "9" * 5000])
def test_a_list_of_partitions_that_names_none_is_refused(
    partitions: str, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["spark", "scan", "--directory", str(log), "--jobs", "1", "-o", f"partitions={partitions}"]) == 1
    assert "partitions: expected ids and ranges such as 0-3,7" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("partitions", "missing"), [("9", "9"), ("3-9", "3, 4, 5, 6, 7, ..."), ("0,3", "3"), ("2-4", "3, 4")]
)
def test_partitions_that_the_archive_does_not_have_are_named_and_nothing_is_restored(
    partitions: str, missing: str, log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive, target = str(tmp_path / "archive"), tmp_path / "new" / "target"
    main(["spark", "archive", "--directory", str(log), "--to", archive, "--jobs", "1"])
    restore = ["spark", "restore", "--archive", archive, "--to", str(target), "--jobs", "1", "--partitions"]
    assert main([*restore, partitions]) == 1
    told = f"partitions: there is no {missing}: the archive {archive} has 3 partitions, 0 to 2"
    assert told in capsys.readouterr().err
    assert not target.parent.exists()
    assert main([*restore, "1-2"]) == 0
    assert sorted(path.name for path in target.iterdir()) == ["1", "2", "waltz-storage.ctl"]


@pytest.mark.parametrize("size", ["1", "-4", "127", "9223372036854775808"])
def test_a_segment_without_room_is_refused_and_nothing_is_restored(
    size: str, log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive, target = str(tmp_path / "archive"), tmp_path / "target"
    main(["spark", "archive", "--directory", str(log), "--to", archive, "--jobs", "1"])
    assert main(["spark", "restore", "--archive", archive, "--to", str(target), "--segment-size", size]) == 2
    assert "--segment-size: expected a whole number of at least 128" in capsys.readouterr().err
    assert not target.exists()


@pytest.mark.parametrize("command", ["archive --directory {log}", "restore --archive {archive}"])
def test_nothing_is_written_to_a_place_without_a_name(
    command: str, log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = str(tmp_path / "archive")
    main(["spark", "archive", "--directory", str(log), "--to", archive, "--jobs", "1"])
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert main(["spark", *command.format(log=log, archive=archive).split(), "--to", ""]) == 2
    assert "--to: expected the name of a directory, found nothing" in capsys.readouterr().err
    assert not list((tmp_path / "here").iterdir())


@pytest.mark.parametrize("command", ["scan", "archive --to A", "report"])
def test_no_command_passes_over_partitions_that_there_are_not(
    command: str, log: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    source = ["--directory", str(log), "--jobs", "1", "-o", "partitions=2-9"]
    assert main(["spark", *command.split(), *source]) == 1
    assert "partitions: there is no 3, 4, 5, 6, 7, ...: the log has 3 partitions, 0 to 2" in capsys.readouterr().err
    assert not (tmp_path / "A").exists()


def test_the_other_commands_do_not_load_the_pipeline() -> None:
    code = (
        "import sys, importlib, pkgutil, waltz_trio\n"
        "for one in pkgutil.walk_packages(waltz_trio.__path__, 'waltz_trio.'):\n"
        "    importlib.import_module(one.name)\n"
        "print(*sorted({'waltz_spark', 'pyspark', 'pyarrow', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stdout + done.stderr


def test_what_an_interrupted_command_leaves_is_told(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("waltz_spark.cli.main.run_archive", interrupted)
    assert main(["spark", "archive", "--directory", str(log), "--to", str(tmp_path / "archive")]) == 130
    told = "Interrupted by SIGINT\nWhat is in the archive stays; the same command goes on behind it\n"
    assert capsys.readouterr().err == told
