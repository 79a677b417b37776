"""A payload codec that kills the process it runs in, once."""

from __future__ import annotations

import os
import signal
from typing import Any

import pyarrow as pa

FLAG = "WALTZ_TEST_DEADLY"


class KillOnce:
    """Kills its process when it meets transaction data `deadly` for the first time."""

    schema = pa.schema([pa.field("data", pa.binary())])

    def decode(self, data: Any, header: Any) -> list[Any]:
        words = data.to_pylist()
        flag = next((word.split(b"=")[1].decode() for word in words if word.startswith(b"deadly=")), None)
        if flag is not None and not os.path.exists(flag):
            with open(flag, "w") as file:
                file.write(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
        return [data]
