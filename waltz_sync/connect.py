"""Opening a client for threads: its Trio thread runs as long as the block does."""

from __future__ import annotations

from types import TracebackType

import waltz_trio as trio_front
from waltz_sync.blocks import Block
from waltz_sync.callers import check_timeout
from waltz_sync.client import Client
from waltz_sync.held import Held
from waltz_sync.portal import Portal
from waltz_trio.client.connect import ConfigLike
from waltz_trio.client.instrument import Instrument

_OPEN_LATE = "the cluster has not answered"


class _ClientBlock(Block[Client]):
    """A client, while its thread runs."""

    def __init__(self, config: ConfigLike, instrument: Instrument | None, timeout: float | None) -> None:
        self._config = config
        self._instrument = instrument
        self._timeout = timeout
        self._portal: Portal | None = None
        self._held: Held[trio_front.Client] | None = None

    def __enter__(self) -> Client:
        if self._portal is not None:
            raise RuntimeError("a client is entered once: call `open_client` again")
        self._portal = portal = Portal()
        portal.check()
        check_timeout(self._timeout)
        portal.start()
        try:
            manager = trio_front.open_client(self._config, instrument=self._instrument)
            self._held = Held(portal, manager, None)
            return Client(portal, self._held.enter(self._timeout, _OPEN_LATE), self._held)
        except BaseException:
            portal.stop()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._portal is not None
        assert self._held is not None
        if self._portal.forked:
            return  # the parent's client goes on
        try:
            self._held.leave(error)
        finally:
            self._portal.stop()


def open_client(
    config: ConfigLike, *, instrument: Instrument | None = None, timeout: float | None = None
) -> Block[Client]:
    """Connect to a cluster: `with open_client("client.yml") as client: ...`.

    Entered when the cluster has answered (`client.connectTimeout`); partitions are mounted when they are used.
    Everything of the client runs in one thread, which ends with the block. Leaving the block normally waits for
    appends under way (`client.closeTimeout`); nothing is left running.

    Args:
        config: path of a YAML file, a mapping of its keys, or `waltz://host:port[?ca=PATH][&verify=on|ca|off]`.
        instrument: gets what the client does, for metrics; called in the client's thread.
        timeout: seconds to wait for the cluster.

    Raises:
        TimeoutError: the cluster did not answer within `timeout`.
        ConfigError: the configuration cannot be used.
        ClientFailedError: the cluster does not answer or cannot be used, or the client broke.
        RuntimeError: a task of Trio or asyncio runs here.
    """
    return _ClientBlock(config, instrument, timeout)
