"""The assignment policy: exactly that of Waltz 0.13.2 by the twin, always complete by ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.twin_0132.cluster import IncompleteAssignmentError, assign_0132
from tests.vectors.deviations import assignment_rule
from tests.vectors.reading import Fields, Unit, lines
from tests.vectors.znode_fields import Json, assignment, assignment_fields
from waltz_core.cluster.assignment import FewerPartitionsError, Member, assign
from waltz_core.zookeeper.java_order import filled_table_size, table_order
from waltz_core.zookeeper.znodes import PartitionAssignment


def units(path: Path) -> Iterator[Unit]:
    for name, line in lines(path):
        yield Unit(name, [line], lambda line=line: _check(line))  # type: ignore[misc]


def _check(line: Fields) -> frozenset[str]:
    line.ignore("case", "step", "note")
    assert line["type"] == "assignment_policy"
    old = assignment(line["old"].all())
    preferred = {server["server_id"]: tuple(server["preferred_partitions"]) for server in line["servers"]}
    ids = list(preferred)
    order = table_order(ids, ids, filled_table_size(len(ids)))
    assert order == line["java_server_order"]
    members = [Member(server_id, preferred[server_id]) for server_id in order]
    num_partitions, cversion = line["num_partitions"], line["cversion"]
    expected = _expected(line)
    assert _outcome(old, num_partitions, members, cversion, assign_0132) == expected
    safe = _outcome(old, num_partitions, members, cversion, assign)
    touched = assignment_rule(old, num_partitions, members)
    if touched:
        _check_complete(old, num_partitions, members, safe)
    else:
        assert safe == expected
    return touched


def _expected(line: Fields) -> Json:
    if "error" in line:
        assert line["error"] == "IllegalStateException"
        return {"error_message": line["error_message"]}
    return dict(line["result"].all())


def _outcome(
    old: PartitionAssignment,
    num_partitions: int,
    members: list[Member],
    cversion: int,
    policy: Callable[[PartitionAssignment, int, Sequence[Member], int], PartitionAssignment],
) -> Json:
    try:
        found = policy(old, num_partitions, members, cversion)
    except (FewerPartitionsError, IncompleteAssignmentError) as problem:
        return {"error_message": str(problem)}
    fields = assignment_fields(found)
    # Lists are shuffled by the original and recorded sorted; servers in ascending order.
    for server in fields["servers"]:
        server["partitions"].sort()
    fields["servers"].sort(key=lambda server: server["server_id"])
    return fields


def _check_complete(old: PartitionAssignment, num_partitions: int, members: list[Member], found: Json) -> None:
    """Every partition once, shares even except for claims, a generation more exactly where the server changed."""
    owned = {server["server_id"]: server["partitions"] for server in found["servers"]}
    assert sorted(owned) == sorted(member.server_id for member in members)
    pairs = [tuple(pair) for partitions in owned.values() for pair in partitions]
    assert sorted(partition for partition, _ in pairs) == list(range(num_partitions))
    share, extra = divmod(num_partitions, len(members))
    claimed = {partition for member in members for partition in member.preferred_partitions}
    for partitions in owned.values():
        free = [partition for partition, _ in partitions if partition not in claimed]
        assert not free or len(partitions) <= share + (1 if extra else 0)
    before: dict[int, tuple[int, int | None]] = {}
    highest = max((generation for server in old.servers for _, generation in server.partitions), default=0)
    for server in old.servers:
        for partition, generation in server.partitions:
            if generation > before.get(partition, (-(2**31) - 1, None))[0]:
                before[partition] = generation, server.server_id
    for server_id, partitions in owned.items():
        for partition, generation in partitions:
            fresh = 0 if partition >= old.num_partitions else max(highest, 0)
            last, holder = before.get(partition, (fresh, None))
            assert generation == (last if holder == server_id else (last + 1 + 2**31) % 2**32 - 2**31)
