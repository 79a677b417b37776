"""What the console and `waltz top` show: a stream of `ClusterView`s becomes pages, as values that JSON can carry.

`Console` receives each view of the cluster and keeps what a single view lacks: rates, latencies of the time between
two looks, and a few minutes of them for the plots. What a page says of a node or partition (`level`: ok, warn, bad) is
decided here, so that the browser and the terminal cannot disagree, and neither holds a rule.

A page never holds the cluster's key, which opens the ports of storage nodes, nor any payload.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from waltz_core.base.quorum import majority
from waltz_core.base.record import record
from waltz_core.operations.archives import FILES_BEHIND
from waltz_core.operations.diagnosis import diagnose, notices
from waltz_core.operations.doors import GatewayView
from waltz_core.operations.findings import Finding
from waltz_core.operations.view import ClusterView, ReplicaView, ServerView, StorageView
from waltz_core.wire.client_messages import PartitionStatus, ServedState
from waltz_core.wire.shared import name_of
from waltz_core.zookeeper.znodes import UNRESOLVED

Page: TypeAlias = dict[str, Any]
"""Objects, lists, texts, numbers: what JSON carries, and nothing else."""

HISTORY = 300  # points kept for the plots
WINDOW_MS = 10_000  # time over which rates and latencies are taken: one look apart would jump
LAG_SHOWN = 10_000  # transactions behind which a replica is shown as lagging
_OK, _WARN, _BAD = "ok", "warn", "bad"
_ROWS_MAX = 20  # hot locks
_CLIENTS_MAX = 50
_NUMBER = re.compile(r"-?\d{1,19}", re.ASCII)  # in the name of a figure


@record
class Sample:
    """The counters of one look."""

    at_ms: int
    commits: Mapping[int, int]  # partition → high-water mark
    refused: Mapping[int, int]  # partition → appends
    answered: Mapping[tuple[int, int], float]  # partition, milliseconds → appends committed within them
    hot: Mapping[tuple[int, int], float]  # partition, lock hash → appends


class Console:
    """Makes pages. `look` for each view, `lost` where there is none; both return the page of now."""

    def __init__(self, root: str, config: str = "CONFIG") -> None:
        """Nothing is known yet; `config` is the file of tools that advised commands name."""
        self._root = root
        self._config = config
        self._samples: deque[Sample] = deque(maxlen=HISTORY)
        self._points: deque[tuple[int, float, float | None, float | None, float]] = deque(maxlen=HISTORY)
        self._last: Page | None = None

    def look(self, view: ClusterView, at_ms: int) -> Page:
        """The page of a view.

        Args:
            view: what was seen.
            at_ms: since 1970; never earlier than in the call before.
        """
        sample = _sample(view, at_ms)
        before = self._before(at_ms)
        self._samples.append(sample)
        seconds = (at_ms - before.at_ms) / 1000 if before is not None else 0.0
        rates = _rates(before.commits, sample.commits, seconds) if before is not None and seconds > 0 else {}
        refused = _rates(before.refused, sample.refused, seconds) if before is not None and seconds > 0 else {}
        times = _between(before.answered if before is not None else {}, sample.answered)
        if before is not None:
            every = sorted(times)
            half, most = _quantile(every, times, None, 0.5), _quantile(every, times, None, 0.99)
            self._points.append((at_ms, sum(rates.values()), half, most, sum(refused.values())))
        roots = diagnose(view)
        self._last = {
            "at_ms": at_ms,
            "problem": "",
            "cluster": {"name": view.name, "root": view.root, "partitions": view.num_partitions},
            "zookeeper": {"level": _OK, "text": "connected"},
            "servers": [_server(view, server) for server in view.servers],
            "storages": [_storage(node) for node in view.storages],
            "gateways": [_gateway(gateway) for gateway in view.gateways],
            "partitions": [_partition(view, number, rates, refused, times) for number in range(view.num_partitions)],
            "totals": {
                "commits": round(sum(rates.values()), 1),
                "refused": round(sum(refused.values()), 1),
                "p50_ms": self._points[-1][2] if self._points else None,
                "p99_ms": self._points[-1][3] if self._points else None,
            },
            "history": self._history(),
            "findings": [self._finding(root) for root in roots],
            "notices": [self._finding(notice) for notice in notices(view)],
            "clients": _clients(view),
            "hot_locks": _hot_locks(before, sample, seconds),
        }
        return self._last

    def lost(self, reason: Finding, at_ms: int) -> Page:
        """The page where nothing could be seen: what was seen last, marked as old, below the reason."""
        page = dict(self._last or _nothing(self._root))
        page["at_ms"] = at_ms
        page["problem"] = reason.evidence
        page["zookeeper"] = {"level": _BAD, "text": reason.evidence}
        page["findings"] = [self._finding(reason), *page["findings"]]
        return page

    def _finding(self, finding: Finding) -> Page:
        advice = finding.command.replace("-c CONFIG", f"-c {self._config}")
        return {
            "cause": finding.cause,
            "evidence": finding.evidence,
            "advice": advice,
            "commands": list(commands(advice)),
            "settles": finding.settles,
            "follows": [self._finding(consequence) for consequence in finding.follows],
        }

    def _before(self, at_ms: int) -> Sample | None:
        """The youngest sample that is at least a window old, else the oldest."""
        chosen = None
        for sample in self._samples:
            if chosen is not None and at_ms - sample.at_ms < WINDOW_MS:
                break
            chosen = sample
        return chosen

    def _history(self) -> Page:
        columns = list(zip(*self._points, strict=True)) or [()] * 5
        names = "at_ms", "commits", "p50_ms", "p99_ms", "refused"
        return {name: list(column) for name, column in zip(names, columns, strict=True)}


def _nothing(root: str) -> Page:
    empty: Page = {
        name: [] for name in ("servers", "storages", "gateways", "partitions", "findings", "notices", "clients")
    }
    return {
        "cluster": {"name": "", "root": root, "partitions": 0},
        "totals": {"commits": 0.0, "refused": 0.0, "p50_ms": None, "p99_ms": None},
        "history": {"at_ms": [], "commits": [], "p50_ms": [], "p99_ms": [], "refused": []},
        "hot_locks": [],
        **empty,
    }


# ---- rates -----------------------------------------------------------------------------------


def _sample(view: ClusterView, at_ms: int) -> Sample:
    commits: dict[int, int] = {}
    refused: dict[int, int] = {}
    answered: dict[tuple[int, int], float] = {}
    hot: dict[tuple[int, int], float] = {}
    for server in view.servers:
        for status in server.status or ():
            if status.high_water_mark >= -1:
                mark = commits.get(status.partition_id, -1)
                commits[status.partition_id] = max(mark, status.high_water_mark)
        for (name, partition_id), value in server.figures.items():
            kind, _, number = name.partition(".")
            if not math.isfinite(value):
                continue
            if name == "rejected-append":
                refused[partition_id] = refused.get(partition_id, 0) + int(value)
            elif not _NUMBER.fullmatch(number):
                continue
            elif kind == "response-within-ms":
                answered[partition_id, int(number)] = value
            elif kind == "hot-lock":
                hot[partition_id, int(number)] = hot.get((partition_id, int(number)), 0) + value
    return Sample(at_ms, commits, refused, answered, hot)


def _rates(before: Mapping[int, int], after: Mapping[int, int], seconds: float) -> dict[int, float]:
    """Per second; what was not known before, or fell since a server started anew, gives nothing."""
    return {number: max(0, value - before[number]) / seconds for number, value in after.items() if number in before}


def _between(
    before: Mapping[tuple[int, int], float], after: Mapping[tuple[int, int], float]
) -> dict[tuple[int, int], float]:
    """Answers within each bound since the sample before; a counter that fell began anew."""
    grown: dict[tuple[int, int], float] = {}
    for key, value in after.items():
        earlier = before.get(key, 0.0)
        grown[key] = value - earlier if value >= earlier else value
    return grown


def _quantile(
    keys: Iterable[tuple[int, int]], times: Mapping[tuple[int, int], float], partition_id: int | None, share: float
) -> float | None:
    """Smallest bound within which that share of appends was committed; None without appends."""
    within: dict[int, float] = {}
    for number, bound in keys:
        if partition_id in (None, number):
            within[bound] = within.get(bound, 0.0) + times[number, bound]
    total = max(within.values(), default=0.0)
    if total <= 0:
        return None
    return next(float(bound) for bound in sorted(within) if within[bound] >= share * total)


def _hot_locks(before: Sample | None, sample: Sample, seconds: float) -> list[Page]:
    rows = []
    for (partition_id, lock_hash), count in sample.hot.items():
        earlier = before.hot.get((partition_id, lock_hash), 0.0) if before is not None else count
        rate = max(0.0, count - earlier) / seconds if seconds > 0 else 0.0
        rows.append((rate, count, partition_id, lock_hash))
    rows.sort(reverse=True)
    return [
        {"partition": partition_id, "hash": lock_hash, "refused": int(count), "rate": round(rate, 1)}
        for rate, count, partition_id, lock_hash in rows[:_ROWS_MAX]
    ]


# ---- rows ------------------------------------------------------------------------------------


def _server(view: ClusterView, server: ServerView) -> Page:
    owned = sorted(server.partitions or ())
    states = [status.state for status in server.status or ()]
    if server.problem and server.partitions is None:
        level, state = _BAD, "does not answer"
    elif server.key is not None and server.key != view.key:
        level, state = _BAD, "of another cluster"
    elif view.proxy_of is not None and any(state != ServedState.READY for state in states):
        level, state = _WARN, "cut off from its cluster"
    elif ServedState.STUCK in states or any(not healthy for healthy in (server.health or {}).values()):
        level, state = _BAD, "cannot commit everywhere"
    elif server.unusable:
        level, state = _WARN, "misses a storage node"
    elif server.problem or any(one != ServedState.READY for one in states):
        level, state = _WARN, "opening partitions"
    else:
        level, state = _OK, "serving"
    trouble = [server.problem] if server.problem else []
    trouble += [f"{name}: {why}" for name, why in sorted(server.unusable.items())]
    return {
        "name": server.name,
        "kind": "server" if view.proxy_of is None else "proxy",
        "id": server.descriptor.server_id,
        "level": level,
        "state": state,
        "trouble": trouble,
        "partitions": owned,
        "connections": _whole(server.figures.get(("connections", -1))),
        "clock_ms": server.clock_ms,
    }


def _storage(node: StorageView) -> Page:
    full = node.disk_free is not None and node.disk_free <= (node.disk_reserve or 0)
    replicas = list((node.replicas or {}).values())
    problems = [text for text in (node.data_problem, node.admin_problem) if text]
    if node.foreign_key:
        level, state = _BAD, "refuses the cluster's key"
    elif len(problems) == 2:
        level, state = _BAD, "does not answer"
    elif full:
        level, state = _BAD, "disk full"
    elif any(replica.state in ("limbo", "stopped") for replica in replicas):
        level, state = _BAD, "a replica does not serve"
    elif problems or any(replica.damaged or not replica.available for replica in replicas):
        level, state = _WARN, "not all well"
    else:
        level, state = _OK, "serving"
    return {
        "name": node.name,
        "admin": node.admin,
        "level": level,
        "state": state,
        "trouble": list(dict.fromkeys(problems)),
        "replicas": len(replicas) if node.replicas is not None else None,
        "disk_free": node.disk_free,
        "disk_reserve": node.disk_reserve,
        "clock_ms": node.clock_ms,
    }


def _gateway(gateway: GatewayView) -> Page:
    if gateway.problem:
        level, state = _BAD, "does not answer"
    elif gateway.away:
        level, state = _WARN, "misses a cluster"
    elif gateway.topics:
        level, state = _WARN, "misses partitions"
    else:
        level, state = _OK, "serving"
    trouble = [gateway.problem] if gateway.problem else []
    trouble += [f"{what}: {reason}" for what, reason in sorted({**gateway.away, **gateway.topics}.items())]
    return {"name": gateway.address, "level": level, "state": state, "trouble": trouble}


def _partition(
    view: ClusterView,
    partition_id: int,
    rates: Mapping[int, float],
    refused: Mapping[int, float],
    times: Mapping[tuple[int, int], float],
) -> Page:
    owner, status = _owner(view, partition_id)
    metadata = view.partitions[partition_id]
    level, state, waits_for = _partition_state(owner, status, partition_id)
    archive = _archive(owner, partition_id)
    if level == _OK and archive is not None and archive["level"] != _OK:
        level = _WARN
    mark = status.high_water_mark if status is not None and status.high_water_mark >= -1 else None
    replicas = [_replica(view, partition_id, name, mark) for name in view.replicas_of(partition_id)]
    sound = sum(replica["level"] == _OK for replica in replicas)
    if level == _OK and sound < len(replicas):
        level = _WARN
    figures = owner.figures if owner is not None else {}
    own = [key for key in times if key[0] == partition_id]
    return {
        "id": partition_id,
        "level": level,
        "state": state,
        "waits_for": waits_for,
        "since_ms": status.since_ms if status is not None else None,
        "owner": owner.name if owner is not None else None,
        "session": status.session_id if status is not None else metadata.session_id if metadata is not None else None,
        "generation": status.generation if status is not None else _generation(view, partition_id),
        "mark": mark,
        "rate": round(rates.get(partition_id, 0.0), 1),
        "refused": round(refused.get(partition_id, 0.0), 1),
        "p50_ms": _quantile(own, times, partition_id, 0.5),
        "p99_ms": _quantile(own, times, partition_id, 0.99),
        "queued": _whole(figures.get(("append-queue-size", partition_id))),
        "pending": _whole(figures.get(("pending-append", partition_id))),
        "live_feeds": _whole(figures.get(("real-time-feeds", partition_id))),
        "lagging_feeds": _whole(figures.get(("catchup-feeds", partition_id))),
        "archive": archive,
        "replicas": replicas,
        "sound_replicas": sound,
        "needed_replicas": majority(len(replicas)),
    }


def _archive(owner: ServerView | None, partition_id: int) -> Page | None:
    """Of a partition that its owner archives."""
    kept = owner.archive(partition_id) if owner is not None else None
    if kept is None:
        return None
    level = _WARN if kept.trouble or kept.files_due >= FILES_BEHIND else _OK
    return {"level": level, "lag": kept.lag, "end": kept.end, "log_start": kept.log_start, "trouble": kept.trouble}


def _owner(view: ClusterView, partition_id: int) -> tuple[ServerView | None, PartitionStatus | None]:
    """Who serves a partition, by its own word before the assignment's: of two, the one of the newer generation."""
    statuses = [
        (status.generation, number, status)
        for number, server in enumerate(view.servers)
        for status in server.status or ()
        if status.partition_id == partition_id
    ]
    if statuses:
        _, number, status = max(statuses, key=lambda row: row[:2])
        return view.servers[number], status
    owners = view.owners_of(partition_id)
    return (view.server(owners[0]) if owners else None), None


def _partition_state(
    owner: ServerView | None, status: PartitionStatus | None, partition_id: int
) -> tuple[str, str, str]:
    """Level, state, and what it waits for."""
    if owner is None:
        return _BAD, "no owner", "a server that takes it over"
    if status is None:
        if owner.problem:
            return _BAD, "owner silent", owner.problem
        healthy = (owner.health or {}).get(partition_id)
        return (_OK, "ready", "") if healthy else (_WARN, "opening", "")
    reason = status.reason or ""
    if status.state == ServedState.READY:
        return (_BAD, "cannot commit", reason) if reason else (_OK, "ready", "")
    return (_BAD if status.state == ServedState.STUCK else _WARN), name_of(ServedState, status.state), reason


def _replica(view: ClusterView, partition_id: int, name: str, mark: int | None) -> Page:
    node = view.storage(name)
    replica = (node.replicas or {}).get(partition_id) if node is not None else None
    level, state, reason = _replica_state(view, node, replica, partition_id, name)
    # The two were asked at different moments: a few transactions that it lacks are none.
    max_id = replica.max_id if replica is not None else None
    lag = None if mark is None or max_id is None else max(0, mark - max_id)
    if level == _OK and lag is not None and lag > LAG_SHOWN:
        level, state = _WARN, "lagging"
    return {
        "storage": name,
        "level": level,
        "state": state,
        "reason": reason,
        "max_id": max_id,
        "low_water_mark": replica.low_water_mark if replica is not None else None,
        "lag": lag,
        "damaged": replica.damaged if replica is not None else 0,
    }


def _replica_state(
    view: ClusterView, node: StorageView | None, replica: ReplicaView | None, partition_id: int, name: str
) -> tuple[str, str, str]:
    if node is None or (node.data_problem and node.admin_problem):
        return _BAD, "unreachable", node.data_problem if node is not None else "not known"
    if replica is None:
        missing = node.replicas is not None
        return (_BAD, "missing", "") if missing else (_WARN, "unknown", node.admin_problem)
    if replica.state in ("limbo", "stopped"):
        return _BAD, replica.state, replica.reason
    if not replica.available:
        return _WARN, "offline", "taken out of service"
    if replica.damaged:
        return _WARN, "damaged", f"{replica.damaged} records"
    if view.is_level(partition_id, name):
        return _OK, "in session", ""
    metadata = view.partitions[partition_id]
    closing = (
        next((state.closing_mark for state in metadata.replica_states if state.replica_id.storage == name), None)
        if metadata is not None
        else None
    )
    if closing is None:
        return _WARN, "new", "takes no part in a session yet"
    return _WARN, "catching up", "" if closing == UNRESOLVED else f"up to {closing}"


def _generation(view: ClusterView, partition_id: int) -> int | None:
    return next(
        (
            generation
            for server in view.assignment.servers
            for owned, generation in server.partitions
            if owned == partition_id
        ),
        None,
    )


def _clients(view: ClusterView) -> list[Page]:
    rows = [
        (int(value), server.name, name.partition(".")[2])
        for server in view.servers
        for (name, _), value in server.figures.items()
        if name.startswith("client-lag.") and math.isfinite(value)
    ]
    rows.sort(key=lambda row: (-row[0], row[1], row[2]))
    return [{"client": client, "server": server, "lag": lag} for lag, server, client in rows[:_CLIENTS_MAX]]


def commands(advice: str) -> Iterator[str]:
    """The commands in an advice, as they are typed: what follows `waltz` as long as it looks like arguments."""
    for piece in advice.replace("`", " ; ").split("waltz ")[1:]:
        words: list[str] = []
        for word in piece.split():
            bare = word.rstrip(";,.")
            # A noun and a verb, options and what follows them, placeholders in capitals, numbers and addresses.
            plain = re.fullmatch(r"[a-z][a-z-]*", bare) is not None
            if plain and not (len(words) < 2 or words[-1].startswith("-")):
                break
            words += [bare] if bare else []
            if bare != word:
                break
        if len(words) > 2 and not all(re.fullmatch(r"[a-z][a-z-]*", word) for word in words):
            yield f"waltz {' '.join(words)}"


def _whole(value: float | None) -> int | None:
    return None if value is None or not math.isfinite(value) else int(value)
