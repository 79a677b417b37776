"""Vectors with other values than ours: another root, other names; and files that hold nothing."""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

import pytest

from tests.vectors import check_storage_dirs
from tests.vectors.__main__ import main, run_unit, units_of
from tests.vectors.messages import fields_of, frame_of, message_from, opened
from waltz_core.base.errors import ProtocolError
from waltz_core.locks.table import LockTable
from waltz_core.wire.connection import CLIENT_PROTOCOL
from waltz_core.wire.frame import HEADER, HEADER_SIZE

FOLDER = Path(__file__).parent


def failures(path: Path) -> list[str]:
    return [f"{unit.name}: {failure}" for unit in units_of(path) if (failure := run_unit(unit)[0]) is not None]


def _moved(line: str, root: str, above: list[str]) -> str:
    """A tree under another root, with the znodes above it."""
    tree: dict[str, Any] = json.loads(line)
    if tree["type"] == "legend":
        return line
    old = tree["root"]
    tree = json.loads(json.dumps(tree).replace(f'"{old}/', f'"{root}/').replace(f'"{old}"', f'"{root}"'))
    # A server's number is that of its place among all that were registered, not of the root.
    first = min(node["czxid"] for node in tree["znodes"])
    model = next(node for node in tree["znodes"] if node["path"] == f"{root}/ids")
    parents = [
        {
            **model,
            "path": path,
            "num_children": 1,
            "cversion": 1,
            "version": 0,
            "czxid": first - len(above) + at,
            "mzxid": first - len(above) + at,
            "pzxid": first - len(above) + at + 1,
        }
        for at, path in enumerate(above)
    ]
    tree["znodes"] = [*parents, *tree["znodes"]]
    return json.dumps(tree)


ROOTS = pytest.mark.parametrize(
    ("root", "above"),
    [("/elsewhere", []), ("/company/team/waltz", ["/company", "/company/team"]), ("/waltz/waltz", ["/waltz"])],
)


@ROOTS
def test_trees_under_another_root(tmp_path: Path, root: str, above: list[str]) -> None:
    ours = (FOLDER / "zk_trees.jsonl").read_text().splitlines()
    path = tmp_path / "zk_trees.jsonl"
    path.write_text("\n".join(_moved(line, root, above) for line in ours) + "\n")
    assert failures(path) == []


@ROOTS
def test_a_trace_of_writes_under_another_root(tmp_path: Path, root: str, above: list[str]) -> None:
    """What is above the root was there before the trace begins."""
    path = tmp_path / "zk_write_trace.jsonl"
    text = (FOLDER / path.name).read_text()
    path.write_text(text.replace('"/waltz/', f'"{root}/').replace('"/waltz"', f'"{root}"'))
    assert above == [] or above[-1] + "/" in root
    assert failures(path) == []


def _by_another_client(line: str, client_id: int, generation: int, partition: int) -> str:
    """A recorded frame in which every request id is another one; written from the format: four big-endian integers."""
    event = json.loads(line)
    asked = event.get("fields", {}).get("req_id")
    if asked is None:
        return line
    old = struct.pack(">4i", *(asked[name] for name in ("client_id", "generation", "partition_id", "seq_num")))
    who = client_id if asked["client_id"] == 7 else asked["client_id"]  # the recorded client, or a stranger
    asked.update(client_id=who, generation=generation, partition_id=partition)
    new = struct.pack(">4i", who, generation, partition, asked["seq_num"])
    frame = bytes.fromhex(event["hex"])
    assert frame.count(old) == 1, event
    return json.dumps({**event, "hex": frame.replace(old, new).hex()})


@pytest.mark.parametrize(("client_id", "generation", "partition"), [(8, 1, 0), (0x01020304, 77, 0), (7, 1, 3)])
def test_probes_of_another_client_generation_and_partition(
    tmp_path: Path, client_id: int, generation: int, partition: int
) -> None:
    path = tmp_path / "client_probes.jsonl"
    lines = (FOLDER / path.name).read_text().splitlines()
    path.write_text("\n".join(_by_another_client(line, client_id, generation, partition) for line in lines) + "\n")
    assert failures(path) == []


_IDS = ("client_high_water_mark", "transaction_id")


def _later_in_the_log(line: str, by: int) -> str:
    """A probe in which the client had applied so many transactions before it began."""
    event = json.loads(line)
    if not set(_IDS) & event.get("fields", {}).keys():
        return line
    frame = bytes.fromhex(event["hex"])
    _, version, length = HEADER.unpack_from(frame)
    out: list[Any] = []
    try:
        opened(CLIENT_PROTOCOL, version).receive(frame, out)
    except ProtocolError:
        return line  # a payload with a wrong checksum, of which there is no other
    fields = fields_of(CLIENT_PROTOCOL, out[0])
    for each in (fields, event["fields"]):
        each.update({name: each[name] + by for name in _IDS if name in each})
    made = frame_of(CLIENT_PROTOCOL, version, message_from(CLIENT_PROTOCOL, event["message"], fields))
    assert len(made) == length + HEADER_SIZE
    return json.dumps({**event, "hex": made.hex()})


@pytest.mark.parametrize("by", [1, 5_000_000_000])
def test_probes_of_a_client_that_has_applied_something_before(tmp_path: Path, by: int) -> None:
    path = _rewritten(tmp_path, "client_probes.jsonl", lambda line: _later_in_the_log(line, by))
    assert failures(path) == []


@pytest.mark.parametrize("name", ["zk_trees.jsonl", "storage.jsonl", "voting.jsonl", "session_capture.jsonl"])
def test_a_file_without_a_unit_fails(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "lock_hash.jsonl").write_bytes((FOLDER / "lock_hash.jsonl").read_bytes())
    (tmp_path / name).touch()
    assert main([str(tmp_path)]) == 1
    assert f"FAILED {name}: there is nothing in it to compare" in capsys.readouterr().out


def test_a_tree_without_its_root_fails(tmp_path: Path) -> None:
    line = next(line for line in (FOLDER / "zk_trees.jsonl").read_text().splitlines() if '"znode_tree"' in line)
    path = tmp_path / "zk_trees.jsonl"
    path.write_text(json.dumps({**json.loads(line), "znodes": []}) + "\n")
    (failure,) = failures(path)
    assert "there is nothing to compare" in failure


def test_a_capture_in_which_nobody_speaks_fails(tmp_path: Path) -> None:
    line = (FOLDER / "session_capture.jsonl").read_text().splitlines()[0]
    path = tmp_path / "session_capture.jsonl"
    path.write_text(line + "\n")
    (failure,) = failures(path)
    assert "there is nothing to compare" in failure


# ---- systematically ------------------------------------------------------------------------------


def _rewritten(tmp_path: Path, name: str, change: Callable[[str], str]) -> Path:
    path = tmp_path / name
    path.write_text("".join(change(line) + "\n" for line in (FOLDER / name).read_text().splitlines() if line))
    return path


@pytest.mark.parametrize(("size", "functions"), [(7, 1), (65_537, 5)])
def test_lock_hashes_of_a_table_of_another_size(tmp_path: Path, size: int, functions: int) -> None:
    def change(line: str) -> str:
        fields = {key: value for key, value in json.loads(line).items() if not key.startswith("table_slots_")}
        return json.dumps({**fields, f"table_slots_{size}": list(LockTable(size, functions, -1).slots(fields["hash"]))})

    path = _rewritten(tmp_path, "lock_hash.jsonl", change)
    assert failures(path) == []
    path.write_text(path.read_text().replace(f'"table_slots_{size}": [', f'"table_slots_{size}": [-1, '))
    assert len(failures(path)) == len(path.read_text().splitlines())


def _renamed(line: str, names: Mapping[str, str]) -> str:
    return re.sub("|".join(map(re.escape, names)), lambda match: names[match[0]], line)


def _in_later_sessions(value: Any, by: int) -> Any:
    """A recovery script in which every store session but "none" is `by` higher."""
    if not isinstance(value, dict):
        return [_in_later_sessions(item, by) for item in value] if isinstance(value, list) else value
    changed = {}
    for key, item in value.items():
        if key == "session" and item >= 0:
            changed[key] = item + by
        elif key == "zk_state" and item is not None:
            changed[key] = [item[0] + by if item[0] >= 0 else item[0], item[1]]
        elif key == "states":
            changed[key] = {name: [one + by if one >= 0 else one, mark] for name, (one, mark) in item.items()}
        else:
            changed[key] = _in_later_sessions(item, by)
    return changed


@pytest.mark.slow
def test_votes_and_recoveries_of_storage_nodes_with_other_names_in_other_sessions(tmp_path: Path) -> None:
    names = {f"s{letter}:6000": f"node-{letter}.storage.example:{6100 + at}" for at, letter in enumerate("abcdefg")}

    def change(line: str) -> str:
        return json.dumps(_in_later_sessions(json.loads(_renamed(line, names)), by=1000))

    assert failures(_rewritten(tmp_path, "voting.jsonl", change)) == []


def test_a_capture_with_other_connections_some_of_which_end_within_a_frame(tmp_path: Path) -> None:
    def change(line: str) -> str:
        event = json.loads(line)
        if "conn" in event:
            event["conn"] += 40
        return json.dumps(event)

    path = _rewritten(tmp_path, "session_capture.jsonl", change)
    assert failures(path) == []
    header, *events = map(json.loads, path.read_text().splitlines())
    # The first half of a frame, then the end of its connection.
    at = next(at for at, event in enumerate(events) if event["kind"] == "eof")
    ended, last = events[at], events[at - 1]
    half = {**last, "kind": "data", "conn": ended["conn"], "dir": ended["dir"], "hex": "4c0004000000", "frames": []}
    half.pop("text", None)
    for tail, expected in (({}, 1), ({"c2s": "4c0004000000"}, 0)):
        kept = [{**header, "incomplete_tail": tail}, *events[:at], half, *events[at:]]
        path.write_text("".join(json.dumps(event) + "\n" for event in kept if event["session"] == header["session"]))
        assert len(failures(path)) == expected


def test_conversations_with_storage_nodes_of_another_cluster(tmp_path: Path) -> None:
    def change(line: str) -> str:
        key = json.loads(line)["cluster_key"]
        other = str(uuid5(UUID(key), "elsewhere"))
        return line.replace(key, other).replace(key.replace("-", ""), other.replace("-", ""))

    assert failures(_rewritten(tmp_path, "storage_sessions.jsonl", change)) == []


def _later(value: Any, by: int) -> Any:
    """Znodes and writes with transaction ids of ZooKeeper that begin later."""
    if isinstance(value, list):
        return [_later(item, by) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: item + by if key in ("seq", "czxid", "mzxid", "pzxid") else _later(item, by) for key, item in value.items()
    }


def test_znodes_of_another_cluster_with_other_processes_later_in_the_life_of_zookeeper(tmp_path: Path) -> None:
    names = {
        **{f"server-{number}": f"waltz{number}.example" for number in range(1, 5)},
        **{f"client-{number}": f"ledger{number}" for number in range(1, 3)},
        "observer (test harness)": "somebody",
        "demo cluster": "live cluster",
        b"demo cluster".hex(): b"live cluster".hex(),
        '"cli"': '"operator"',
    }

    def change(line: str) -> str:
        fields = json.loads(line)
        return line if fields["type"] == "legend" else json.dumps(_later(json.loads(_renamed(line, names)), 1 << 32))

    for name in ("zk_trees.jsonl", "zk_write_trace.jsonl"):
        _rewritten(tmp_path, name, change)
    assert failures(tmp_path / "zk_trees.jsonl") == []
    units = list(units_of(tmp_path / "zk_write_trace.jsonl"))
    assert failures(tmp_path / "zk_write_trace.jsonl") == []
    assert sum(" at zk_trees" in unit.name for unit in units) == 26


class _AnotherServer:
    """Turns probes into those of other partitions by other clients; frames are encoded anew from changed fields."""

    def __init__(self, partition: Callable[[int], int], client: Callable[[int], int]) -> None:
        self._partition = partition
        self._client = client

    def line(self, line: str) -> str:
        event = json.loads(line)
        if "hex" not in event:
            return line
        data, made, at = bytes.fromhex(event["hex"]), b"", 0
        while len(data) - at >= HEADER_SIZE:
            size = max(HEADER.unpack_from(data, at)[2], 0) + HEADER_SIZE
            made += self._frame(data[at : at + size])
            at += size
        event["hex"] = (made + data[at:]).hex()
        if event.get("fields"):
            self._fields(event["fields"])
        return json.dumps(event)

    def _frame(self, frame: bytes) -> bytes:
        """What does not decode stays as it is."""
        magic, version, length = HEADER.unpack_from(frame)
        if magic != CLIENT_PROTOCOL.magic or length != len(frame) - HEADER_SIZE:
            return frame
        out: list[Any] = []
        try:
            opened(CLIENT_PROTOCOL, version).receive(frame, out)
        except (ProtocolError, KeyError):
            return frame
        if not out:
            return frame
        fields = self._fields(fields_of(CLIENT_PROTOCOL, out[0]))
        return frame_of(CLIENT_PROTOCOL, version, message_from(CLIENT_PROTOCOL, type(out[0]).__name__, fields))

    def _fields(self, fields: dict[str, Any]) -> dict[str, Any]:
        if "req_id" in fields:
            ids = fields["req_id"]
            was = f"partition={ids['partition_id']}"
            ids.update(client_id=self._client(ids["client_id"]), partition_id=self._partition(ids["partition_id"]))
            if "error" in fields:  # its text names the partition
                text = json.dumps(fields["error"]).replace(was, f"partition={ids['partition_id']}")
                fields["error"] = json.loads(text)
        if "partitions" in fields:
            fields["partitions"] = [self._partition(one) for one in fields["partitions"]]
        return fields


@pytest.mark.slow
@pytest.mark.parametrize(
    ("partition", "client"),
    [(lambda one: one, lambda one: one + 70_000), (lambda one: one + 31 if one < 900 else one * 1000, lambda one: one)],
)
def test_probes_of_other_partitions_by_other_clients(
    tmp_path: Path, partition: Callable[[int], int], client: Callable[[int], int]
) -> None:
    path = _rewritten(tmp_path, "server_probes.jsonl", _AnotherServer(partition, client).line)
    assert failures(path) == []


_KEY_TEXT = re.compile(r'"(?:cluster_key|key)": "([0-9a-f-]{36})"')


def _changed_files(
    case: Path,
    target: Path,
    seen: Mapping[str, bytes],
    text: str,
    moved: Callable[[bytes], bytes],
    name_of: Callable[[str], str] = lambda name: name,
) -> None:
    """A directory of which every file is changed, and its manifest with the digests of what came of them.

    Args:
        seen: content of files that only the manifest tells of, by digest.
        text: of the manifest, all but the digests changed.
    """
    for path in sorted(case.rglob("*")):
        copy = target / name_of(path.relative_to(case).as_posix())
        if path.is_dir():
            copy.mkdir(parents=True, exist_ok=True)
        elif path.name != "manifest.json":
            copy.parent.mkdir(parents=True, exist_ok=True)
            data = path.read_bytes()
            copy.write_bytes(moved(data))
            text = text.replace(hashlib.sha256(data).hexdigest(), hashlib.sha256(moved(data)).hexdigest())
    for digest, data in seen.items():
        text = text.replace(digest, hashlib.sha256(moved(data)).hexdigest())
    (target / "manifest.json").write_text(text)


def _of_another_cluster(case: Path, target: Path, seen: Mapping[str, bytes]) -> None:
    """Other cluster keys, which stand in every file behind the creation time."""
    text = (case / "manifest.json").read_text()
    keys = {UUID(key): uuid5(UUID(key), "elsewhere") for key in _KEY_TEXT.findall(text)}

    def moved(data: bytes) -> bytes:
        for old, new in keys.items():
            if data[12:28] == old.bytes:
                return data[:12] + new.bytes + data[28:]
        return data

    for old, new in keys.items():
        text = text.replace(str(old), str(new))
    _changed_files(case, target, seen, text, moved)


_OTHER = {0: 1, 1: 0}


def _other_name(name: str) -> str:
    """A path of the other partition."""
    return re.sub(r"(^|<dir>/)(storage/)?([01])(?=/|$)", lambda at: f"{at[1]}{at[2] or ''}{_OTHER[int(at[3])]}", name)


def _for_the_other_partition(value: Any, key: str = "") -> Any:
    """What a manifest of two partitions says of each, said of the other."""
    if isinstance(value, dict):
        changed = {_other_name(name): _for_the_other_partition(item, name) for name, item in value.items()}
        return dict(sorted(changed.items())) if set(value) <= {"0", "1"} else changed
    if isinstance(value, list):
        items = [_for_the_other_partition(item, key) for item in value]
        return (
            items[::-1]
            if key in ("partitions", "infos")
            else sorted(items)
            if key in ("ids", "dirs", "new_dirs")
            else items
        )
    if key in ("partition", "partition_id", "ids"):
        return _OTHER[value]
    return _other_name(value) if isinstance(value, str) and key not in ("op", "case", "kind") else value


def _with_partitions_exchanged(case: Path, target: Path, seen: Mapping[str, bytes]) -> None:
    """Two partitions whose ids are exchanged: names of folders, headers of their files, structs of the control file."""

    def moved(data: bytes) -> bytes:
        if len(data) == 280 and data[28:32] == (2).to_bytes(4):
            return data[:132] + data[208:280] + data[204:208] + data[132:204]
        owner = int.from_bytes(data[28:32])
        return data[:28] + _OTHER[owner].to_bytes(4) + data[32:] if len(data) >= 32 and owner in _OTHER else data

    text = json.dumps(_for_the_other_partition(json.loads((case / "manifest.json").read_text())))
    _changed_files(case, target, seen, text, moved, _other_name)


class _Digests:
    """`hashlib`, which remembers what it made digests of."""

    def __init__(self) -> None:
        self.seen: dict[str, bytes] = {}

    def sha256(self, data: bytes = b"") -> Any:
        made = hashlib.sha256(data)
        self.seen[made.hexdigest()] = bytes(data)
        return made


def _contents(name: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Content, by digest, of every file that a directory has, or gets while it is checked."""
    digests = _Digests()
    with monkeypatch.context() as patch:
        patch.setattr(check_storage_dirs, "hashlib", digests)
        (unit,) = [unit for unit in units_of(FOLDER / "storage_dirs") if unit.name == f"storage_dirs/{name}"]
        assert run_unit(unit)[0] is None
    return digests.seen


def _partitions_of(name: str) -> int:
    return int(json.loads((FOLDER / "storage_dirs" / name / "manifest.json").read_text())["open"]["num_partitions"])


_CASES = sorted(path.name for path in (FOLDER / "storage_dirs").iterdir())


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if "sweep" in name else ()) for name in _CASES]
)
def test_directories_of_other_clusters(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = FOLDER / "storage_dirs" / name
    _of_another_cluster(case, tmp_path / "storage_dirs" / name, _contents(name, monkeypatch))
    assert failures(tmp_path / "storage_dirs") == []
    old = re.findall(_KEY_TEXT, (case / "manifest.json").read_text())
    assert not any(key in (tmp_path / "storage_dirs" / name / "manifest.json").read_text() for key in old)


# Directories of two partitions with a whole control file, in which they can be exchanged.
_PAIRS = [name for name in _CASES if "truncated" not in name and _partitions_of(name) == 2]


@pytest.mark.parametrize("name", _PAIRS)
def test_directories_of_other_partitions(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = FOLDER / "storage_dirs" / name
    _with_partitions_exchanged(case, tmp_path / "storage_dirs" / name, _contents(name, monkeypatch))
    assert failures(tmp_path / "storage_dirs") == []


def test_probes_of_a_server_that_serves_nothing_fail(tmp_path: Path) -> None:
    path = tmp_path / "server_probes.jsonl"
    lines = (FOLDER / path.name).read_text().splitlines()
    path.write_text("\n".join(line for line in lines if "req_id" not in json.loads(line).get("fields", {})) + "\n")
    with pytest.raises(AssertionError, match="there is nothing to compare"):
        failures(path)
