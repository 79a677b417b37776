"""Decoding segment files without Spark: equal to the core's own decoder, and loud about every damage."""

from __future__ import annotations

import random
import zlib
from pathlib import Path

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.spark.logs import KEY, make_log, make_records, random_payloads, write_control, write_segments, write_start
from waltz_core.base.ids import req_id_parts
from waltz_core.base.log import Record
from waltz_spark.base.errors import DataLossError, OptionError, PipelineError, RecordDamagedError, WrongClusterError
from waltz_spark.records import crc
from waltz_spark.records.columns import NAMES, Condition, Shape
from waltz_spark.records.directories import read_directory
from waltz_spark.records.segments import SegmentFile, cut

SMALL = Shape(rows_max=7, size_max=500, verify="record")


def rows(path: Path, partition: int, start: int, end: int, shape: Shape = SMALL) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    with SegmentFile(path, partition, KEY) as segment:
        for block in segment.blocks(start, end, shape):
            block.check(shape.verify)
            found += block.batch(shape).to_pylist()
    return found


def expected(partition: int, record: Record) -> dict[str, object]:
    client_id, generation, _, seq = req_id_parts(record.req_id)
    values = (
        partition,
        record.transaction_id,
        client_id,
        generation,
        seq,
        record.header,
        record.checksum,
        len(record.data),
        record.data,
    )
    return dict(zip(NAMES, values, strict=True))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


# ---- checksums


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=40))
def test_the_checksum_of_a_run_follows_from_those_of_its_pieces(pieces: list[bytes]) -> None:
    checksums = np.array([zlib.crc32(piece) for piece in pieces], np.uint32)
    ends = np.cumsum([len(piece) for piece in pieces])
    assert crc.combined(checksums, ends) == zlib.crc32(b"".join(pieces))


@given(st.lists(st.binary(max_size=300) | st.binary(min_size=4, max_size=50), min_size=1, max_size=40), st.data())
def test_one_wrong_bit_among_the_checksums_of_a_run_is_seen(pieces: list[bytes], data: st.DataObject) -> None:
    run = np.frombuffer(b"".join(pieces), np.uint8)
    checksums = np.array([zlib.crc32(piece) for piece in pieces], np.uint32)
    sizes = np.array([len(piece) for piece in pieces], np.int64)
    assert crc.pieces_match(run, np.cumsum(sizes) - sizes, checksums)
    checksums[data.draw(st.integers(0, len(pieces) - 1))] ^= np.uint32(1 << data.draw(st.integers(0, 31)))
    assert not crc.pieces_match(run, np.cumsum(sizes) - sizes, checksums)


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=40), st.data())
def test_one_wrong_bit_in_pieces_that_close_with_their_checksums_is_seen(
    pieces: list[bytes], data: st.DataObject
) -> None:
    run = bytearray(b"".join(piece + zlib.crc32(piece).to_bytes(4, "big") for piece in pieces))
    ends = np.cumsum([len(piece) + 4 for piece in pieces])
    assert crc.own_match(np.frombuffer(run, np.uint8), ends)
    run[data.draw(st.integers(0, len(run) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert not crc.own_match(np.frombuffer(run, np.uint8), ends)


def test_the_checksum_of_the_longest_run_is_found() -> None:
    pieces = [b"a", bytes(crc.SPAN_MAX - 3), b"bc"]
    checksums = np.array([zlib.crc32(piece) for piece in pieces], np.uint32)
    assert crc.combined(checksums, np.cumsum([len(piece) for piece in pieces])) == zlib.crc32(b"".join(pieces))


# ---- equal to the core


@given(
    sizes=st.lists(st.integers(0, 90), min_size=1, max_size=60),
    seed=st.integers(0, 1000),
    threshold=st.sampled_from([0, 300, 1 << 30]),
    window=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    index=st.sampled_from(["whole", "absent", "short", "wrong", "long"]),
)
def test_any_range_of_any_segment_decodes_to_what_was_encoded(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    seed: int,
    threshold: int,
    window: tuple[float, float],
    index: str,
) -> None:
    directory = tmp_path_factory.mktemp("log")
    rng = random.Random(seed)
    log = make_records(3, [rng.randbytes(size) for size in sizes])
    for path in write_segments(directory, 3, log, threshold=threshold):
        damage_index(path.with_suffix(".idx"), index)
    found: list[dict[str, object]] = []
    low, high = sorted(round(one * len(log)) for one in window)
    files = read_directory(directory, trust="files").find(3)
    assert files is not None
    assert files.whole_end == len(log)
    for span in files.segments:
        start, end = max(low, span.first_id), min(high, span.end_id)
        if start < end:
            found += rows(Path(span.path), 3, start, end)
    assert found == [expected(3, record) for record in log[low:high]]


def damage_index(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how == "absent":
        path.unlink()
    elif how == "short":
        path.write_bytes(data[: 128 + (len(data) - 128) // 2])
    elif how == "wrong":
        path.write_bytes(data[:128] + bytes(byte ^ 0x15 for byte in data[128:]))
    elif how == "long":
        path.write_bytes(data + bytes(24))


def test_one_giant_record_is_a_batch_of_its_own(folder: Path) -> None:
    payloads = [b"a", bytes(3_000_000), b"b" * 10]
    (log,) = make_log(folder, [payloads])
    shape = Shape(size_max=1000, verify="record")
    with SegmentFile(folder / "0" / "0000000000000000000.seg", 0) as segment:
        batches = [block.batch(shape) for block in segment.blocks(0, 3, shape)]
    assert [batch.num_rows for batch in batches] == [1, 1, 1]
    assert [batch["data"][0].as_py() for batch in batches] == [record.data for record in log]


@given(st.lists(st.integers(40, 400), min_size=1, max_size=50), st.integers(1, 9), st.integers(1, 900))
def test_cuts_hold_every_record_once_within_the_limits(sizes: list[int], rows_max: int, size_max: int) -> None:
    offsets = np.cumsum([128, *sizes])
    pieces = list(cut(offsets, rows_max, size_max))
    assert [at for at, _ in pieces] == [0, *(behind for _, behind in pieces[:-1])]
    assert pieces[-1][1] == len(sizes)
    for at, behind in pieces:
        assert behind - at == 1 or (behind - at <= rows_max and offsets[behind] - offsets[at] <= size_max)


def test_rows_can_be_left_out_and_columns_chosen(folder: Path) -> None:
    (log,) = make_log(folder, [random_payloads(50)])
    path = folder / "0" / "0000000000000000000.seg"
    conditions = (Condition("header", "in", (1, 2)), Condition("client_id", ">=", (8,)))
    shape = attrs.evolve(SMALL, columns=("data", "transaction_id"), conditions=conditions)
    wanted = [record for record in log if record.header in (1, 2) and req_id_parts(record.req_id)[0] >= 8]
    assert rows(path, 0, 0, 50, shape) == [
        {"data": record.data, "transaction_id": record.transaction_id} for record in wanted
    ]


# ---- damage


def flip(path: Path, at: int, bit: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= bit
    path.write_bytes(data)


@pytest.mark.parametrize("verify", ["payload", "record"])
def test_a_flipped_bit_of_a_payload_names_partition_id_and_file(folder: Path, verify: str) -> None:
    make_log(folder, [[b"x" * 20] * 30])
    path = folder / "0" / "0000000000000000000.seg"
    flip(path, 128 + 17 * 60 + 40)
    with pytest.raises(RecordDamagedError) as caught:
        rows(path, 0, 0, 30, attrs.evolve(SMALL, verify=verify))
    assert (caught.value.partition, caught.value.transaction_id, caught.value.place) == (0, 17, str(path))


@pytest.mark.parametrize("place", [8, 25, 34, 57, 59])
def test_every_byte_of_a_record_is_covered_by_its_checksum(folder: Path, place: int) -> None:
    make_log(folder, [[b"x" * 20] * 30])
    path = folder / "0" / "0000000000000000000.seg"
    flip(path, 128 + 29 * 60 + place, 0x80)
    with pytest.raises(RecordDamagedError, match=r"partition 0, transaction 29, .*checksum"):
        rows(path, 0, 0, 30)


@pytest.mark.parametrize("verify", ["none", "payload", "record"])
@pytest.mark.parametrize("place", [3, 30])
def test_a_hole_is_seen_whatever_is_verified(folder: Path, verify: str, place: int) -> None:
    make_log(folder, [[b"x" * 20] * 30])
    path = folder / "0" / "0000000000000000000.seg"
    flip(path, 128 + 12 * 60 + place)
    with pytest.raises(RecordDamagedError, match="transaction 12, "):
        rows(path, 0, 0, 30, attrs.evolve(SMALL, verify=verify))


def test_a_torn_tail_is_no_part_of_the_log(folder: Path) -> None:
    make_log(folder, [[b"x" * 20] * 30])
    path = folder / "0" / "0000000000000000000.seg"
    path.write_bytes(path.read_bytes()[:-7])
    files = read_directory(folder, trust="files").find(0)
    assert files is not None
    assert files.whole_end == 29


@pytest.mark.parametrize("number", [0, 12, 29])
@pytest.mark.parametrize("indexed", [True, False])
def test_a_damaged_record_is_no_torn_tail(folder: Path, number: int, indexed: bool) -> None:
    make_log(folder, [[b"x" * 20] * 30])
    path = folder / "0" / "0000000000000000000.seg"
    flip(path, 128 + number * 60 + 40)
    if not indexed:
        path.with_suffix(".idx").unlink()
    files = read_directory(folder, trust="files").find(0)
    assert files is not None
    with pytest.raises(PipelineError, match=f"transactions? {number}"):
        rows(path, 0, 0, files.whole_end)


def test_records_that_the_control_file_promises_and_the_file_lacks_are_an_error(folder: Path) -> None:
    make_log(folder, [[b"x" * 20] * 30])
    path = folder / "0" / "0000000000000000000.seg"
    path.write_bytes(path.read_bytes()[: 128 + 60 * 20])
    with pytest.raises(PipelineError, match=r"partition 0, transaction 20, .*the file ends there"):
        rows(path, 0, 0, 30)


def test_a_missing_segment_is_a_loss_with_its_ids(folder: Path) -> None:
    make_log(folder, [[b"x" * 20] * 30], threshold=500)
    paths = sorted((folder / "0").glob("*.seg"))
    paths[1].unlink()
    with pytest.raises(DataLossError) as caught:
        read_directory(folder)
    assert caught.value.end - caught.value.start == int(paths[2].stem) - int(paths[1].stem)
    assert caught.value.start == int(paths[1].stem)


@pytest.mark.parametrize("trust", ["control", "files"])
def test_lost_segments_at_the_beginning_are_told_from_freed_ones(folder: Path, trust: str) -> None:
    make_log(folder, [[b"x" * 20] * 30], threshold=500)
    first, second, third, *_ = sorted((folder / "0").glob("*.seg"))
    first.unlink()
    with pytest.raises(DataLossError, match=r"first segment, and the log begins at 0: .* lost, not freed") as caught:
        read_directory(folder, trust=trust)
    assert (caught.value.start, caught.value.end, caught.value.place) == (0, int(second.stem), str(second))
    write_start(folder, 0, int(second.stem) + 1)  # files are freed whole, so that one may begin before the log does
    files = read_directory(folder, trust=trust).find(0)
    assert files is not None
    assert files.start == int(second.stem)
    second.unlink()
    with pytest.raises(DataLossError) as caught:
        read_directory(folder, trust=trust)
    assert (caught.value.start, caught.value.end) == (int(second.stem) + 1, int(third.stem))


@pytest.mark.parametrize("trust", ["control", "files"])
@pytest.mark.parametrize("gone", ["segments", "folder"])
def test_a_partition_without_files_that_the_control_file_promises_is_a_loss(
    folder: Path, trust: str, gone: str
) -> None:
    make_log(folder, [[b"x"] * 10, [b"y"] * 30])
    for path in (folder / "1").iterdir():
        path.unlink()
    if gone == "folder":
        (folder / "1").rmdir()
    told = "waltz-storage.ctl says that the node has them, and " + (
        "no segment" if gone == "segments" else "the folder"
    )
    with pytest.raises(DataLossError, match=f"partition 1, transactions 0 to 29, {folder / '1'}: {told}"):
        read_directory(folder, trust=trust)
    assert [one.partition for one in read_directory(folder, trust=trust, partitions=[0]).partitions] == [0]
    write_control(folder, [10, None])  # it was never here
    assert read_directory(folder, partitions=[0, 1]).find(1) is None
    write_control(folder, [10, 0])  # or nothing is in it yet
    assert read_directory(folder, trust=trust).find(0) is not None


def test_files_of_another_cluster_are_refused(folder: Path) -> None:
    make_log(folder, [[b"x"]])
    with pytest.raises(WrongClusterError, match="00010203-0405"):
        read_directory(folder, key=bytes(16))
    write_control(folder, [1], key=bytes(16))
    with pytest.raises(WrongClusterError, match=r"0000000000000000000\.seg"):
        read_directory(folder)


def test_a_segment_in_the_folder_of_another_partition_is_refused(folder: Path) -> None:
    make_log(folder, [[b"x"], [b"y"]])
    wrong = folder / "0" / "0000000000000000000.seg"
    wrong.write_bytes((folder / "1" / wrong.name).read_bytes())
    with pytest.raises(PipelineError, match="the header says partition 1"):
        read_directory(folder)


def test_a_file_without_a_whole_header_is_no_segment(folder: Path) -> None:
    make_log(folder, [[b"x"]])
    (folder / "0" / "0000000000000000000.seg").write_bytes(b"")
    with pytest.raises(PipelineError, match="0 bytes are no segment"):
        read_directory(folder)


# ---- how far a directory is trusted


def test_what_lies_behind_the_local_low_water_mark_is_not_read(folder: Path) -> None:
    make_log(folder, [[b"x"] * 10, [b"y"] * 4])
    write_control(folder, [6, None])
    replica = read_directory(folder)
    assert [(one.partition, one.safe_end, one.whole_end) for one in replica.partitions] == [(0, 6, 10)]
    everything = read_directory(folder, trust="files")
    assert [(one.partition, one.safe_end) for one in everything.partitions] == [(0, 10), (1, 4)]


def test_without_a_control_file_somebody_has_to_say_that_files_are_trusted(folder: Path) -> None:
    make_log(folder, [[b"x"] * 10])
    (folder / "waltz-storage.ctl").unlink()
    with pytest.raises(OptionError, match="trust=files"):
        read_directory(folder)
    assert read_directory(folder, trust="files").key == KEY
