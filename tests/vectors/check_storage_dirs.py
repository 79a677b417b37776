"""Storage directories made and opened by 0.13.2, good and damaged.

Each is opened by the twin and must end as the record says, byte for byte. It is also opened by ours:
an undamaged directory gives the same; for a damaged one `storage_files.judge` says, from
the bytes alone, what must be served, refused or left alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from tests.storage_desk import Desk
from tests.twin_0132.storage import StorageFailed0132, StorageNode0132
from tests.vectors import storage_files as independent
from tests.vectors.reading import Fields, Unit, parse, plain
from waltz_core.base.ids import ReqId
from waltz_core.base.log import Record
from waltz_core.storage import control as ctl
from waltz_core.storage import segment as seg
from waltz_core.storage.node import StorageNode
from waltz_core.storage.replica import State
from waltz_core.wire import admin_messages as admin
from waltz_core.wire import storage_messages as wire
from waltz_core.wire.primitives import write_record
from waltz_testing.simulation.disk import SimDisk

SIDE = ("waltz.fence", "waltz.mark", "waltz.faults")
_CREATED = slice(4, 12)  # creation times are real
_CONTROL_FIELDS = 32  # version, creation time, key, number of partitions
_SEGMENT_FIELDS = 40  # version, creation time, key, partition, first id


def units(path: Path) -> Iterator[Unit]:
    for case in sorted(one for one in path.iterdir() if one.is_dir()):
        manifest = parse((case / "manifest.json").read_text(encoding="utf-8"))
        yield Unit(f"{path.name}/{case.name}", [manifest], Case(case, manifest).run)


class Case:
    """One directory and its manifest."""

    def __init__(self, path: Path, manifest: Fields) -> None:
        self.path = path
        self.manifest = manifest
        manifest.ignore("description", "origin", "explanation", "case", "kind")
        self.damaged = {one["file"] for one in _listed(manifest["damage"])} if "damage" in manifest else set()

    def run(self) -> frozenset[str]:
        opening = plain(self.manifest["open"])
        self.key = UUID(opening["cluster_key"])
        self.count = opening["num_partitions"]
        self.threshold = opening["segment_size_threshold"]
        assert opening["segment_cache_capacity"] >= 0
        self.disk = self._load()
        self._check_files(plain(self.manifest["files"]), self.disk)
        if "control_file" in self.manifest:
            self._check_control(plain(self.manifest["control_file"]))
        if "segments" in self.manifest:
            self._check_segments(plain(self.manifest["segments"]), self.disk)
        self._check_history(plain(self.manifest["history"]))
        self._check_opening(plain(self.manifest["java_open"]))
        self._check_operations()
        rules = self._check_safe(self.disk)
        if "sweeps" in self.manifest:
            rules |= self._check_sweeps(plain(self.manifest["sweeps"]))
        return rules

    # ---- content ---------------------------------------------------------------------------------

    def _load(self) -> SimDisk:
        disk = SimDisk()
        for directory in self.manifest["dirs"]:
            disk.make_directory(directory)
        root = self.path / "storage"
        for file in sorted(root.rglob("*")):
            if file.is_file():
                disk.put(file.relative_to(root).as_posix(), file.read_bytes())
        return disk

    def _check_files(self, recorded: Mapping[str, Any], disk: SimDisk, *, fresh: bool = False) -> None:
        found = _without_sides(disk)
        assert sorted(recorded) == sorted(found)
        for name, what in recorded.items():
            assert what["size"] == len(found[name]), f"{name}: {what['size']} bytes recorded, {len(found[name])} found"
            made_anew = fresh and len(self.disk.files().get(name, b"")) < 128
            if not made_anew:
                digest = hashlib.sha256(found[name]).hexdigest()
                assert what["sha256"] == digest, f"{name}: content differs"

    def _check_control(self, recorded: Mapping[str, Any]) -> None:
        data = self.disk.content(ctl.NAME)
        header = ctl.decode_header(data)
        assert header is not None
        assert (header.version, header.created_ms, str(UUID(bytes=header.key)), header.partition_count) == (
            recorded["version"],
            recorded["creation_time"],
            recorded["key"],
            recorded["num_partitions"],
        )
        assert ctl.encode_header(header)[:_CONTROL_FIELDS] == data[:_CONTROL_FIELDS]  # what follows is reserved
        for one in recorded["partitions"]:
            if one is None:  # the file ends before
                continue
            for slot, expected in enumerate(one["structs"]):
                place = ctl.struct_place(one["partition_id"], slot)
                raw = data[place : place + 36].ljust(36, b"\0")
                struct = ctl.decode_struct(raw)
                assert expected["valid"] == (struct is not None)
                loose = independent.control_structs(data[128:], one["partition_id"])[slot]
                assert loose == independent.Struct36(
                    expected["session_id"],
                    expected["low_water_mark"],
                    expected["local_low_water_mark"],
                    expected["flags"],
                    expected["sequence_number"],
                    expected["valid"],
                )
                assert int.from_bytes(raw[32:], signed=True) == expected["checksum"]
                if struct is not None:
                    assert ctl.encode_struct(struct) == raw
                    assert struct.session_id == loose.session_id
                    assert struct.sequence == loose.sequence

    def _check_segments(self, recorded: Mapping[str, Any], disk: SimDisk) -> None:
        for partition_id, segments in recorded.items():
            names = [name for name in disk.files() if name.startswith(f"{partition_id}/") and name.endswith(".seg")]
            assert sorted(name.partition("/")[2] for name in names) == sorted(one["file"] for one in segments)
            for expected in segments:
                self._check_segment(f"{partition_id}/{expected['file']}", expected, disk.files())

    def _check_segment(self, path: str, expected: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
        known = {"file", "first_transaction_id", "valid_records_from_start", "size", "index_size", "offsets", "error"}
        assert set(expected) <= known, f"unknown fields {set(expected) - known}"
        data = files[path]
        assert len(data) == expected["size"]
        index = files.get(seg.index_name(path))
        if "index_size" in expected:
            assert expected["index_size"] == (None if index is None else len(index))
        header = seg.decode_header(data)
        if header is None:
            assert expected.get("first_transaction_id") is None
            return
        assert seg.encode_header(header)[:_SEGMENT_FIELDS] == data[:_SEGMENT_FIELDS]  # what follows is reserved
        assert header.first_id == expected["first_transaction_id"]
        offsets: list[int] = []
        seg.scan(data, seg.HEADER_SIZE, header.first_id, offsets, 0)
        assert len(offsets) == expected["valid_records_from_start"]
        assert offsets == independent.walk(data, header.first_id)
        listed = expected["offsets"]
        if "..." in listed:  # shortened
            at = listed.index("...")
            offsets = [*offsets[:at], *offsets[at + 1 - len(listed) :]]
            listed = listed[:at] + listed[at + 1 :]
        assert offsets == listed

    # ---- history ---------------------------------------------------------------------------------

    def _check_history(self, operations: list[Any]) -> None:
        """Repeat what made the directory, as far as the record holds the records: same answers, same bytes."""
        known = self._known_records()
        names = {operation.get("op") for operation in operations}
        if None in names or "truncate" in names or not self._complete(operations, known):
            return
        for kind in (StorageNode0132, StorageNode) if _orderly(operations) else (StorageNode0132,):
            desk = None
            disk = SimDisk()
            for operation in operations:
                if operation["op"] == "open":
                    key = UUID(operation["key"])
                    desk = Desk(disk, key, operation["num"], threshold=operation["threshold"], kind=kind)
                elif operation["op"] != "close":
                    assert desk is not None
                    self._repeat(desk, operation, known)
            for name, content in _without_sides(disk).items():
                if name not in self.damaged and name in self.disk.files():
                    theirs = _timeless(self.disk.content(name))
                    # Some directories hold more than their history tells.
                    assert theirs.startswith(_timeless(content)), f"{name} differs from the one that 0.13.2 wrote"

    def _known_records(self) -> dict[tuple[int, int], Record]:
        known = {}
        for partition_id, one in (plain(self.manifest["java_open"]).get("partitions") or {}).items():
            for row in one.get("records", ()):
                if len(row) == 6:
                    known[int(partition_id), row[0]] = record_of(row)
        return known

    def _complete(self, operations: list[Any], known: Mapping[tuple[int, int], Record]) -> bool:
        return all(
            (operation["partition"], operation["first_transaction_id"] + number) in known
            for operation in operations
            if operation["op"] == "append"
            for number in range(operation["num_records"])
        )

    def _repeat(self, desk: Desk, operation: Mapping[str, Any], known: Mapping[tuple[int, int], Record]) -> None:
        match operation["op"]:
            case "assign":
                answer = desk.admin(admin.PartitionAssignmentRequest(1, tuple(operation["ids"]), True, False))
                assert answer == admin.AdminSuccessResponse(1)
                return
            case "unassign":
                answer = desk.admin(
                    admin.PartitionAssignmentRequest(1, tuple(operation["ids"]), False, _deletes(operation))
                )
                assert answer == admin.AdminSuccessResponse(1)
                return
            case "available":
                answer = desk.admin(admin.PartitionAvailableRequest(1, tuple(operation["ids"]), operation["value"]))
                assert answer == admin.AdminSuccessResponse(1)
                return
            case "append":
                first = operation["first_transaction_id"]
                partition_id = operation["partition"]
                records = tuple(known[partition_id, first + number] for number in range(operation["num_records"]))
                request: Any = wire.AppendRequest(operation["session"], 1, partition_id, records, False)
            case "lwm":
                request = wire.SetLowWaterMarkRequest(
                    operation["session"], 1, operation["partition"], operation["tid"], False
                )
            case other:
                raise AssertionError(f"unknown operation {other}")
        answer = desk.storage(request)
        assert type(answer).__name__ == operation["java_response"]["response"], answer

    # ---- opening as 0.13.2 -----------------------------------------------------------------------

    def _open(self, disk: SimDisk, kind: type[StorageNode]) -> Desk:
        return Desk(disk, self.key, self.count, threshold=self.threshold, kind=kind)

    def _check_opening(self, recorded: Mapping[str, Any]) -> None:
        disk = self.disk.clone()
        desk = self._open(disk, StorageNode0132)
        if recorded["ok"]:
            assert desk.failure is None, desk.failure
            self._check_partitions(recorded["partitions"], desk)
        else:
            assert isinstance(desk.failure, StorageFailed0132)
            assert list(desk.failure.chain) == recorded["exception_chain"]
        before = self.disk.files()
        after = disk.files()
        changed = {name for name in after if after[name] != before.get(name)}
        assert sorted(set(before) - set(after)) == recorded["removed_files"]
        assert sorted(disk.directories() - self.disk.directories()) == recorded["new_dirs"]
        assert sorted(changed) == sorted(recorded["changed_files"])
        for name, what in recorded["changed_files"].items():
            assert len(after[name]) == what["size"]
            if len(before.get(name, b"")) >= 128:
                assert hashlib.sha256(after[name]).hexdigest() == what["sha256"], name
        segments = plain(self.manifest.get("segments_after_open"))
        if segments == "unchanged":
            assert not any(name.endswith((".seg", ".idx")) for name in changed)
        elif segments is not None:
            self._check_segments(segments, disk)

    def _check_partitions(self, recorded: Mapping[str, Any], desk: Desk) -> None:
        assert sorted(map(int, recorded)) == list(range(self.count))
        for name, expected in recorded.items():
            replica = desk.node.replicas[int(name)]
            _check_control_values(replica.entry.current, expected)
            if "max_transaction_id" not in expected:
                assert replica.state is State.UNASSIGNED
                continue
            assert replica.max_id == expected["max_transaction_id"]
            digest = hashlib.sha256()
            rows = expected.get("records")
            for row in rows if rows is not None else [[one] for one in range(replica.max_id + 1)]:
                found = desk.read(int(name), row[0])
                if isinstance(found, Record):
                    digest.update(wire_form(found))
                if rows is not None:
                    _check_row(row, found)
            assert digest.hexdigest() == expected["records_digest_sha256"]

    # ---- operations ------------------------------------------------------------------------------

    def _check_operations(self) -> None:
        if "after_open_ops" not in self.manifest:
            return
        disk = self.disk.clone()
        desk = self._open(disk, StorageNode0132)
        for operation in plain(self.manifest["after_open_ops"]):
            check_operation(desk, operation)
        self._check_files(plain(self.manifest["files_after_ops"]), disk, fresh=True)
        recorded = plain(self.manifest["java_reopen_after_ops"])
        desk = self._open(disk, StorageNode0132)
        assert (desk.failure is None) == recorded["ok"]
        if recorded["ok"]:
            self._check_partitions(recorded["partitions"], desk)
        else:
            assert isinstance(desk.failure, StorageFailed0132)
            assert list(desk.failure.chain) == recorded["exception_chain"]

    # ---- by ours -------------------------------------------------------------------------------------

    def _check_safe(self, before: SimDisk) -> frozenset[str]:
        verdict = independent.judge(before.files(), before.directories(), self.key.bytes, self.count)
        disk = before.clone()
        desk = self._open(disk, StorageNode)
        if verdict.refused is not None:
            assert desk.failure is not None
            assert verdict.refused in desk.failure.reason, desk.failure
            assert disk.files() == before.files()
            return verdict.rules
        assert desk.failure is None, desk.failure
        for partition_id, expected in verdict.partitions.items():
            self._check_safe_partition(desk, before, partition_id, expected)
        served = {one: self._served(desk, one) for one in verdict.partitions}
        again = self._open(disk, StorageNode)
        assert served == {one: self._served(again, one) for one in verdict.partitions}, "changed by opening once more"
        if not verdict.rules and before is self.disk:
            self._check_same(desk)
        if before is self.disk and "after_open_ops" in self.manifest:
            self._check_safe_operations(desk, verdict)
        return verdict.rules

    def _check_safe_operations(self, desk: Desk, verdict: independent.Verdict) -> None:
        """In ours a damaged partition takes nothing in and gives nothing up; the others go on."""
        for operation in plain(self.manifest["after_open_ops"]):
            partition_id = operation.get("partition")
            if partition_id is None or operation["op"] == "read":
                continue
            replica = desk.node.replicas[partition_id]
            before = replica.max_id
            answer = desk.storage(_storage_request(operation))
            reading = operation["op"] in ("record", "header", "list")
            if replica.state is not State.OPEN and not reading:
                assert isinstance(answer, wire.FailureResponse), answer
            if operation["op"] == "append" and replica.state is State.OPEN and operation["records"]:
                goes_on = operation["records"][0][0] == before + 1
                assert isinstance(answer, wire.SuccessResponse) == goes_on, answer
            if operation["op"] == "truncate" and replica.state is State.OPEN:
                kept = operation["tid"] >= replica.entry.current.low_water_mark or operation["tid"] >= before
                assert isinstance(answer, wire.MaxTransactionIdResponse) == kept, answer
            if reading and not isinstance(answer, wire.FailureResponse):
                given = answer.records if operation["op"] == "list" else [answer.record] if answer.record else []
                for one in given:
                    assert disk_form(one) in verdict.partitions[partition_id].records[one.transaction_id]
        again = self._open(desk.disk, StorageNode)
        for replica, reopened in zip(desk.node.replicas, again.node.replicas, strict=True):
            assert (reopened.state, reopened.max_id) == (replica.state, replica.max_id)

    def _check_same(self, desk: Desk) -> None:
        """Nothing is damaged: the rules change nothing."""
        recorded = plain(self.manifest["java_open"])
        self._check_partitions(recorded["partitions"], desk)
        assert {name: _without_sides(desk.disk)[name] for name in self.disk.files()} == self.disk.files() or (
            recorded["changed_files"]
        )

    def _served(self, desk: Desk, partition_id: int) -> dict[int, bytes]:
        replica = desk.node.replicas[partition_id]
        found = {one: desk.read(partition_id, one) for one in range(-1, replica.max_id + 2)}
        return {one: disk_form(record) for one, record in found.items() if isinstance(record, Record)}

    def _check_safe_partition(
        self, desk: Desk, before: SimDisk, partition_id: int, expected: independent.Partition
    ) -> None:
        replica = desk.node.replicas[partition_id]
        if not expected.assigned:
            assert replica.state is State.UNASSIGNED
            return
        if expected.control is not None:
            assert tuple(expected.control[:5]) == _values(replica.entry.current)
        served = self._served(desk, partition_id)
        for one, raw in served.items():
            assert raw in expected.records[one], f"transaction {one} of partition {partition_id} was served altered"
        prefix = f"{partition_id}/"
        names = [name for name in before.files() if name.startswith(prefix) and name.endswith(".seg")]
        kept = {name: before.content(name) for name in names}
        after = desk.disk.files()
        if expected.sound:
            assert replica.state is State.OPEN, replica.reason
            assert replica.max_id == expected.highest
            assert sorted(served) == list(range(replica.max_id + 1))
            for name, data in kept.items():
                assert data.startswith(after.get(name, b"")), f"{name} was altered"
            return
        # Damaged: no data file may lose a byte, whatever is intact and can be found is served.
        for name, data in kept.items():
            assert after[name] == data, f"{name} was altered"
        if replica.state is State.OPEN:
            assert set(served) == set(expected.records) & set(range(replica.max_id + 1))
        else:
            assert replica.state is State.LIMBO
            refused = desk.storage(wire.MaxTransactionIdRequest(1 << 40, 1, partition_id, False))
            assert isinstance(refused, wire.FailureResponse)

    # ---- sweeps ----------------------------------------------------------------------------------

    def _check_sweeps(self, sweeps: Mapping[str, Any]) -> frozenset[str]:
        rules: frozenset[str] = frozenset()
        for name, runs in sweeps.items():
            if name == "note":
                continue
            action, _, path = name.partition(" ")
            for first, last, outcome in runs:
                for number in range(first, last + 1):
                    disk = self.disk.clone()
                    if action == "truncate":
                        disk.put(path, disk.content(path)[:number])
                    else:
                        assert action == "invert"
                        disk.flip(path, number)
                    rules |= self._check_safe(disk)
                    found = self._outcome(disk)
                    assert found == outcome, f"{name} {number}: {outcome} recorded, {found} found"
        return rules

    def _outcome(self, disk: SimDisk) -> str:
        desk = self._open(disk, StorageNode0132)
        if desk.failure is not None:
            assert isinstance(desk.failure, StorageFailed0132)
            return f"error: {desk.failure.chain[-1]}"
        replica = desk.node.replicas[0]
        one = replica.entry.current
        control = (
            f"ok session={one.session_id} lwm={one.low_water_mark} llwm={one.local_low_water_mark} flags={one.flags}"
        )
        if replica.files.log is None:
            return f"{control} not assigned"
        sizes = {name.rpartition(".")[2]: len(data) for name, data in disk.files().items() if name.startswith("0/")}
        return f"{control} max={replica.max_id} seg={sizes['seg']} idx={sizes['idx']}"


# ---- operations ----------------------------------------------------------------------------------


def check_operation(desk: Desk, operation: Mapping[str, Any]) -> None:
    """Carry out one of `after_open_ops` and compare with what 0.13.2 answered."""
    java = operation["java"]
    match operation["op"]:
        case "read":
            assert len(java["records"]) == operation["max"]
            for at, row in enumerate(java["records"]):
                assert row[0] == operation["tid"] + at
                _check_row(row, desk.read(operation["partition"], row[0]))
        case "infos":
            assert java["key"] == str(desk.key)
            assert [one["partition_id"] for one in java["infos"]] == list(range(len(desk.node.replicas)))
            for one in java["infos"]:
                _check_control_values(desk.node.replicas[one["partition_id"]].entry.current, one)
        case "assign" | "unassign" | "available":
            assert isinstance(desk.admin(_admin_request(operation)), admin.AdminSuccessResponse) == java["ok"]
        case _:
            _check_answer(desk.storage(_storage_request(operation)), java)


def _admin_request(operation: Mapping[str, Any]) -> Any:
    ids = tuple(operation["ids"])
    if operation["op"] == "available":
        return admin.PartitionAvailableRequest(1, ids, operation["value"])
    return admin.PartitionAssignmentRequest(1, ids, operation["op"] == "assign", _deletes(operation))


def _storage_request(operation: Mapping[str, Any]) -> Any:
    ids: tuple[int, int, int] = operation["session"], 1, operation["partition"]
    match operation["op"]:
        case "append":
            return wire.AppendRequest(*ids, tuple(map(record_of, operation["records"])), False)
        case "truncate":
            return wire.TruncateRequest(*ids, operation["tid"], False)
        case "lwm":
            return wire.SetLowWaterMarkRequest(*ids, operation["tid"], False)
        case "max":
            return wire.MaxTransactionIdRequest(*ids, False)
        case "session":
            return wire.LastSessionInfoRequest(*ids, False)
        case "record":
            return wire.RecordRequest(*ids, operation["tid"])
        case "header":
            return wire.RecordHeaderRequest(*ids, operation["tid"])
        case "list":
            return wire.RecordListRequest(*ids, operation["tid"], operation["max"])
    raise AssertionError(f"unknown operation {operation['op']}")


def _check_answer(answer: Any, java: Mapping[str, Any]) -> None:
    assert type(answer).__name__ == java["response"], f"{java} recorded, {answer} found"
    match answer:
        case wire.FailureResponse():
            assert answer.message == java["message"]
        case wire.MaxTransactionIdResponse():
            assert answer.transaction_id == java["transaction_id"]
        case wire.RecordResponse():
            assert answer.record == (None if java["record"] is None else record_of(java["record"]))
        case wire.RecordListResponse():
            assert list(answer.records) == list(map(record_of, java["records"]))
        case wire.LastSessionInfoResponse():
            info = answer.last_session_info
            assert java["last_session_info"] == {
                "session_id": info.session_id,
                "low_water_mark": info.low_water_mark,
                "local_low_water_mark": info.local_low_water_mark,
            }
        case wire.SuccessResponse():
            pass
        case _:
            raise AssertionError(f"unexpected answer {answer}")


def record_of(row: list[Any]) -> Record:
    """A record from [id, req most, req least, header, data hex, data checksum]."""
    transaction_id, most, least, header, data, checksum = row
    req_id = ReqId(most.to_bytes(8, signed=True) + least.to_bytes(8, signed=True))
    return Record(transaction_id, req_id, header, bytes.fromhex(data), checksum)


def _check_row(row: list[Any], found: Record | str | None) -> None:
    if len(row) == 6:
        assert found == record_of(row)
    elif row[1] is None:
        assert found is None, f"transaction {row[0]} is absent in 0.13.2, ours has {found}"
    else:
        assert found == row[1][0], f"transaction {row[0]}: {row[1]} recorded, {found} found"


def wire_form(record: Record) -> bytes:
    """A record as it travels."""
    out = bytearray()
    write_record(out, record)
    return bytes(out)


def disk_form(record: Record) -> bytes:
    """A record as it is stored, without the last checksum."""
    head = record.transaction_id.to_bytes(8, signed=True) + record.req_id + record.header.to_bytes(4, signed=True)
    return head + len(record.data).to_bytes(4) + record.checksum.to_bytes(4, signed=True) + record.data


def _values(one: ctl.ControlStruct) -> tuple[int, ...]:
    return one.session_id, one.low_water_mark, one.local_low_water_mark, one.flags, one.sequence


def _check_control_values(one: ctl.ControlStruct, expected: Mapping[str, Any]) -> None:
    names = ("session_id", "low_water_mark", "local_low_water_mark", "flags", "sequence_number")
    assert dict(zip(names, _values(one), strict=True)) == {name: expected[name] for name in names}
    assert (one.assigned, one.available) == (expected["assigned"], expected["available"])


def _without_sides(disk: SimDisk) -> dict[str, bytes]:
    return {name: data for name, data in disk.files().items() if not name.endswith(SIDE)}


def _timeless(content: bytes) -> bytes:
    """Without the creation time in the header."""
    changed = bytearray(content)
    if len(changed) >= 12:
        changed[_CREATED] = bytes(8)
    return bytes(changed)


def _orderly(operations: list[Any]) -> bool:
    """Nothing was refused, and sessions of a partition never went back: the rules make no difference."""
    last: dict[int, int] = {}
    for operation in operations:
        if operation.get("java_response", {}).get("response") == "FailureResponse":
            return False
        if "session" in operation:
            if operation["session"] < last.get(operation["partition"], -1):
                return False
            last[operation["partition"]] = operation["session"]
    return True


def _deletes(operation: Mapping[str, Any]) -> bool:
    return any(value is True for name, value in operation.items() if "delete" in name)


def _listed(value: Any) -> list[Any]:
    value = plain(value)
    many = value if isinstance(value, list) else [value]
    return [one for one in many if "file" in one]
