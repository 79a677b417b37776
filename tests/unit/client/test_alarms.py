"""The alarms of a client's machines: one for each purpose, and who doubts its server."""

from __future__ import annotations

from waltz_core.base.alarms import Alarms
from waltz_core.client.alarms import AlarmKey, Doubts, Due, MachineAlarm, MachineAlarms
from waltz_core.client.link import Link


class Machine:
    """Wants others to be asked at a time, and has nothing else to do."""

    link: Link | None = None

    def __init__(self, alarms: Alarms[AlarmKey], doubts: Doubts) -> None:
        self.at: int | None = None
        self._alarms = MachineAlarms(self, alarms, doubts)

    def hurry_at(self) -> int | None:
        return self.at

    def set_alarms(self, now: int) -> None:
        self._alarms.set(Due.NUDGE, 100)
        self._alarms.set_hurry(now)

    def due(self, now: int, due: Due) -> bool:
        raise AssertionError("no alarm rings here")


def test_each_purpose_has_an_alarm_of_its_own() -> None:
    alarms: Alarms[AlarmKey] = Alarms()
    first, second = Machine(alarms, Doubts()), Machine(alarms, Doubts())
    first.at, second.at = 50, 20
    first.set_alarms(0)
    second.set_alarms(0)
    second.at = None
    second.set_alarms(1)
    assert alarms.due(100) == [
        MachineAlarm(second, Due.HURRY),  # for nothing: it was not moved
        MachineAlarm(first, Due.HURRY),
        MachineAlarm(first, Due.NUDGE),
        MachineAlarm(second, Due.NUDGE),
    ]


def test_a_server_is_doubted_until_something_is_heard() -> None:
    alarms: Alarms[AlarmKey] = Alarms()
    doubts = Doubts()
    machine = Machine(alarms, doubts)
    machine.at = 50
    machine.set_alarms(49)
    assert not doubts
    machine.set_alarms(50)
    assert doubts
    assert doubts.confirmed(51)
    (key,) = [key for key in alarms.due(51) if key == MachineAlarm(machine, Due.HURRY)]
    machine._alarms.rang(Due.HURRY)
    assert alarms.at(key) is None, "nothing to wait for"
    machine.at = 60
    assert not doubts.confirmed(52)
    assert alarms.at(MachineAlarm(machine, Due.HURRY)) == 60
    machine.at = 0
    machine.set_alarms(53)
    machine.at = None
    machine.set_alarms(54)
    assert not doubts


def test_an_alarm_that_is_set_is_moved_only_to_be_earlier_and_set_anew_when_it_has_rung() -> None:
    alarms: Alarms[AlarmKey] = Alarms()
    machine = Machine(alarms, Doubts())
    key, its = MachineAlarm(machine, Due.SILENCE), machine._alarms
    its.set_by(Due.SILENCE, 50)
    its.set_by(Due.SILENCE, None)
    its.set_by(Due.SILENCE, 70)
    assert alarms.at(key) == 50
    its.set_by(Due.SILENCE, 40)
    assert alarms.due(40) == [key]
    its.rang(Due.SILENCE)
    its.set_by(Due.SILENCE, 70)
    assert alarms.at(key) == 70
