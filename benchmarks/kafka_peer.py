"""Kafka as a peer of `benchmarks.peers`: three brokers, each a controller of KRaft too, and one partition on all three.

A record is acknowledged once all replicas in sync have it (`acks=all`), which are three, or two where one is behind
(`min.insync.replicas=2`). Having it means on disk with `flush.messages=1`, and in the page cache with Kafka's own
defaults, which do not survive a loss of power at all three. Kafka checks no locks.

It is loaded by Kafka's own producer in Java (`KafkaLoad.java`), over one connection to the leader, idempotent as it is
by default. In flight are records that were handed to it and not acknowledged; it sends them in batches, each of which
a broker writes, and syncs if it does, at once. How it gathers them decides the rate, and which way is better depends
on the load, so each load is given to two producers, and the better figures count (`producer` says whose): one sends
whatever has come once the request before it was answered, the other as Kafka does by default, what has come in 5 ms
and up to five requests at a time.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.measured import cpu_of, scratch
from benchmarks.raft_peers import Servers, works
from tests.processes.cluster import poll
from waltz_trio.net.ports import HeldPorts

CLASS_PATH = "WALTZ_KAFKA_CLASSPATH"
_LOAD = Path(__file__).parent / "KafkaLoad.java"
_BROKERS = range(3)
_TOPIC = "log"
_CLUSTER = "V2FsdHotYmVuY2htYXJrcw"  # 16 bytes in Base64, as its storage is formatted with
_HEAP = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")  # of Kafka's own start script
_COMMON = {"acks": "all", "batch.size": str(1 << 18)}  # 1,000 records of 200 bytes; the default ends a batch after 78
_PRODUCERS = {"at once": {"linger.ms": "0", "max.in.flight.requests.per.connection": "1"}, "default": {}}
_WARM_IN_FLIGHT = 1000
_WARM_SECONDS = 2.0  # at each number in flight, before it is measured


def missing() -> str | None:
    """What is missing to run Kafka here, None if nothing."""
    if not os.environ.get(CLASS_PATH):
        jars = "org.apache.kafka:kafka_2.13, org.apache.kafka:kafka-tools and what they need at run time"
        return f"no installation of Kafka is given: set {CLASS_PATH} to jars of {jars}"
    for program, why in (("java", "to run it"), ("javac", "to compile what loads it")):
        if shutil.which(program) is None:
            return f"no `{program}` on PATH, needed {why} (Debian: default-jdk-headless, 17 or newer)"
    return None


def _java(*arguments: str, options: Sequence[str] = ()) -> list[str]:
    return ["java", *options, "-cp", os.environ[CLASS_PATH], *arguments]


class Producer:
    """The process that loads the brokers; it lives through all loads, so that its machine is warm."""

    def __init__(self, settings: Mapping[str, str], size: int, errors: Path) -> None:
        given = [f"{key}={value}" for key, value in settings.items()]
        self._errors = errors
        with errors.open("wb") as log:
            self._child = subprocess.Popen(
                _java(str(_LOAD), _TOPIC, str(size), *given),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def load(self, in_flight: int, count: int, seconds: float) -> dict[str, Any]:
        """Send at least so many for at least so long."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(f"{in_flight} {count} {seconds}\n")
        self._child.stdin.flush()
        line = self._child.stdout.readline()
        assert line, self._errors.read_text()
        figures: dict[str, Any] = json.loads(line)
        return figures

    def close(self) -> None:
        """End it."""
        self._child.kill()
        self._child.communicate()


def _configuration(node: int, listen: Sequence[int], control: Sequence[int], directory: Path) -> str:
    own, voters = f"127.0.0.1:{listen[node]}", ",".join(f"{at}@127.0.0.1:{control[at]}" for at in _BROKERS)
    settings = {
        "node.id": node,
        "process.roles": "broker,controller",
        "controller.quorum.voters": voters,
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://{own},CONTROLLER://127.0.0.1:{control[node]}",
        "advertised.listeners": f"PLAINTEXT://{own}",
        "log.dirs": directory,
    }
    return "".join(f"{key}={value}\n" for key, value in settings.items())


@contextmanager
def running(
    parent: str, size: int, seconds: float, warm: int, *, synced: bool
) -> Iterator[Callable[[int], dict[str, Any]]]:
    """The brokers, with a topic and its load.

    Args:
        parent: of the directory that they live in.
        warm: records until the machines of brokers and producer have compiled what they need.
        synced: every append is on disk before it is acknowledged.
    """
    with ExitStack() as stack:
        directory = stack.enter_context(scratch(parent))
        ports = stack.enter_context(HeldPorts())
        listen, control = ([ports.take() for _ in _BROKERS] for _ in range(2))
        commands = []
        for node in _BROKERS:
            path = directory / f"{node}.properties"
            path.write_text(_configuration(node, listen, control, directory / str(node)))
            tool = _java("kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(path))
            subprocess.run(tool, check=True, stdout=subprocess.DEVNULL)
            commands.append(_java("kafka.Kafka", str(path), options=_HEAP))
        brokers = Servers(commands, directory)
        stack.callback(brokers.close)
        bootstrap = ",".join(f"127.0.0.1:{port}" for port in listen)
        topic = ["--create", "--if-not-exists", "--topic", _TOPIC, "--partitions", "1"]
        topic += ["--replication-factor", str(len(_BROKERS)), "--config", "min.insync.replicas=2"]
        topic += ["--config", "flush.messages=1"] if synced else []
        tool = _java("org.apache.kafka.tools.TopicCommand", "--bootstrap-server", bootstrap, *topic)
        poll("all brokers are there and have the topic", lambda: works(tool))
        producers = {}
        for name, settings in _PRODUCERS.items():
            given = {"bootstrap.servers": bootstrap, **_COMMON, **settings}
            producers[name] = Producer(given, size, directory / f"{name}.log")
            stack.callback(producers[name].close)
            producers[name].load(_WARM_IN_FLIGHT, warm, 0)

        def measure(in_flight: int) -> dict[str, Any]:
            found = []
            for name, producer in producers.items():
                producer.load(in_flight, 0, _WARM_SECONDS)
                before = sum(cpu_of(brokers.pids).values())
                figures = producer.load(in_flight, 0, seconds)
                took = sum(cpu_of(brokers.pids).values()) - before
                cost = round(took / figures.pop("commits") * 1e6, 1)
                found.append({"in_flight": in_flight, **figures, "cpu_us_per_tx": cost, "producer": name})
            return max(found, key=lambda figures: figures["tx_per_s"])

        yield measure
