"""The five journeys that matter, as scripts whose transcripts stand in `testdata`."""

from __future__ import annotations

from collections.abc import Callable

from tests.model.transcript import Transcript
from waltz_core.base.lock import Lock

ACCOUNT = Lock("account", 7)


def append() -> str:
    """An append, from the application to every client."""
    transcript = Transcript("An append", clients=2)
    writer, reader = transcript.clients
    transcript.cluster.storages[2].disk.latency = (6, 6)
    transcript.begin(
        """One server (server0) owns the partition, three storage nodes hold a replica each, two clients have mounted
        the partition. The disk of storage2 is slower than the others."""
    )
    transcript.phase(
        "From the application to the disks",
        """The server checks the lock, gives the transaction its id and sends it to every replica at once. A storage
        node answers when the record is synced; the index is written along, and can be made anew from the segment.""",
    )
    writer.append("deposit 100 to account 7", ACCOUNT)
    transcript.until(lambda: transcript.committed == 0)
    transcript.phase(
        "Committed by two of three",
        """Two votes are a quorum, so the server feeds the transaction to every client that has mounted the partition.
        There is no answer to an append: the writer sees its own request id in the feed, and both clients apply in one
        order. The feed carries no payload; who needs it asks for it.""",
    )
    transcript.until(lambda: reader.mark == 0)
    transcript.phase("The third vote", "It comes too late to matter. The replica is as complete as the others.")
    transcript.run(20)
    assert writer.committed == {"deposit 100 to account 7": 0}
    return transcript.text()


def conflict() -> str:
    """Two clients decide from the same state; the later one decides again."""
    transcript = Transcript("A conflict", clients=2)
    first, second = transcript.clients
    first.append("deposit 100 to account 7", ACCOUNT)
    transcript.run(50)
    transcript.begin(
        """Two clients have applied transaction 0, by which account 7 holds 100. Both want to withdraw 80, and both
        decide from that state. Their appends name a write lock on the account and the mark they were decided at."""
    )
    transcript.phase(
        "Both withdraw",
        """The lock table knows that transaction 0 was the last to write the account, which is not above the mark of
        either append. The first one that arrives gets id 1 and takes the lock, although it is not committed yet. The
        second one was decided without it, and is refused at once.""",
    )
    first.append("withdraw 80 (client0)", ACCOUNT)
    transcript.run(1)
    second.append("withdraw 80 (client1)", ACCOUNT)
    transcript.until(lambda: second.name in transcript.refused)
    transcript.phase(
        "The refusal waits for its reason",
        """client1 keeps the refusal back until transaction 1 has arrived. Had its application decided again before
        that, it would have decided from the same old state.""",
    )
    transcript.until(lambda: bool(second.failed))
    transcript.phase(
        "Decided again",
        """Only 20 are left, so the application withdraws 20 instead. This append was decided at mark 1, where the
        last write of the account stands, so the lock is free for it.""",
    )
    second.append("withdraw 20 (client1)", ACCOUNT)
    transcript.until(lambda: first.mark == second.mark == 2)
    transcript.run(5)
    assert first.committed == {"deposit 100 to account 7": 0, "withdraw 80 (client0)": 1}
    assert second.committed == {"withdraw 20 (client1)": 2}
    return transcript.text()


def failover() -> str:
    """The owner dies with an append in flight that a quorum has written."""
    transcript = Transcript("Fail-over", servers=2)
    (client,) = transcript.clients
    owner = transcript.cluster.servers[0]
    assert owner.machine.partitions
    client.append("deposit 100 to account 7", ACCOUNT)
    transcript.run(50)
    transcript.begin(
        """server0 owns the partition, in store session 0; server1 stands by. Transaction 0 is committed. server0 will
        die when a quorum has written transaction 1, and before anybody has heard of it."""
    )
    transcript.phase(
        "The owner dies",
        """storage0 and storage1 have written transaction 1 and vote for it, when server0 is no longer there to count.
        A quorum has it, so it is committed, although nobody knows. storage2 never got it. (Once a second a storage
        node writes a durable mark, which tells a torn write from damage after a power failure.)""",
    )
    transcript.world.network.cut.add((owner.name, "storage2"))
    client.append("withdraw 30 from account 7", ACCOUNT)
    ends = [transcript.cluster.storages[number].node.machine for number in (0, 1)]
    transcript.until(lambda: all(machine.replicas[0].max_id == 1 for machine in ends))
    transcript.note(owner.name, "is killed")
    owner.crash()
    transcript.run(10)
    transcript.phase(
        "Another owner",
        """ZooKeeper would give up the session of server0 after its time-out, here 4 seconds, and its registration with
        it. server1 need not wait: its connection to server0 has ended, and who dials server0 again is refused. So it
        deletes the registration. The coordinator, which is now server1, writes a new assignment with the next
        generation. The client sees it, and mounts at the new owner, which answers when its session is open. The owner
        announces session 1 in ZooKeeper.""",
    )
    path = "/waltz/store/partition/0"
    before = transcript.world.zookeeper.read(path)
    transcript.until(lambda: transcript.world.zookeeper.read(path) != before)
    transcript.phase(
        "Recovery",
        """A replica that has answered the greeting obeys no older session, even after a restart: the fence is on its
        disk before the answer leaves. The logs of storage0 and storage1 end at 1, that of storage2 at 0. Two of three
        support 1, so that is where the log ends, and storage2 gets a copy. The states in ZooKeeper name those
        replicas as members of the session that are level, before its first append; storage2 is closed at 1 until it
        is level too.""",
    )
    transcript.until(lambda: client.mark == 1)
    transcript.phase("Afterwards", "An append in the new session, with the next id.")
    client.append("withdraw 50 from account 7", ACCOUNT)
    transcript.until(lambda: client.mark == 2)
    transcript.run(5)
    assert client.committed["withdraw 30 from account 7"] == 1
    return transcript.text()


def recovery() -> str:
    """A server starts anew while one replica lags and another one is gone."""
    transcript = Transcript("Recovery with a lagging replica")
    (client,) = transcript.clients
    (server,) = transcript.cluster.servers
    lost, complete, lagging = transcript.cluster.storages

    def healthy() -> bool:
        return bool(server.machine.snapshot(server.clock).partitions[0].healthy)

    client.append("transaction 0")
    transcript.run(50)
    lagging.crash(power=False)
    transcript.run(50)
    for number in (1, 2, 3):
        client.append(f"transaction {number}")
        transcript.until(lambda number=number: client.mark == number)  # type: ignore[misc]  # bound now
    lost.crash(power=False)
    transcript.run(50)
    lagging.start()
    transcript.until(lambda: lagging.ready)
    transcript.begin(
        """storage2 went away when transaction 0 was committed. The server went on in session 1 with storage0 and
        storage1, which committed transactions 1 to 3. Then storage0 went away for good. A single replica of three was
        left, and the partition waited. Now storage2 is back, and has not seen session 1."""
    )
    transcript.phase(
        "Where the log ends",
        """What storage2 holds is good up to its closing mark, 0, as the states in ZooKeeper say. storage1 took part
        in the last session and ends at 3. One of three replicas supports 3, and storage0, if it came back, could make
        it a quorum: so 3 may have been committed, and recovery must not decide below it. It copies 1 to 3 to storage2
        instead. That raises the support of 3 to a quorum, whatever storage0 holds, and spreads only what session 1
        has written.""",
    )
    assert not healthy()
    transcript.until(healthy)
    transcript.phase(
        "Open",
        """Both replicas are level, the states are written, and the session takes appends. Should storage0 return, it
        counts up to its closing mark only, and is made level like storage2.""",
    )
    client.append("transaction 4")
    transcript.until(lambda: client.mark == 4)
    assert [storage.node.machine.replicas[0].max_id for storage in (complete, lagging)] == [4, 4]
    return transcript.text()


def restart() -> str:
    """A storage node loses its power in the middle of a write, and comes back."""
    transcript = Transcript(
        "Restart of a storage node", seed=39
    )  # one in which the power fails in the middle of the write
    (client,) = transcript.clients
    node = transcript.cluster.storages[2]
    client.append("transaction 0")
    transcript.run(2_000)
    transcript.begin(
        "Transaction 0 is committed, on all three replicas. storage2 loses its power while it writes transaction 1."
    )
    transcript.phase(
        "The power fails",
        """storage2 has been asked to write transaction 1, and has not synced it: it has not voted, and what is on its
        disk is a matter of chance.""",
    )
    node.disk.latency = (2, 2)
    client.append("transaction 1")
    transcript.run(3)
    transcript.note(node.node.name, "loses its power")
    node.crash(power=True)
    transcript.phase(
        "The others go on",
        """A lost replica ends the store session, although two of three are left: a replica never rejoins the session
        it was lost from, so a restart cannot hide a newer session from an older one. Recovery takes a few
        milliseconds. Transaction 1 is on both replicas that are left, and therefore committed.""",
    )
    transcript.until(lambda: client.mark == 1)
    transcript.phase(
        "The node opens its files",
        """The control file says which partitions the node holds, and which session marked each of them last. Each
        file is written and synced as it was read, since what a crashed process wrote may not be durable yet. Then
        every record of the last segment is verified. What does not verify is cut if it is above the durable mark and
        looks like a torn write: its end or a whole sector is missing. Anything else would be damage, which is
        repaired from another replica.""",
    )
    node.start()
    transcript.until(lambda: node.ready)
    transcript.phase(
        "It joins the session",
        """The server dials again and greets the replica. It cuts what storage2 may hold above 1, where session 0 was
        closed, copies what is missing, and writes the states: from then on storage2 takes part in session 1, and its
        votes count.""",
    )
    transcript.run(200)
    assert node.node.machine.replicas[0].max_id == 1
    return transcript.text()


JOURNEYS: dict[str, Callable[[], str]] = {
    "append": append,
    "conflict": conflict,
    "failover": failover,
    "recovery": recovery,
    "restart": restart,
}
