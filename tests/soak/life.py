"""The life of a cluster for hours: a steady load, and all that happens to a cluster meanwhile.

One fault at a time, with calm in between; the log is archived and freed, partitions move between servers,
replicas between storage nodes, certificates are renewed in place, and one of them expires before its file is replaced.
"""

from __future__ import annotations

import datetime
import heapq
import random
import re
import ssl
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import attrs

from tests.processes.cluster import Cluster, poll
from tests.processes.load import Load
from tests.processes.torture import Torture

_TRIES = 10  # of a command that is refused while a node is away
_FREED = re.compile(r"ids \d+ to \d+ freed")
_TICK = 0.2
_PATIENCE = 120.0  # seconds: machines that run for hours are shared
_COMMAND = 600.0  # seconds for one that copies replicas meanwhile
WAYS = ("kill", "stop", "pause", "pause", "cut off", "silence", "deafen", "reset", "reset", "reset")
KINDS = ("archive", "move", "replica", "renew", "expire")


@attrs.frozen
class Plan:
    """Seconds: how long, and how often what happens."""

    length: float
    sample: float = 10
    fault: float = 60
    archive: float = 300
    move: float = 240
    replica: float = 900
    renew: float = 2400
    lifetime: float = 3000  # of a certificate
    forgotten: float = 600  # of the one that nobody replaces in time
    warm_up: float = 300  # of a life, left out of its slope
    block: float = 300  # averaged: as long as the log grows between two archives
    range: int = 2000  # ids in a file of the archive
    keep: int = 5000  # ids of each partition that stay on the storage nodes

    @classmethod
    def of(cls, hours: float) -> Plan:
        """As it stands above from two hours on; squeezed for less."""
        length = hours * 3600
        share = min(1.0, length / 7200)
        full = cls(length)

        def squeezed(seconds: float, least: float) -> float:
            return max(seconds * share, least)

        return cls(
            length,
            sample=squeezed(full.sample, 1),
            fault=squeezed(full.fault, 4),
            archive=squeezed(full.archive, 12),
            move=squeezed(full.move, 14),
            replica=squeezed(full.replica, 22),
            renew=squeezed(full.renew, 18),
            lifetime=squeezed(full.lifetime, 600),
            forgotten=squeezed(full.forgotten, 20),
            range=int(squeezed(full.range, 50)),
            keep=int(squeezed(full.keep, 100)),
        )


class Life:
    """What happens, in turn, until the time is over or `stopped` is set."""

    def __init__(self, cluster: Cluster, load: Load, torture: Torture, plan: Plan, archive: Path) -> None:
        self.cluster = cluster
        self.load = load
        self.torture = torture
        self.plan = plan
        self.stopped = False
        self.spare = f"storage-{len(cluster.storage_names)}"
        self.done: Counter[str] = Counter()
        self._archive = archive
        self._random = random.Random(torture.random.random())
        self._preferred: dict[int, str] = {}
        self._forgotten: tuple[str, float] | None = None  # who, and when its certificate ends
        self._begin = time.monotonic()
        self._shown = 0.0

    @property
    def lasted(self) -> float:
        """Seconds since the begin."""
        return time.monotonic() - self._begin

    def run(self) -> None:
        """Until the end; then everything is whole again."""
        self._begin = time.monotonic()
        self.cluster.add_storage(self.spare)
        acts: dict[str, tuple[float, Callable[[], None]]] = {
            "fault": (self.plan.fault, self._fault),
            "archive": (self.plan.archive, self._put_away),
            "move": (self.plan.move, self._move),
            "replica": (self.plan.replica, self._replica),
            "renew": (self.plan.renew, self._renew),
            "expire": (_TICK, self._expire),
        }
        due = [(every, name) for name, (every, _) in acts.items()]
        heapq.heapify(due)
        while not self.stopped and (self.lasted < self.plan.length or self._forgotten is not None):
            if due[0][0] > self.lasted:
                time.sleep(_TICK)
                continue
            _, name = heapq.heappop(due)
            every, act = acts[name]
            act()
            self._show()
            heapq.heappush(due, (self.lasted + every, name))
        self.torture.heal()
        for partition in range(self.cluster.partitions):
            self.cluster.wait_commits(20, partition, _PATIENCE)
        self._put_away()

    # ---- what happens ----------------------------------------------------------------------------

    def _fault(self) -> None:
        before = self.torture.done.total()
        while self.torture.done.total() == before:
            self.torture.fault()
        time.sleep(self._random.uniform(0.5, 6))
        self.torture.heal()

    def _put_away(self) -> None:
        """Archive what is new, and let the storage nodes give up what is archived."""
        config = ("-c", str(self.cluster.tools_file), "--to", str(self._archive), "--jobs", "1", "--quiet")
        ranges = ("--range", str(self.plan.range), "--whole", "--free", "--keep-local", str(self.plan.keep), "--yes")
        printed = self._insist("spark", "archive", *config, *ranges)
        self.done["archive"] += 1
        self.done["free"] += bool(_FREED.search(printed))

    def _insist(self, *words: str) -> str:
        """Run a command that may be refused while a node is not back yet; returns what it printed."""
        for _ in range(_TRIES - 1):
            self.cluster.wait_healthy(_PATIENCE)
            ended = self.cluster.attempt(*words, patience=_COMMAND)
            if ended.returncode == 0:
                return ended.stdout
            time.sleep(1)
        ended = self.cluster.attempt(*words, patience=_COMMAND)
        assert ended.returncode == 0, f"waltz {' '.join(words)}: {ended.stdout}"
        return ended.stdout

    def _move(self) -> None:
        """Another server owns a partition from now on."""
        partition = self._random.randrange(self.cluster.partitions)
        server = poll("the partition is served", lambda: self.cluster.owners().get(partition), _PATIENCE)
        (target,) = (name for name in self.cluster.server_names if name != server)
        words = ("-c", str(self.cluster.tools_file), "-p", str(partition), "-s")
        if partition in self._preferred:
            self.cluster.tool(
                "server", "remove-preferred-partition", *words, self.cluster.advertised[self._preferred[partition]]
            )
        self.cluster.tool("server", "add-preferred-partition", *words, self.cluster.advertised[target])
        self._preferred[partition] = target
        poll(
            f"{target} serves partition {partition}", lambda: self.cluster.owners().get(partition) == target, _PATIENCE
        )
        self.cluster.wait_healthy(_PATIENCE)
        self.done["move"] += 1

    def _replica(self) -> None:
        """A spare storage node takes the place of another, which becomes the spare one."""
        cluster = self.cluster
        forgotten = self._forgotten[0] if self._forgotten is not None else None  # nobody would refuse a spare one
        name = self._random.choice([each for each in cluster.storage_names if each != forgotten])
        ends = ("--from", cluster.advertised[name], "--to", cluster.advertised[self.spare])
        admin = ("-a", str(cluster.addresses[self.spare]["storage.admin.port"]))
        words = ("-c", str(cluster.tools_file), "--delete-storage-files", "--yes")
        self._insist("storage", "replace-node", *words, *ends, *admin)
        cluster.storage_names = sorted({*cluster.storage_names, self.spare} - {name})
        self.spare = name
        cluster.wait_healthy(_PATIENCE)
        self.done["replica"] += 1

    def _renew(self) -> None:
        """New certificates in the files of the old ones; every process takes its own for new connections, and goes on.

        The certificate of one of them ends soon, and nobody thinks of it.
        """
        tls = self.cluster.tls
        assert tls is not None
        tls.renew()
        forgotten = self._random.choice(self.cluster.storage_names)
        tls.issue(forgotten, datetime.timedelta(seconds=self.plan.forgotten))
        self._forgotten = forgotten, time.time() + self.plan.forgotten
        self.torture.spared = {forgotten}
        for name in (self.spare, *self.cluster.storage_names, *self.cluster.server_names):
            self._taken(name)
        self.done["renew"] += 1

    def _shows(self, port: int, wanted: bytes) -> bool:
        assert self.cluster.tls is not None
        try:
            return self.cluster.tls.shown(port) == wanted
        except OSError:
            return False  # a fault has just restarted it

    def _taken(self, name: str) -> None:
        """Let a process and its peers meet again, with its new certificate."""
        cluster = self.cluster
        assert cluster.tls is not None
        assert cluster.proxy is not None
        port = next(iter(cluster.addresses[name].values()))
        wanted = ssl.PEM_cert_to_DER_cert(_certificate(cluster.tls.path(name).read_text()))
        poll(f"{name} shows the certificate in its file", lambda: self._shows(port, wanted))
        cluster.proxy.reset(name)
        cluster.wait_healthy(_PATIENCE)

    def _expire(self) -> None:
        """Once the certificate of the forgotten process has ended nobody lets it in any more, until it is replaced."""
        if self._forgotten is None or time.time() < self._forgotten[1] + 1:
            return
        (name, _), self._forgotten = self._forgotten, None
        self.torture.spared = set()
        seen = self._refusals(name)
        assert self.cluster.proxy is not None
        assert self.cluster.tls is not None
        self.cluster.proxy.reset(name)
        poll(f"the expired certificate of {name} is refused", lambda: self._refusals(name) > seen, _PATIENCE)
        self.cluster.tls.issue(name)
        self.cluster.wait_healthy(_PATIENCE)
        self.done["expire"] += 1

    def _refusals(self, name: str) -> int:
        refusal = f"the certificate of {self.cluster.advertised[name]} is refused: certificate has expired"
        return sum(self.cluster.children[server].text().count(refusal) for server in self.cluster.server_names)

    def _show(self) -> None:
        if self.lasted > self._shown + 60:
            self._shown = self.lasted
            happened = ", ".join(f"{count} × {name}" for name, count in sorted(self.done.items()))
            print(f"{self.lasted / 60:6.1f} min  {self.torture.done.total()} faults; {happened}", flush=True)


def _certificate(text: str) -> str:
    return text[text.index("-----BEGIN CERTIFICATE-----") :]
