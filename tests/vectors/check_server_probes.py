"""Hand-made bytes against a whole server with one storage node: what it answers, ignores, or closes on.

Every probe runs twice: against the twin of its server, which must answer as 0.13.2 did, byte for
byte; and against ours, where the greeting offers codec 5 as well and only what a rule
names may differ.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from tests.model.cluster import RawPeer, SimCluster
from tests.vectors.deviations import appended_under_others, probe_rules
from tests.vectors.messages import fields_of, opened, read_hello
from tests.vectors.reading import Fields, Unit, lines, plain
from waltz_core.wire.client_codec import VERSIONS
from waltz_core.wire.client_messages import FeedData, PartitionState
from waltz_core.wire.connection import CLIENT_PROTOCOL
from waltz_core.wire.frame import HEADER, HEADER_SIZE

_PATIENCE_MS = 30_000
_SETTLE_MS = 10
_REFUSED_MS = 1_000  # so long an append that is to be refused is waited for


def units(path: Path) -> Iterator[Unit]:
    probes: dict[str, list[Fields]] = {}
    for _, line in lines(path):
        if line["probe"] == "_header":
            line.ignore("description")
        else:
            probes.setdefault(line["probe"], []).append(line)
    servers = Servers(count_of_partitions([plain(line) for its_lines in probes.values() for line in its_lines]))
    for probe, its_lines in probes.items():
        yield Unit(f"{path.name}:{probe}", its_lines, partial(check, its_lines, servers))


def count_of_partitions(lines: Sequence[Mapping[str, Any]]) -> int:
    """How many partitions the recorded server had: all that are named exist, but for those that it did not know.

    It did not know whom it called not ready for a client without any transaction, and, of a refused list of preferred
    partitions, those that appear nowhere else.
    """
    named, unready, refused, ready = set[int](), set[int](), set[int](), set[int]()
    marks: dict[tuple[int, ...], int] = {}
    for line in lines:
        fields = line.get("fields") or {}
        if not fields.get("req_id"):
            continue
        named.add(fields["req_id"]["partition_id"])
        match line["event"], line.get("message"):
            case "send", "MountRequest":
                marks[_request(fields)] = fields["client_high_water_mark"]
            case "recv", "MountResponse" if fields["partition_state"] == PartitionState.READY:
                ready.add(fields["req_id"]["partition_id"])
            case "recv", "MountResponse" if marks[_request(fields)] == -1:
                unready.add(fields["req_id"]["partition_id"])
            case "send", "AddPreferredPartitionRequest" | "RemovePreferredPartitionRequest":
                refused.update(fields["partitions"])
            case "recv", "AddPreferredPartitionResponse" | "RemovePreferredPartitionResponse" if fields["result"]:
                named |= refused
    absent = (unready - ready) | (refused - named)
    existing = named - absent
    assert existing, "no partition is served: there is nothing to compare"
    count = max(existing) + 1
    between = [partition for partition in absent if 0 <= partition < count]
    assert not between, f"the server did not know {between}, but later ones: only one server is replayed"
    return count


class Servers:
    """One cluster for all probes of a file, of 0.13.2 and of ours: each uses partitions and connections of its own."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions

    @functools.cached_property
    def legacy(self) -> SimCluster:
        """The twin."""
        return self._started(legacy=True)

    @functools.cached_property
    def ours(self) -> SimCluster:
        """Ours."""
        return self._started(legacy=False)

    def _started(self, *, legacy: bool) -> SimCluster:
        cluster = SimCluster(
            seed=1,
            partitions=self._partitions,
            storage_nodes=1,
            servers=1,
            storages_0132=legacy,
            servers_0132=(0,) if legacy else (),
        )
        cluster.start()
        cluster.until_open()
        return cluster


def check(its_lines: list[Fields], servers: Servers) -> frozenset[str]:
    rules = probe_rules(its_lines)
    _Replay(servers.legacy, its_lines, frozenset(), ours=False).run()
    # On fresh partitions: the first run has written to these.
    _Replay(servers.ours, its_lines, rules, ours=True).run()
    return rules | {"codec_5_offered"}


class _Replay:
    def __init__(
        self, cluster: SimCluster, its_lines: Sequence[Fields], differing: frozenset[str], *, ours: bool
    ) -> None:
        self.world = cluster.world
        self.cluster = cluster
        self.lines = its_lines
        self.ours = ours
        self.differing = differing
        self.peers: dict[int, RawPeer] = {}
        self.refused: list[tuple[int, int]] = []  # partition and recorded id of what a rule keeps out of the log

    def run(self) -> None:
        for line in self.lines:
            line.ignore("probe", "seq", "t_ms", "note")
            getattr(self, f"_{line['event']}")(line)
        for peer in self.peers.values():
            peer.close()

    def _connect(self, line: Fields) -> None:
        peer = self.cluster.raw_peer(certificate="")  # the recorded clients showed none
        self.peers[line["conn"]] = peer
        assert self.world.run_while(lambda: not peer.connected, _PATIENCE_MS)

    def _send(self, line: Fields) -> None:
        data = bytes.fromhex(line["hex"])
        if "message" in line:
            _describes(line, data)
        self.peers[line["conn"]].send(data)
        # Recorded on one machine, what went out on two connections arrived in the order of sending.
        self.world.run(self.world.now + _SETTLE_MS)

    def _recv(self, line: Fields) -> None:
        peer = self.peers[line["conn"]]
        expected = bytes.fromhex(line["hex"])
        _describes(line, expected)
        if self._answered_otherwise(line, peer):
            return
        assert self.world.run_while(lambda: not peer.frames(), _PATIENCE_MS), f"no answer, expected {line['message']}"
        found = peer.take_frame()
        if line["message"] == "Hello" and self.ours:
            assert tuple(read_hello(found).versions) == tuple(VERSIONS)
            assert read_hello(found).message == line["fields"]["message"]
            return
        if line["message"] == "FeedData":
            expected = self._renumbered(line, expected)
            peer.seen_in_feed.add((line["fields"]["req_id"]["partition_id"], line["fields"]["transaction_id"]))
        assert found == expected, f"{line['message']} expected: {expected.hex()}, found {found.hex()}"

    def _answered_otherwise(self, line: Fields, peer: RawPeer) -> bool:
        """Where a rule states another answer than the recorded one."""
        if "own_request_ids" in self.differing and line["message"] == "FeedData":
            fields = line["fields"]
            if _request(fields) in appended_under_others(self.lines):
                self.refused.append((fields["req_id"]["partition_id"], fields["transaction_id"]))
                self.world.run(self.world.now + _REFUSED_MS)
                assert bytes.fromhex(line["hex"]) not in peer.frames(), "it is in the log all the same"
                return True
        if "preferences_checked" in self.differing and line["message"].endswith("PreferredPartitionResponse"):
            assert self.world.run_while(lambda: not peer.frames(), _PATIENCE_MS)
            assert _decode(peer.take_frame())["result"] is False
            return True
        if "failed_fetch_forgotten" not in self.differing or line["message"] != "TransactionDataResponse":
            return False
        transaction = line["fields"]["req_id"]["partition_id"], line["fields"]["transaction_id"]
        if transaction not in peer.seen_in_feed:
            return False
        assert self.world.run_while(lambda: not peer.frames(), _PATIENCE_MS)
        found = _decode(peer.take_frame())
        assert found["success"], "a transaction that exists is answered with its data"
        return True

    def _renumbered(self, line: Fields, frame: bytes) -> bytes:
        """A feed frame, with the id that it has where refused appends are not in the log."""
        partition, transaction_id = line["fields"]["req_id"]["partition_id"], line["fields"]["transaction_id"]
        missing = sum(refused[0] == partition and refused[1] < transaction_id for refused in self.refused)
        if not missing:
            return frame
        version = HEADER.unpack_from(frame)[1]
        connection = opened(CLIENT_PROTOCOL, version)
        messages: list[FeedData] = []
        connection.receive(frame, messages)
        out = bytearray()
        connection.encode(attrs.evolve(messages[0], transaction_id=transaction_id - missing), out)
        return bytes(out)

    def _quiet(self, line: Fields) -> None:
        peer = self.peers[line["conn"]]
        self.world.run(self.world.now + int(line["for_ms"]))
        assert not peer.frames(), f"expected nothing, found {peer.frames()[0].hex()}"
        assert not peer.closed

    def _closed_by_server(self, line: Fields) -> None:
        peer = self.peers[line["conn"]]
        if "preferences_checked" in self.differing:
            assert self.world.run_while(lambda: not peer.frames(), _PATIENCE_MS)
            assert not _decode(peer.take_frame())["result"], "refused by an answer, not by closing"
            return
        assert self.world.run_while(lambda: not peer.closed, _PATIENCE_MS), "expected the server to close"
        assert not peer.frames()

    def _close(self, line: Fields) -> None:
        self.peers[line["conn"]].close()


def _request(fields: dict[str, Any]) -> tuple[int, ...]:
    return tuple(fields["req_id"].values())


def _decode(frame: bytes) -> dict[str, object]:
    messages: list[object] = []
    opened(CLIENT_PROTOCOL, HEADER.unpack_from(frame)[1]).receive(frame, messages)
    return fields_of(CLIENT_PROTOCOL, messages[0])


def _describes(line: Fields, frame: bytes) -> None:
    """The fields of the line are those of its bytes."""
    fields = plain(line["fields"])
    if line["message"] == "Hello":
        hello = read_hello(frame)
        assert list(hello.versions) == list(dict.fromkeys(fields["versions"]))  # repeated ones are dropped
        assert hello.message == fields["message"]
        return
    size = len(frame) - HEADER_SIZE
    assert HEADER.unpack_from(frame)[2] == size
    found = _decode(frame)
    assert type(found) is dict
    if "data_len" in fields:
        data = bytes.fromhex(str(found.pop("data_hex")))
        assert len(data) == fields.pop("data_len")
    assert found == fields
