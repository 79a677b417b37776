"""A life of two drivers on a simulated network: one listens, one dials, strangers come by, and something goes wrong.

Whatever a seed draws, this must hold: nothing that serves others ends; what befalls a connection is its own; nothing is
torn, doubled or reordered; what a fair connection was given arrives; buffers keep their bounds; and when a driver ends,
in order, by cancellation or by a kill, at whatever step, nothing of it is left: no task, descriptor, dial or handshake.
"""

from __future__ import annotations

import atexit
import datetime
import errno
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import attrs
import trio
import trio.testing
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.driver_nets.network import Faults, SimNetwork, SimSocket
from tests.driver_nets.talker import BURST_MAX, Talker
from waltz_core.base.edge import Level, Port
from waltz_core.base.ids import Endpoint
from waltz_testing.simulation.virtual import tasks_ordered_by
from waltz_trio.base import pump
from waltz_trio.net.channel import NetLimits
from waltz_trio.net.driver import NodeDriver
from waltz_trio.net.tls import ClientTls, ServerTls, TlsSettings

PLACE = Endpoint("there", 1)
ENDINGS = ("stop", "cancel", "kill")
PATIENCE = 600.0  # virtual seconds for what must come
_INBOX_MAX = 4
_TALK_MS = 6_000
_LIMITS = NetLimits(
    read_size=20_000,
    high_mark=100_000,
    low_mark=20_000,
    stall_timeout=30.0,
    handshake_timeout=5.0,
    connect_timeout=5.0,
    handshakes_max=4,
    connections_max=40,
)


@attrs.define
class Outcome:
    """What happened, for the figures and for the comparison of two runs."""

    connections: int = 0
    bytes: int = 0
    broken: int = 0
    steps: int = 0
    trace: list[str] = attrs.field(factory=list)


@cache
def _tls() -> ServerTls:
    """What the listening side shows; RSA, whose signatures are all of one size, so that a seed draws the same twice."""
    key = rsa.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "there")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM) + key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    directory = Path(tempfile.mkdtemp(prefix="waltz-nets-"))
    atexit.register(shutil.rmtree, directory)
    path = directory / "there.pem"
    path.write_bytes(pem)
    return ServerTls(TlsSettings(certificate=str(path)))


class Life:
    """One seed.

    Args:
        end_at: task steps after which the driver that `victim` names is ended; None for the end of the talk.
    """

    def __init__(
        self,
        seed: int,
        network: SimNetwork,
        *,
        short: bool = False,
        end_at: int | None = None,
        ending: str = "",
        victim: int = 0,
    ) -> None:
        self.rng = Random(f"{seed}/life")
        self.network = network
        self.network.draw_faults = self._faults
        self.network.connect_delay = lambda: self.rng.choice((0.0, 0.0, 0.01, 3.0))
        self.talk_ms = 1_500 if short else _TALK_MS
        self.end_at = end_at
        self.ending = ending or self.rng.choice(ENDINGS)
        self.victim = victim
        self.hits = [0.0, 0.02, 0.5] if not short else [0.3]
        self.hostility = self.rng.choice(self.hits)
        dials = 4 if short else self.rng.randrange(3, 14)
        self.machines = [
            Talker(f"{seed}/0", 0, PLACE, self.talk_ms),
            Talker(f"{seed}/1", dials, PLACE, self.talk_ms // 2),
        ]
        self.reports: list[str] = []
        self.outcome = Outcome()
        tls = ClientTls(TlsSettings(verify=False))
        self.drivers = [
            NodeDriver(machine, name=f"driver {number}", client_tls=tls, report=self._report, limits=_LIMITS)
            for number, machine in enumerate(self.machines)
        ]
        for machine in self.machines:
            machine.look = self._look
        self._ended = [False, False]
        self._guests: list[SimSocket] = []
        self._names: dict[int, str] = {}  # label of a connection → its name in the network

    def _report(self, level: Level, text: str) -> None:
        assert level < Level.ERROR, text
        self.reports.append(text)

    def _faults(self) -> Faults:
        rng = self.rng
        faults = Faults(
            capacity=rng.choice((3_000, 20_000, 65_536, 400_000)),
            latency=rng.choice((0.0, 0.001, 0.1)),
            short=rng.choice((0.0, 0.1, 0.5)),
            idle_wakes=rng.choice((0.0, 0.0, 0.1)),
        )
        if rng.random() < self.hostility:
            at = rng.choice((rng.randrange(1, 12), rng.randrange(1, 200)))
            if rng.random() < 0.25:
                faults.stalls_at = at
            else:
                faults.breaks_at, faults.breaks_by = at, rng.choice(("reset", "end", "surprise"))
        return faults

    # ---- what holds all the time -------------------------------------------------------------------

    def _look(self) -> None:
        serving = self.drivers[0]
        if serving._nursery is not None and not serving._nursery.cancel_scope.cancel_called:
            assert all(sock.fileno() >= 0 for sock in serving._listeners), "nobody is accepted any more"
        for driver in self.drivers:
            for conn, channel in driver._channels.items():
                assert isinstance(channel._pipe.sock, SimSocket)
                if conn < 0:
                    self._names[-conn] = channel._pipe.sock.name.partition("/")[0]
                assert channel._unsent <= _LIMITS.high_mark + 3 * BURST_MAX, "a buffer grows without bound"
            bound = _INBOX_MAX + 4 * (len(driver._channels) + len(driver._dials)) + 8
            assert len(driver.pump._inbox) <= bound, "the inbox grows without bound"

    # ---- the story ---------------------------------------------------------------------------------

    async def run(self) -> Outcome:
        counter = _Steps(self)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.network.run)
            async with trio.open_nursery() as drivers:
                for driver in self.drivers:
                    await drivers.start(self._run, driver)
                listening = self.network.listen(PLACE)
                self.drivers[0].serve(Port.STORAGE, listening, _tls())  # type: ignore[arg-type]  # as a socket
                trio.lowlevel.add_instrument(counter)  # from here on, they serve
                drivers.start_soon(self._strangers, drivers.cancel_scope)
                await self._talk()
                counter.end_at = None
                await self._finish()
                drivers.cancel_scope.cancel()
            nursery.cancel_scope.cancel()
        trio.lowlevel.remove_instrument(counter)
        self.outcome.steps = counter.count
        self._left_behind()
        self._count()
        return self.outcome

    async def _run(self, driver: NodeDriver, *, task_status: Any) -> None:
        await driver.run(task_status=task_status)
        self._ended[self.drivers.index(driver)] = True

    async def _strangers(self, scope: trio.CancelScope) -> None:
        """Who connects and is no peer."""
        for _ in range(self.rng.choice((0, 0, 3, 12))):
            await trio.sleep(self.rng.random() * self.talk_ms / 1000)
            listening = self.network.listeners[PLACE]
            if listening.fileno() < 0:
                return
            kind = self.rng.choice(("silent", "http", "garbage", "gone", "error"))
            if kind == "error":
                listening.waiting.append(self.rng.choice((errno.EMFILE, errno.ECONNABORTED, errno.EINVAL)))
                self.network.look(listening)
                continue
            end = self.network.connect_now(PLACE)
            end.faults = Faults()
            if kind == "http":
                end.send(b"GET / HTTP/1.1\r\n\r\n")
            elif kind == "garbage":
                end.send(self.rng.randbytes(self.rng.randrange(1, 500)))
            elif kind == "gone":
                end.close()
            self._guests.append(end)

    async def _talk(self) -> None:
        with trio.move_on_after(self.talk_ms / 1000):
            while not any(self._ended):  # noqa: ASYNC110  virtual time
                await trio.sleep(0.05)

    def end(self, number: int, ending: str) -> None:
        """End a driver, at once or soon."""
        driver = self.drivers[number]
        if ending == "kill":
            driver.kill()
        elif ending == "cancel":
            driver.cancel()
        elif driver._nursery is not None:
            driver._nursery.start_soon(driver.stop)

    async def _finish(self) -> None:
        """What was said arrives; then both end, the one that is still there after the other."""
        for machine in self.machines:
            machine.quiet = True
        for driver in self.drivers:
            driver.pump.run_once()  # it may just have woken for a deadline that is none any more, and sleep again
        with trio.fail_after(PATIENCE):
            while not any(self._ended) and not self._arrived():  # noqa: ASYNC110  virtual time
                await trio.sleep(0.5)
        for number in (self.victim, 1 - self.victim):
            self.end(number, self.ending)
            with trio.fail_after(PATIENCE):
                while not self._ended[number]:
                    await trio.sleep(0.1)
                    self._survives(1 - number)
            await trio.sleep(_LIMITS.linger + _LIMITS.handshake_timeout + 1)
            self._told(1 - number)

    def _survives(self, number: int) -> None:
        """The end of one is no end of the other."""
        assert not self._ended[number] or number == self.victim or self.end_at is not None, "it ended with the other"

    def _told(self, number: int) -> None:
        """Who is left has heard of each connection's end that could be known."""
        if self._ended[number]:
            return
        for line in self.machines[number].lines.values():
            name = self._names.get(line.label)
            known = name is not None and self.network.faults[name].stalls_at is None
            assert line.closed or not known, f"the end of connection {line.label} was not told"

    def _arrived(self) -> bool:
        """Whether everything has arrived that must."""
        for label, near in self.machines[1].by_label.items():
            far = self.machines[0].by_label.get(label)
            if near.closed or near.ended or far is None or far.closed or far.ended:
                continue
            if not self._is_fair(label):
                continue
            if near.received != far.sent or far.received != near.sent:
                return False
        return True

    def _is_fair(self, label: int) -> bool:
        return self.network.faults[self._names[label]].fair

    # ---- what is left ------------------------------------------------------------------------------

    def _left_behind(self) -> None:
        for driver in self.drivers:
            assert not driver._channels, f"{driver.name} keeps channels"
            assert not driver._dials, f"{driver.name} keeps dials"
            assert not driver._shaking, f"{driver.name} keeps handshakes"
            assert driver._accepted == 0, f"{driver.name} counts {driver._accepted} places as taken"
            assert not driver.ends._ended, f"{driver.name} watches ends"
            assert not driver.arrivals._watched, f"{driver.name} watches what nobody reads"
        for guest in self._guests:
            guest.close()
        assert self.network.waiting == 0, "somebody waits"
        left = [str(getattr(one, "name", one)) for one in self.network.open.values()]
        assert not left, f"descriptors are left: {left}"

    def _count(self) -> None:
        for machine in self.machines:
            self.outcome.connections += len(machine.lines)
            self.outcome.bytes += sum(line.received for line in machine.lines.values())
        self.outcome.broken = sum(not one.fair for one in self.network.faults.values())
        self.outcome.trace = self.network.lines


class _Steps(trio.abc.Instrument):
    """Counts steps of tasks, and ends a driver at one of them."""

    def __init__(self, life: Life) -> None:
        self.life = life
        self.count = 0
        self.end_at = life.end_at

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += 1
        if self.end_at is not None and self.count == self.end_at:
            self.life.end(self.life.victim, self.life.ending)


def live(seed: int, make: Callable[[int, SimNetwork], Life] = Life) -> Outcome:
    """Run one life; the same seed runs in the same way."""
    before = pump.INBOX_MAX
    pump.INBOX_MAX = _INBOX_MAX
    try:
        network = SimNetwork(seed)
        with network.installed(), tasks_ordered_by(Random(seed)):
            life = make(seed, network)
            return trio.run(life.run, clock=trio.testing.MockClock(autojump_threshold=0))
    finally:
        pump.INBOX_MAX = before
