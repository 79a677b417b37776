"""Which safety rules a vector touches, told from its content alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from waltz_core.cluster.assignment import Member
from waltz_core.cluster.znodes import PartitionAssignment
from waltz_core.errors import ProtocolError
from waltz_core.wire.frame import HEADER, HEADER_SIZE, HELLO_MAGIC
from waltz_core.wire.hello import decode_hello
from waltz_core.wire.table import WireProtocol


def has_surplus(protocol: WireProtocol[Any], codec: str, stream: bytes) -> bool:
    """Whether a body holds more bytes than its message needs, all before it being sound (`surplus_refused`)."""
    magic, version = (HELLO_MAGIC, 0) if codec == "hello" else (protocol.magic, int(codec))
    at = 0
    while len(stream) - at >= HEADER_SIZE:
        head = HEADER.unpack_from(stream, at)
        start = at + HEADER_SIZE
        at = start + head[2]
        if head[:2] != (magic, version) or not start <= at <= len(stream):
            return False
        if start == at:
            continue
        decode = decode_hello if codec == "hello" else protocol.tables[version].decoders[stream[start]]
        try:
            _, stop = decode(stream, start, at)
        except ProtocolError:
            return False
        if stop != at:
            return True
    return False


# ---- cluster ---------------------------------------------------------------------------------


def assignment_rule(old: PartitionAssignment, num_partitions: int, members: Sequence[Member]) -> frozenset[str]:
    """`assignment_complete`: claims that reach the floor of the fair share, or an old assignment with holes."""
    if num_partitions < old.num_partitions or not members:
        return frozenset()
    stored = [partition for server in old.servers for partition, _ in server.partitions]
    if sorted(stored) != list(range(old.num_partitions)):
        return frozenset({"assignment_complete"})
    share, extra = divmod(num_partitions, len(members))
    taken: set[int] = set()
    for member in members:
        claims = [p for p in dict.fromkeys(member.preferred_partitions) if 0 <= p < num_partitions and p not in taken]
        taken.update(claims)
        if extra and 1 <= share <= len(claims):
            return frozenset({"assignment_complete"})
    return frozenset()


# ---- client ----------------------------------------------------------------------------------


def dials_again(lines: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a client loses a connection and opens another one later (`reconnect_paced`)."""
    lost = ("closed_by_client", "server_close", "accepted_then_closed")
    first = next((at for at, line in enumerate(lines) if line["event"] in lost), len(lines))
    return any(line["event"] in ("connect", "accepted_then_closed") for line in lines[first + 1 :])


def nudge_finds_loss(lines: Sequence[Mapping[str, Any]], nudge_ms: int) -> int | None:
    """Where a client learns from a flush long after its append that the append was lost (`remount_after_loss`)."""
    appended: dict[Any, float] = {}
    asked: set[Any] = set()
    for at, line in enumerate(lines):
        if "req_id" not in line.get("fields", {}):
            continue
        req_id = tuple(line["fields"]["req_id"].values())
        match line["event"], line["message"]:
            case "client_send", "AppendRequest":
                appended[req_id] = line["t_ms"]
            case "server_send", "FeedData":
                appended.pop(req_id, None)
            case "client_send", "FlushRequest" if req_id in appended and line["t_ms"] - appended[req_id] >= nudge_ms:
                asked.add(req_id)
            case "server_send", "FlushResponse" if req_id in asked and req_id in appended:
                return at
    return None


# ---- server ----------------------------------------------------------------------------------


def probe_rules(lines: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """`failed_fetch_forgotten`: an id is asked for, refused, committed and asked for again on a connection;
    `preferences_checked`: an empty list of preferred partitions, which 0.13.2 answers by closing, or a negative id."""
    rules: set[str] = set()
    refused: set[tuple[int, int, int]] = set()
    exists: set[tuple[int, int, int]] = set()
    for line in lines:
        fields = line.get("fields") or {}
        if not fields.get("req_id"):
            continue
        key = line["conn"], fields["req_id"]["partition_id"], fields.get("transaction_id", -1)
        match line["event"], line.get("message"):
            case "recv", "FeedData":
                exists.add(key)
            case "recv", "TransactionDataResponse" if not fields["success"]:
                if key in exists and key in refused:
                    rules.add("failed_fetch_forgotten")
                refused.add(key)
            case "send", "AddPreferredPartitionRequest" | "RemovePreferredPartitionRequest":
                if not fields["partitions"] or min(fields["partitions"]) < 0:
                    rules.add("preferences_checked")
    return frozenset(rules)
