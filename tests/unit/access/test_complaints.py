"""How many lines of what is wrong with peers a log gets, whatever they do."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from waltz_core.access.complaints import EVERY_MS, KEPT_MAX, KINDS_MAX, NEW_MAX, Complaints
from waltz_core.base.edge import Level, Report


def of(peer: str, text: str, owner: str = "") -> Report:
    return Report(Level.WARNING, f"connection of {peer} closed: {text}", peer, owner)


def texts(lines: list[Report]) -> list[str]:
    return [line.text for line in lines]


def test_the_first_line_is_written_and_the_others_are_counted() -> None:
    complaints = Complaints()
    assert complaints.put(0, of("a:1", "bad magic byte 7")) == [of("a:1", "bad magic byte 7")]
    for at in range(1, 2_400):
        assert complaints.put(at, of(f"a:{at}", f"bad magic byte {at}")) == []
    assert complaints.deadline() == EVERY_MS
    assert complaints.due(EVERY_MS - 1) == []
    counted = "connection of a:2399 closed: bad magic byte 2399 (2399 like this within 60 s)"
    assert texts(complaints.due(EVERY_MS)) == [counted]


def test_what_goes_on_has_one_line_a_minute_and_what_has_ended_none() -> None:
    complaints = Complaints()
    lines = [(at, line) for at in range(0, 3 * EVERY_MS, 25) for line in texts(complaints.put(at, of("a:1", "x")))]
    assert [at for at, _ in lines] == [0, EVERY_MS, 2 * EVERY_MS]
    assert "2399 like this" in lines[1][1]
    assert len(texts(complaints.due(3 * EVERY_MS))) == 1
    assert complaints.due(4 * EVERY_MS) == []
    assert complaints.deadline() is None
    assert len(complaints) == 0


def test_other_reasons_and_other_addresses_have_lines_of_their_own() -> None:
    complaints = Complaints()
    assert complaints.put(0, of("a:1", "x"))
    assert complaints.put(1, of("a:1", "y"))
    assert complaints.put(2, of("b:1", "x"))
    assert complaints.put(3, of("[::1]:5", "x"))
    assert not complaints.put(4, of("[::1]:6", "x")), "another port of the same address"
    assert complaints.put(5, of("[2001:db8::1]:5", "x"))
    assert not complaints.put(6, of("[2001:db8::ffff:2]:5", "x")), "another address of the same network"


def test_a_certificate_does_not_hide_what_is_wrong_with_another_one_behind_the_same_address() -> None:
    complaints = Complaints()
    for at in range(1_000):
        complaints.put(0, of(f"a:{at}", "no type " + "x" * at, "writer"))
    assert complaints.put(0, of("a:1001", "x", "stranger"))
    assert complaints.put(0, of("a:1002", "x"))
    assert not complaints.put(0, of("b:1", "x", "stranger")), "the same certificate from another address"


def test_words_of_the_peer_s_own_do_not_fill_the_log() -> None:
    complaints = Complaints()
    lines = [line for at in range(1_000) for line in complaints.put(0, of("a:1", "no type " + "x" * at))]
    assert len(lines) == KINDS_MAX + 1
    assert len(complaints) == KINDS_MAX + 1
    [last] = texts(complaints.due(EVERY_MS))
    assert last.endswith(f"({1_000 - KINDS_MAX - 1} things were wrong with this peer within 60 s)")


def test_of_many_addresses_the_one_that_is_due_first_makes_room_and_its_count_is_told() -> None:
    complaints = Complaints()
    complaints.put(0, of("a:1", "x"))
    complaints.put(0, of("a:2", "x"))
    for at in range(KEPT_MAX - 1):
        assert complaints.put(at * 55, of(f"host{at}:1", "x"))
    assert texts(complaints.put(KEPT_MAX * 55, of("b:1", "x"))) == [
        "connection of a:2 closed: x (1 like this within 60 s)",
        "connection of b:1 closed: x",
    ]
    assert len(complaints) == KEPT_MAX


def test_very_many_addresses_have_a_few_lines_a_second_and_are_counted() -> None:
    complaints = Complaints()
    written = [line for at in range(5_000) for line in complaints.put(at // 5, of(f"host{at}:1", "x"))]
    assert len(written) == NEW_MAX + 1
    assert complaints.put(1_000, of("late:1", "x"))
    counted = texts(complaints.due(EVERY_MS + 500))
    assert counted == [
        f"connection of host4999:1 closed: x ({5_000 - NEW_MAX - 1} things were wrong with others within 60 s)"
    ]


def test_an_address_that_is_quiet_again_leaves_nothing_behind() -> None:
    complaints = Complaints()
    complaints.put(0, of("a:1", "x"))
    before = _held(complaints)
    for at in range(2_000):
        complaints.put(at * EVERY_MS + 1, of(f"host{at}:1", "x"))
    assert _held(complaints) == before


def _held(complaints: Complaints) -> int:
    return sum(len(getattr(complaints, name)) for name in ("_kinds", "_of_owner"))


@given(
    st.lists(
        st.tuples(st.integers(0, 20_000), st.sampled_from("abc"), st.text("xyz", max_size=3)), min_size=1, max_size=200
    )
)
def test_every_complaint_is_written_or_counted(steps: list[tuple[int, str, str]]) -> None:
    complaints = Complaints()
    now, lines = 0, []
    for wait, host, text in steps:
        now += wait
        lines += complaints.put(now, of(f"{host}:1", text))
    while (due := complaints.deadline()) is not None:
        lines += complaints.due(due)
    counts = [int(line.partition("(")[2].split()[0]) if "within" in line else 1 for line in texts(lines)]
    assert sum(counts) == len(steps)
