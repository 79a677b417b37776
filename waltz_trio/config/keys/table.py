"""Every configuration key by its name. `docs/configuration.md` is made from this table.

python -m waltz_trio.config.page > docs/configuration.md

A key stands in the file of the process that reads it, and in `shared.py` if all do. What is done with a value is
elsewhere: `config.py` parses it, and `waltz_trio/node/settings.py` makes typed records for processes.
"""

from __future__ import annotations

from waltz_trio.config.keys.client import CLIENT
from waltz_trio.config.keys.gateway import GATEWAY
from waltz_trio.config.keys.key import Key
from waltz_trio.config.keys.proxy import PROXY
from waltz_trio.config.keys.server import SERVER
from waltz_trio.config.keys.shared import SHARED
from waltz_trio.config.keys.storage import STORAGE
from waltz_trio.config.keys.tools import DEMO, TOOLS

KEYS: dict[str, Key] = {key.name: key for key in (*SHARED, *SERVER, *STORAGE, *CLIENT, *TOOLS, *GATEWAY, *PROXY, *DEMO)}
