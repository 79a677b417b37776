"""A storage node over a log made for measuring, in a process of its own; prints where it is, ends with its input.

python -m benchmarks.spark_node DIRECTORY PAYLOAD COUNT
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import trio

from benchmarks.spark import PAYLOADS, make_log
from waltz_trio.node.embedded import embedded_cluster


async def serve(directory: Path, payload: str, count: int) -> None:
    """Run until the standard input ends."""
    async with embedded_cluster(directory, partitions=4, storage_nodes=1, ready=False) as cluster:
        await cluster.stop_server(0)
        await cluster.stop_storage(0)
        folder = directory / "storage-0"
        shutil.rmtree(folder)
        size = await trio.to_thread.run_sync(make_log, folder, count, PAYLOADS[payload], cluster.key)
        await cluster.restart_storage(0)
        tls = directory / "tls"
        found = {
            "port": cluster.layout.storage_ports[0][1],
            "key": cluster.key.hex(),
            "size": size,
            "ca": str(tls / "ca.pem"),
            "certificate": str(tls / "node.pem"),
            "private": str(tls / "node.key"),
        }
        print(json.dumps(found), flush=True)
        await trio.to_thread.run_sync(sys.stdin.read)


if __name__ == "__main__":
    trio.run(serve, Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
