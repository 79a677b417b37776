"""What tools that look at a running cluster share: configuration, ZooKeeper, TLS, connections to every port."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio

from waltz_core.base.errors import WaltzError
from waltz_core.base.ids import Endpoint, parse_endpoint
from waltz_trio.cli.help import UsageError
from waltz_trio.cli.options import Arguments, CommandError
from waltz_trio.cli.zookeeper import cluster_session, load_config
from waltz_trio.ports.tool import Tool
from waltz_trio.zk.admin import read_store_params

ANSWER_MAX = 60.0  # seconds an administrative request may take


Work = Callable[[Tool, Arguments], Awaitable[int]]


def in_session(work: Work, arguments: Arguments) -> int:
    """Run a sub-command with everything it needs; returns its exit status."""
    config = load_config(arguments)

    async def run() -> int:
        async with cluster_session(config) as (zk, paths):
            return await work(Tool(config, zk, paths, await read_store_params(zk, paths)), arguments)

    return trio.run(run)


@asynccontextmanager
async def explained(what: str) -> AsyncIterator[None]:
    """Put what was being done before the reason why it failed."""
    try:
        with trio.fail_after(ANSWER_MAX):
            yield
    except trio.TooSlowError:
        raise CommandError(f"{what}\nno answer within {ANSWER_MAX:.0f} s") from None
    except (WaltzError, OSError) as error:
        raise CommandError(f"{what}\n{error}") from error


def endpoint_of(text: str, problem: str) -> Endpoint:
    """An endpoint as an option gives it.

    Raises:
        UsageError: it is malformed; the text is `problem`.
    """
    if len(text.split(":")) != 2:
        raise UsageError(problem)
    return parse_endpoint(text)
