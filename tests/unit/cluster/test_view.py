"""One reading of the cluster's znodes."""

from __future__ import annotations

from waltz_core.base.edge import ZkDone, ZkStat
from waltz_core.cluster.view import Round


def test_what_was_read_while_a_process_came_or_went_is_no_view() -> None:
    children, data = ZkDone(1, ZkStat(3, 7)), ZkDone(2, ZkStat(3, 7), b"assignment")
    assert Round(children, data).agreed() == (data, data.stat)
    assert Round(children, data, torn=True).agreed() is None
    assert Round(ZkDone(1, ZkStat(3, 8)), data).agreed() is None
