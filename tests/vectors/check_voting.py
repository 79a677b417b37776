"""Votes on a batch, the decision on the end of a log, and whole recoveries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.model.recovery_world import PARTITION, Pending, Storage, World, make_record, state
from tests.twin_0132.recovery import Recovery0132
from tests.unit.server.test_appender import append, appender_with, launch, vote
from tests.vectors.deviations import recovery_rules
from tests.vectors.reading import Fields, Unit, lines, plain
from waltz_core.base.log import SessionInfo
from waltz_core.base.quorum import decide, majority
from waltz_core.server.append_queue import Sender
from waltz_core.store import recovery_events as rec
from waltz_core.store.recovery import Recovery
from waltz_core.zookeeper.partition_metadata import states_by_storage
from waltz_core.zookeeper.znodes import UNRESOLVED, PartitionMetadata

_COPY_COUNT: Final = 20  # records per step of 0.13.2
_OUTCOMES: Final = {True: True, False: False, None: "blocks"}


def units(path: Path) -> Iterator[Unit]:
    checks = {"append_vote": _check_append_vote, "hwm_vote": _check_hwm_vote, "recovery_script": _check_script}
    for name, line in lines(path):
        check = checks[line["kind"]]
        yield Unit(name, [line], partial(check, line))


# ---- votes -----------------------------------------------------------------------------------


class _Votes:
    """Votes and abstentions of a fixed number of voters on one question.

    Java: AppendVote. Our appender compares marks instead, which `_check_appender` holds against the same votes.
    Votes are looked at first: a question that has its quorum stays won, whoever abstains later.
    """

    __slots__ = ("_abstentions", "_quorum", "_voters", "_votes")

    def __init__(self, quorum: int, voters: int) -> None:
        self._quorum = quorum
        self._voters = voters
        self._votes = 0
        self._abstentions = 0

    def vote(self) -> None:
        """One voter agrees."""
        self._votes += 1

    def abstain(self) -> None:
        """One voter will never agree."""
        self._abstentions += 1

    @property
    def has_quorum(self) -> bool:
        """Whether enough voters agreed."""
        return self._votes >= self._quorum

    @property
    def has_abstention(self) -> bool:
        """Whether any voter is lost for good."""
        return self._abstentions > 0

    @property
    def outcome(self) -> bool | None:
        """True when won, False when it cannot be won any more, None while it is open."""
        if self.has_quorum:
            return True
        return False if self._abstentions > self._voters - self._quorum else None


def _check_append_vote(line: Fields) -> frozenset[str]:
    votes = _Votes(line["quorum"], line["num_voters"])
    _compare_votes(votes, line["initial"])
    for step in line["steps"]:
        {"vote": votes.vote, "abstain": votes.abstain}[step["event"]]()
        _compare_votes(votes, step["after"])
    if line["quorum"] <= line["num_voters"]:  # no session opens without a quorum
        _check_appender(line)
    return frozenset()


def _check_appender(line: Fields) -> None:
    """Our appender commits with the very vote with which that of 0.13.2 has its quorum."""
    voters = [str(number) for number in range(line["num_voters"])]
    appender = appender_with(opened=False)
    appender.opened(line["quorum"], voters)
    appender.enqueue(Sender(1, 7), [append(1)])
    launch(appender)
    for step in line["steps"]:
        if step["event"] == "vote" and voters:
            vote(appender, 0, voters.pop())
            assert (appender.commit_mark == 0) == step["after"]["has_quorum"]


def _compare_votes(votes: _Votes, expected: Fields) -> None:
    assert votes.has_quorum == expected["has_quorum"]
    assert votes.has_abstention == expected["has_abstention"]
    assert _OUTCOMES[votes.outcome] == expected["await"]


# ---- the decision ----------------------------------------------------------------------------


def _check_hwm_vote(line: Fields) -> frozenset[str]:
    line.ignore("name")
    replicas = {replica["id"]: plain(replica) for replica in line["replicas"]}
    assert len(replicas) == line["num_last_replicas"]
    assert majority(len(replicas)) == line["quorum"]
    assert sorted(line["arrival_order"]) == sorted(name for name, replica in replicas.items() if replica["online"])
    decisions = [_decisions(replicas, line["arrival_order"])]
    decisions += [_recovery_decisions(replicas, line["arrival_order"], kind) for kind in (Recovery, Recovery0132)]
    for values in decisions:
        assert values == line["resolved_after_each_arrival"]
        final = values[-1] if values else None
        assert (final, "undecidable" if final is None else "decided") == (line["value"], line["decision"])
    return frozenset()


def _decisions(replicas: dict[str, dict[str, Any]], order: list[str]) -> list[int | None]:
    """By the pure function, after each arrival; a decision stands once it is made."""
    values: list[int | None] = []
    for count in range(1, len(order) + 1):
        present = [replicas[name] for name in order[:count]]
        voters = [replica["hwm"] for replica in present if replica["voter"]]
        decision = decide(
            (replica["hwm"] for replica in present),
            lowest=min(voters, default=2**63),
            absent=len(replicas) - count,
            quorum=majority(len(replicas)),
        )
        values.append(values[-1] if values and values[-1] is not None else decision)
    return values


def _recovery_decisions(replicas: dict[str, dict[str, Any]], order: list[str], kind: Any) -> list[int | None]:
    """By a recovery that is not allowed to copy; a replica that does not vote took no part in the last session."""
    states = tuple(
        state(name, 5, UNRESOLVED) if replica["voter"] else state(name, 4, replica["hwm"] if replica["online"] else 0)
        for name, replica in replicas.items()
    )
    recovery = kind(PARTITION, 6, 1, PartitionMetadata(1, 6, states), 0, tuple(replicas))
    values: list[int | None] = []
    for name in order:
        mark = replicas[name]["hwm"]
        info = SessionInfo(5, -1, -1) if replicas[name]["voter"] else SessionInfo(4, mark, mark)
        recovery.step(0, [rec.ReplicaUp(name, info)], [])
        recovery.step(0, [rec.MaxKnown(name, mark)], [])
        values.append(recovery.resolved)
    return values


# ---- whole recoveries ------------------------------------------------------------------------


def _check_script(line: Fields) -> frozenset[str]:
    line.ignore("name")
    line.get("java_spins_on")  # names an event that is not in the script
    script = plain(line)
    # 0.13.2 races when another session announces itself before the states are written (server-D1); the
    # file holds the outcome of the runs in which the write came first.
    raced = any(step["event"][0] == "zk_bump" for step in script["steps"])
    recorded = _Run(script, partial(Recovery0132, states_first=raced))
    for step in script["steps"]:
        recorded.take(step["event"])
        _equal(recorded.observe(), step["after"], step["event"])
    return _check_with_rules(script)


def _check_with_rules(script: dict[str, Any]) -> frozenset[str]:
    """By ours: as recorded up to the first step that touches a rule, and sound from there on."""
    touched = recovery_rules(script)
    run = _Run(script, Recovery)
    expected = _Expectations(script)
    as_recorded = True
    for at, step in enumerate(script["steps"]):
        run.take(step["event"])
        seen = run.observe()
        if as_recorded and seen != step["after"]:
            as_recorded = False
            if not any(first <= at for first in touched.values()):
                _equal(seen, step["after"], step["event"])
        try:
            expected.check(step["event"], run, seen)
        except AssertionError as error:
            error.add_note(f"by ours, after step {at}, {step['event']}: {seen}")
            raise
    return frozenset(touched)


class _Expectations:
    """What has to hold whatever the order of things, told from the script alone."""

    def __init__(self, script: dict[str, Any]) -> None:
        self._session = script["session"]
        self._stored = {replica["id"]: replica["storage"] for replica in script["replicas"]}
        self._states = {r["id"]: r["zk_state"] for r in script["replicas"] if r["zk_state"] is not None}
        self._assigned = [replica["id"] for replica in script["replicas"] if replica["assigned"]]
        self._arrived: list[str] = []
        self._may_fail = self._decided = False

    def check(self, event: list[str], run: _Run, seen: dict[str, Any]) -> None:
        """After one event of the script."""
        if event[0] == "arrive":
            self._arrived.append(event[1])
        opened = isinstance(seen["session_open"], int)
        # A failure, or another session, may end a recovery that is not over; once it is, a failure may not.
        self._may_fail |= event[0] == "zk_bump" or (event[0] in ("fail_fetch", "fail_lwm") and not opened)
        assert not seen["aborted"] or self._may_fail, "it ended for no reason"
        assert not run.world.beyond, f"reads what its source does not hold: {run.world.beyond}"
        self._check_replicas(run, seen)
        if seen["resolved"] is not None and not self._decided:
            self._decided = True
            self._check_decision(seen["resolved"])
        if opened:
            was_ready = [r for r in seen["replicas"].values() if r["phase"] in ("recovered", "failed")]
            assert len(was_ready) >= majority(len(self._assigned)), "open without a quorum"
        elif not seen["aborted"] and not run.world.pending:
            self._check_waiting(run, seen)

    def _check_replicas(self, run: _Run, seen: dict[str, Any]) -> None:
        for name, replica in seen["replicas"].items():
            stored = self._stored[name]
            assert replica["max"] >= min(stored["max"], stored["lwm"]), f"{name} lost what it had been marked with"
            if seen["zk"]["states"].get(name) == [self._session, None]:
                assert replica["session"] == self._session, f"{name} is named before its mark"
            if replica["phase"] == "recovered":
                assert (replica["max"], replica["lwm"]) == (seen["resolved"], seen["resolved"]), f"{name} is not level"
                assert seen["zk"]["states"][name] == [self._session, None], f"{name} is ready and not named"

    def _good_mark(self, name: str) -> int | None:
        """Up to where a replica of the last session may have acknowledged; None if it cannot tell any more."""
        stored, (session, _) = self._stored[name], self._states[name]
        if name not in self._arrived or stored["session"] < session or stored["max"] < stored["local_lwm"]:
            return None
        return min(stored["max"], stored["lwm"]) if stored["session"] > session else int(stored["max"])

    def _check_decision(self, resolved: int) -> None:
        voters = [name for name, (_, closing) in self._states.items() if closing is None]
        marks = [self._good_mark(name) for name in voters]
        if not self._states:
            assert resolved == -1
            return
        # Ids above the decided mark must not have been acknowledged by a quorum of the last session.
        maybe = sum(mark is None or mark > resolved for mark in marks)
        assert maybe < majority(len(self._states)), "a committed transaction may be given up"
        known = [mark for mark in marks if mark is not None]
        kept = [self._stored[name]["lwm"] for name in self._arrived]
        assert resolved <= max(known + kept), "decided above everything that is present"

    def _check_waiting(self, run: _Run, seen: dict[str, Any]) -> None:
        """Nothing is under way: then there is a reason."""
        alive = {name: r for name, r in seen["replicas"].items() if r["phase"] not in ("offline", "failed")}
        if not self._states:
            with_records = any(max(self._stored[name]["max"], self._stored[name]["lwm"]) >= 0 for name in self._arrived)
            assert with_records or len(alive) < majority(len(self._assigned))
        elif seen["resolved"] is None:
            trusted = [name for name in alive if name in self._states and self._trusted(name)]
            tails = [self._stored[name] for name in trusted if self._states[name][1] is None]
            voters = [stored["max"] for stored in tails if stored["max"] >= stored["lwm"]]
            marks = [alive[name]["max"] for name in trusted]
            absent, quorum = len(self._states) - len(trusted), majority(len(self._states))
            decision = decide(marks, lowest=min(voters, default=2**63), absent=absent, quorum=quorum)
            assert decision is None, "it waits though the end is decided"
        else:
            level = [r for r in alive.values() if (r["session"], r["max"]) == (self._session, seen["resolved"])]
            assert len(level) < majority(len(self._assigned)), "it waits though a quorum is level"

    def _trusted(self, name: str) -> bool:
        return self._states[name][1] is not None or self._good_mark(name) is not None


def _equal(ours: dict[str, Any], recorded: dict[str, Any], event: list[str]) -> None:
    for name in recorded:
        if ours[name] != recorded[name]:
            raise AssertionError(f"after {event}: {name} is {ours[name]}, recorded {recorded[name]}")
    assert ours.keys() == recorded.keys()


class _Run:
    """A script run against a real recovery: after each event everything comes to rest but what is held."""

    def __init__(self, script: dict[str, Any], make: Callable[..., Any]) -> None:
        replicas, session = script["replicas"], script["session"]
        self.assigned = [replica["id"] for replica in replicas if replica["assigned"]]
        self.arrived: set[str] = set()
        self._free: set[str] = set()  # copy what they want from now on
        self._held_marks = set(script["hold_low_water_mark"])
        states = tuple(
            state(replica["id"], replica["zk_state"][0], _closing(replica["zk_state"][1]))
            for replica in replicas
            if replica["zk_state"] is not None
        )
        storages = {}
        for replica in replicas:
            stored = replica["storage"]
            log = [make_record(number) for number in range(stored["max"] + 1)]
            storages[replica["id"]] = Storage(stored["session"], stored["lwm"], stored["local_lwm"], log)
        self.world = World(
            storages,
            PartitionMetadata(1, session, states),
            lambda metadata, version: make(
                PARTITION, session, 1, metadata, version, self.assigned, copy_count_max=_COPY_COUNT
            ),
        )

    def take(self, event: list[str]) -> None:
        """One event of the script, and all that follows from it by itself."""
        kind, *names = event
        if kind == "zk_bump":
            self.world.announce()
            return
        (name,) = names
        if kind == "arrive":
            self.arrived.add(name)
            self.world.arrive(name)
        elif kind == "fetch":
            self._fetch(name)
        elif kind == "fetch_all":
            self._free.add(name)
        elif kind == "release_lwm":
            self._held_marks.discard(name)
        else:
            assert kind in ("fail_fetch", "fail_lwm"), kind
            self._fail(name)
        self.world.settle(self._held)

    def _held(self, effect: Pending) -> bool:
        match effect:
            case rec.ReadRecords(target=target, first=first):
                # A comparison is not a copy.
                return target not in self._free and first > self.world.storages[target].max
            case rec.SetLowWaterMark(replica=replica):
                return replica in self._held_marks
            case _:
                return False

    def read_of(self, name: str) -> rec.ReadRecords | None:
        """The copy step that waits for its answer."""
        for effect in self.world.pending:
            if isinstance(effect, rec.ReadRecords) and effect.target == name:
                return effect
        return None

    def _fetch(self, name: str) -> None:
        read = self.read_of(name)
        if read is not None:
            self.world.run(read)

    def _fail(self, name: str) -> None:
        """A call made for this replica fails; others may go on reading from it."""
        self.world.pending = [e for e in self.world.pending if _made_for(e) != name]
        self.world.tell(rec.ReplicaFailed(name, "injected"))

    def observe(self) -> dict[str, Any]:
        """In the form of the vectors."""
        world, recovery = self.world, self.world.recovery
        opened = [effect.high_water_mark for effect in world.told if isinstance(effect, rec.SessionRecovered)]
        assert len(opened) <= 1
        return {
            "resolved": recovery.resolved,
            "aborted": recovery.failed,
            "session_open": opened[0] if opened else "failed" if recovery.failed else None,
            "replicas": {name: self._observe(name) for name in self.assigned},
            "zk": {
                "session": world.metadata.session_id,
                "states": {
                    name: [item.session_id, None if item.closing_mark == UNRESOLVED else item.closing_mark]
                    for name, item in states_by_storage(world.metadata).items()
                },
            },
        }

    def _observe(self, name: str) -> dict[str, Any]:
        storage, phase, read = self.world.storages[name], self.world.recovery.phase(name), self.read_of(name)
        seen: dict[str, Any] = {"phase": "failed" if phase is rec.ReplicaPhase.REFUSED else phase.value}
        if phase is rec.ReplicaPhase.COPYING:
            assert read is not None
            seen["fetch_from"], seen["fetch_count"] = read.first, read.count
            seen["usher_hwm"] = self.world.storages[read.source].max
        stored = {"max": storage.max, "session": storage.session, "lwm": storage.low, "local_lwm": storage.local}
        return seen | stored


def _made_for(effect: Pending) -> str | None:
    match effect:
        case rec.ReadRecords(target=target) | rec.WriteRecords(target=target):
            return target
        case rec.CasMetadata():
            return None
        case _:
            return effect.replica


def _closing(mark: int | None) -> int:
    return UNRESOLVED if mark is None else mark
