"""Store sessions and recovery of 0.13.2.

Defects: it appends before the states are in ZooKeeper (`states_before_votes`), and names replicas there that it has not
marked (`marked_before_named`); of a replica that a later session marked it keeps all (`later_session_arrival`); it
believes closing marks above a replica's own mark (`placeholder_arrival`), and a replica that was set back
(`rolled_back_is_absent`); it cuts, decides and marks below low-water marks (`low_water_mark_kept`); it compares no
records (`kept_records_compared`); it takes a log without states for empty (`lost_metadata_stops`), and metadata for
true, however old (`rewound_metadata_stops`); a voter that lags is marked first, and is none after an abort
(`voters_level_first`); a copy under way delays the decision (`copying_does_not_delay`); copies are asked for beyond the
end of their source, and after an abort (`copy_capped_at_source`); one late failure bars all other late replicas
(`late_failure_is_local`).
"""

from __future__ import annotations

from tests.twin_0132.recovery import Recovery0132
from waltz_core.store.session import StoreSession


class StoreSession0132(StoreSession):
    """A session of a server of 0.13.2."""

    make_recovery = Recovery0132  # type: ignore[assignment]  # a fork, not a subclass

    __slots__ = ()
