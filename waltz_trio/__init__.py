"""Waltz on Trio: the public client. `import waltz_trio as waltz`; `docs/api.md` lists every name."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from waltz_core.base.errors import (
        ApplyFailedError,
        BeforeStartError,
        ClientAheadError,
        ClientClosedError,
        ClientError,
        ClientFailedError,
        ConfigError,
        FeedBusyError,
        KeyReusedError,
        LockConflictError,
        NotCommittedError,
        PartitionNotFoundError,
        PartitionUnavailableError,
        PayloadInvalidError,
        RetriesExhaustedError,
        StateReadOnlyError,
        UnknownHeaderError,
        ViewIdentityError,
        ViewRegressedError,
        WaltzError,
    )
    from waltz_core.base.lock import Lock
    from waltz_core.client.calls import PartitionStatus, Phase
    from waltz_trio.application import Application, ApplicationStatus
    from waltz_trio.calls import Submission
    from waltz_trio.client import Client, Pending
    from waltz_trio.codecs import Codec, Codecs, Json, Raw, Utf8
    from waltz_trio.connect import open_client
    from waltz_trio.feed import Batches, Feed
    from waltz_trio.instrument import Instrument
    from waltz_trio.mysql_view import MySqlView
    from waltz_trio.postgres_view import PostgresView
    from waltz_trio.sqlite_view import SqliteView
    from waltz_trio.values import TAIL, Append, Batch, Key, Receipt, Retry, Transaction
    from waltz_trio.views import ApplyError, DictView, KeyedView, Keys, View

__all__ = [
    "TAIL",
    "Append",
    "Application",
    "ApplicationStatus",
    "ApplyError",
    "ApplyFailedError",
    "Batch",
    "Batches",
    "BeforeStartError",
    "Client",
    "ClientAheadError",
    "ClientClosedError",
    "ClientError",
    "ClientFailedError",
    "Codec",
    "Codecs",
    "ConfigError",
    "DictView",
    "Feed",
    "FeedBusyError",
    "Instrument",
    "Json",
    "Key",
    "KeyReusedError",
    "KeyedView",
    "Keys",
    "Lock",
    "LockConflictError",
    "MySqlView",
    "NotCommittedError",
    "PartitionNotFoundError",
    "PartitionStatus",
    "PartitionUnavailableError",
    "PayloadInvalidError",
    "Pending",
    "Phase",
    "PostgresView",
    "Raw",
    "Receipt",
    "RetriesExhaustedError",
    "Retry",
    "SqliteView",
    "StateReadOnlyError",
    "Submission",
    "Transaction",
    "UnknownHeaderError",
    "Utf8",
    "View",
    "ViewIdentityError",
    "ViewRegressedError",
    "WaltzError",
    "open_client",
]

# In the order of what they take to import: storage nodes, servers and tools need none of it, so a name is looked
# for when it is asked for.
_MODULES = (
    "waltz_core.base.errors",
    "waltz_core.locks.table",
    "waltz_trio.values",
    "waltz_trio.codecs",
    "waltz_trio.views",
    "waltz_trio.sqlite_view",
    "waltz_trio.postgres_view",
    "waltz_trio.mysql_view",
    "waltz_trio.instrument",
    "waltz_core.client.calls",
    "waltz_trio.feed",
    "waltz_trio.client",
    "waltz_trio.application",
    "waltz_trio.calls",
    "waltz_trio.connect",
)


def __getattr__(name: str) -> Any:
    if name in __all__:
        for module in map(import_module, _MODULES):
            if hasattr(module, name):
                globals()[name] = found = getattr(module, name)
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
