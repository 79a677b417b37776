"""The readers of the source, called as Spark calls them, without a JVM."""

from __future__ import annotations

import json
import pickle
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    In,
    IsNotNull,
    LessThanOrEqual,
    StringContains,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from tests.spark.logs import KEY, make_log, make_records, random_payloads, write_control, write_segments, write_start
from waltz_core.base.ids import req_id_parts
from waltz_core.base.log import Record
from waltz_spark.base.errors import (
    DataLossError,
    OptionError,
    RecordDamagedError,
    UnreachableError,
    WentBackError,
    WrongClusterError,
)
from waltz_spark.spark.source import BatchReader, StreamReader, Task, WaltzDataSource

COUNTS = (300, 0, 170)


@pytest.fixture
def log(tmp_path: Path) -> list[list[Record]]:
    payloads = [random_payloads(count, seed=at) for at, count in enumerate(COUNTS)]
    return make_log(tmp_path / "a", payloads, threshold=4000)


def reader(tmp_path: Path, **options: object) -> BatchReader:
    values = {"directory": str(tmp_path / "a"), "batchRows": "50", **{name: str(one) for name, one in options.items()}}
    source = WaltzDataSource({name.lower(): one for name, one in values.items()})
    return source.reader(source.schema())


def stream(tmp_path: Path, **options: object) -> StreamReader:
    values = {"directory": str(tmp_path / "a"), **{name: str(one) for name, one in options.items()}}
    made: StreamReader = WaltzDataSource(values).streamReader("")
    return made


def rows_of(found: BatchReader | StreamReader, tasks: list[Task]) -> list[dict[str, Any]]:
    there = pickle.loads(pickle.dumps(found))
    return [
        row for task in tasks for batch in there.read(pickle.loads(pickle.dumps(task))) for row in batch.to_pylist()
    ]


def ids(found: BatchReader | StreamReader, tasks: list[Task]) -> list[tuple[int, int]]:
    return [(row["partition"], row["transaction_id"]) for row in rows_of(found, tasks)]


def all_ids(*counts: int) -> list[tuple[int, int]]:
    return [(partition, at) for partition, count in enumerate(counts) for at in range(count)]


# ---- batch


def test_the_whole_log_is_one_table(tmp_path: Path, log: list[list[Record]]) -> None:
    found = reader(tmp_path)
    rows = rows_of(found, found.partitions())
    assert [(row["partition"], row["transaction_id"], row["data"], row["header"]) for row in rows] == [
        (at, record.transaction_id, record.data, record.header) for at, records in enumerate(log) for record in records
    ]


def test_schema_and_batches_agree(tmp_path: Path, log: list[list[Record]]) -> None:
    source = WaltzDataSource({"directory": str(tmp_path / "a"), "columns": "data,transaction_id", "origin": "true"})
    assert source.schema() == "`data` binary, `transaction_id` bigint, `_origin` string, `_verified` boolean"
    found = source.reader(source.schema())
    row = rows_of(found, found.partitions())[0]
    assert row == {"data": log[0][0].data, "transaction_id": 0, "_origin": "file", "_verified": True}


@pytest.mark.parametrize("options", [{"minPartitions": 7}, {"maxRecordsPerPartition": 40}, {"targetSplitBytes": 3000}])
def test_there_can_be_more_tasks_than_partitions(
    tmp_path: Path, log: list[list[Record]], options: dict[str, object]
) -> None:
    found = reader(tmp_path, **options)
    tasks = found.partitions()
    assert len(tasks) >= 6
    assert ids(found, tasks) == all_ids(*COUNTS)


def test_a_cut_is_read_exactly_or_not_at_all(tmp_path: Path, log: list[list[Record]]) -> None:
    found = reader(tmp_path, cut='{"0": 7, "2": 100}', startingOffsets='{"2": 98}')
    assert ids(found, found.partitions()) == [(0, at) for at in range(7)] + [(2, 98), (2, 99)]
    with pytest.raises(OptionError, match="cut: partition 1 ends at id -1, 5 asks for more"):
        reader(tmp_path, cut='{"1": 5}').partitions()


def test_a_read_that_would_begin_behind_the_log_is_refused_by_batches_and_streams(
    tmp_path: Path, log: list[list[Record]]
) -> None:
    behind = {"startingOffsets": '{"0": 300, "2": 171}'}
    with pytest.raises(OptionError, match="startingOffsets: partition 2 ends at id 169, not at 171"):
        reader(tmp_path, **behind).partitions()
    found = stream(tmp_path, **behind)
    with pytest.raises(OptionError, match="startingOffsets: partition 2 ends at id 169, not at 171"):
        found.latestOffset(found.initialOffset(), ReadAllAvailable())
    begun, _ = step(stream(tmp_path, partitions="0"), stream(tmp_path).initialOffset())
    with pytest.raises(OptionError, match="startingOffsets: partition 2 ends at id 169, not at 171"):
        step(stream(tmp_path, partitions="0,2", **behind), begun)
    assert (
        ids(reader(tmp_path, partitions="0", **behind), reader(tmp_path, partitions="0", **behind).partitions()) == []
    )


def test_partitions_can_be_chosen(tmp_path: Path, log: list[list[Record]]) -> None:
    found = reader(tmp_path, partitions="1-2")
    assert ids(found, found.partitions()) == [(2, at) for at in range(COUNTS[2])]
    with pytest.raises(OptionError, match="there is no 3: the log has 3 partitions, 0 to 2"):
        reader(tmp_path, partitions="3").partitions()


def test_an_empty_log_has_no_rows(tmp_path: Path) -> None:
    make_log(tmp_path / "a", [[], []])
    found = reader(tmp_path)
    assert ids(found, found.partitions()) == []


# ---- filters


def test_filters_on_partition_and_id_prune_and_need_no_second_check(tmp_path: Path, log: list[list[Record]]) -> None:
    found = reader(tmp_path)
    filters: list[Filter] = [
        IsNotNull(("partition",)),
        In(("partition",), (2, 9)),
        GreaterThan(("transaction_id",), 10),
        LessThanOrEqual(("transaction_id",), 12),
    ]
    assert list(found.pushFilters(filters)) == []
    assert ids(found, found.partitions()) == [(2, 11), (2, 12)]


def test_filters_on_other_columns_leave_rows_out_and_go_back_to_spark(tmp_path: Path, log: list[list[Record]]) -> None:
    found = reader(tmp_path)
    filters: list[Filter] = [EqualTo(("header",), 2), StringContains(("data",), "x"), EqualTo(("client_id",), 8)]
    assert list(found.pushFilters(filters)) == filters
    wanted = [
        (at, one.transaction_id)
        for at, records in enumerate(log)
        for one in records
        if one.header == 2 and req_id_parts(one.req_id)[0] == 8
    ]
    assert wanted
    assert ids(found, found.partitions()) == wanted


def test_a_set_of_ids_narrows_the_range_and_goes_back_to_spark(tmp_path: Path, log: list[list[Record]]) -> None:
    found = reader(tmp_path)
    filters: list[Filter] = [In(("transaction_id",), (20, 22))]
    assert list(found.pushFilters(filters)) == filters
    assert ids(found, found.partitions()) == [(p, at) for p in (0, 2) for at in (20, 21, 22)]


class Named:
    """A codec with columns that have names of the log's."""

    schema = pa.schema([("client_id", pa.int32()), ("Partition", pa.int32())])

    def decode(self, data: Any, header: Any) -> list[Any]:
        return [pa.array([1] * len(data), pa.int32()), pa.array([None] * len(data), pa.int32())]


def test_filters_on_columns_of_a_codec_are_not_those_of_the_log(tmp_path: Path, log: list[list[Record]]) -> None:
    codec = f"{__name__}:Named"
    found = reader(tmp_path, codec=codec, columns="transaction_id,data")
    filters: list[Filter] = [EqualTo(("client_id",), 1), EqualTo(("partition",), 2), IsNotNull(("Partition",))]
    filters += [IsNotNull(("partition",)), IsNotNull(("data",))]
    assert list(found.pushFilters(filters)) == filters
    assert list(found.pushFilters([LessThanOrEqual(("transaction_id",), 9)])) == []
    assert len(rows_of(found, found.partitions())) == 20
    for columns, twice in (("client_id,data", "client_id"), ("partition,data", "partition")):
        with pytest.raises(OptionError, match=f"codec {codec}: there would be two columns {twice}: "):
            reader(tmp_path, codec=codec, columns=columns)
    assert reader(tmp_path, codec=codec, columns="client_id").shape.columns == ("client_id",), "nothing is decoded"


def test_spark_takes_the_reader_for_one_without_pushdown_when_pushdown_is_off(tmp_path: Path) -> None:
    make_log(tmp_path / "a", [[b""]])
    found = pickle.loads(pickle.dumps(reader(tmp_path)))
    assert getattr(found.pushFilters, "__func__", None) is DataSourceReader.pushFilters


# ---- damage, replicas


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


def test_damage_stops_the_read_with_partition_id_and_file(tmp_path: Path) -> None:
    make_log(tmp_path / "a", [[b"x" * 30] * 80])
    path = tmp_path / "a" / "0" / "0000000000000000000.seg"
    damage(path)
    found = reader(tmp_path)
    with pytest.raises(RecordDamagedError, match=rf"partition 0, transaction 79, {path}: the checksum of the record"):
        ids(found, found.partitions())


def test_a_damaged_replica_is_replaced_by_another_in_the_middle_of_a_task(tmp_path: Path) -> None:
    for name in ("a", "b"):
        make_log(tmp_path / name, [[b"x" * 30] * 80] * 2)
    damage(tmp_path / "a" / "0" / "0000000000000000000.seg")
    damage(tmp_path / "b" / "1" / "0000000000000000000.seg")
    found = reader(tmp_path, directory=f"{tmp_path / 'a'},{tmp_path / 'b'}")
    assert ids(found, found.partitions()) == all_ids(80, 80)


def test_what_one_replica_lacks_comes_from_another(tmp_path: Path) -> None:
    make_log(tmp_path / "a", [[b"x" * 30] * 50])
    make_log(tmp_path / "b", [[b"x" * 30] * 80])
    found = reader(tmp_path, directory=f"{tmp_path / 'a'},{tmp_path / 'b'}")
    assert ids(found, found.partitions()) == all_ids(80)


def test_directories_of_different_clusters_are_refused(tmp_path: Path) -> None:
    make_log(tmp_path / "a", [[b"x"]])
    make_log(tmp_path / "b", [[b"x"]], key=bytes(16))
    with pytest.raises(WrongClusterError):
        reader(tmp_path, directory=f"{tmp_path / 'a'},{tmp_path / 'b'}").partitions()


def test_a_log_that_no_longer_goes_back_so_far_is_a_loss(tmp_path: Path) -> None:
    write_segments(tmp_path / "a", 0, make_records(0, [b"x"] * 20, first=100))
    write_control(tmp_path / "a", [120])
    write_start(tmp_path / "a", 0, 100)
    found = reader(tmp_path)
    assert ids(found, found.partitions()) == [(0, at) for at in range(100, 120)]
    with pytest.raises(DataLossError, match="partition 0, transactions 90 to 99"):
        reader(tmp_path, startingOffsets='{"0": 90}').partitions()


def test_a_second_replica_outvotes_one_that_holds_something_else(tmp_path: Path) -> None:
    right = random_payloads(60)
    wrong = [*right[:40], bytes(len(right[40])), *right[41:]]  # with good checksums, as a server would write it
    for name, payloads, threshold in (("a", wrong, 4000), ("b", right, 3000), ("c", right, 1 << 30)):
        make_log(tmp_path / name, [payloads], threshold=threshold)
    every = [str(tmp_path / name) for name in "abc"]

    found = reader(tmp_path, directory=",".join(every), verify="quorum")
    assert [row["data"] for row in rows_of(found, found.partitions())] == right
    assert wrong[40] in [row["data"] for row in rows_of(reader(tmp_path), reader(tmp_path).partitions())]

    two = reader(tmp_path, directory=",".join(every[:2]), verify="quorum")
    with pytest.raises(RecordDamagedError, match="holds something else"):
        rows_of(two, two.partitions())
    alone = reader(tmp_path, verify="quorum")
    with pytest.raises(UnreachableError, match="verify=quorum needs two replicas"):
        rows_of(alone, alone.partitions())


# ---- streams


def run(found: StreamReader, limit: ReadLimit | None = None) -> list[list[tuple[int, int]]]:
    """Batches until nothing is new, as Spark's micro-batch execution asks for them."""
    start = json.loads(json.dumps(found.initialOffset()))
    batches: list[list[tuple[int, int]]] = []
    while True:
        end = json.loads(json.dumps(found.latestOffset(start, limit or found.getDefaultReadLimit())))
        if json.dumps(end) == json.dumps(start):
            return batches
        batches.append(ids(found, found.partitions(start, end)))
        start = end
        assert len(batches) < 1000


def test_a_stream_reads_every_record_once(tmp_path: Path, log: list[list[Record]]) -> None:
    batches = run(stream(tmp_path))
    assert batches[0] == []
    assert [one for batch in batches for one in batch] == all_ids(*COUNTS)


def test_batches_keep_the_limit_and_all_partitions_move(tmp_path: Path, log: list[list[Record]]) -> None:
    batches = run(stream(tmp_path, maxTransactionsPerTrigger=60))
    assert max(map(len, batches)) == 60
    assert {partition for partition, _ in batches[1]} == {0, 2}
    assert sorted(one for batch in batches for one in batch) == all_ids(*COUNTS)


def test_all_that_is_available_is_given_when_spark_wants_all(tmp_path: Path, log: list[list[Record]]) -> None:
    assert len(run(stream(tmp_path, maxTransactionsPerTrigger=60), ReadAllAvailable())) == 2


def test_batches_keep_a_limit_in_bytes(tmp_path: Path) -> None:
    make_log(tmp_path / "a", [[bytes(60)] * 100, [bytes(60)] * 50])
    batches = run(stream(tmp_path, maxBytesPerTrigger=2000))
    assert max(map(len, batches)) == 20
    assert sorted(one for batch in batches for one in batch) == all_ids(100, 50)


def test_available_now_ends_where_the_log_ended_when_it_began(tmp_path: Path, log: list[list[Record]]) -> None:
    found = stream(tmp_path, maxTransactionsPerTrigger=60, pollIntervalMs=1, minTransactionsPerTrigger=1000)
    found.prepareForTriggerAvailableNow()
    write_segments(tmp_path / "a", 1, make_records(1, [b"new"] * 9))
    write_control(tmp_path / "a", [COUNTS[0], 9, COUNTS[2]])
    assert sorted(one for batch in run(found) for one in batch) == all_ids(*COUNTS)
    assert len([one for batch in run(stream(tmp_path)) for one in batch]) == sum(COUNTS) + 9


def test_the_first_offset_does_not_depend_on_the_log(tmp_path: Path, log: list[list[Record]]) -> None:
    found = stream(tmp_path, startingOffsets="latest")
    before = found.initialOffset()
    first = found.latestOffset(before, ReadAllAvailable())
    assert found.partitions(before, first) == []
    assert first["next"] == {"0": 300, "1": 0, "2": 170}
    assert json.dumps(before) == json.dumps(stream(tmp_path, startingOffsets="latest").initialOffset())


@pytest.mark.parametrize("offsets", ["latst", "[1]", "7", '{"0": "x"}', '{"zero": 1}', '{"0": -3}', '{"0": 1'])
def test_a_stream_that_begins_nowhere_says_so(tmp_path: Path, log: list[list[Record]], offsets: str) -> None:
    with pytest.raises(OptionError, match="startingOffsets: expected earliest, latest or JSON such as") as caught:
        stream(tmp_path, startingOffsets=offsets).initialOffset()
    assert offsets in str(caught.value)


def test_a_restarted_stream_goes_on_where_the_checkpoint_says(tmp_path: Path, log: list[list[Record]]) -> None:
    found = stream(tmp_path)
    start = found.latestOffset(found.initialOffset(), ReadAllAvailable())
    end = found.latestOffset(start, ReadMaxRows(100))
    again = stream(tmp_path)
    assert ids(again, again.partitions(start, end)) == ids(found, found.partitions(start, end))


def test_little_is_waited_for_until_the_delay_is_over(tmp_path: Path, log: list[list[Record]]) -> None:
    now = [0.0]
    options = stream(tmp_path, minTransactionsPerTrigger=1000, maxTriggerDelay=5000).options
    found = StreamReader(options, lambda: now[0])
    start = found.latestOffset(found.initialOffset(), found.getDefaultReadLimit())
    limit = ReadMaxRows(10_000)
    assert found.latestOffset(start, limit) == start
    now[0] = 4.9
    assert found.latestOffset(start, limit) == start
    now[0] = 5.0
    assert found.latestOffset(start, limit)["next"] == {"0": 300, "1": 0, "2": 170}


def test_an_idle_stream_looks_at_the_log_once_per_interval(
    tmp_path: Path, log: list[list[Record]], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    found = StreamReader(stream(tmp_path).options, lambda: now[0])
    start = found.latestOffset(found.initialOffset(), ReadAllAvailable())
    (tmp_path / "a" / "waltz-storage.ctl").rename(tmp_path / "hidden")
    for _ in range(9):
        now[0] += 0.01
        found.latestOffset(start, ReadAllAvailable())
    now[0] += 0.1
    with pytest.raises(OptionError):
        found.latestOffset(start, ReadAllAvailable())


def test_a_log_that_went_back_stops_the_stream(tmp_path: Path, log: list[list[Record]]) -> None:
    found = stream(tmp_path, pollIntervalMs=1)
    first = found.latestOffset(found.initialOffset(), ReadAllAvailable())
    start = found.latestOffset(first, ReadAllAvailable())
    write_control(tmp_path / "a", [299, 0, 170])
    again = stream(tmp_path)
    with pytest.raises(WentBackError, match="partition 0: was read up to id 299, but the log now ends at 298"):
        again.latestOffset(start, ReadAllAvailable())


def step(found: StreamReader, start: dict[str, Any]) -> tuple[dict[str, Any], list[tuple[int, int]]]:
    end = json.loads(json.dumps(found.latestOffset(start, ReadAllAvailable())))
    return end, ids(found, found.partitions(start, end))


def test_a_stream_may_leave_partitions_out_after_a_restart_and_take_them_up_again(
    tmp_path: Path, log: list[list[Record]]
) -> None:
    found = stream(tmp_path)
    first, _ = step(found, found.initialOffset())
    every, rows = step(found, first)
    assert rows == all_ids(*COUNTS)
    fewer = stream(tmp_path, partitions="0", pollIntervalMs=1)
    assert step(fewer, every) == (every, [])
    make_log(tmp_path / "a", [random_payloads(count + 20, seed=at) for at, count in enumerate(COUNTS)], threshold=4000)
    time.sleep(0.002)
    later, rows = step(fewer, every)
    assert rows == [(0, at) for at in range(300, 320)]
    assert later["next"] == {"0": 320, "1": 0, "2": 170}
    # The batch that was under way when the stream was stopped has the rows that it had.
    assert ids(fewer, stream(tmp_path, partitions="0").partitions(first, every)) == all_ids(*COUNTS)
    again = stream(tmp_path)
    last, rows = step(again, later)
    assert rows == [(1, at) for at in range(20)] + [(2, at) for at in range(170, 190)]
    assert last["next"] == {"0": 320, "1": 20, "2": 190}


@pytest.mark.parametrize(
    ("starting", "begins"), [("earliest", 0), ("latest", 170), ('{"2": 100}', 100), ('{"0": 5, "2": -1}', 170)]
)
def test_a_partition_that_is_added_begins_as_the_stream_would(
    tmp_path: Path, log: list[list[Record]], starting: str, begins: int
) -> None:
    found = stream(tmp_path, partitions="0", startingOffsets=starting)
    first, _ = step(found, found.initialOffset())
    assert (first["next"]["1"], first["next"]["2"]) == (-1, -1)
    before, _ = step(found, first)
    more = stream(tmp_path, partitions="0,2", startingOffsets=starting, pollIntervalMs=1)
    begun, rows = step(more, before)
    assert (rows, begun["next"]) == ([], {"0": 300, "1": -1, "2": begins})
    _, rows = step(more, begun)
    assert rows == [(2, at) for at in range(begins, COUNTS[2])]


def test_a_checkpoint_of_another_cluster_stops_the_stream(tmp_path: Path, log: list[list[Record]]) -> None:
    found = stream(tmp_path)
    start = found.latestOffset(found.initialOffset(), ReadAllAvailable())
    start["c"] = "00000000-0000-0000-0000-000000000001"
    with pytest.raises(WrongClusterError):
        found.latestOffset(start, ReadAllAvailable())


def test_a_stream_has_no_end(tmp_path: Path, log: list[list[Record]]) -> None:
    with pytest.raises(OptionError, match="a stream has no end"):
        stream(tmp_path, cut="latest")


def test_the_key_of_the_cluster_is_in_every_offset(tmp_path: Path, log: list[list[Record]]) -> None:
    found = stream(tmp_path)
    offset = found.latestOffset(found.initialOffset(), ReadAllAvailable())
    assert bytes.fromhex(offset["c"].replace("-", "")) == KEY
