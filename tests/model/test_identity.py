"""Client ids and request ids of others: who may use them, and what a hostile client gets that tries."""

from __future__ import annotations

from binascii import crc32

import pytest

from tests.model.cluster import SimCluster
from tests.model.test_security import ended, guarded, told
from tests.model.test_server import Client, opened
from waltz_core.access.roles import EVERY, NO_ROLES, Role, Roles, Rule
from waltz_core.base.ids import ReqId, make_req_id
from waltz_core.wire import client_messages as messages

HIGHEST = 2**31 - 1
"""No connection number is above it: who mounted with it could not be replaced for as long as it stays."""


def take_over(client: Client, sequence: int = HIGHEST) -> ReqId:
    """Mount with a connection number of one's own choice."""
    req_id = client.req_id()
    client.send(messages.MountRequest(req_id, -1, sequence))
    return req_id


def mounted(client: Client, req_id: ReqId) -> None:
    ready = messages.MountResponse(req_id, messages.PartitionState.READY)
    client.wait(lambda: ready in client.received)


def commits(client: Client, data: bytes) -> None:
    """An append of this client comes back in its feed."""
    req_id = client.append(data)
    client.wait(lambda: any(one.req_id == req_id for one in client.feed()))


def forged(client: Client, victim: int, sequence: int, *, named: bool = False) -> ReqId:
    """Append under the request id of another client."""
    req_id = make_req_id(victim, client.generation, 0, sequence)
    data = b"forged"
    checksum = crc32(data)
    signed = checksum - (1 << 32) if checksum >> 31 else checksum
    kind = messages.NamedAppendRequest if named else messages.AppendRequest
    client.send(kind(req_id, -1, (), (), (), 0, data, signed))
    return req_id


def test_another_certificate_cannot_take_over_a_live_client_id() -> None:
    cluster = opened()
    victim, hostile = Client(cluster, certificate="orders"), Client(cluster, certificate="stranger")
    victim.mount()
    refused = take_over(hostile)
    hostile.wait(lambda: hostile.received)
    answer = hostile.received[-1]
    assert (answer.req_id, answer.code) == (refused, messages.ErrorCode.NOT_ALLOWED)
    assert answer.message == "certificate 'stranger' at peer5 may not mount with client id 7, which is another client's"
    assert told(cluster, "certificate 'stranger' at peer5 may not mount with client id 7: it is in use by 'orders'")
    commits(victim, b"mine")
    assert not hostile.feed()


def test_an_older_client_that_claims_the_id_of_another_is_closed() -> None:
    cluster = opened()
    victim, hostile = Client(cluster, certificate="orders"), Client(cluster, certificate="stranger", version=4)
    victim.mount()
    take_over(hostile)
    assert ended(cluster, hostile)
    commits(victim, b"mine")


def test_a_refused_connection_does_not_append_as_its_victim() -> None:
    """Both connections have the same number: as far as numbers go, both would be valid."""
    cluster = opened()
    victim, hostile = Client(cluster, certificate="orders"), Client(cluster, certificate="stranger")
    mounted(victim, take_over(victim, 5))
    take_over(hostile, 5)
    hostile.append(b"forged")
    victim.append(b"mine")
    victim.send(messages.FeedRequest(victim.req_id(), -1))
    victim.wait(lambda: victim.feed())
    reader = Client(cluster, client_id=8)
    reader.mount()
    assert len(reader.feed()) == 1


def test_the_same_name_takes_over_at_once_by_its_connection_number() -> None:
    cluster = opened()
    before, after = Client(cluster, certificate="orders"), Client(cluster, certificate="orders")
    mounted(before, take_over(before, 1))
    mounted(after, take_over(after, 2))
    after.send(messages.FeedRequest(after.req_id(), -1))
    commits(after, b"mine")
    refused = before.ask(messages.NamedAppendRequest(before.req_id(), -1, (), (), (), 0, b"", 0))
    assert refused.refusal == messages.Refusal.NOT_MOUNTED


def test_a_claim_ends_with_the_last_of_its_connections() -> None:
    cluster = opened()
    first, second, other = (Client(cluster, certificate=name) for name in ("orders", "orders", "stranger"))
    mounted(first, take_over(first, 1))
    mounted(second, take_over(second, 2))
    first.peer.close()
    assert ended(cluster, first)
    assert other.ask(messages.MountRequest(other.req_id(), -1, 3)).code == messages.ErrorCode.NOT_ALLOWED
    second.peer.close()
    assert ended(cluster, second)
    cluster.world.run_while(lambda: True, 1_000)  # until the server has heard of it, too
    mounted(other, take_over(other, 3))


def test_without_certificates_the_rule_of_connection_numbers_stands_alone() -> None:
    cluster = opened()
    before, after = Client(cluster, certificate=""), Client(cluster, certificate="")
    mounted(before, take_over(before, 1))
    mounted(after, take_over(after, 2))


def test_a_mount_that_a_role_forbids_claims_nothing() -> None:
    cluster = guarded(Rule("reader", Role.CLIENT, read=((1, 1),)), Rule("orders", Role.CLIENT, write=EVERY))
    reader, victim = Client(cluster, certificate="reader"), Client(cluster, certificate="orders")
    take_over(reader)
    reader.wait(lambda: reader.received)
    victim.mount()
    commits(victim, b"mine")


def test_a_proxy_mounts_and_appends_for_others() -> None:
    cluster = guarded(
        Rule("orders", Role.CLIENT, write=EVERY),
        Rule("proxy", Role.PROXY, write=EVERY),
    )
    client, proxy = Client(cluster, certificate="orders"), Client(cluster, certificate="proxy")
    client.mount()
    mounted(proxy, take_over(proxy, 1))
    proxy.send(messages.FeedRequest(proxy.req_id(), -1))
    req_id = forged(proxy, 8, 1)
    proxy.wait(lambda: any(one.req_id == req_id for one in proxy.feed()))


@pytest.mark.parametrize("version", [4, 5])
def test_an_append_under_the_request_id_of_another_client_is_not_in_the_log(version: int) -> None:
    cluster = opened()
    victim = Client(cluster, certificate="orders")
    hostile = Client(cluster, certificate="stranger", client_id=8, version=version)
    for client in (victim, hostile):
        client.mount()
    guess = victim.sequence + 1
    refused = forged(hostile, victim.client_id, guess)
    commits(hostile, b"its own")
    assert told(cluster, "refused appends of certificate 'stranger' at peer5, mounted as client 8")
    assert told(cluster, "under request ids of client 7")
    if version == 5:
        text = "the request id is of client 7, this connection mounted as client 8"
        assert messages.ErrorResponse(refused, messages.ErrorCode.NOT_ALLOWED, text) in hostile.received
    assert victim.append(b"mine") == refused
    victim.wait(lambda: len(victim.feed()) == 2)
    assert [one.req_id for one in victim.feed()][1] == refused
    answer = victim.ask(messages.TransactionDataRequest(victim.req_id(), 1))
    assert answer.data == b"mine"


def test_a_forged_append_with_names_is_refused_in_its_own_words() -> None:
    cluster: SimCluster = opened()
    hostile = Client(cluster, client_id=8)
    hostile.mount()
    refused = forged(hostile, 7, 1, named=True)
    hostile.wait(lambda: any(isinstance(one, messages.AppendRefused) for one in hostile.received))
    answer = hostile.received[-1]
    assert (answer.req_id, answer.refusal) == (refused, messages.Refusal.NOT_ALLOWED)
    assert "is of client 7" in answer.message


@pytest.mark.parametrize(
    ("trusted", "roles", "believed"), [(False, False, False), (True, False, True), (True, True, False)]
)
def test_who_says_that_it_is_a_proxy_is_believed_where_the_server_is_told_to_and_has_no_roles(
    trusted: bool, roles: bool, believed: bool
) -> None:
    rules = Roles([Rule("*", Role.CLIENT, write=EVERY)]) if roles else NO_ROLES
    cluster = opened(server_options={"proxies_trusted": trusted, "roles": rules})
    hostile = Client(cluster, certificate="stranger", client_id=8)
    bit = messages.ClientCapability.CARRIES_OTHERS
    hostile.ask(messages.ClusterInfoRequest(hostile.req_id(), False, False, bit))
    hostile.mount()
    under = forged(hostile, 7, 1)
    commits(hostile, b"its own")
    assert (under in [one.req_id for one in hostile.feed()]) is believed
    assert told(cluster, "under request ids of client 7") is not believed


def test_against_0_13_2_both_attacks_succeed() -> None:
    """What the rules are there for."""
    cluster = opened(servers_0132=(0,))
    victim, hostile = Client(cluster, certificate="orders"), Client(cluster, certificate="stranger")
    victim.mount()
    mounted(hostile, take_over(hostile))
    forger = Client(cluster, client_id=8)
    forger.mount()
    req_id = forged(forger, 9, 1)
    forger.wait(lambda: [one.req_id for one in forger.feed()] == [req_id])
    victim.append(b"dropped without a word")
    cluster.world.run(cluster.world.now + 5_000)
    own = forger.append(b"behind it")
    forger.wait(lambda: [one.req_id for one in forger.feed()] == [req_id, own])
