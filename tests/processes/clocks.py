"""Wall clocks of processes that jump, by minutes and hours, forwards and backwards."""

from __future__ import annotations

import random
import shutil
import struct
import subprocess
from pathlib import Path

_SOURCE = Path(__file__).with_name("clock.c")
_MINUTE, _HOUR = 60, 3600
# Certificates are valid from an hour before they were made; no clock goes back behind that.
_START = 12 * _HOUR
_AHEAD_MAX = 24 * _HOUR


def missing() -> str | None:
    """What is missing to move clocks, None if nothing."""
    if shutil.which("cc") is None:
        return "no C compiler (`cc`) on PATH; install one (Debian: gcc, libc6-dev)"
    return None


class Clocks:
    """The clocks of processes by name: half a day ahead at first, and never behind this machine's."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._library = directory / "clock.so"
        self._ahead: dict[str, int] = {}  # name → seconds
        command = ["cc", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(self._library), str(_SOURCE)]
        subprocess.run([*command, "-ldl"], check=True)

    def environment(self, name: str) -> dict[str, str]:
        """What makes a process go by the clock of this name."""
        if name not in self._ahead:
            self.set(name, _START)
        return {"LD_PRELOAD": str(self._library), "WALTZ_TEST_CLOCK": str(self._directory / name)}

    def ahead(self, name: str) -> int:
        """How many seconds a clock is ahead of this machine's."""
        return self._ahead[name]

    def set(self, name: str, ahead: int) -> None:
        """Set a clock, at once, for the process that runs as well as for those that follow."""
        self._ahead[name] = ahead
        path = self._directory / name
        path.touch()
        with path.open("r+b", buffering=0) as file:  # the same file, never cut off: processes have mapped it
            file.write(struct.pack("=q", ahead * 1_000_000_000))

    def jump(self, name: str, rng: random.Random) -> int:
        """Set a clock forwards or backwards by minutes or hours; returns the seconds."""
        size = rng.choice((rng.randrange(_MINUTE, 20 * _MINUTE), rng.randrange(_HOUR, 11 * _HOUR)))
        ahead = self._ahead[name]
        ways = [way for way in (1, -1) if 0 <= ahead + way * size <= _AHEAD_MAX]
        self.set(name, ahead + rng.choice(ways) * size)
        return self._ahead[name] - ahead
