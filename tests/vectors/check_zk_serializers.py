"""Znode bytes: our codecs against those of Waltz 0.13.2, in both directions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.vectors.reading import Fields, Unit, lines
from tests.vectors.znode_fields import decode, encode, from_fields, to_fields, wire_keys
from waltz_core.base.errors import ProtocolError
from waltz_core.zookeeper.java_order import table_order, text_hash


def units(path: Path) -> Iterator[Unit]:
    for name, line in lines(path):
        yield Unit(name, [line], lambda line=line: _check(line))  # type: ignore[misc]


def _check(line: Fields) -> frozenset[str]:
    line.ignore("note")
    kind, data = line["type"], bytes.fromhex(line["hex"])
    if line["kind"] == "encode":
        fields = line["fields"].all()
        record = from_fields(kind, fields)
        assert encode(kind, record) == data
        assert decode(kind, data) == record
        assert to_fields(kind, decode(kind, data)) == fields
        if "insertion_order" in line:
            _check_order(kind, line["insertion_order"], wire_keys(kind, fields), record)
    else:
        assert line["kind"] == "decode"
        line.ignore("error_message")
        if "error" in line:
            assert line["error"]  # any error will do
            try:
                found = decode(kind, data)
            except ProtocolError:
                return frozenset()
            raise AssertionError(f"decoded to {found}, an error was expected")
        fields = line["fields"].all()
        record = decode(kind, data)
        assert to_fields(kind, record) == fields
        assert decode(kind, encode(kind, record)) == record
    return frozenset()


def _check_order(kind: str, inserted: list[str], wire: list[str], record: object) -> None:
    """Reproduce the order of the original's hash table."""
    if kind == "PartitionMetadata":
        partition = {state.replica_id.storage: state.replica_id.partition_id for state in record.replica_states}  # type: ignore[attr-defined]
        hashes = [_replica_hash(partition[storage], storage) for storage in inserted]
    else:
        hashes = [text_hash(storage) for storage in inserted]
    assert table_order(inserted, hashes, _copied_table_size(len(inserted))) == wire


def _replica_hash(partition_id: int, storage: str) -> int:
    """Hash of a replica id, as an unsigned 32-bit number."""
    return partition_id * text_hash(storage) & 0xFFFFFFFF


def _copied_table_size(count: int) -> int:
    """Size of a table made as a copy of another one with `count` entries."""
    wanted = int(count / 0.75 + 1)
    return 1 << max(wanted - 1, 0).bit_length()
