"""`waltz dev`: a whole cluster in one process, for development and tests. The first line printed is its address."""

from __future__ import annotations

import argparse
import sys

import trio

from waltz_core.base.errors import WaltzError
from waltz_trio.base import log
from waltz_trio.cli.help import PORT_MAX, Parser, whole_number
from waltz_trio.cli.options import PARTITIONS_MAX
from waltz_trio.node.embedded import DEFAULT_PARTITIONS, HOST, embedded_cluster
from waltz_trio.node.main import ending_signals, raise_descriptors, tune_collector

DEFAULT_PORT = 7801


def make_parser() -> Parser:
    """The options."""
    parser = Parser(prog="waltz dev", description=__doc__, example="waltz dev --partitions 4 --directory waltz-data")
    parser.add_argument(
        "--directory", metavar="D", help="where data is kept over restarts; without it, a temporary one is used"
    )
    parser.add_argument(
        "--partitions",
        type=whole_number(1, PARTITIONS_MAX),
        metavar="N",
        help=f"of a new cluster, {DEFAULT_PARTITIONS} if not said",
    )
    nodes = whole_number(1, PORT_MAX)  # each has a port of its own
    parser.add_argument("--storage-nodes", type=nodes, metavar="N", help="of a new cluster, 3 if not said")
    parser.add_argument("--servers", type=nodes, default=1, metavar="N", help="how many to run (%(default)s)")
    parser.add_argument(
        "--port",
        type=whole_number(0, PORT_MAX),
        default=DEFAULT_PORT,
        metavar="P",
        help="of the first server (%(default)s; 0 = a free one)",
    )
    parser.add_argument(
        "--host",
        default=HOST,
        metavar="H",
        help="name or address that servers listen at and clients reach them by (%(default)s: this machine alone); "
        "whoever reaches it may do everything",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="log everything that happens, on standard error")
    parser.set_defaults(run=_start, words=parser.prog)
    return parser


def _start(arguments: argparse.Namespace) -> int:
    log.set_up("info" if arguments.verbose else "warning")
    return trio.run(_run, arguments)


async def _run(arguments: argparse.Namespace) -> int:
    failure: WaltzError | OSError | None = None
    with trio.open_signal_receiver(*ending_signals()) as signals, trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                async for _ in signals:
                    scope.cancel()

            nursery.start_soon(watch)
            try:
                await _serve(arguments)
            except (WaltzError, OSError) as error:  # out here it would be in a group
                failure = error
            scope.cancel()
    if failure is not None:
        raise failure
    return 0


async def _serve(arguments: argparse.Namespace) -> None:
    raise_descriptors()
    async with embedded_cluster(
        arguments.directory,
        partitions=arguments.partitions,
        storage_nodes=arguments.storage_nodes,
        servers=arguments.servers,
        port=arguments.port,
        host=arguments.host,
    ) as cluster:
        tune_collector()
        print(cluster.url, flush=True)
        for index in range(1, cluster.server_count):
            print(cluster.url_of(index), flush=True)
        server = cluster.server(0)
        assert server is not None
        print(f"console: http://localhost:{server.http_port}/console/", file=sys.stderr, flush=True)
        if arguments.directory is None:
            print(f"its data in {cluster.directory} goes with it; --directory keeps it", file=sys.stderr)
        await trio.sleep_forever()
