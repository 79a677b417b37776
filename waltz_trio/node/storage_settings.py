"""What a storage node reads of its configuration, once, before anything is touched."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path

import attrs

from waltz_core.storage.config import StorageConfig
from waltz_trio.base.pump import wall_offset_ms
from waltz_trio.base.version import version
from waltz_trio.config.config import Config
from waltz_trio.net.listener import LOOPBACK
from waltz_trio.node.settings import FRAME_SIZE_MAX_STORAGE, NodeSettings, node_settings


@attrs.frozen
class StorageSettings:
    """A storage node's configuration."""

    node: NodeSettings
    port: int
    admin_port: int
    directory: Path
    segments_open: int  # of a partition
    segment_size: int
    reserve: int | None  # bytes that appends leave free; None: by the size of the disk
    machine: StorageConfig  # all but what ZooKeeper and the disk say

    def open_files_max(self, partition_count: int) -> int:
        """Segments kept open per partition, two files each, and its side files; within what a process may open."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return max(16, min(partition_count * (2 * (self.segments_open + 1) + 3), soft // 2))

    def reserve_bytes(self, disk_size: int) -> int:
        """Bytes that appends leave free."""
        return min(self.segment_size, disk_size // 50) if self.reserve is None else self.reserve


def storage_settings(config: Config, warn: Callable[[str], None], local: str = LOOPBACK) -> StorageSettings:
    """Parse a storage node's configuration, as a server's.

    Raises:
        ConfigError: a key is missing or cannot be read.
    """
    config.warn_unknown(warn)
    node = node_settings(config, "storage.", local)
    segment_size = config.number("storage.segment.size.threshold")
    return StorageSettings(
        node=node,
        port=config.number("storage.port"),
        admin_port=config.number("storage.admin.port"),
        directory=Path(config.text("storage.directory")),
        segments_open=config.number("storage.segment.cache.capacity"),
        segment_size=segment_size,
        reserve=config.number_or_none("storage.reserve"),
        machine=StorageConfig(
            key=b"",
            partition_count=0,
            segment_size_threshold=segment_size,
            wall_clock_offset_ms=wall_offset_ms(),
            frame_size_max=node.frame_size_max or FRAME_SIZE_MAX_STORAGE,
            version=version() or "unknown",
            scrub_bytes_per_s=config.number("storage.scrub.rate"),
            scrub_pause_ms=config.number("storage.scrub.pause"),
            roles=node.roles,
            certificates_asked=node.certificates_asked,
            greeting_ms=node.greeting_ms,
            places=node.places,
            gathered_max=node.gathered_max or 2 << 30,
            queue_bytes_max=config.number("storage.queueBytesMax"),
            parked_bytes_max=config.number("storage.parkedBytesMax"),
            trace_every=node.trace_every,
        ),
    )
