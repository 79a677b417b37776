"""Servers that keep a decision journal, killed; afterwards every committed transaction can be accounted for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.processes.cluster import Cluster, running_cluster
from tests.processes.load import Load
from tests.processes.zookeeper import ZooKeeperServer
from waltz_core.server.journal_format import APPENDED, Decision, decode_entries, encode_entry
from waltz_spark.audit.audit import AuditReport, run_audit
from waltz_spark.base.runners import Here

pytestmark = pytest.mark.processes

COMMITS = 200  # between two events


def judged(cluster: Cluster) -> AuditReport:
    directories = [str(cluster.directory / name) for name in cluster.storage_names]
    journals = [str(cluster.journal_of(name)) for name in cluster.server_names]
    return run_audit(directories, None, Here(), journals=journals)


def found(report: AuditReport, check: str) -> Any:
    (one,) = [one for one in report.findings if one.check == check]
    return one


def plant_violation(cluster: Cluster) -> int:
    """Lower the mark of a decision below a transaction that took its lock; returns its id."""
    taken: dict[int, int] = {}
    decisions: list[tuple[Path, int, Decision]] = []
    for name in cluster.server_names:
        for path in sorted((cluster.journal_of(name) / "0").glob("*.journal")):
            entries = decode_entries(path.read_bytes(), str(path))
            decisions += [(path, at, one) for at, one in entries if isinstance(one, Decision)]
    appended = [one for one in decisions if one[2].verdict == APPENDED]
    for path, at, one in sorted(appended, key=lambda each: each[2].transaction_id):
        before = max((taken[lock] for lock in one.write_locks if lock in taken), default=-1)
        # Younger ones may have been decided again, by another session: only those early in the log are sure.
        if 20 < one.transaction_id < COMMITS and before >= 0:
            data = bytearray(path.read_bytes())
            changed = encode_entry(attrs.evolve(one, client_mark=before - 1))
            data[at : at + len(changed)] = changed
            path.write_bytes(data)
            return one.transaction_id
        taken.update(dict.fromkeys((*one.write_locks, *one.append_locks), one.transaction_id))
    raise AssertionError("no lock was taken twice")


@pytest.mark.slow
def test_in_sync_every_transaction_has_its_decision_although_owners_are_killed(
    tmp_path: Path, zookeeper: ZooKeeperServer
) -> None:
    settings = {"server.journal.mode": "sync"}
    with running_cluster(tmp_path, zookeeper.fresh_chroot(), servers=2, settings=settings) as cluster:
        load = Load(cluster, accounts=6)
        load.start()
        cluster.wait_commits(COMMITS)
        for _ in range(2):
            owner = cluster.owners()[0]
            cluster.children[owner].kill()
            cluster.wait_commits(COMMITS)
            assert cluster.owners()[0] != owner
            cluster.start(owner)
        verdict = load.finish()
        # One more session, which marks everything as committed.
        cluster.children[cluster.owners()[0]].kill()
        cluster.wait_healthy()
        report = judged(cluster)
        planted = plant_violation(cluster)
        after = judged(cluster)

    assert report.passed, [one for one in report.findings if one.status == "failed"]
    share = found(report, "decisions journalled")
    assert share.status == "passed", share
    assert share.scope.endswith("100 %")
    assert share.looked_at >= verdict.committed > 2 * COMMITS
    assert found(report, "serializable by locks").status == "passed"
    assert found(report, "false conflicts").looked_at > 0, "nobody met a lock"
    assert not after.passed
    assert f"transaction {planted}, decided at mark" in found(after, "serializable by locks").detail
