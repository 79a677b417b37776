"""`python -m tests.attacks [--json FILE] [--field F] [--port P] [ATTACK…]`: every attack on every port.

Each attack is run beside an honest client, and then an honest peer is in its place, which is as heavy (`neighbour.py`);
both again, as often as `--pairs` says. For each, medians: the processor time of the attacker and of the honest peer;
appends of the honest client that were acknowledged per second before, beside the honest peer, during the attack and
after it; the processor time that the attacked process takes, in seconds a second and for each append, before and beside
each; what memory and descriptors it is left with. The exit status is 1 if a bar is missed:

* every process is up, and says nothing of an error in itself;
* the honest rate is at least half of that beside the honest peer, and back at 90 % of that before within 5 s;
* descriptors are back to where they were, memory has grown by less than 64 MiB (and the caches of a `waltz dev`, which
  any load fills);
* a line in the log of the attacked process names the peer and says what is wrong with it (`wrong.py`);
* nothing acknowledged is missing in the log.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Any

import attrs

from tests.attacks.field import (
    ATTACKERS,
    CALLERS,
    DEV,
    FIELDS,
    GATEWAY,
    GUARDED,
    Field,
    Port,
    field_of,
    result,
    running,
)
from tests.attacks.messages import PROTOCOLS, newest
from tests.attacks.peers import ATTACKS, CONNECTING, WIDTH, flooded, saying
from tests.attacks.wrong import named
from tests.processes.cluster import poll
from tests.processes.zookeeper import running_zookeeper

_Beside = tuple[float, float, float]  # the honest rate; processor time a second, and ms of it for each append
_COMPLAINT_EVERY = 60.0  # seconds between two lines of the same
_AFTER = 5.0  # seconds until the honest rate must be back
_SETTLES = 30.0  # seconds, at most, for what an attack has left behind
_FEW = 16  # descriptors that come and go with any load, of clients that a gateway keeps among them
_MEMORY = 64 << 20


@attrs.frozen
class Attack:
    """One row of the table."""

    port: Port
    name: str
    message: str = ""  # with which a port is flooded
    certificate: str = ""

    def __str__(self) -> str:
        return " ".join(
            part for part in (self.name, self.message, self.certificate and f"({self.certificate})") if part
        )


@attrs.frozen
class Row:
    """What one attack on one port did. Rates are acknowledged appends of the honest client per second."""

    field: str
    port: str
    attack: str
    connections: int
    honest_connections: int  # of the honest peer in its place
    cpu: float  # seconds of the attacker, per second
    honest_cpu: float  # of the honest peer in its place
    before: float
    beside_honest: float
    during: float
    after: float
    ratio: float  # of the rates during the attack and beside the honest peer, pair by pair
    server_cpu: tuple[float, float, float]  # of the attacked process, a second: before, beside the honest peer, during
    cpu_per_append: tuple[float, float, float]  # the same, ms for each append
    memory: int  # bytes more than before
    descriptors: int  # more than before
    missed: tuple[str, ...]

    def line(self) -> str:
        """For people."""
        _, honest, attacked = self.server_cpu
        return (
            f"{self.field:<7} {self.port:<12} {self.attack:<42} "
            f"{self.connections:>6} {self.honest_connections:>6} "
            f"{self.cpu:>5.2f} {self.honest_cpu:>5.2f} "
            f"{self.before:>6.0f} {self.beside_honest:>6.0f} {self.during:>6.0f} {self.ratio:>5.2f} {self.after:>6.0f} "
            f"{honest:>6.2f} {attacked:>6.2f} {self.memory / (1 << 20):>6.1f} {self.descriptors:>4} "
            f"{', '.join(self.missed)}"
        )


HEAD = (
    f"{'field':<7} {'port':<12} {'attack':<42} {'conns':>6} {'conns':>6} {'cpu':>5} {'cpu':>5} {'before':>6} "
    f"{'beside':>6} {'during':>6} {'ratio':>5} {'after':>6} {'s/s':>6} {'s/s':>6} {'MiB':>6} {'fds':>4}"
)


def attacks_of(name: str, field: Field) -> Iterator[Attack]:
    """Every attack of a field: on each port, with each message type, as each peer."""
    for port in field.ports:
        attacks = saying(port.protocol)
        if name == GUARDED:
            for certificate in ATTACKERS:
                yield from (Attack(port, attack, certificate=certificate) for attack in attacks)
            continue
        yield from (Attack(port, attack) for attack in CONNECTING)
        for caller in ("", *(CALLERS if port.protocol == "gateway" else ())):
            yield from (Attack(port, "flood", message, caller) for message in _floods(port.protocol))
            yield from (Attack(port, attack, certificate=caller) for attack in attacks if attack != "flood")


def _floods(protocol: str) -> list[str]:
    """Answers end a connection at once, whichever they are: one of them stands for all."""
    if protocol not in PROTOCOLS:
        return flooded(protocol)
    asked = [one for one in newest(protocol) if one.endswith("Request")]
    return [*asked, next(one for one in newest(protocol) if one not in asked)]


class Measuring:
    """The attacks on one field, one after another."""

    def __init__(self, name: str, field: Field, seconds: float, pairs: int) -> None:
        self.name = name
        self.field = field
        self.seconds = seconds
        self.pairs = pairs
        self._befores: list[float] = []
        self._begun: dict[str, list[tuple[float, int]]] = {}  # process → when attacks began, how long its log was

    def _rate(self, seconds: float) -> float:
        """Appends per second from now on."""
        begin, seen = time.monotonic(), self.field.commits()
        time.sleep(seconds)
        return (self.field.commits() - seen) / (time.monotonic() - begin)

    def measure(self, attack: Attack) -> Row:
        """One attack."""
        field, process = self.field, attack.port.process
        size, count = field.memory(process), field.descriptors(process)
        before, cpu, cost = self._beside(process)
        self._begun.setdefault(process, []).append((time.monotonic(), len(field.text(process))))
        self._befores = [*self._befores[-6:], before]
        attacked, honest = [], []
        done: dict[str, Any] = {"connections": 0, "held": 0, "cpu": 0.0}
        heavy, line = done, False
        for number in range(self.pairs):
            waits = attack.name == "idleness" and not number  # it is wrong for who asks for nothing in time
            lasts = max(self.seconds, field.patience + 1.0 if waits else 0.0)
            target = field.target(attack.port, attack.name, attack.message, attack.certificate, lasts)
            with running("peers", attrs.asdict(attrs.evolve(target, seed=number))) as peer:
                attacked.append(self._beside(process))
                done = result(peer)
            lines = field.text(process)[self._recent(process) :].splitlines()
            line = line or named(attack.name, attack.port.protocol, lines)
            self._let_settle(process, count)
            target = attrs.evolve(target, seconds=self.seconds)
            done["cpu"] *= self.seconds / lasts
            done["connections"] *= self.seconds / lasts
            given = field.neighbour(
                target,
                held=done["held"],
                rate=done["connections"] / self.seconds,
                cpu=done["cpu"] / self.seconds,
                limited=attack.name in CONNECTING,
            )
            with running("neighbour", given) as peer:
                honest.append(self._beside(process))
                heavy = result(peer)
        reference = 0.9 * min(before, median(self._befores))
        after, end = 0.0, time.monotonic() + _AFTER
        while after < reference and time.monotonic() < end:
            after = max(after, self._rate(1.0))
        ratio = median(one[0] / max(other[0], 1.0) for one, other in zip(attacked, honest, strict=True))
        missed = ["rate during"] if ratio < 0.5 else []
        if not line:
            missed.append("log line")
        if after < reference:
            missed.append("rate after")
        try:
            poll("descriptors", lambda: self._let_go(process, count), 15)
        except TimeoutError:
            missed.append("descriptors")
        grown = field.memory(process) - size
        if grown > _MEMORY + field.caches:
            missed.append("memory")
        left = field.descriptors(process) - count
        return Row(
            self.name,
            attack.port.name,
            str(attack),
            round(done["connections"]),
            heavy["connections"],
            done["cpu"] / self.seconds,
            heavy["cpu"] / self.seconds,
            before,
            median(one[0] for one in honest),
            median(one[0] for one in attacked),
            after,
            ratio,
            (cpu, median(one[1] for one in honest), median(one[1] for one in attacked)),
            (cost, median(one[2] for one in honest), median(one[2] for one in attacked)),
            grown,
            left,
            tuple(missed),
        )

    def _let_settle(self, process: str, descriptors: int) -> None:
        """Until what an attack has left in the buffers of its host is taken: the honest peer would pay for it."""
        with contextlib.suppress(TimeoutError):
            what = "only honest appends are committed, over as few connections as before"
            poll(what, lambda: self._is_alone() and self._let_go(process, descriptors, _FEW), _SETTLES)

    def _let_go(self, process: str, descriptors: int, more: int = WIDTH // 10) -> bool:
        return self.field.descriptors(process) < descriptors + more

    def _is_alone(self) -> bool:
        seen, last = self.field.commits(), self.field.last()
        time.sleep(0.3)
        count = self.field.commits() - seen
        return count > 0 and self.field.last() - last < 1.3 * count + 20

    def _beside(self, process: str) -> _Beside:
        """The honest rate now, and what the attacked process takes."""
        begin, begin_cpu, seen = time.monotonic(), self.field.cpu(process), self.field.commits()
        rate = self._rate(self.seconds)
        cpu = self.field.cpu(process) - begin_cpu
        return rate, cpu / (time.monotonic() - begin), 1_000 * cpu / max(1, self.field.commits() - seen)

    def _recent(self, process: str) -> int:
        """Where the lines of its log begin in which a complaint may stand: one in the minute before silences it."""
        begun = self._begun[process]
        since = begun[-1][0] - _COMPLAINT_EVERY
        return max((length for at, length in begun if at <= since), default=begun[0][1])


def run(directory: Path, options: argparse.Namespace) -> list[Row]:
    """Every attack; raises `AssertionError` where a process ended, complained, or lost something."""
    rows = []
    print(HEAD, flush=True)
    for name in options.field or FIELDS:
        zookeeper = nullcontext() if name in (DEV, GATEWAY) else running_zookeeper()
        with zookeeper as server, field_of(name, directory / name, server.fresh_chroot() if server else "") as field:
            measuring = Measuring(name, field, options.seconds, options.pairs)
            for attack in attacks_of(name, field):
                if options.attack and not any(word in (attack.name, attack.message) for word in options.attack):
                    continue
                if options.port and attack.port.name not in options.port:
                    continue
                rows.append(measuring.measure(attack))
                print(rows[-1].line(), flush=True)
                if options.json:
                    options.json.write_text(json.dumps([attrs.asdict(row) for row in rows], indent=1))
    return rows


def main() -> int:
    """Parse, run, report; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.attacks", description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement (%(default)s)")
    parser.add_argument("--pairs", type=int, default=2, help="of attack and honest peer (%(default)s)")
    parser.add_argument("--field", action="append", choices=FIELDS, help="all by default")
    parser.add_argument("--port", action="append", help="by its name in the table; all by default")
    parser.add_argument("attack", nargs="*", help=f"of {', '.join(ATTACKS)}, or a message type; all by default")
    arguments = parser.parse_args()
    known = {*ATTACKS, *(message for protocol in (*PROTOCOLS, "http", "gateway") for message in flooded(protocol))}
    unknown = [name for name in arguments.attack if name not in known]
    if unknown:
        parser.error(f"unknown attack {unknown[0]}; known: {', '.join(ATTACKS)}, and the message types of the codecs")
    with tempfile.TemporaryDirectory() as directory:
        rows = run(Path(directory), arguments)
    missed = sum(bool(row.missed) for row in rows)
    print(f"{len(rows)} attacks, {missed} missed a bar")
    return 1 if missed or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
