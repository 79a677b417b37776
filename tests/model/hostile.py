"""Hostile peers of a run: strangers at every port that send valid frames with extreme or lying fields, and worse.

They come one connection at a time, in a share of the seeds and from a stream of their own, so that other seeds mean
what they meant. All of them have a certificate of their own name, and none knows the key of the cluster. What they ask
changes nothing that a stranger may change: no log start, no preferred partitions. What they append under a client id
of their own is known to the observer, as appends whose outcome nobody waits for. So whatever the invariants find is
done to somebody else.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

import attrs

from tests.attacks.messages import (
    PROTOCOLS,
    Identity,
    encoded,
    extreme_frames,
    greeting,
    liars,
    message_types,
    newest,
    opening,
    ordinary,
)
from tests.model.cluster import RawPeer
from tests.model.marks import HOSTILE
from tests.model.observer import Token
from waltz_core.base.ids import Endpoint
from waltz_core.wire.primitives import checksum_of
from waltz_core.wire.table import Codec

if TYPE_CHECKING:
    from tests.model.run import Run

SHARE = 0.15  # of the seeds
_CLIENT_ID = 4_000_000
_KEPT = 4  # connections that it lets stand
_ADMINISTRATION = ("SetLogStartRequest", "AddPreferredPartitionRequest", "RemovePreferredPartitionRequest")
_APPENDS = ("AppendRequest", "NamedAppendRequest")
_APPENDED_MAX = 1_000  # appends of a run, after which it makes no more
_APPENDED_MAX_0132 = 100  # its storage nodes walk their whole log when it is cut: a long one outlasts the wait


class _Peer(RawPeer):
    """The hostile end of one connection."""

    def stop_reading(self) -> None:
        """Take no more bytes."""
        for way in self._node.conns.values():
            way.other.stalled = True

    def reset(self) -> None:
        """Both ends lose the connection."""
        for way in list(self._node.conns.values()):
            way.reset("connection reset")


class Hostile:
    """One hostile peer after another."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._world = run.world
        self._rng = Random(f"{run.seed}/hostile")
        self.on = self._rng.random() < SHARE
        self._storages = run.cluster.storages[run.plan.legacy_storages :]  # those of 0.13.2 withstand nothing
        self._appended_max = _APPENDED_MAX_0132 if run.plan.legacy_storages else _APPENDED_MAX
        self._count = 0
        self._standing: list[_Peer] = []
        self._kinds: tuple[Callable[[str, Identity], bytes], ...] = (
            self._flood,
            self._extremes,
            self._lies,
            self._half,
            self._silence,
            self._appends,
        )
        self._flooded: list[Token] = []  # what it appended

    def start(self, until: int) -> None:
        """Come again and again."""
        if not self.on:
            return
        at = self._world.now + 500
        while at < until:
            self._world.at(at, self._come)
            at += self._rng.randrange(200, 3_000)

    def stop(self) -> None:
        """Go away for good."""
        if any(token.transaction_id is not None for token in self._flooded):
            self._run.observer.marks.reach("appends of a hostile flood were committed")
        self.on = False
        for peer in self._standing:
            peer.close()
        self._standing.clear()

    # ---- one connection --------------------------------------------------------------------------

    def _come(self) -> None:
        """Connect to some port, greet, say something, and end in some way."""
        if not self.on:
            return
        rng, cluster, protocol = self._rng, self._run.cluster, "client"
        endpoint = Endpoint(rng.choice(cluster.servers).name, 6000)
        if self._storages and rng.random() < 0.4:
            storage = rng.choice(self._storages)
            protocol = rng.choice(("storage", "admin"))
            endpoint = storage.data_endpoint if protocol == "storage" else storage.admin_endpoint
        self._count += 1
        peer = _Peer(self._world, f"{HOSTILE}{self._count}", endpoint, HOSTILE)
        self._standing.append(peer)
        partition = rng.randrange(cluster.partitions)
        who = Identity(_CLIENT_ID, -7, partition, self._count, partitions=cluster.partitions)
        kind = rng.choice(self._kinds)
        data = kind(protocol, who)
        self._world.trace(f"{HOSTILE}{self._count}: {kind.__name__} at {endpoint}, {len(data)} bytes")
        self._run.observer.counts[f"hostile{kind.__name__}"] += 1
        slow = rng.random() < (0.5 if kind == self._appends else 0.2)
        self._world.after(rng.randrange(10, 60), lambda: self._say(peer, data, slow=slow))
        end = rng.choice((self._close, self._reset, self._stand))
        self._world.after(rng.randrange(100, 4_000), lambda: end(peer))

    def _say(self, peer: _Peer, data: bytes, *, slow: bool) -> None:
        if peer.connected and not peer.closed and peer in self._standing:
            peer.send(data)
            if slow:  # and never reads the answers
                peer.stop_reading()

    def _close(self, peer: _Peer) -> None:
        self._note(peer)
        if peer in self._standing:
            self._standing.remove(peer)
            peer.close()

    def _reset(self, peer: _Peer) -> None:
        self._note(peer)
        if peer in self._standing:
            self._standing.remove(peer)
            peer.reset()

    def _stand(self, peer: _Peer) -> None:
        self._note(peer)
        if len(self._standing) > _KEPT:
            self._close(self._standing[0])

    def _note(self, peer: _Peer) -> None:
        if peer.closed:
            self._run.observer.marks.reach("a hostile connection was ended by the other side")
        elif peer.take_bytes():
            self._run.observer.marks.reach("a hostile peer was answered")

    # ---- what it says ----------------------------------------------------------------------------

    def _silence(self, protocol: str, who: Identity) -> bytes:
        return greeting(protocol, [max(PROTOCOLS[protocol].tables)])[: self._rng.choice((0, 3, 1_000))]

    def _flood(self, protocol: str, who: Identity) -> bytes:
        """One type of request, many times."""
        version = max(PROTOCOLS[protocol].tables)
        asked = [codec for name, codec in newest(protocol).items() if name.endswith("Request")]
        codec = self._rng.choice([one for one in asked if self._harmless(one) and one.cls.__name__ not in _APPENDS])
        frame = encoded(PROTOCOLS[protocol], version, ordinary(codec, who))
        assert frame is not None
        return self._opened(protocol, version, who) + frame * self._rng.choice((100, 1_500))

    def _appends(self, protocol: str, who: Identity) -> bytes:
        """Appends that commit, more than anybody's part; of another kind of request where nothing can be appended."""
        if protocol != "client" or len(self._flooded) >= self._appended_max:
            return self._flood(protocol, who)
        version, observer = max(PROTOCOLS[protocol].tables), self._run.observer
        who = attrs.evolve(who, generation=self._generation(who.partition))
        codec = newest(protocol)[self._rng.choice(_APPENDS)]
        frames = [self._opened(protocol, version, who)]
        for number in range(min(self._rng.choice((40, 600)), self._appended_max - len(self._flooded))):
            name = len(observer.tokens)
            data = f"{HOSTILE}{self._count}/{name}/".encode()
            token = Token(name, "", who.partition, None, ((), (), ()), data)
            observer.submitted(token)
            token.outcome = "unknown"
            self._flooded.append(token)
            append = attrs.evolve(
                ordinary(codec, attrs.evolve(who, sequence=number)),
                header=name & 0xFFFF,
                data=data,
                checksum=checksum_of(data),
            )
            frame = encoded(PROTOCOLS[protocol], version, append)
            assert frame is not None
            frames.append(frame)
        return b"".join(frames)

    def _extremes(self, protocol: str, who: Identity) -> bytes:
        """Some message types with fields at their extremes."""
        types = [(version, codec) for version, codec in message_types(protocol) if self._harmless(codec)]
        version, _ = self._rng.choice(types)
        chosen = self._rng.sample([codec for one, codec in types if one == version], 3)
        frames = [frame for codec in chosen for frame in extreme_frames(protocol, version, codec, who)]
        return self._opened(protocol, version, who) + b"".join(self._rng.sample(frames, min(8, len(frames))))

    def _lies(self, protocol: str, who: Identity) -> bytes:
        """Requests under numbers of others; appends under the very numbers that a client would use."""
        version = self._rng.choice(list(PROTOCOLS[protocol].tables))
        liar = self._rng.choice(liars(who, {"client_id": self._victim()}))
        frames = []
        for one, codec in message_types(protocol):
            name = codec.cls.__name__
            if one != version or not name.endswith("Request") or not self._harmless(codec):
                continue
            as_whom = self._forged(who) if name in _APPENDS else liar
            frames.append(encoded(PROTOCOLS[protocol], version, ordinary(codec, as_whom)))
        first = self._opened(protocol, version, who)
        return first + b"".join(frame for frame in frames if frame is not None)

    def _half(self, protocol: str, who: Identity) -> bytes:
        """A frame that never ends."""
        version, codec = self._rng.choice(message_types(protocol))
        frame = encoded(PROTOCOLS[protocol], version, ordinary(codec, who))
        assert frame is not None
        return self._opened(protocol, version, who) + frame[: self._rng.randrange(1, len(frame))]

    def _opened(self, protocol: str, version: int, who: Identity) -> bytes:
        frames = [encoded(PROTOCOLS[protocol], version, message) for message in opening(protocol, who)]
        return greeting(protocol, [version]) + b"".join(frame for frame in frames if frame is not None)

    def _harmless(self, codec: Codec[Any]) -> bool:
        """A stranger may do these, where there are no roles; they would change the run for others."""
        return codec.cls.__name__ not in _ADMINISTRATION

    def _victim(self) -> int:
        """The id of a client that lives, or of nobody."""
        living = [app.node.machine.client_id for app in self._run.apps if app.node.alive]
        return self._rng.choice(living) if living else 1

    def _forged(self, who: Identity) -> Identity:
        """What a victim's next append would say."""
        generation = self._generation(who.partition)
        return attrs.evolve(who, client_id=self._victim(), generation=generation, sequence=1_000_000 + self._count)

    def _generation(self, partition: int) -> int:
        """That of a partition which some server serves."""
        servers = [server for server in self._run.cluster.servers if server.alive]
        partitions = [one for server in servers for one in server.machine.partitions.items()]
        return next((held.generation for number, held in partitions if number == partition), 1)
