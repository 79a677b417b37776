"""Random schedules of many sessions against simulated replicas; invariants after every event."""

from __future__ import annotations

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.model.recovery_model import Bounds, Model, State
from waltz_core.store.recovery import Recovery


class _SmallSteps(Recovery):
    """Copies two records at a time, so that copies are interrupted."""

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, copy_count_max=2, **options)  # type: ignore[arg-type]  # passed on as they are


_choices = st.lists(st.integers(min_value=0, max_value=2**16), min_size=20, max_size=250)


_MARKED_AND_WIPED = [17, 33, 128, 0, 0, 0, 16, 9536, 1, 33, 161, 1, 129, 0, 1, 1, 1, 1, 0, 16, 16]
"""Nobody is left but a replica without a real entry, marked by an aborted recovery, that all depends on."""

_COPIED_TO_BEFORE_IT_WAS_NAMED = [17, 33, 0, 16, 1, 17, *[1] * 9, 17, 17, 33, 33, 9537, 0, 1, 1, 1, 17, 1, 1, 1]
"""An aborted recovery copied to a replica that the last session had marked and not named yet, and cut its source."""

_MARKED_BY_ANOTHER_SINCE = [
    *(0, 16, 16, 16, 65536, 16, 33, 1, 17, 17, 17, 17, 31889, 1, 16, 113, 225, 1, 1, 49, 113, 49, 2449, 8672, 81, 0, 0),
    *(0, 0, 1, *[0] * 9, 144, 64, 64, 0, 22768, 4986, 12, 16, 41120, 0, 48, 0, 0, 192, 0, 0, 0, 0, 0),
]
"""The same among five, of which a later session had marked one."""


def _wander(model: Model, choices: list[int]) -> State:
    """Take one of the possible actions per choice; the model checks its invariants in each state."""
    at = model.initial()
    for choice in choices:
        actions = list(model.actions(at))
        if not actions:
            break
        # A new session, a fault or another assignment now and then; otherwise what is under way goes on.
        rare = [action for action in actions if action[0] in ("start", "restart", "wipe", "assign", "unknown")]
        usual = [action for action in actions if action not in rare]
        pool = rare if rare and (not usual or choice % 16 == 0) else usual
        at = model.take(at, pool[choice // 16 % len(pool)])
    return at


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(_choices, st.sampled_from(["abc", "abcd", "abcde"]))
@example(_MARKED_AND_WIPED, "abc")
@example(_COPIED_TO_BEFORE_IT_WAS_NAMED, "abc")
@example(_MARKED_BY_ANOTHER_SINCE, "abcde")
def test_committed_transactions_survive_whatever_happens(choices: list[int], replicas: str) -> None:
    """Crashes, a lost replica, lag, superseded sessions, unknown outcomes; then the next session opens."""
    bounds = Bounds(
        sessions=12, ids=12, wipes=1, restarts=4, unknown=3, lingering=2, assignments=(replicas,), lagging=True
    )
    model = Model(bounds, _SmallSteps)
    model.check_liveness(_wander(model, choices))


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(_choices, st.sampled_from([("abc", "abcd", "abd"), ("abcd", "ab", "abc"), ("abc", "ab", "abcde")]))
def test_committed_transactions_survive_other_assignments(choices: list[int], assignments: tuple[str, ...]) -> None:
    """Replicas come and go, and come back with old files."""
    bounds = Bounds(sessions=12, ids=12, restarts=2, changes=6, unknown=2, assignments=assignments)
    _wander(Model(bounds, _SmallSteps), choices)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(_choices)
def test_the_very_first_sessions(choices: list[int]) -> None:
    """From an empty znode on."""
    bounds = Bounds(sessions=10, ids=8, restarts=2, unknown=2, fresh=True)
    model = Model(bounds, _SmallSteps)
    model.check_liveness(_wander(model, choices))
