"""Which of our rules a vector touches, derived from its content alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from tests.model.storage_twin import NONE, Rules
from waltz_core.base.errors import ProtocolError
from waltz_core.base.quorum import decide, majority
from waltz_core.cluster.assignment import Member
from waltz_core.wire.frame import HEADER, HEADER_SIZE, HELLO_MAGIC
from waltz_core.wire.hello import decode_hello
from waltz_core.wire.table import WireProtocol
from waltz_core.zookeeper.znodes import PartitionAssignment


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
    `preferences_checked`: an empty list of preferred partitions, which 0.13.2 answers by closing, or a negative id;
    `own_request_ids`: what is appended under another client id than that of the connection's first message."""
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
    if appended_under_others(lines):
        rules.add("own_request_ids")
    return frozenset(rules)


def appended_under_others(lines: Sequence[Mapping[str, Any]]) -> frozenset[tuple[int, ...]]:
    """Request ids of appends whose client is not that of the first message of their connection."""
    mounted: dict[Any, int] = {}
    forged: set[tuple[int, ...]] = set()
    for line in lines:
        req_id = (line.get("fields") or {}).get("req_id")
        if line["event"] != "send" or not req_id:
            continue
        owner = mounted.setdefault(line["conn"], req_id["client_id"])
        if line["message"] == "AppendRequest" and req_id["client_id"] != owner:
            forged.add(tuple(req_id.values()))
    return frozenset(forged)


# ---- recovery --------------------------------------------------------------------------------


def recovery_rules(script: Mapping[str, Any]) -> dict[str, int]:
    """Our rules that may change the course of a recovery script → the first step at which they may.

    Told from the replicas' metadata and files, the events, and the recorded states.
    """
    touched: dict[str, int] = {}
    replicas = {replica["id"]: replica for replica in script["replicas"]}
    states = {name: replica["zk_state"] for name, replica in replicas.items() if replica["zk_state"] is not None}
    first_session, last = not states, dict(states)
    table = _Table(last)
    opened = False
    replicas_before: Mapping[str, Any] = {}
    for at, step in enumerate(script["steps"]):
        kind, *names = step["event"]
        rules: set[str] = set()
        if first_session:
            rules.add("lost_metadata_stops")
        if kind == "arrive":
            stored = replicas[names[0]]["storage"]
            entry = states.get(names[0])
            rules |= _arrival_rules(entry, stored, first_session)
            if entry is not None and any(stored["lwm"] > mark for mark in table.voters.values()):
                rules.add("low_water_mark_kept")
            table.arrive(names[0], entry, stored)
        if opened and kind in ("fail_fetch", "fail_lwm"):
            rules.add("late_failure_is_local")
        rules |= _state_rules(script["session"], step["after"])
        if _reads_beyond(replicas_before, step["after"]["replicas"]) or "java_spins_on" in script:
            rules.add("copy_capped_at_source")
        replicas_before = step["after"]["replicas"]
        table.update(step["after"])
        if table.decides() and step["after"]["resolved"] is None:
            rules.add("copying_does_not_delay")
        for name, replica in step["after"]["replicas"].items():
            marked = replica["session"] == script["session"] and replica["local_lwm"] < replica["lwm"]
            marking = replica["phase"] == "setting_low_water_mark" and replica["max"] < step["after"]["resolved"]
            if (marked or marking) and name in table.voters:
                rules.add("voters_level_first")
        for rule in rules:
            touched.setdefault(rule, at)
        states = step["after"]["zk"]["states"]
        opened = isinstance(step["after"]["session_open"], int)
    return touched


def _arrival_rules(entry: Sequence[int | None] | None, stored: Mapping[str, int], first_session: bool) -> set[str]:
    """What the arrival of one replica touches; `entry` is its state in the metadata at that time."""
    rules: set[str] = set()
    own, top = stored["lwm"], stored["max"]
    if first_session:
        return rules
    session, closing = (-1, -1) if entry is None else entry
    assert session is not None
    if (session < 0 or stored["session"] < session) and min(own, top) >= 0:
        rules.add("kept_records_compared")
    if entry is None:
        return rules
    if stored["session"] < session and closing is None:
        rules.add("rolled_back_is_absent")
    if closing is None:
        if stored["session"] > session:
            rules.add("later_session_arrival")
        if top < stored["local_lwm"]:
            rules.add("rolled_back_is_absent")
    else:
        if stored["session"] != session and own < closing:
            rules.add("placeholder_arrival")
        if own > closing:
            rules |= {"placeholder_arrival", "low_water_mark_kept"}
    if top < stored["local_lwm"]:
        rules.add("low_water_mark_kept")
    return rules


def _state_rules(session: int, after: Mapping[str, Any]) -> set[str]:
    """What a recorded state of a recovery shows that we do otherwise."""
    rules: set[str] = set()
    for name, replica in after["replicas"].items():
        if after["zk"]["states"].get(name) == [session, None] and replica["session"] != session:
            rules.add("marked_before_named")
        if after["resolved"] is not None and replica["phase"] != "offline" and replica["lwm"] > after["resolved"]:
            rules.add("low_water_mark_kept")
        if after["aborted"] and replica["phase"] in ("recovered", "setting_low_water_mark", "catching_up"):
            rules.add("copy_capped_at_source")
    return rules


def _reads_beyond(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether a copy step that is new in `after` asks for more than its source holds."""
    for name, replica in after.items():
        if replica["phase"] != "catching_up" or replica["fetch_from"] == before.get(name, {}).get("fetch_from"):
            continue
        if replica["fetch_from"] + replica["fetch_count"] - 1 > replica["usher_hwm"]:
            return True
    return False


class _Table:
    """The marks that a script shows: what the decision would be if it did not wait for copies under way."""

    def __init__(self, last: Mapping[str, Sequence[int | None]]) -> None:
        self._last = last
        self._marks: dict[str, int] = {}
        self._tops: dict[str, int] = {}  # the same, counting what a copy under way has brought
        self.voters: dict[str, int] = {}

    def arrive(self, name: str, entry: Sequence[int | None] | None, stored: Mapping[str, int]) -> None:
        session, closing = entry or (None, None)
        mark = stored["max"]
        if session is None or stored["session"] < session:
            mark = min(mark, stored["lwm"])
        elif closing is not None:
            mark = min(mark, closing)
        elif mark >= stored["lwm"]:
            self.voters[name] = mark
        if name in self._last:
            self._marks[name] = mark

    def update(self, after: Mapping[str, Any]) -> None:
        for name in self._marks:
            replica = after["replicas"][name]
            self._tops[name] = replica["max"]
            if replica["phase"] != "catching_up":
                self._marks[name] = replica["max"]

    def decides(self) -> bool:
        if not self.voters:
            return False
        absent, quorum = len(self._last) - len(self._marks), majority(len(self._last))
        lowest = min(self.voters.values())
        return any(
            decide(marks.values(), lowest=lowest, absent=absent, quorum=quorum) is not None
            for marks in (self._marks, self._tops)
        )


# ---- storage ---------------------------------------------------------------------------------


def storage_session_rules(answers: Callable[[Rules], Sequence[object]]) -> frozenset[str]:
    """The rules that, each switched on alone, change an answer of a node that is made of lists."""
    before = answers(NONE)
    names = (field.name for field in attrs.fields(Rules))
    return frozenset(name for name in names if answers(attrs.evolve(NONE, **{name: True})) != before)
