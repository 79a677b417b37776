"""What the doctor makes of archives that servers keep."""

from __future__ import annotations

import attrs
import pytest

from tests.unit.operations.views import NAMES, cluster, server, with_storage
from waltz_core.operations.archives import FILES_BEHIND
from waltz_core.operations.diagnosis import diagnose, notices
from waltz_core.operations.page import Console
from waltz_core.operations.view import ArchiveView, ClusterView, ServerView
from waltz_core.wire.shared import ARCHIVE_TROUBLE

CANNOT_RISE = "the log start cannot rise to 50: a replica is away"


def archiving(number: int, partition_id: int, trouble: str = "", **change: int) -> ServerView:
    told = {"archived-up-to": 89, "archive-lag": 11, "archive-files-due": 0, "log-start": 50, "archive-first": 0}
    told |= {name.replace("_", "-"): value for name, value in change.items()}
    if trouble:
        told[f"{ARCHIVE_TROUBLE}{trouble}"] = 1
    figures = {(name, partition_id): float(value) for name, value in told.items()}
    return server(number, partition_id, figures={("connections", -1): 3.0, **figures})


def view_of(*servers: ServerView) -> ClusterView:
    return attrs.evolve(cluster(), servers=servers)


def test_an_archive_that_keeps_up_is_well_and_is_shown() -> None:
    view = view_of(archiving(1, 0), archiving(2, 1))
    assert diagnose(view) == ()
    assert not any(notice.cause == "archive-begins-late" for notice in notices(view))
    assert view.servers[0].archive(0) == ArchiveView(90, 11, 0, 50, 0)
    assert view.servers[0].archive(1) is None
    row = Console("/root").look(view, 1)["partitions"][0]
    assert (row["level"], row["archive"]) == (
        "ok",
        {"level": "ok", "lag": 11, "end": 90, "log_start": 50, "trouble": ""},
    )


def test_a_cluster_without_archives_has_nothing_to_say_of_them() -> None:
    view = cluster()
    assert diagnose(view) == ()
    assert Console("/root").look(view, 1)["partitions"][0]["archive"] is None


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("/vault: Not a directory", "check archive.location of the server"),
        ("s3://vault is the archive of another cluster", "names another archive"),
        (CANNOT_RISE, "bring back the replicas that are named"),
    ],
)
def test_trouble_is_named_once_for_all_partitions_with_what_to_do(reason: str, advice: str) -> None:
    both = archiving(1, 0, reason)
    both = attrs.evolve(both, partitions=(0, 1), figures={**both.figures, **archiving(1, 1, reason).figures})
    view = view_of(both)
    (found,) = [row for root in diagnose(view) for row in root.rows() if row.cause == "archive-trouble"]
    assert f"partitions 0-1: {reason}" in found.evidence
    assert found.command.startswith(advice) or advice in found.command
    assert found.settles
    row = Console("/root").look(view, 1)["partitions"][0]
    assert (row["level"], row["archive"]["trouble"]) == ("warn", reason)


def test_what_a_lost_replica_keeps_from_being_freed_follows_from_that() -> None:
    lost = with_storage(data_problem="refused", admin_problem="refused", replicas=None)
    view = attrs.evolve(lost, servers=(archiving(1, 0, CANNOT_RISE), archiving(2, 1)))
    (root,) = [found for found in diagnose(view) if found.cause == "storage-down"]
    assert NAMES[0] in root.evidence
    assert "archive-trouble" in [found.cause for found in root.follows]


def test_an_archive_that_does_not_keep_up_and_one_that_a_server_lacks_are_named() -> None:
    behind = archiving(1, 0, archive_files_due=FILES_BEHIND, archive_lag=12_345)
    view = view_of(behind, archiving(2, 1))
    (found,) = diagnose(view)
    assert (found.cause, found.settles) == ("archive-behind", True)
    assert "12,345 records wait" in found.evidence
    assert Console("/root").look(view, 1)["partitions"][0]["level"] == "warn"
    stuck = archiving(1, 0, "/vault: Not a directory", archive_files_due=FILES_BEHIND)
    (found,) = diagnose(view_of(stuck, archiving(2, 1)))
    assert found.cause == "archive-trouble", "which says why it is behind, and that it does not catch up by itself"

    (found,) = diagnose(view_of(archiving(1, 0), server(2, 1, figures={("connections", -1): 1.0})))
    assert found.cause == "archive-not-everywhere"
    assert "v2:6000" in found.evidence
    assert diagnose(view_of(archiving(1, 0), server(2, figures={("connections", -1): 1.0}))) == ()  # it owns none
    assert diagnose(view_of(archiving(1, 0), server(2, 1))) == ()  # of 0.13.2: it does not say


def test_records_that_are_nowhere_are_a_notice() -> None:
    (notice,) = [
        found for found in notices(view_of(archiving(1, 0, archive_first=40))) if found.cause == "archive-begins-late"
    ]
    assert "transactions 0 to 39 of partition 0" in notice.evidence
    assert not any(
        found.cause == "archive-begins-late" for found in notices(view_of(archiving(1, 0, "gone", archive_first=40)))
    )
