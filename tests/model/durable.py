"""What really is on a disk: the records that a power failure would leave, read by a reader of its own."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from zlib import crc32

from waltz_testing.simulation.world_disk import WorldDisk

_HEAD = Struct(">q16siii")
_SUM = Struct(">I")
_HEADER_SIZE = 128


class _Segment:
    __slots__ = ("dirty", "end", "ids", "partition")

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.end = _HEADER_SIZE
        self.ids: list[int] = []
        self.dirty = False


class DurableLog:
    """Durable records of one storage node: partition → id → bytes of the record without its checksum.

    Follows the disk call by call; `changed` is called with a partition and the ids whose records
    went away or became others.
    """

    def __init__(self, disk: WorldDisk, partitions: int, changed: Callable[[int, list[int]], None]) -> None:
        self.records: list[dict[int, bytes]] = [{} for _ in range(partitions)]
        self._disk = disk
        self._changed = changed
        self._segments: dict[str, _Segment] = {}
        disk.on_call = self._on_call
        disk.on_content = self.rebuild

    def rebuild(self) -> None:
        """Read everything again."""
        before = self.records
        self.records = [{} for _ in before]
        self._segments = {}
        for path in sorted(self._disk.disk.durable_names(suffix=".seg")):
            self._read(path)
        for partition, (old, new) in enumerate(zip(before, self.records, strict=True)):
            gone = [one for one, body in old.items() if new.get(one) != body]
            if gone:
                self._changed(partition, gone)

    def _on_call(self, call: str, path: str, offset: int) -> None:
        segment = self._segments.get(path)
        match call:
            case "write_at":
                if segment is not None and offset < segment.end:
                    segment.dirty = True
            case "truncate" | "open_file" | "unlink":
                if segment is not None:
                    segment.dirty = True
            case "sync_data":
                if path.endswith(".seg"):
                    self._refresh(path)
            case "sync_directory":
                if path:
                    self._refresh_names(path)
            case "sync_file_system":
                for one in [*self._disk.disk.durable_names(suffix=".seg"), *self._segments]:
                    self._refresh(one)

    def _refresh_names(self, directory: str) -> None:
        """Look at segments whose names came or went, or to which something happened."""
        found = set(self._disk.disk.durable_names(directory, ".seg"))
        known = {path for path in self._segments if path.startswith(f"{directory}/")}
        for path in sorted(found | known):
            if path not in known or path not in found or self._segments[path].dirty:
                self._refresh(path)

    def _refresh(self, path: str) -> None:
        """Read what was added, or the whole file if more happened to it."""
        segment = self._segments.get(path)
        content = self._disk.disk.durable(path)
        if segment is not None and content is not None and not segment.dirty and len(content) >= segment.end:
            self._read(path)
            return
        if segment is None:
            self._read(path)
            return
        old = {one: self.records[segment.partition].pop(one, b"") for one in segment.ids}
        del self._segments[path]
        self._read(path)
        new = self.records[segment.partition]
        gone = [one for one, body in old.items() if new.get(one) != body]
        if gone:
            self._changed(segment.partition, gone)

    def _read(self, path: str) -> None:
        content = self._disk.disk.durable(path)
        if content is None:
            return
        partition = int(path.rpartition("/")[0])
        segment = self._segments.get(path)
        if segment is None:
            segment = self._segments[path] = _Segment(partition)
        records, at, size = self.records[partition], segment.end, len(content)
        while size - at >= _HEAD.size + _SUM.size:
            found, _, _, length, _ = _HEAD.unpack_from(content, at)
            end = at + _HEAD.size + length
            if length < 0 or end + _SUM.size > size:
                break
            body = bytes(content[at:end])
            if crc32(body) == _SUM.unpack_from(content, end)[0]:
                records[found] = body
                segment.ids.append(found)
            elif not body.strip(b"\0"):
                break
            at = end + _SUM.size
            segment.end = at


def split(body: bytes) -> tuple[int, bytes, int, bytes]:
    """Id, request id, header and data of a record."""
    found, req_id, header, length, _ = _HEAD.unpack_from(body)
    return found, req_id, header, body[_HEAD.size : _HEAD.size + length]
