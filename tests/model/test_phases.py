"""Every phase of a partition, on the server and in the client, meets every event; afterwards the cluster goes on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.model.app import App, Habits
from tests.model.cluster import SimCluster
from tests.model.observer import Observer
from tests.model.test_log_start import raise_to
from tests.model.test_server import Client
from waltz_core.base.edge import Shutdown
from waltz_core.base.ids import Endpoint, make_req_id
from waltz_core.client.calls import Phase
from waltz_core.server.ownership import OwnershipPhase
from waltz_core.wire import client_messages as messages
from waltz_core.wire.connection import CLIENT_PROTOCOL, Connection

HABITS = Habits(
    by_server=False,
    legacy=False,
    locks=5,
    tail=False,
    pause_ms=100,
    burst=3,
    size=20,
    feed_buffer=100,
    consume_ms=0,
    names=True,
)
_SETTLED = 180_000  # ms until everything must be well again
_COMMITS = 5


class Scene:
    """One partition, three storage nodes, a server that runs and one that may come, one client."""

    def __init__(self, *, replicas: int = 3, habits: Habits = HABITS, follower: bool = False) -> None:
        self.cluster = SimCluster(11, servers=2, preferred=((), (0,)) if follower else ())
        self.world = self.cluster.world
        if follower:
            self.world.zookeeper.with_follower()
        self.world.tolerates = lambda text: True
        self.observer = Observer(self.cluster)
        self.second = self.cluster.servers.pop()
        self.server = self.cluster.servers[0]
        self.app = App(self.observer, 0, habits)
        self.cluster.start(replicas)

    def server_phase(self) -> OwnershipPhase | None:
        if not self.server.alive:
            return None
        partition = self.server.machine.partitions.get(0)
        return None if partition is None else partition.phase

    def client_phase(self) -> Phase | None:
        if not self.app.node.alive:
            return None
        partition = self.app.node.machine.partitions.get(0)
        return None if partition is None else partition.phase

    def client_is_elsewhere(self) -> bool:
        """In another phase than that of a server which does not know that it has the partition."""
        return self.client_phase() is not Phase.NOT_READY

    def reach(self, condition: Callable[[], bool]) -> None:
        assert self.world.run_while(lambda: not condition(), 60_000), "the phase was not reached"

    def go_on(self) -> None:
        """Everything that is down comes back; then appends are committed and applied."""
        world, cluster, app = self.world, self.cluster, self.app
        world.run(world.now + 20_000)
        for node in (self.server, self.second):
            node.thaw()
            if node.alive and node.ended is not None:
                node.crash()
        for storage in cluster.storages:
            if not storage.node.alive:
                storage.start()
        if not self.server.alive:
            self.server.start()
        cluster.set_replicas(cluster.storages)
        world.zookeeper.lag = 0
        app.put_right()
        if not app.node.alive:
            app.start()
        app.resume()
        before = len(self.observer.tokens)
        for _ in range(_COMMITS):
            app.submit(0)

        def settled() -> bool:
            pending = [token for token in self.observer.tokens.values() if not token.outcome]
            applied = app.applied.get(0)
            return not pending and applied is not None and applied + 1 == len(self.observer.logs[0])

        assert world.run_while(lambda: not settled(), _SETTLED, every=50), app.unsettled()
        late = [token for token in self.observer.tokens.values() if token.number >= before]
        assert len(late) == _COMMITS


def later(scene: Scene, ms: int, action: Callable[[], None], alive: Callable[[], bool]) -> None:
    scene.world.after(ms, lambda: None if alive() else action())


def kill_server(scene: Scene) -> None:
    scene.server.crash()
    later(scene, 500, scene.server.start, lambda: scene.server.alive)


def kill_storage(scene: Scene, count: int) -> None:
    for storage in scene.cluster.storages[:count]:
        storage.crash()
        later(scene, 1_000, storage.start, lambda storage=storage: storage.node.alive)  # type: ignore[misc]


def kill_client(scene: Scene) -> None:
    scene.app.node.crash()
    later(scene, 300, scene.app.start, lambda: scene.app.node.alive)


def freeze(scene: Scene) -> None:
    scene.server.freeze()
    scene.world.after(15_000, scene.server.thaw)


def change_replicas(scene: Scene) -> None:
    cluster = scene.cluster
    cluster.set_replicas(cluster.storages[:2])
    scene.world.after(3_000, lambda: cluster.set_replicas(cluster.storages))


def start_second(scene: Scene) -> None:
    if not scene.second.alive:
        scene.cluster.servers.append(scene.second)
        scene.second.start()


def load(scene: Scene) -> None:
    for _ in range(5):
        scene.app.submit(0)


def toggle_feed(scene: Scene) -> None:
    scene.app._toggle_feed(0)
    scene.world.after(200, lambda: scene.app._toggle_feed(0))


def garbage(scene: Scene) -> None:
    if scene.server.alive:
        peer = scene.cluster.raw_peer()
        scene.world.after(50, lambda: peer.send(b"\xff" * 50))


def stranger(scene: Scene) -> None:
    """A client that appends without a mount, feeds from ahead of the log, and asks for what is not there."""
    if not scene.server.alive:
        return
    peer = scene.cluster.raw_peer(Endpoint("server0", 6000))
    connection: Connection[messages.ClientMessage] = Connection(CLIENT_PROTOCOL, "stranger", {4})

    def speak() -> None:
        connection.receive(peer.take_bytes(), [])
        if peer.closed or connection.version is None:
            return
        data = bytearray()
        said: list[messages.ClientMessage] = [
            messages.AppendRequest(make_req_id(9, 1, 0, 1), -1, (1,), (), (), 0, b"", 0),
            messages.TransactionDataRequest(make_req_id(9, 1, 0, 2), 77),
            messages.FlushRequest(make_req_id(9, 1, 0, 3)),
            messages.HighWaterMarkRequest(make_req_id(9, 1, 0, 4)),
            messages.MountRequest(make_req_id(9, 1, 0, 5), 10_000, 0),
            messages.FeedRequest(make_req_id(9, 1, 0, 6), 10_000),
        ]
        for message in said:
            connection.encode(message, data)
        peer.send(bytes(data))

    scene.world.after(20, lambda: peer.send(connection.hello()))
    scene.world.after(100, speak)


EVENTS: dict[str, Callable[[Scene], None]] = {
    "nothing": lambda scene: None,
    "ZooKeeper is away for a moment": lambda scene: scene.world.zookeeper.suspend(scene.server, 300),
    "ZooKeeper is away for long": lambda scene: scene.world.zookeeper.suspend(scene.server, 12_000),
    "the session of the server expires": lambda scene: scene.world.zookeeper.expire(scene.server),
    "the session of the client expires": lambda scene: scene.world.zookeeper.expire(scene.app.node),
    "the server freezes": freeze,
    "the server is killed": kill_server,
    "the server is told to end": lambda scene: scene.server.post(Shutdown()),
    "another server comes": start_second,
    "a storage node dies": lambda scene: kill_storage(scene, 1),
    "all storage nodes lose their power": lambda scene: kill_storage(scene, 3),
    "the replicas change": change_replicas,
    "connections to storage break": lambda scene: scene.world.network.reset_between("server0", "storage0"),
    "the connection of the client breaks": lambda scene: scene.world.network.reset_between("client0", "server0"),
    "the client dies": kill_client,
    "appends come": load,
    "the feed stops and starts": toggle_feed,
    "garbage comes": garbage,
    "a stranger comes": stranger,
}


def server_in(phase: OwnershipPhase) -> Scene:
    scene = Scene(replicas=0 if phase is OwnershipPhase.IDLE else 3)
    if phase is OwnershipPhase.WAITING:
        scene.reach(lambda: scene.server_phase() is OwnershipPhase.READING)
        scene.world.zookeeper.suspend(scene.server, 200)
    scene.reach(lambda: scene.server_phase() is phase)
    scene.app.start()
    return scene


# A partition that is closed is forgotten: the node that served it meets what comes as one that never did.
SERVER_PHASES = [phase for phase in OwnershipPhase if phase is not OwnershipPhase.CLOSED]


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("phase", SERVER_PHASES)
def test_a_partition_of_a_server_meets_every_event_in_every_phase(phase: OwnershipPhase, event: str) -> None:
    scene = server_in(phase)
    EVENTS[event](scene)
    scene.go_on()


def client_in(phase: Phase) -> Scene:
    if phase is Phase.NOT_READY:
        return client_of_one_that_does_not_know()
    scene = Scene(habits=HABITS if phase is not Phase.TAIL else _tail())
    if phase is not Phase.WAITING:
        scene.cluster.until_open()
    scene.app.start()
    if phase is Phase.CLIENT_AHEAD:
        scene.app.stray()
        scene.app.start()
    if phase is Phase.BEFORE_START:
        raise_log_start(scene)
        scene.app.fall_behind()
        scene.app.start()
    scene.reach(lambda: scene.client_phase() is phase)
    return scene


def raise_log_start(scene: Scene) -> None:
    """What the log began with is given up; as whole files go, none does."""
    log = scene.observer.logs[0]
    scene.reach(lambda: scene.client_phase() is Phase.MOUNTED)
    while len(log) < _COMMITS:  # some are refused: they have locks in common
        scene.app.submit(0)
        scene.reach(lambda: all(token.outcome for token in scene.observer.tokens.values()))
    scene.reach(lambda: scene.app.applied[0] == len(log) - 1)
    raise_to(Client(scene.cluster), _COMMITS - 2)


def client_of_one_that_does_not_know() -> Scene:
    """The partition is given to a server whose view of ZooKeeper is behind that of the client.

    It is so for some milliseconds of the handover; when, depends on how long everything else takes.
    """
    for pause in range(0, 300, 10):
        scene = Scene(habits=HABITS, follower=True)
        scene.cluster.until_open()
        scene.app.start()
        give_to_the_second(scene, pause)
        if scene.world.run_while(scene.client_is_elsewhere, 5_000):
            return scene
    raise AssertionError("the phase was not reached")


def give_to_the_second(scene: Scene, pause: int) -> None:
    """After `pause` milliseconds the second server hears nothing new of ZooKeeper any more."""
    zookeeper, second = scene.world.zookeeper, scene.second
    scene.reach(lambda: scene.client_phase() is Phase.MOUNTED)
    start_second(scene)

    def followed() -> bool:
        zookeeper.follow(second)
        return second.name in zookeeper._behind

    scene.reach(followed)
    scene.world.run(scene.world.now + pause)
    zookeeper.lag = 8_000


def _tail() -> Habits:
    return Habits(**{**{name: getattr(HABITS, name) for name in Habits.__annotations__}, "tail": True})


CLIENT_PHASES = [phase for phase in Phase if phase is not Phase.CLOSED]


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("phase", CLIENT_PHASES)
def test_a_partition_of_a_client_meets_every_event_in_every_phase(phase: Phase, event: str) -> None:
    scene = client_in(phase)
    EVENTS[event](scene)
    scene.go_on()
