"""The data pipeline on a cluster of the original: rows written exactly once, everything read back on both channels."""

from __future__ import annotations

import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.interop.cluster import Kind, MixedCluster
from tests.interop.scenarios import Outcome, Scene
from waltz_core.base.log import MARKER_HEADER
from waltz_spark.read.options import parse_options
from waltz_spark.spark.source import BatchReader

OURS, JAVA = Kind.OURS, Kind.JAVA
_ROWS = 4000


def on_original(scene: Scene) -> Outcome:
    """`waltz spark sink` writes while servers are killed; what it wrote is there once."""
    with scene.cluster(partitions=2, storage=(JAVA,) * 3, server=(JAVA,) * 2) as cluster:
        rows = [b"row %d" % number for number in range(_ROWS)]
        file = cluster.directory / "rows.parquet"
        pq.write_table(pa.table({"partition": pa.array([at % 2 for at in range(_ROWS)]), "data": rows}), file)
        checkpoint = str(cluster.directory / "checkpoint")
        with ThreadPoolExecutor(1) as pool:
            sinking = pool.submit(_sink, cluster, file, checkpoint)
            _kill_servers(cluster)  # not in the thread: with that, processes that it started would end
            sinking.result()
        _sink(cluster, file, checkpoint)  # nothing is left to do
        expected, first = Counter(rows), None
        for via in ("storage", "server"):
            found = _read(cluster, via)
            written = Counter(data for _, _, header, data in found if header != MARKER_HEADER and data in expected)
            wrong = {"missing": expected - written, "twice": written - expected}
            assert written == expected, f"via {via}: {wrong}"
            assert first is None or first == found, "the channels differ"
            first = found
        assert first is not None
        return Outcome(_ROWS, f"{len(first)} transactions read on both channels")


def _kill_servers(cluster: MixedCluster) -> None:
    rng = random.Random(4)
    for name in cluster.server_names:
        time.sleep(rng.uniform(1, 3))
        cluster.children[name].kill()
        cluster.wait_unregistered(name)  # zk-D9
        cluster.start(name)
        cluster.wait_healthy()


def _sink(cluster: MixedCluster, file: Path, checkpoint: str) -> None:
    where = ("--zookeeper", cluster.zookeeper, "--root", "/cluster", "-o", "ssl.verify=false", "-o", "retries=20")
    cluster.tool("spark", "sink", str(file), *where, "--jobs", "1", "--quiet", "--checkpoint", checkpoint)


def _read(cluster: MixedCluster, via: str) -> list[tuple[int, int, int, bytes]]:
    where = {"zookeeper": cluster.zookeeper, "clusterRoot": "/cluster", "ssl.verify": "false", "via": via}
    reader = BatchReader(parse_options({**where, "verify": "quorum" if via == "storage" else "record"}))
    rows = [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]
    return sorted((row["partition"], row["transaction_id"], row["header"], row["data"]) for row in rows)
