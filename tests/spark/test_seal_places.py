"""Seals in an object store: what is there is never written over, and what is not there is not taken for unsealed."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.spark.logs import make_log, random_payloads
from tests.spark.s3 import outage
from waltz_core.operations.merkle import ProofError
from waltz_core.operations.transparency import Checkpoint, ConsistencyProof, parse_checkpoint
from waltz_spark.audit.coverage import FAILED, PASSED, UNPROVEN
from waltz_spark.base.errors import ArchiveError, UnreachableError
from waltz_spark.base.objects import RemoteStore, open_store
from waltz_spark.read.options import parse_options
from waltz_spark.seal.keys import Signer, make_key
from waltz_spark.seal.places import Bucket, open_seal, put_text, read_text
from waltz_spark.seal.sealing import PartitionSeal, SealedLog, check_proof, compare, prove_growth, prove_record, seal
from waltz_spark.seal.tiles import Growth, Tiles, tile_name, write_checkpoint
from waltz_trio.cli.main import main

pytestmark = pytest.mark.filterwarnings("ignore")  # of botocore

COUNT = 300


@pytest.fixture
def signer(tmp_path: Path) -> Signer:
    return make_key(tmp_path / "ledger.key", "example.com/ledger")


@pytest.fixture
def root(bucket: str, request: pytest.FixtureRequest) -> str:
    return f"{bucket}/{hashlib.sha256(request.node.name.encode()).hexdigest()[:12]}/seal"


def log_of(tmp_path: Path, count: int = COUNT) -> Path:
    directory = tmp_path / f"log-{count}"
    if not directory.exists():
        make_log(directory, [random_payloads(count, seed=1), random_payloads(5, seed=2)])
    return directory


def opened(root: object, directory: Path, *, read_only: bool = False) -> closing[SealedLog]:
    return closing(SealedLog(parse_options({"directory": str(directory)}), str(root), read_only=read_only))


def sealed(root: object, directory: Path, signer: Signer) -> list[PartitionSeal]:
    with opened(root, directory) as log:
        return seal(log, signer)


def compared(root: object, directory: Path, signer: Signer) -> list[PartitionSeal]:
    with opened(root, directory, read_only=True) as log:
        return compare(log, signer.public)


def file_system(root: str) -> Any:
    store = open_store(root)
    assert isinstance(store, RemoteStore)
    return store._file_system


def content(root: str) -> dict[str, bytes]:
    files = file_system(root)
    return {name: files.cat_file(name) for name in files.find(root, refresh=True)}


def test_a_seal_in_a_bucket_is_that_of_a_folder_and_keeps_every_checkpoint(
    root: str, tmp_path: Path, signer: Signer
) -> None:
    before: dict[str, bytes] = {}
    for count in (COUNT, 900, 900):
        directory = log_of(tmp_path, count)
        rows = sealed(root, directory, signer)
        assert rows == sealed(f"file://{tmp_path}/seal", directory, signer)
        assert [row.verdict for row in compared(root, directory, signer)] == [PASSED, PASSED]
        now = content(root)
        assert {name: now.get(name) for name in before} == before, "nothing was written over or removed"
        before = now
    assert [row.verdict for row in compared(tmp_path / "seal", directory, signer)] == [PASSED, PASSED]
    names = open_store(root).names("partition-0/checkpoint")
    assert [int(name) for name in names] == [COUNT, 900]
    with opened(root, log_of(tmp_path, 900), read_only=True) as log:
        for transaction_id in (0, 299):
            check_proof(str(prove_record(log, 0, transaction_id, signer.public)), signer.public)
        first = Bucket(open_store(root), "partition-0").find(f"checkpoint/{names[0]}", 10_000)
        assert first is not None
        old = parse_checkpoint(first.decode())
        assert isinstance(
            check_proof(str(prove_growth(log, 0, old, signer.public)), signer.public, old), ConsistencyProof
        )
        assert str(log.place_of(0)) == f"{root}/partition-0"


def test_a_run_that_is_cut_short_at_any_object_goes_on(
    root: str, tmp_path: Path, signer: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, put = log_of(tmp_path), RemoteStore.put_if_absent
    whole = [row.root for row in sealed(tmp_path / "seal", directory, signer)]
    for limit in range(20):
        at, left = f"{root}-{limit}", iter(range(limit))

        def cut(store: RemoteStore, name: str, data: bytes, left: Any = left) -> bool:
            if next(left, None) is None:
                raise UnreachableError("the power is gone")
            return put(store, name, data)

        monkeypatch.setattr(RemoteStore, "put_if_absent", cut)
        rows = sealed(at, directory, signer)
        monkeypatch.setattr(RemoteStore, "put_if_absent", put)
        if all(row.verdict == PASSED for row in rows):
            break
        assert rows[0].verdict == UNPROVEN or rows[1].verdict == UNPROVEN
        assert [row.root for row in sealed(at, directory, signer)] == whole, limit
        assert [row.verdict for row in compared(at, directory, signer)] == [PASSED, PASSED]
    assert limit >= 5


def test_of_two_runs_at_the_same_time_none_harms_the_other(root: str, signer: Signer) -> None:
    leaves = [hashlib.sha256(b"%d" % at).digest() for at in range(700)]
    first, second = open_seal(root), open_seal(root)
    with first.writing(), second.writing():
        growths = {700: Growth(Tiles(first.of(0), 0)), 300: Growth(Tiles(second.of(0), 0))}
        for size, growth in growths.items():
            for leaf in leaves[:size]:
                growth.add(leaf)
            tiles = growth.finish()
            write_checkpoint(growth.place, signer.sign(Checkpoint("example.com", size, tiles.root())), 0)
        signed = first.of(0).checkpoint()
        assert signed is not None
        assert signed.checkpoint.size == 700
        for size in (300, 700):
            tiles = Tiles(first.of(0), size)
            tiles.check()
            assert tiles.root() == growths[size].finish().root()


def test_threads_that_put_objects_end_with_the_run(root: str, tmp_path: Path, signer: Signer) -> None:
    assert [row.verdict for row in sealed(root, log_of(tmp_path), signer)] == [PASSED, PASSED]
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("seal")] == []


def test_what_is_changed_or_gone_in_the_bucket_is_named(root: str, tmp_path: Path, signer: Signer) -> None:
    directory = log_of(tmp_path)
    sealed(root, directory, signer)
    files, name = file_system(root), f"{root}/partition-0/{tile_name(0, 0, 256)}"
    data = files.cat_file(name)
    files.pipe_file(name, data[:40] + bytes([data[40] ^ 1]) + data[41:])
    row = compared(root, directory, signer)[0]
    assert (row.verdict, "tile 0 of level 0 was changed" in row.problem) == (FAILED, True), row
    files.rm_file(name)
    row = compared(root, directory, signer)[0]
    assert (row.verdict, f"{name}: a tile of 256 hashes is missing" in row.problem) == (FAILED, True), row
    files.pipe_file(name, data * 2)
    assert "has more than 8192 bytes" in compared(root, directory, signer)[0].problem
    files.pipe_file(name, data)
    checkpoint = f"{root}/partition-0/checkpoint/"
    files.pipe_file(f"{checkpoint}{10**6:020d}", files.cat_file(f"{checkpoint}{COUNT:020d}"))
    row = sealed(root, directory, signer)[0]
    assert "expected the checkpoint of 1000000 records, found that of 300" in row.problem
    files.pipe_file(f"{checkpoint}{10**6:020d}", b"\xff")
    assert "bytes that are no text" in compared(root, directory, signer)[0].problem


def test_another_log_in_the_same_place_writes_nothing_over(root: str, tmp_path: Path, signer: Signer) -> None:
    files, name = file_system(root), f"{root}/partition-0/{tile_name(0, 0, 256)}"
    files.pipe_file(name, bytes(8192))  # of a run that was cut short before its checkpoint
    row = sealed(root, log_of(tmp_path), signer)[0]
    assert (row.verdict, row.problem) == (
        FAILED,
        f"{name} is there already, and is another one: nothing was written over",
    )
    assert files.cat_file(name) == bytes(8192)


def test_a_bucket_that_is_gone_is_not_a_log_without_a_seal(root: str, tmp_path: Path, signer: Signer) -> None:
    directory = log_of(tmp_path)
    sealed(root, directory, signer)
    outage.set()
    try:
        for rows in (compared(root, directory, signer), sealed(root, directory, signer)):
            assert [row.verdict for row in rows] == [UNPROVEN, UNPROVEN]
            assert "there is no bucket vault" in rows[0].problem
    finally:
        outage.clear()
    assert [row.verdict for row in compared(root, directory, signer)] == [PASSED, PASSED]


def test_the_commands_take_uris_for_seals_checkpoints_and_proofs(
    root: str, tmp_path: Path, signer: Signer, capsys: pytest.CaptureFixture[str]
) -> None:
    def call(*words: object, status: int = 0) -> str:
        assert main([str(word) for word in words]) == status
        text = capsys.readouterr()
        return text.out + text.err

    key = tmp_path / "ledger.key"
    public = f"{key}.pub"
    shutil.copytree(log_of(tmp_path), tmp_path / "log")
    where = ("--seal", root, "--directory", tmp_path / "log")
    assert f"sealed: {COUNT + 5} records" in call("seal", *where, "--key", key)
    found = json.loads(call("seal", *where, "--key", public, "--check", "--json"))
    assert (found["verdict"], found["seal"]) == ("passed", root)
    shutil.rmtree(tmp_path / "log")
    shutil.copytree(log_of(tmp_path, 900), tmp_path / "log")
    call("seal", *where, "--key", key)
    proof, growth, old = f"{root}/7.proof", f"{root}/growth.proof", f"{root}/partition-0/checkpoint/{COUNT:020d}"
    words = ("prove", *where, "--key", public, "-p", 0)
    call(*words, "--transaction", 7, "--to", proof)
    assert "transaction 7 " in call("check-proof", "--key", public, proof)
    call(*words, "--since", old, "--to", growth)
    assert f"begins with the {COUNT} records" in call("check-proof", "--key", public, "--since", old, growth)
    call(*words, "--transaction", 7, "--to", proof)  # the same proof
    text = call(*words, "--transaction", 8, "--to", proof, status=1)
    assert text == f"Error: {proof} is there already, and is another one: nothing was written over\n"
    assert "transaction 7 " in call("check-proof", "--key", public, proof)
    assert f"Error: {root}/none" in call("check-proof", "--key", public, f"{root}/none", status=1)
    text = call("seal", "--seal", "ftp://a/b", "--directory", tmp_path / "log", "--key", key, status=1)
    kept = "archives, seals and checkpoints of a sink are kept in directories or on s3, s3a"
    assert text == f"Error: ftp://a/b: {kept}, not on ftp\n"


def test_an_object_that_is_there_already_must_be_the_same(root: str) -> None:
    places = open_seal(root)
    with places.writing():
        place = places.of(0)
        for _ in range(2):
            place.put("tile/0/000.p/1", bytes(32))
            place.settle()
        place.put("tile/0/000.p/1", bytes(31) + b"1")
        with pytest.raises(ProofError, match="is there already, and is another one"):
            place.settle()


@pytest.mark.parametrize("place", ["s3:/vault", "hdfs:/x", "file://host/x", "file:x"])
def test_what_only_looks_like_a_uri_is_no_folder_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    directory = log_of(tmp_path)
    key = str(tmp_path / "ledger.key")
    assert main(["seal", "--new-key", key]) == 0
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    capsys.readouterr()
    assert main(["seal", "--directory", str(directory), "--key", key, "--seal", place]) == 1
    assert f"{place}: expected " in capsys.readouterr().err
    for call in (lambda: put_text(f"{place}/growth.proof", b"x"), lambda: read_text(f"{place}/growth.proof")):
        with pytest.raises(ArchiveError, match="expected "):
            call()
    assert list(here.iterdir()) == []


def test_a_local_place_may_be_written_as_a_uri(tmp_path: Path, signer: Signer) -> None:
    directory = log_of(tmp_path)
    rows = sealed(str(tmp_path / "seal"), directory, signer)
    for place in (f"file:{tmp_path}/seal", f"file://localhost{tmp_path}/seal", f"FILE://{tmp_path}/seal"):
        assert [one.size for one in sealed(place, directory, signer)] == [one.size for one in rows]
    put_text(f"file:{tmp_path}/a.proof", b"x")
    assert ((tmp_path / "a.proof").read_bytes(), read_text(f"file://{tmp_path}/a.proof")) == (b"x", b"x")
