"""Who is light, and the pace that the others keep beside it."""

from __future__ import annotations

from waltz_core.server.light import HEAVY_MS, LIGHT_MS, LightClients

A, B, BULK = 1, 2, 3
PACE, BURST = 10, 100


def lights(*clients: int, now: int = 0) -> LightClients:
    clients_ = LightClients(PACE, BURST, lambda _: 0)
    for client in clients:
        clients_.sent(now, client, little=True)
    return clients_


def test_who_keeps_little_under_way_is_light_for_a_while_and_the_others_are_not() -> None:
    known = lights(A)
    assert known.any(LIGHT_MS - 1)
    assert known.others_wait(0, BULK)
    assert not known.others_wait(0, A)
    assert not known.any(LIGHT_MS)
    assert not known.others_wait(LIGHT_MS, BULK)


def test_the_first_light_client_is_told_of_and_no_further_one() -> None:
    known = LightClients(PACE, BURST, lambda _: 0)
    assert known.sent(0, A, little=True)
    assert not known.sent(1, A, little=True)
    assert not known.sent(2, B, little=True)
    assert known.sent(2 + LIGHT_MS, B, little=True)


def test_who_waits_stays_light_until_a_while_after_the_end_of_it() -> None:
    """It is sent all that others have committed meanwhile, before it can go on."""
    waits = {A: 20}
    known = LightClients(PACE, BURST, lambda client: waits.get(client, 0))
    known.sent(0, A, little=True)
    assert known.any(10 * LIGHT_MS)
    assert known.others_wait(10 * LIGHT_MS, BULK)
    del waits[A]
    known.landed(10 * LIGHT_MS + 5, A)
    known.landed(10 * LIGHT_MS + 5, BULK)
    assert not known.others_wait(10 * LIGHT_MS + 5, A)
    assert known.others_wait(10 * LIGHT_MS + 5, BULK)
    assert known.any(11 * LIGHT_MS + 4)
    assert not known.any(11 * LIGHT_MS + 5)


def test_who_turns_out_to_have_much_under_way_is_not_light_any_more() -> None:
    known = lights(A)
    known.sent(0, A, little=False)
    assert not known.any(0)


def test_between_two_bursts_of_its_own_a_client_is_not_light() -> None:
    known = LightClients(PACE, BURST, lambda _: 0)
    known.sent(0, BULK, little=False)
    assert not known.sent(HEAVY_MS - 1, BULK, little=True)
    assert not known.any(HEAVY_MS - 1)
    assert known.sent(HEAVY_MS, BULK, little=True)


def test_the_others_have_a_burst_and_the_next_one_when_it_is_saved_up() -> None:
    known = lights(A)
    assert not known.launched(0, 60)
    assert known.launched(0, 60)
    assert known.due(0) == 12
    assert not known.refreshed(11)
    assert known.spent
    assert known.refreshed(12)
    assert not known.spent
    assert known.due(12) is None


def test_however_long_it_takes_they_keep_the_pace() -> None:
    known, launched = LightClients(PACE, BURST, lambda _: 0), 0
    for now in range(2_000):
        known.sent(now, A, little=True)
        known.refreshed(now)
        while not known.spent:
            launched += 30
            known.launched(now, 30)
    assert 0.9 * PACE * 2_000 <= launched <= PACE * 2_000 + 2 * BURST


def test_they_need_not_wait_once_nobody_is_light() -> None:
    known = lights(A)
    known.launched(0, 1_000 * PACE * LIGHT_MS)
    assert known.due(0) == LIGHT_MS
    assert known.refreshed(LIGHT_MS)


def test_when_all_is_forgotten_nobody_is_light() -> None:
    known = lights(A, B)
    known.launched(0, 1_000)
    known.forget()
    assert not known.any(0)
    assert not known.spent
