"""Seals: what is changed, dropped or put elsewhere in a sealed log is noticed, and proofs stand by themselves."""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import waltz_trio as waltz
from tests.spark.logs import make_log, make_records, random_payloads, write_control, write_segments, write_start
from tests.spark.running import Log
from waltz_core.operations.merkle import HASH_SIZE, ProofError
from waltz_core.operations.transparency import (
    Checkpoint,
    ConsistencyProof,
    InclusionProof,
    SignedCheckpoint,
    parse_checkpoint,
)
from waltz_core.storage.record_codec import HEAD_SIZE, encode_record
from waltz_spark.archive.archive import plan_archive, run_archive
from waltz_spark.audit.coverage import FAILED, PASSED, UNPROVEN
from waltz_spark.base.errors import PipelineError
from waltz_spark.base.runners import Here
from waltz_spark.read.options import parse_options
from waltz_spark.seal import sealing
from waltz_spark.seal.keys import Signer, load_signer, load_verifier, make_key
from waltz_spark.seal.places import Folder, open_seal
from waltz_spark.seal.sealing import (
    PartitionSeal,
    SealedLog,
    check_proof,
    compare,
    prove_growth,
    prove_record,
    seal,
)
from waltz_spark.seal.tiles import WIDTH, Growth, Tiles, tile_name, write_checkpoint
from waltz_trio.base import durable
from waltz_trio.cli.main import main

COUNTS = (700, 0, 300)
MIDDLE = 150  # a record that the sweep changes


def payloads(extra: int = 0) -> list[list[bytes]]:
    return [random_payloads(count + extra if count else 0, seed=at) for at, count in enumerate(COUNTS)]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    make_log(tmp_path / "log", payloads(), threshold=9000)
    return tmp_path / "log"


@pytest.fixture
def signer(tmp_path: Path) -> Signer:
    return make_key(tmp_path / "ledger.key", "example.com/ledger")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "seal"


def opened(folder: Path, directory: Path | None = None, archive: object = None) -> closing[SealedLog]:
    given = {"directory": directory, "archive": archive}
    options = parse_options({name: str(value) for name, value in given.items() if value is not None})
    return closing(SealedLog(options, str(folder)))


def sealed(folder: Path, directory: Path, signer: Signer) -> list[PartitionSeal]:
    with opened(folder, directory) as log:
        return seal(log, signer)


def compared(folder: Path, directory: Path, signer: Signer) -> list[PartitionSeal]:
    with opened(folder, directory) as log:
        return compare(log, signer.public)


def test_a_log_is_sealed_whole_and_is_then_what_was_sealed(directory: Path, folder: Path, signer: Signer) -> None:
    rows = sealed(folder, directory, signer)
    assert [(row.verdict, row.size, row.looked_at) for row in rows] == [(PASSED, count, count) for count in COUNTS]
    rows = compared(folder, directory, signer)
    assert [(row.verdict, row.size, row.looked_at, row.beyond) for row in rows] == [
        (PASSED, count, count, 0) for count in COUNTS
    ]


@pytest.mark.parametrize("records_a_checkpoint", [None, 100])
def test_a_seal_grows_to_what_one_run_would_have_made(
    records_a_checkpoint: int | None, tmp_path: Path, folder: Path, signer: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    if records_a_checkpoint is not None:
        monkeypatch.setattr(sealing, "_COMMIT_COUNT", records_a_checkpoint)
    for extra in (0, 1, 256, 600, 600):
        directory = tmp_path / f"log-{extra}"
        if not directory.exists():
            make_log(directory, payloads(extra))
        grown = sealed(folder, directory, signer)
        shutil.rmtree(tmp_path / f"once-{extra}", ignore_errors=True)
        once = sealed(tmp_path / f"once-{extra}", directory, signer)
        assert [(row.verdict, row.size, row.root) for row in grown] == [
            (row.verdict, row.size, row.root) for row in once
        ]
        assert files_of(folder) == files_of(tmp_path / f"once-{extra}"), "nothing outgrown is left"


def files_of(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_an_archive_and_the_files_have_one_seal(directory: Path, tmp_path: Path, folder: Path, signer: Signer) -> None:
    root = str(tmp_path / "archive")
    run_archive(plan_archive(parse_options({"directory": str(directory)}), root), Here())
    with opened(folder, archive=root) as log:
        rows = seal(log, signer)
    assert [row.size for row in rows] == list(COUNTS)
    assert [row.root for row in compared(folder, directory, signer)] == [row.root for row in rows]


# ---- what is noticed -----------------------------------------------------------------------------


def test_every_byte_of_a_record_is_under_the_seal(directory: Path, folder: Path, signer: Signer) -> None:
    # Who changes a record makes its checksum right again; where that is beyond them, reading notices the damage.
    sealed(folder, directory, signer)
    data, start, size = place_of(directory, MIDDLE)
    before = data.read_bytes()
    for at in range(size):
        content = bytearray(before[start : start + size])
        content[at] ^= 1 << at % 8
        if HEAD_SIZE <= at < size - 4:
            content[HEAD_SIZE - 4 : HEAD_SIZE] = zlib.crc32(content[HEAD_SIZE:-4]).to_bytes(4)
        if at < size - 4:
            content[-4:] = zlib.crc32(content[:-4]).to_bytes(4)
        data.write_bytes(before[:start] + content + before[start + size :])
        row = compared(folder, directory, signer)[0]
        assert row.verdict == FAILED, at
        assert str(MIDDLE) in row.problem, (at, row.problem)
    data.write_bytes(before)
    assert compared(folder, directory, signer)[0].verdict == PASSED


def place_of(directory: Path, transaction_id: int) -> tuple[Path, int, int]:
    """File, offset and size of a record of partition 0."""
    records = make_records(0, payloads()[0])
    content = encode_record(records[transaction_id])
    for path in sorted((directory / "0").glob("*.seg")):
        at = path.read_bytes().find(content)
        if at >= 0:
            return path, at, len(content)
    raise AssertionError("the record is in no file")


def without_the_middle(found: list[bytes]) -> list[bytes]:
    return found[:MIDDLE] + found[MIDDLE + 1 :] + [b"another"]


def with_two_exchanged(found: list[bytes]) -> list[bytes]:
    return [*found[:MIDDLE], found[MIDDLE + 1], found[MIDDLE], *found[MIDDLE + 2 :]]


def with_one_more(found: list[bytes]) -> list[bytes]:
    return [*found[:MIDDLE], b"never happened", *found[MIDDLE:]]


@pytest.mark.parametrize("change", [without_the_middle, with_two_exchanged, with_one_more])
def test_a_log_that_was_written_anew_is_not_the_sealed_one(
    change: Callable[[list[bytes]], list[bytes]], directory: Path, tmp_path: Path, folder: Path, signer: Signer
) -> None:
    sealed(folder, directory, signer)
    first, *others = payloads()
    make_log(tmp_path / "other", [change(first), *others])
    rows = compared(folder, tmp_path / "other", signer)
    assert [row.verdict for row in rows] == [FAILED, PASSED, PASSED]
    assert f"id {MIDDLE}" in rows[0].problem


def test_a_checkpoint_that_is_gone_does_not_let_another_log_take_the_place_of_the_sealed_one(
    directory: Path, tmp_path: Path, folder: Path, signer: Signer
) -> None:
    """Whoever removed one file had the seal made anew, over the hashes that showed what had been there."""
    sealed(folder, directory, signer)
    (folder / "partition-0" / "checkpoint").unlink()
    first, *others = payloads()
    make_log(tmp_path / "other", [without_the_middle(first), *others])
    rows = sealed(folder, tmp_path / "other", signer)
    assert [row.verdict for row in rows] == [FAILED, PASSED, PASSED]
    assert "is there already, and is another one: nothing was written over" in rows[0].problem
    assert [row.verdict for row in sealed(folder, directory, signer)] == [PASSED] * 3
    assert [row.verdict for row in compared(folder, directory, signer)] == [PASSED] * 3


def test_records_that_were_cut_off_the_end_are_missed(directory: Path, folder: Path, signer: Signer) -> None:
    sealed(folder, directory, signer)
    write_control(directory, [COUNTS[0] - 1, 0, COUNTS[2]])
    for rows in (compared(folder, directory, signer), sealed(folder, directory, signer)):
        assert [row.verdict for row in rows] == [FAILED, PASSED, PASSED]
        assert "the last 1 are gone" in rows[0].problem


def test_records_that_are_in_no_place_are_not_called_unchanged(tmp_path: Path, folder: Path, signer: Signer) -> None:
    make_log(tmp_path / "log", payloads())
    sealed(folder, tmp_path / "log", signer)
    shutil.rmtree(tmp_path / "log")
    write_segments(tmp_path / "log", 0, make_records(0, payloads()[0])[100:])
    write_control(tmp_path / "log", [COUNTS[0]])
    write_start(tmp_path / "log", 0, 100)
    row = compared(folder, tmp_path / "log", signer)[0]
    assert (row.verdict, row.looked_at) == (UNPROVEN, COUNTS[0] - 100)
    row = sealed(tmp_path / "another", tmp_path / "log", signer)[0]
    assert row.verdict == UNPROVEN
    assert "name the archive" in row.problem


@pytest.mark.parametrize("level", [0, 1])
def test_a_tile_that_was_changed_is_named(level: int, directory: Path, folder: Path, signer: Signer) -> None:
    sealed(folder, directory, signer)
    place = folder / "partition-0"
    path = place / tile_name(level, 0, 256 if level == 0 else COUNTS[0] // 256)
    raw = bytearray(path.read_bytes())
    raw[40] ^= 1
    path.write_bytes(raw)
    row = compared(folder, directory, signer)[0]
    assert row.verdict == FAILED
    assert "changed" in row.problem


def test_a_seal_of_another_key_or_another_log_is_refused(
    directory: Path, tmp_path: Path, folder: Path, signer: Signer
) -> None:
    sealed(folder, directory, signer)
    stranger = make_key(tmp_path / "stranger.key", "example.com/ledger")
    assert "expected a signature of" in sealed(folder, directory, stranger)[0].problem
    make_log(tmp_path / "other", payloads(), key=bytes(16 * [7]))
    assert "seals waltz.log/" in compared(folder, tmp_path / "other", signer)[0].problem
    checkpoint = folder / "partition-0" / "checkpoint"
    checkpoint.write_text(checkpoint.read_text().replace(f"\n{COUNTS[0]}\n", f"\n{COUNTS[0] - 1}\n"))
    assert "changed, or forged" in compared(folder, directory, signer)[0].problem


# ---- proofs --------------------------------------------------------------------------------------


def test_every_record_can_be_proved_with_the_public_key_alone(directory: Path, folder: Path, signer: Signer) -> None:
    sealed(folder, directory, signer)
    with opened(folder, directory) as log:
        for transaction_id in (0, 1, 255, 256, 511, 512, 699):
            proof = check_proof(str(prove_record(log, 0, transaction_id, signer.public)), signer.public)
            assert isinstance(proof, InclusionProof)
            assert (proof.index, payloads()[0][transaction_id] in proof.content) == (transaction_id, True)
        with pytest.raises(ProofError, match="sealed up to id 699"):
            prove_record(log, 0, 700, signer.public)
        with pytest.raises(ProofError, match="no partition 3"):
            prove_record(log, 3, 0, signer.public)
        with pytest.raises(ProofError, match="holds no seal"):
            prove_record(log, 1, 0, signer.public)


def test_no_bit_of_a_proof_can_be_changed(directory: Path, folder: Path, signer: Signer) -> None:
    sealed(folder, directory, signer)
    with opened(folder, directory) as log:
        text = str(prove_record(log, 0, MIDDLE, signer.public))
    for at in range(len(text)):
        for put in ("A" if text[at] != "A" else "B", ""):
            with pytest.raises(ProofError):
                check_proof(text[:at] + put + text[at + 1 :], signer.public)


def test_growth_is_proved_and_another_past_is_not(tmp_path: Path, folder: Path, signer: Signer) -> None:
    make_log(tmp_path / "log", payloads())
    sealed(folder, tmp_path / "log", signer)
    old = Folder(folder / "partition-0").checkpoint()
    assert old is not None
    shutil.rmtree(tmp_path / "log")
    make_log(tmp_path / "log", payloads(100))
    sealed(folder, tmp_path / "log", signer)
    with opened(folder, tmp_path / "log") as log:
        text = str(prove_growth(log, 0, old, signer.public))
    proof = check_proof(text, signer.public, old)
    assert isinstance(proof, ConsistencyProof)
    assert (proof.old_size, proof.signed.checkpoint.size) == (700, 800)
    with pytest.raises(ProofError, match="name the older checkpoint"):
        check_proof(text, signer.public)
    with opened(folder, tmp_path / "log") as log:
        of_one = str(prove_record(log, 0, 7, signer.public))
    with pytest.raises(ProofError, match="--since is for one that says that a log has grown"):
        check_proof(of_one, signer.public, old)

    first, *others = payloads(100)
    make_log(tmp_path / "other", [with_two_exchanged(first), *others])
    sealed(tmp_path / "forged", tmp_path / "other", signer)  # by somebody who has the key
    with (
        opened(tmp_path / "forged", tmp_path / "other") as log,
        pytest.raises(ProofError, match="not those of the older"),
    ):
        prove_growth(log, 0, old, signer.public)


# ---- a run that is cut short, and the commands ---------------------------------------------------


@pytest.mark.parametrize("records_a_checkpoint", [None, 100])
def test_a_seal_that_was_cut_short_goes_on(
    records_a_checkpoint: int | None,
    directory: Path,
    tmp_path: Path,
    folder: Path,
    signer: Signer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if records_a_checkpoint is not None:
        monkeypatch.setattr(sealing, "_COMMIT_COUNT", records_a_checkpoint)
    whole = sealed(tmp_path / "whole", directory, signer)
    count = 0

    def stop_at(limit: int) -> Callable[[Path, bytes], None]:
        replace, done = original, iter(range(limit))

        def call(path: Path, data: bytes) -> None:
            if next(done, None) is None:
                raise OSError(5, "the power is gone")
            replace(path, data)

        return call

    original = durable.replace_file
    while True:
        monkeypatch.setattr(durable, "replace_file", stop_at(count))
        shutil.rmtree(folder, ignore_errors=True)
        rows = sealed(folder, directory, signer)
        monkeypatch.setattr(durable, "replace_file", original)
        with opened(folder, directory) as log:
            kept = [log.sealed(partition, signer.public) for partition in log.partitions]
        assert [row.size for row in rows] == [0 if each is None else each[1].size for each in kept]
        assert [row.root for row in sealed(folder, directory, signer)] == [row.root for row in whole], count
        assert [row.verdict for row in compared(folder, directory, signer)] == [PASSED] * 3
        if all(row.verdict == PASSED for row in rows):
            break
        count += 1
    assert count > 5


def test_while_a_run_seals_in_a_folder_another_is_refused_and_changes_nothing(
    tmp_path: Path, folder: Path, signer: Signer, capsys: pytest.CaptureFixture[str]
) -> None:
    make_log(tmp_path / "log", payloads(), threshold=9000)
    sealed(folder, tmp_path / "log", signer)
    shutil.rmtree(tmp_path / "log")
    make_log(tmp_path / "log", payloads(300), threshold=9000)
    words = ["seal", "--seal", str(folder), "--directory", str(tmp_path / "log"), "--key", str(tmp_path / "ledger.key")]
    before = files_of(folder)
    with opened(folder, tmp_path / "log") as log, log.places.writing():
        assert main(words) == 1
        assert capsys.readouterr() == (
            "",
            f"Error: {folder}: another run is sealing there; expected one at a time. Run this again when that has "
            "ended: nothing was changed by this one\n",
        )
        assert files_of(folder) == before
        assert [row.verdict for row in compared(folder, tmp_path / "log", signer)] == [PASSED] * 3, "it only reads"
    assert main(words) == 0
    assert files_of(folder) != before


def test_while_a_run_removes_what_it_has_outgrown_a_seal_is_read_and_compared(
    tmp_path: Path, folder: Path, signer: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tile that a run has removed since is not one that was tampered with."""
    log = {extra: tmp_path / f"log-{extra}" for extra in (0, 20, 300)}
    for extra, directory in log.items():
        make_log(directory, payloads(extra), threshold=9000)
    sealed(folder, log[0], signer)
    original, runs = Folder.checkpoint, iter((20, 300))

    def overtaken(place: Folder) -> SignedCheckpoint | None:
        """Between the checkpoint and its tiles another run comes, twice."""
        signed, extra = original(place), next(runs, None)
        if extra is not None:
            monkeypatch.setattr(Folder, "checkpoint", original)
            assert [row.verdict for row in sealed(folder, log[extra], signer)] == [PASSED] * 3
            monkeypatch.setattr(Folder, "checkpoint", overtaken)
        return signed

    monkeypatch.setattr(Folder, "checkpoint", overtaken)
    rows = compared(folder, log[300], signer)
    assert [(row.verdict, row.size) for row in rows] == [(PASSED, 1000), (PASSED, 0), (PASSED, 600)], rows
    assert next(runs, None) is None


def test_tiles_whose_root_was_read_need_no_file_that_a_run_removes(folder: Path, signer: Signer) -> None:
    leaves = [str(number).encode().ljust(HASH_SIZE) for number in range(70 * WIDTH)]
    places = open_seal(str(folder))
    with places.writing():
        growth, old_size = Growth(Tiles(places.of(0), 0)), 0
        for size in (len(leaves) - 300, len(leaves)):
            for leaf in leaves[old_size:size]:
                growth.add(leaf)
            tiles = growth.finish()
            root = tiles.root()
            if old_size:
                before = Tiles(places.of(0), old_size)
                before.root()
            write_checkpoint(places.of(0), signer.sign(Checkpoint("example.com", size, root)), old_size)
            growth, old_size = Growth(tiles), size
    before.check()
    assert [before.leaf(index) for index in range(before.size)] == leaves[: before.size]
    with pytest.raises(ProofError, match="is missing"):
        Tiles(places.of(0), before.size).root()


def test_a_folder_in_which_no_seal_can_be_kept_is_named(directory: Path, tmp_path: Path, signer: Signer) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PipelineError, match=f"^{tmp_path}/file/seal: no seal can be kept there: Not a directory"):
        sealed(tmp_path / "file" / "seal", directory, signer)


def test_keys_are_never_written_over_and_are_for_their_owner(tmp_path: Path) -> None:
    signer = make_key(tmp_path / "a.key", "example.com/ledger")
    assert load_signer(tmp_path / "a.key").public == load_verifier(tmp_path / "a.key.pub") == signer.public
    assert (tmp_path / "a.key").stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        make_key(tmp_path / "a.key", "example.com/ledger")
    with pytest.raises(ProofError):
        make_key(tmp_path / "b.key", "two words")
    assert not (tmp_path / "b.key").exists()
    with pytest.raises(ProofError, match=r"a\.key\.pub: expected a private key"):
        load_signer(tmp_path / "a.key.pub")
    with pytest.raises(ProofError, match=r"a\.key: expected a public key, found a private one: .* ends in \.pub"):
        load_verifier(tmp_path / "a.key")


@pytest.mark.parametrize("cut", [0, 1, 4])
def test_no_complaint_shows_anything_of_a_private_key(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "a.key"
    make_key(path, "a")
    text = path.read_text().strip()
    path.write_text(text[: len(text) - cut])
    secret = text.rpartition("+")[2]
    for load in (load_verifier, load_signer) if cut else (load_verifier,):
        with pytest.raises(ProofError) as found:
            load(path)
        assert str(found.value).startswith(f"{path}: ")
        assert not any(secret[at : at + 8] in str(found.value) for at in range(len(secret) - 8))


def test_an_empty_log_is_called_so_and_what_cannot_be_read_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "log"
    make_log(empty, [[], []])

    def call(*words: object) -> tuple[int, str]:
        status = main([str(word) for word in ("seal", "--seal", tmp_path / "seal", "--directory", empty, *words)])
        text = capsys.readouterr()
        return status, text.out + text.err

    make_key(tmp_path / "a.key", "a")
    for words in (("--key", tmp_path / "a.key"), ("--key", tmp_path / "a.key.pub", "--check")):
        status, text = call(*words)
        assert (status, "the log is empty" in text) == (3, True), text
    assert call("--key", tmp_path / "none") == (1, f"Error: {tmp_path}/none: No such file or directory\n")
    status, text = call("--new-key", tmp_path / "no" / "a.key")
    assert (status, text) == (1, f"Error: {tmp_path}/no/a.key.pub: No such file or directory\n")
    status, text = call("--new-key", tmp_path / "b.key", "--name", "")
    assert "expected a name without spaces" in text


def test_a_running_cluster_is_sealed_and_checked_by_the_commands(
    url: str, log: Log, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def call(*words: object, status: int = 0) -> str:
        assert main([str(word) for word in words]) == status
        return capsys.readouterr().out

    key, folder = tmp_path / "ledger.key", tmp_path / "seal"
    call("seal", "--new-key", key, "--name", "example.com/ledger")
    for text in ("one", "two"):
        log.append(0, waltz.Append(text.encode()), log.marks[0])
    assert "sealed: " in call("seal", "--seal", folder, "--key", key, "--url", url)
    old = folder / "partition-0" / "checkpoint"
    size = parse_checkpoint(old.read_text()).checkpoint.size
    kept = tmp_path / "january.checkpoint"
    kept.write_text(old.read_text())
    log.append(0, waltz.Append(b"three"), log.marks[0])
    public = f"{key}.pub"
    found = json.loads(call("seal", "--seal", folder, "--key", public, "--check", "--url", url, "--json"))
    assert (found["verdict"], found["partitions"][0]["sealed"], found["partitions"][0]["beyond"]) == ("passed", size, 1)
    call("seal", "--seal", folder, "--key", key, "--url", url)

    proof, growth = tmp_path / "proof", tmp_path / "growth"
    words = ("prove", "--seal", folder, "--key", public, "-p", 0, "--url", url)
    call(*words, "--transaction", size, "--to", proof)
    found = json.loads(call("check-proof", "--key", public, proof, "--json"))
    assert (found["transaction"], bytes.fromhex(found["payload"]), found["signed_by"]) == (
        size,
        b"three",
        "example.com/ledger",
    )
    call(*words, "--since", kept, "--to", growth)
    assert f"still begins with the {size:,} records" in call("check-proof", "--key", public, "--since", kept, growth)
    proof.write_text(proof.read_text().replace("index ", "index 1"))
    call("check-proof", "--key", public, proof, status=1)
    call(*words, status=2)
