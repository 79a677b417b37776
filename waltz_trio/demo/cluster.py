"""The cluster of a demonstration: one process, whose nodes are killed and restarted by orders on its standard input.

Orders: `kill server 0`, `restart server 0`, `kill storage 1`, `restart storage 1`, `ready`. Each is answered
by one JSON line when it is done. The first line is the address. The process ends in order with its input.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import trio

from waltz_core.base.errors import ConfigError
from waltz_trio.base import log
from waltz_trio.demo.children import obey, tell
from waltz_trio.node.embedded import EmbeddedCluster, embedded_cluster


def main(argv: Sequence[str]) -> int:
    """Run until the standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m waltz_trio.demo.cluster", description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--partitions", type=int, default=None)
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--port", type=int, default=0)
    log.set_up("info")
    try:
        trio.run(_serve, parser.parse_args(argv))
    except ConfigError as error:
        print(f"waltz demo: {error}", file=sys.stderr)
        return 1
    return 0


async def _serve(options: argparse.Namespace) -> None:
    async with embedded_cluster(
        options.directory, partitions=options.partitions, servers=options.servers, port=options.port
    ) as cluster:

        async def carry_out(order: str) -> None:
            match order.split():
                case ["kill", kind, number]:
                    await (cluster.kill_server if kind == "server" else cluster.kill_storage)(int(number))
                case ["restart", kind, number]:
                    await (cluster.restart_server if kind == "server" else cluster.restart_storage)(int(number))
                case ["ready"]:
                    await cluster.wait_ready()
                case _:
                    raise ValueError(f"{order!r} is no order")
            tell({"done": order})

        tell(_address(cluster))
        await obey(carry_out)


def _address(cluster: EmbeddedCluster) -> dict[str, object]:
    return {
        "url": cluster.url,
        "servers": cluster.server_count,
        "storages": cluster.storage_count,
        "partitions": cluster.partitions,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
