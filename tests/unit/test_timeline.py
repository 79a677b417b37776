"""The timeline of an append: its way is followed back through the processes, over those that it really waited for."""

from __future__ import annotations

import pytest

from benchmarks.timeline import WAY, between_marks, stages, table, way_of


def a_way(begin: int, node: str) -> dict[str, dict[str, list[int]]]:
    """Stamps of one append over a storage node, each station 10 µs after the one before."""
    stamps: dict[str, dict[str, list[int]]] = {"client": {}, "server": {}}
    for at, (process, what, _) in enumerate(reversed(WAY)):
        stamps.setdefault(node if process == "storage" else process, {}).setdefault(what, []).append(
            begin + at * 10_000
        )
    return stamps


def test_the_way_of_an_append_leads_back_to_its_call() -> None:
    stamps = a_way(0, "storage-1")
    known = stamps["client"]["known"][0]
    assert way_of(stamps, known) == list(range(known, -1, -10_000))


def test_a_storage_node_that_answers_later_is_not_on_the_way() -> None:
    stamps = a_way(0, "storage-1")
    slow = a_way(5_000, "storage-2")["storage-2"]
    assert slow["encrypted"] > stamps["storage-1"]["encrypted"]
    slow["encrypted"] = [stamps["server"]["woken"][-1] + 1]  # too late to have woken the server
    known = stamps["client"]["known"][0]
    assert way_of({**stamps, "storage-2": slow}, known) == way_of(stamps, known)


def test_an_append_that_cannot_be_followed_is_left_out() -> None:
    stamps = a_way(0, "storage-0")
    stamps["storage-0"]["synced"] = []
    assert way_of(stamps, stamps["client"]["known"][0]) is None
    assert stages(stamps, 0) == ([], [])


def test_appends_of_the_warm_up_are_left_out() -> None:
    first, second = a_way(0, "storage-0"), a_way(10_000_000, "storage-0")
    stamps = {
        name: {what: moments + second[name][what] for what, moments in process.items()}
        for name, process in first.items()
    }
    rows, totals = stages(stamps, 1)
    assert rows == [[10_000] * (len(WAY) - 1)]
    assert totals == [10_000 * (len(WAY) - 1)]


def test_the_table_has_a_line_for_each_stage_and_the_sum() -> None:
    rows = [[1_000] * (len(WAY) - 1), [3_000] * (len(WAY) - 1)]
    lines = table(rows, [60_000, 80_000]).splitlines()
    assert len(lines) == 2 + len(WAY)
    assert lines[2].startswith("| until the client steps | 2 |")
    assert lines[-1].startswith("| **the whole append** | **70** |")


def test_the_table_takes_the_place_of_the_one_on_the_page() -> None:
    page = "before\n<!-- timeline -->\nold\n<!-- end of timeline -->\nafter\n"
    new = "before\n<!-- timeline -->\n\nnew\n\n<!-- end of timeline -->\nafter\n"
    assert between_marks(page, "new") == new
    assert between_marks(new, "new") == new
    with pytest.raises(ValueError, match="expected one `<!-- timeline -->`"):
        between_marks("no marks", "new")
