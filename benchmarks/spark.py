"""The pipeline: decoding, Spark scans against Spark's own ceiling, archive, verification, restore.

python -m benchmarks.spark [--bank N] [--large N] [--repeat R] [--directory D] [--json PATH] [--bar]

`bank` are records of about 79 bytes on disk as the bank of the demonstration writes them, `1k` are 1 KB of
noise. Best of R runs each; data are in the page cache. `ceiling_ratio` compares with what Spark takes in
when the batches are built beforehand, in the same session; for Spark's own reading of the archive it is the
ratio to its Parquet reader. `cpu_s` is the processor time of all processes of the run, `cpu_ratio` the same
ratio by it: on a busy machine it says more. Exit status: 1 with --bar if a target is missed, 3 if something
needed is absent.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_CHUNK = 16_384
_PARTITIONS = 4
_KEY = bytes(range(16))
_TARGETS = {  # records/s, bytes/s; on two cores of the machine of the design
    "decode bank": (12e6, 0),
    "decode 1k": (0, 3e9),
    "storage read bank": (2e6, 0),
    "storage read 1k": (0, 300e6),
    "scan bank": (3.5e6, 0),
    "scan 1k": (0, 0.7e9),
    "archive bank": (2e6, 0),
    "restore bank": (1e6, 0),
    "audit bank": (10e6 / 30, 0),  # with the journal: 10 M transactions in 30 s
}


class Rows:
    """Results, printed as they come."""

    def __init__(self, repeat: int) -> None:
        self.repeat = repeat
        self.found: dict[str, dict[str, Any]] = {}

    def measure(self, name: str, count: int, size: int, work: Callable[[], object], ceiling: str | None = None) -> None:
        """Run `work`, which handles `count` records of `size` bytes in all; keep the best time."""
        runs = [_timed(work) for _ in range(self.repeat)]
        best, cpu = (min(found) for found in zip(*runs, strict=True))
        row: dict[str, Any] = {"name": name, "records_per_s": count / best, "bytes_per_s": size / best}
        row |= {"ceiling_ratio": None, "cpu_s": cpu, "records_per_cpu_s": count / max(cpu, 0.01), "cpu_ratio": None}
        ratio = ""
        if ceiling is not None:
            for mine, rate in (("ceiling_ratio", "records_per_s"), ("cpu_ratio", "records_per_cpu_s")):
                row[mine] = row[rate] / self.found[ceiling][rate]
            ratio = f"  {row['ceiling_ratio']:.2f} of {ceiling}, by processor time {row['cpu_ratio']:.2f}"
        self.found[name] = row
        rates = f"{count / best / 1e6:8.3f} M/s {size / best / 1e6:9.1f} MB/s {cpu:7.2f} s of processors"
        print(f"{name:<24} {rates}{ratio}", flush=True)


def _timed(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds on the clock, and of processors: ours and those of all processes below us."""
    cpu, begin = _cpu_seconds(), time.perf_counter()
    work()
    return time.perf_counter() - begin, _cpu_seconds() - cpu


def _cpu_seconds() -> float:
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        number = int(entry.parent.name)
        parents[number] = int(fields[1])
        used[number] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")

    def ours(number: int) -> bool:
        while number not in (0, os.getpid()):
            number = parents.get(number, 0)
        return number != 0

    return sum(seconds for number, seconds in used.items() if ours(number)) or sum(os.times()[:4])


# ---- data ------------------------------------------------------------------------------------


def make_log(directory: Path, count: int, payload: Callable[[random.Random], bytes], key: bytes = _KEY) -> int:
    """A storage directory of `count` records in four partitions; returns the bytes of the records."""
    import numpy as np
    import pyarrow as pa

    from waltz_core.storage import control
    from waltz_core.storage.segment import SegmentHeader, data_name, encode_header, index_name
    from waltz_spark.records.archived import STORED
    from waltz_spark.records.columns import TYPES
    from waltz_spark.records.encoding import encode_batch

    rng, total = random.Random(7), 0
    each = count // _PARTITIONS
    schema = pa.schema([(name, TYPES[name]) for name in STORED])
    body = bytearray(control.fresh_body(_PARTITIONS))
    for partition in range(_PARTITIONS):
        folder = directory / str(partition)
        folder.mkdir(parents=True)
        header = encode_header(SegmentHeader(1_700_000_000_000, key, partition, 0))
        path = folder / data_name(0)
        with path.open("wb") as data, path.with_name(index_name(path.name)).open("wb") as index:
            data.write(header)
            index.write(header)
            for first in range(0, each, _CHUNK):
                ids = np.arange(first, min(first + _CHUNK, each))
                payloads = [payload(rng) for _ in ids]
                checksums = np.array([zlib.crc32(one) for one in payloads], np.uint32).view(np.int32)
                numbers = {"transaction_id": ids, "client_id": ids % 5 + 1, "generation": np.ones_like(ids), "seq": ids}
                columns = {**numbers, "header": np.zeros_like(ids), "checksum": checksums, "data": payloads}
                batch = pa.RecordBatch.from_arrays([pa.array(columns[n], TYPES[n]) for n in STORED], schema=schema)
                block = encode_batch(batch, partition, str(path))
                index.write((block.offsets[:-1] + data.tell()).astype(">i8").tobytes())
                data.write(block.data)
            total += data.tell() - len(header)
        struct = control.ControlStruct(1, each - 1, each - 1, control.AVAILABLE | control.ASSIGNED, 1)
        at = control.struct_place(partition, 0) - control.HEADER_SIZE
        body[at : at + 36] = control.encode_struct(struct)
    head = control.encode_header(control.ControlHeader(1_700_000_000_000, key, _PARTITIONS))
    (directory / control.NAME).write_bytes(head + body)
    return total


def make_journal(directory: Path, count: int, key: bytes = _KEY) -> None:
    """What a server in mode `sync` would have noted of such a log; each record locked one of 4,000 accounts."""
    from waltz_core.base.ids import make_req_id
    from waltz_core.base.lock import Lock
    from waltz_core.server.journal_format import Decision, Started, encode_entry

    hashes = [Lock("account", number).wire() for number in range(4000)]
    each, rng = count // _PARTITIONS, random.Random(8)
    for partition in range(_PARTITIONS):
        folder = directory / str(partition)
        folder.mkdir(parents=True)
        with (folder / f"{0:019d}.journal").open("wb") as file:
            file.write(encode_entry(Started(key, partition, 0, -1, 0, 2, "server:1")))
            for number in range(each):
                req_id, lock = make_req_id(number % 5 + 1, 1, partition, number), (rng.choice(hashes),)
                file.write(encode_entry(_decision(Decision, number, req_id, lock)))


def _decision(kind: Callable[..., Any], number: int, req_id: bytes, lock: tuple[int, ...]) -> Any:
    return kind(1, number, req_id, 0, number - 1, number - 1, 0, 0, -1, -1, -1, number, number, 43, lock)


def _bank(rng: random.Random) -> bytes:
    return b"action:deposit\taccountId:%d\tamount:%d" % (rng.randrange(4000), rng.randrange(1, 1000))


def _large(rng: random.Random) -> bytes:
    return rng.randbytes(1000)


PAYLOADS: dict[str, Callable[[random.Random], bytes]] = {"bank": _bank, "1k": _large}


# ---- measurements ----------------------------------------------------------------------------


def decode(directory: Path, verify: str) -> None:
    """All batches of a log, in this process."""
    from waltz_spark.records.columns import Shape
    from waltz_spark.records.segments import SegmentFile

    shape = Shape(verify=verify)
    for path in sorted(directory.glob("*/*.seg")):
        with SegmentFile(path, int(path.parent.name)) as segment:
            for block in segment.blocks(0, segment.indexed_end, shape):
                block.check(verify)
                block.batch(shape)


def without_spark(rows: Rows, name: str, directory: Path, count: int, size: int) -> None:
    """One core."""
    for verify in ("none", "payload", "record"):
        label = f"decode {name}" if verify == "none" else f"decode {name} {verify}"
        rows.measure(label, count, size, lambda verify=verify: decode(directory, verify))  # type: ignore[misc]


def from_storage(rows: Rows, name: str, folder: Path, count: int) -> None:
    """One connection to the admin port of a storage node in another process, every record checked."""
    from waltz_core.base.ids import Endpoint
    from waltz_spark.base.planning import Range, StoragePlace
    from waltz_spark.read.reading import Patience, drop_connections, read_blocks
    from waltz_spark.records.columns import Shape
    from waltz_trio.net.tls import TlsSettings

    command = [sys.executable, "-m", "benchmarks.spark_node", str(folder), name, str(count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as node:
        assert node.stdin is not None
        assert node.stdout is not None
        said = json.loads(node.stdout.readline())
        tls = TlsSettings(ca=said["ca"], certificate=said["certificate"], key=said["private"])
        endpoint, key = Endpoint("127.0.0.1", said["port"]), bytes.fromhex(said["key"])
        place = StoragePlace(endpoint, tls, key, _PARTITIONS, -1)
        each = count // _PARTITIONS

        def read() -> None:
            for partition in range(_PARTITIONS):
                found = Range(partition, 0, each, said["size"] // _PARTITIONS, (place,))
                assert sum(block.count for block in read_blocks(found, Shape(), Patience())) == each

        rows.measure(f"storage read {name}", each * _PARTITIONS, said["size"], read)
        drop_connections()
        node.stdin.close()


def with_spark(rows: Rows, spark: Any, name: str, directory: Path, count: int, size: int) -> None:
    """Scans."""

    def drain(frame: Any) -> None:
        frame.write.format("noop").mode("overwrite").save()

    def tally(frame: Any) -> None:
        assert sum(row["count"] for row in frame.groupBy("partition").count().collect()) == count

    ceiling = f"ceiling {name}"
    rows.measure(ceiling, count, size, lambda: drain(ready(spark, count, size)))
    for verify in ("none", "payload", "record"):
        label = f"scan {name}" if verify == "none" else f"scan {name} {verify}"
        reader = spark.read.format("waltz").options(directory=str(directory), verify=verify, minPartitions=_PARTITIONS)
        rows.measure(label, count, size, lambda reader=reader: drain(reader.load()), ceiling)  # type: ignore[misc]
    reader = spark.read.format("waltz").options(directory=str(directory), minPartitions=_PARTITIONS)
    headers = reader.option("columns", "partition,transaction_id,header").load()
    rows.measure(f"headers {name}", count, size, lambda: drain(headers), ceiling)
    ids = reader.option("columns", "partition").load()
    rows.measure(f"count {name}", count, size, lambda: tally(ids), ceiling)


def ready(spark: Any, count: int, size: int) -> Any:
    """As many rows of the same size, of batches that are there: what Spark takes in at most."""
    options = {"rows": count, "size": max(1, size // count - 40), "tasks": _PARTITIONS}
    return spark.read.format("waltz-ceiling").options(**options).load()


def archive_and_restore(rows: Rows, spark: Any, name: str, directory: Path, count: int, size: int) -> None:
    """There, back, and Spark's own reading of what lies in between."""
    from waltz_spark.archive.archive import plan_archive, plan_verification, run_archive, run_verification
    from waltz_spark.archive.restore import restore
    from waltz_spark.base.runners import Here, OnSpark
    from waltz_spark.read.options import parse_options

    options, runner = parse_options({"directory": str(directory)}), OnSpark(spark)
    root, again = directory.with_name(f"{name}-archive"), directory.with_name(f"{name}-restored")

    def archive() -> None:
        shutil.rmtree(root, ignore_errors=True)
        run_archive(plan_archive(options, str(root), range_count=max(1, count // _PARTITIONS // 2)), runner)

    def restore_it() -> None:
        shutil.rmtree(again, ignore_errors=True)
        restore(str(root), again, Here(1))

    rows.measure(f"archive {name}", count, size, archive)
    packed = sum(path.stat().st_size for path in root.rglob("*.parquet"))
    rows.found[f"archive {name}"]["compression"] = size / packed
    rows.measure(f"verify {name}", count, size, lambda: run_verification(plan_verification(str(root)), runner))
    rows.measure(f"restore {name}", count, size, restore_it)

    def drain(frame: Any) -> None:
        frame.write.format("noop").mode("overwrite").save()

    rows.measure(f"parquet {name}", count, size, lambda: drain(spark.read.parquet(str(root / "data"))))
    archived = spark.read.format("waltz").options(archive=str(root), verify="none", minPartitions=_PARTITIONS)
    rows.measure(f"scan archive {name}", count, size, lambda: drain(archived.load()), f"parquet {name}")


def audit_with_journal(rows: Rows, spark: Any, name: str, directory: Path, count: int, size: int) -> None:
    """Every check that one replica and the decisions of its server allow, serializability among them."""
    from waltz_spark.audit.audit import run_audit
    from waltz_spark.base.runners import OnSpark

    journal = directory.with_name(f"{name}-journal")
    make_journal(journal, count)

    def judge() -> None:
        report = run_audit([str(directory)], None, OnSpark(spark), journals=[str(journal)])
        unfit = [one for one in report.findings if one.status == "failed"]
        assert not unfit, unfit[0]
        assert sum(one.check == "serializable by locks" for one in report.findings) == _PARTITIONS

    rows.measure(f"audit {name}", count, size, judge)


def micro_batches(rows: Rows, spark: Any, directory: Path, count: int, size: int) -> None:
    """AvailableNow into Parquet, and the median time of a batch with next to nothing in it."""
    target = directory.with_name("stream")

    def stream(limit: int, sub: str, partitions: str) -> Any:
        folder = target / sub
        shutil.rmtree(folder, ignore_errors=True)
        source = spark.readStream.format("waltz").options(
            directory=str(directory), maxTransactionsPerTrigger=limit, partitions=partitions
        )
        writer = source.load().writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
        query = writer.trigger(availableNow=True).start(str(folder / "table"))
        query.awaitTermination()
        return query

    def write_ready() -> None:
        ready(spark, count, size).write.mode("overwrite").parquet(str(target / "ready"))

    ceiling = "ceiling bank to parquet"
    rows.measure(ceiling, count, size, write_ready)
    everything = f"0-{_PARTITIONS - 1}"
    rows.measure("stream bank to parquet", count, size, lambda: stream(1_000_000, "all", everything), ceiling)
    query = stream(max(1, count // _PARTITIONS // 12), "floor", "0")
    times = sorted(one.durationMs["triggerExecution"] for one in query.recentProgress if one.numInputRows)
    median = times[len(times) // 2] / 1000
    row = {"name": "micro-batch to parquet", "records_per_s": None, "bytes_per_s": None, "ceiling_ratio": None}
    rows.found["micro-batch to parquet"] = {**row, "median_s": median, "batches": len(times)}
    print(f"{'micro-batch to parquet':<24} {median * 1000:8.0f} ms (median of {len(times)})", flush=True)


def open_spark(memory: str) -> Any:
    """A local session with all cores."""
    os.environ["PYTHONPATH"] = str(ROOT)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    from benchmarks.spark_ceiling import CeilingSource
    from waltz_spark.spark.session import configure

    builder = configure(SparkSession.builder.master("local[2]").appName("waltz benchmark"))
    settings = {
        "spark.driver.memory": memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(CeilingSource)
    return spark


def missed(rows: Rows) -> list[str]:
    """Targets that were not reached."""
    found = []
    for name, (records, size) in _TARGETS.items():
        row = rows.found.get(name)
        if row is not None and (row["records_per_s"] < records or row["bytes_per_s"] < size):
            found.append(f"{name}: {row['records_per_s'] / 1e6:.2f} M/s, {row['bytes_per_s'] / 1e9:.2f} GB/s")
    return found


def main() -> int:
    """Parse, measure, print; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark", description=__doc__)
    parser.add_argument("--bank", type=int, default=4_000_000, metavar="N", help="records of 79 bytes (%(default)s)")
    parser.add_argument("--large", type=int, default=400_000, metavar="N", help="records of 1 KB (%(default)s)")
    parser.add_argument("--repeat", type=int, default=3, metavar="R", help="runs, of which the best counts")
    parser.add_argument("--memory", default="2g", help="heap of Spark (%(default)s)")
    parser.add_argument("--directory", type=Path, metavar="D", help="for data (a temporary one)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the rows as a JSON array")
    parser.add_argument("--bar", action="store_true", help="fail if a target is missed")
    arguments = parser.parse_args()
    try:
        import pyarrow  # noqa: F401
        import pyspark  # noqa: F401
    except ImportError as error:
        print(f"absent: {error}", file=sys.stderr)
        return 3
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        print("absent: java", file=sys.stderr)
        return 3
    rows = Rows(arguments.repeat)
    with tempfile.TemporaryDirectory(prefix="waltz-bench-", dir=arguments.directory) as folder:
        logs = {"bank": (arguments.bank, _bank), "1k": (arguments.large, _large)}
        sizes = {name: make_log(Path(folder) / name, count, payload) for name, (count, payload) in logs.items()}
        for name, (count, _) in logs.items():
            print(f"{name}: {count:,} records, {sizes[name]:,} bytes", flush=True)
            without_spark(rows, name, Path(folder) / name, count, sizes[name])
            from_storage(rows, name, Path(folder) / f"{name}-node", max(_PARTITIONS, count // 4))
        spark = open_spark(arguments.memory)
        try:
            print("warming up", flush=True)
            with_spark(Rows(1), spark, "bank", Path(folder) / "bank", arguments.bank, sizes["bank"])
            for name, (count, _) in logs.items():
                with_spark(rows, spark, name, Path(folder) / name, count, sizes[name])
            for name, (count, _) in logs.items():
                archive_and_restore(rows, spark, name, Path(folder) / name, count, sizes[name])
            audit_with_journal(rows, spark, "bank", Path(folder) / "bank", arguments.bank, sizes["bank"])
            micro_batches(rows, spark, Path(folder) / "bank", arguments.bank, sizes["bank"])
        finally:
            spark.stop()
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(list(rows.found.values()), indent=1))
    for one in missed(rows):
        print(f"below target: {one}")
    return 1 if arguments.bar and missed(rows) else 0


if __name__ == "__main__":
    sys.exit(main())
