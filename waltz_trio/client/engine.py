"""What a client is made of, for those that work with all of it: an application, its decisions and its submits."""

from __future__ import annotations

import random

from waltz_core.base.record import record
from waltz_trio.client.appends import Appends
from waltz_trio.client.instrument import Instrument, TimedInstrument
from waltz_trio.client.life import Life
from waltz_trio.client.reads import Reads


@record
class Engine:
    """The parts of one client; none of them knows of applications."""

    life: Life
    reads: Reads
    appends: Appends
    instrument: Instrument | None
    rng: random.Random

    @property
    def timed(self) -> TimedInstrument | None:
        """The instrument, if it wants to know how long calls take."""
        return self.instrument if isinstance(self.instrument, TimedInstrument) else None
