"""A transcript of a small simulated cluster: what each process got, and what it did about it, as a document.

One entry is one step of one machine: `←` is what it got, `→` what it sent, and the rest what it did on its disk, in
ZooKeeper and for its application. Equal lines about several peers are one line, and equal entries of several processes
in one millisecond one entry. Every message and every write takes exactly one millisecond, so a scenario has one order.
"""

from __future__ import annotations

import random
import textwrap
from collections.abc import Callable, Sequence
from typing import Any
from zlib import crc32

import attrs

from tests.lock_names import pack_names
from tests.model import transcript_words as words
from waltz_core.base.contract import Tickets
from waltz_core.base.edge import Closed, Received, Report, Send, ZkCreate, ZkDelete, ZkSet, ZkState, ZkStateChanged
from waltz_core.base.lock import Lock, signed
from waltz_core.client.calls import Committed, Consumed, Deliver, Failed, Open, Submit
from waltz_core.client.membership import ZkMembership
from waltz_core.client.node import ClientNode
from waltz_core.client.settings import ClientSettings
from waltz_core.storage.effects import DiskBatch, DiskRead, StorageReady
from waltz_core.wire.client_codec import CLIENT_PROTOCOL
from waltz_core.wire.client_messages import AppendRefused, FeedData
from waltz_core.wire.frame import HEADER, HEADER_SIZE, HELLO_MAGIC
from waltz_core.wire.storage_codec import STORAGE_PROTOCOL
from waltz_testing.simulation.cluster import ROOT, SimCluster
from waltz_testing.simulation.world import SimNode

_WIDTH = 118
_LEFT_OUT = """
    Left out, since it is the same in every journey: greetings of connections, how clients find the cluster, feed
    windows, requests for payloads and their answers, reads of ZooKeeper, answers of disks and of ZooKeeper that say no
    more than "done", keep-alives, and steps without anything else. `name#n` is the n-th request of a client. Times are
    in milliseconds."""

_PROTOCOLS: dict[int, Any] = {protocol.magic: protocol for protocol in (CLIENT_PROTOCOL, STORAGE_PROTOCOL)}


def messages(data: bytes) -> list[Any]:
    """The messages in whole frames, greetings and keep-alives left out."""
    found: list[Any] = []
    at = 0
    while at < len(data):
        magic, version, length = HEADER.unpack_from(data, at)
        start, at = at + HEADER_SIZE, at + HEADER_SIZE + length
        if magic != HELLO_MAGIC and length:
            found.append(_PROTOCOLS[magic].tables[version].decoders[data[start]](data, start, at)[0])
    assert at == len(data), "a piece of a frame"
    return found


@attrs.define
class Entry:
    """One step of one process, or of several that did the same."""

    time: int
    names: list[str]
    lines: list[str]


class Client:
    """A client and its application, which applies at once what it gets."""

    def __init__(self, transcript: Transcript, number: int) -> None:
        self.name = f"client{number}"
        self.mark = -1
        self.committed: dict[str, int] = {}
        self.failed: dict[str, Failed] = {}
        self._transcript = transcript
        self.node = SimNode(transcript.world, self.name, self._machine)
        self.node.on_effect = self._hear
        self.node.start()
        self.node.post(Open(0, self.mark, True))

    def _machine(self) -> ClientNode:
        rng = random.Random(self.name)
        return ClientNode(ZkMembership(ROOT, Tickets(), rng), ClientSettings(), rng)

    def append(self, text: str, lock: Lock | None = None) -> None:
        """Append a transaction that was decided from what has been applied."""
        data = text.encode()
        locks = () if lock is None else (lock.wire(),)
        names = b"" if lock is None else pack_names([(lock.name, lock.id)])
        self.node.post(Submit(0, text, self.mark, locks, (), (), 0, data, signed(crc32(data)), names))

    def _hear(self, effect: Any) -> None:
        match effect:
            case Deliver(run=run):
                self.mark = run[-1].transaction_id
                self.node.post(Consumed(0, self.mark))
            case Committed(outcomes=outcomes):
                self.committed.update((str(token), number) for token, number in outcomes)
            case Failed(token=token):
                self.failed[str(token)] = effect
            case _:
                pass


class Transcript:
    """A cluster of one partition on three storage nodes, and what happens in it from `begin` on."""

    def __init__(self, title: str, *, servers: int = 1, clients: int = 1, seed: int = 1) -> None:
        self.cluster = SimCluster(seed, servers=servers)
        self.world = self.cluster.world
        self.world.network.latency = self.world.zookeeper.latency = (1, 1)
        self.world.network.piece = 1 << 30
        for storage in self.cluster.storages:
            storage.disk.latency = (1, 1)
        self.cluster.start()
        self.cluster.until_open()
        self.clients: list[Client] = []
        for number in range(clients):
            self.clients.append(Client(self, number))
            self.world.run(self.world.now + 100)
        self._text = [title, "=" * len(title), ""]
        self._entries: list[Entry] = []
        self._peers: dict[tuple[str, int, int], str] = {}  # process, its life, connection → the other end
        self._requests: dict[tuple[str, str, int], str] = {}  # server, storage node, sequence number → in words
        self._begin = 0
        self.refused: set[str] = set()  # clients that got a refusal
        self.committed = -1  # highest transaction that a server has fed

    # ---- the script --------------------------------------------------------------------------------

    def begin(self, introduction: str) -> None:
        """What happens from now on is recorded."""
        self._paragraph(introduction)
        self._paragraph(_LEFT_OUT)
        self._begin = self.world.now
        self.world.on_step = self._on_step

    def phase(self, heading: str, comment: str) -> None:
        """What follows has a heading and a few words about it."""
        self._flush()
        self._text += [heading, "-" * len(heading), ""]
        self._paragraph(comment)

    def run(self, milliseconds: int) -> None:
        """Let time pass."""
        self.world.run(self.world.now + milliseconds)

    def until(self, condition: Callable[[], bool], limit: int = 20_000) -> None:
        """Let time pass until something is so, and to the end of that moment."""
        assert self.world.run_while(lambda: not condition(), limit), "it never came to that"
        self.world.run(self.world.now)

    def note(self, name: str, line: str) -> None:
        """Something that the script does to a process."""
        self._add(name, [line])

    def text(self) -> str:
        """The whole document."""
        self._flush()
        return "\n".join(self._text).rstrip() + "\n"

    # ---- recording ---------------------------------------------------------------------------------

    def _on_step(self, node: SimNode, events: list[Any], out: list[Any]) -> None:
        got = _gathered([pair for event in events for pair in self._got(node, event)], "←")
        did = _gathered([pair for effect in out for pair in self._did(node, effect)], "→")
        if got or did:
            self._add(node.name, got + did)

    def _add(self, name: str, lines: list[str]) -> None:
        time = self.world.now - self._begin
        for entry in reversed(self._entries):
            if entry.time != time:
                break
            if entry.lines == lines:
                entry.names.append(name)
                return
        self._entries.append(Entry(time, [name], lines))

    def _peer(self, node: SimNode, conn: int) -> str:
        key = node.name, node.epoch, conn
        if conn in node.conns:
            self._peers[key] = node.conns[conn].target.name
        return self._peers.get(key, "")

    def _got(self, node: SimNode, event: Any) -> list[tuple[str, str]]:
        """(peer, text) of what an event says; without a peer, the text is a line by itself."""
        match event:
            case Received(conn, data):
                peer = self._peer(node, conn)
                got = messages(data)
                if any(isinstance(message, AppendRefused) for message in got):
                    self.refused.add(node.name)
                return [(peer, text) for message in got if (text := self._words(node.name, peer, message))]
            case Closed(conn, reason):
                peer = self._peer(node, conn)
                return [(peer, f"the connection is lost: {reason}")] if peer else []
            case ZkStateChanged(state) if state is not ZkState.CONNECTED:
                return [("ZooKeeper", f"the session is {state.value}")]
            case Submit(token=token):
                return [("application", f"append {token!r}")]
            case _:
                return []

    def _did(self, node: SimNode, effect: Any) -> list[tuple[str, str]]:
        match effect:
            case Send(conn, data):
                peer = self._peer(node, conn)
                sent = messages(bytes(data))
                fed = [message.transaction_id for message in sent if isinstance(message, FeedData)]
                self.committed = max([self.committed, *fed])
                return [(peer, text) for message in sent if (text := self._words(node.name, peer, message))]
            case DiskBatch():
                return [("", words.disk_batch(effect))]
            case DiskRead():
                return [("", words.disk_read(effect))]
            case StorageReady():
                return [("", "serves again")]
            case ZkSet() | ZkCreate() | ZkDelete():
                return [("ZooKeeper", words.znode_write(effect))]
            case Report(text=text):
                return [("", f"log: {text}")]
            case _:
                told = words.told(effect)
                return [("application", told)] if told else []

    def _words(self, name: str, peer: str, message: Any) -> str | None:
        if not {name, peer} & {storage.node.name for storage in self.cluster.storages}:
            return words.client_message(message, self._client_name)
        server, storage = (peer, name) if name.startswith("storage") else (name, peer)
        key = server, storage, message.seq_num
        if type(message).__name__.endswith("Request"):
            request = words.storage_request(message, self._client_name)
            self._requests[key] = request or ""
            return request
        request = self._requests[key]
        return words.storage_answer(message, request) if request else None

    def _client_name(self, client_id: int) -> str:
        return f"client{client_id - 1}"  # ids are given out from 1 on, in the order in which clients begin

    # ---- the document ------------------------------------------------------------------------------

    def _paragraph(self, text: str) -> None:
        self._text += [*textwrap.wrap(" ".join(text.split()), _WIDTH), ""]

    def _flush(self) -> None:
        width = max((len(_joined(entry.names)) for entry in self._entries), default=0)
        for entry in self._entries:
            margin = f"{entry.time:>6}  {_joined(entry.names):<{width}}  "
            for line in entry.lines:
                self._text += textwrap.wrap(
                    line,
                    _WIDTH,
                    initial_indent=margin,
                    subsequent_indent=" " * (len(margin) + 4),
                    break_long_words=False,
                    break_on_hyphens=False,
                )
                margin = " " * len(margin)
        if self._entries:
            self._text.append("")
        self._entries.clear()


def _gathered(pairs: Sequence[tuple[str, str]], arrow: str) -> list[str]:
    """One line per text, with all peers that it concerns."""
    peers: dict[str, list[str]] = {}
    for peer, text in pairs:
        peers.setdefault(text, []).append(peer)
    return [f"{arrow} {_joined(names)}: {text}" if all(names) else text for text, names in peers.items()]


def _joined(names: Sequence[str]) -> str:
    """`storage0, storage2` as `storage0,2`."""
    distinct = sorted(set(names))
    stems = {name.rstrip("0123456789") for name in distinct}
    if len(stems) == 1 and len(distinct) > 1:
        stem = stems.pop()
        return stem + ",".join(name.removeprefix(stem) for name in distinct)
    return ", ".join(distinct)
