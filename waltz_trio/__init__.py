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
        WrongProcessError,
        WrongThreadError,
    )
    from waltz_core.base.lock import Lock
    from waltz_core.client.calls import PartitionStatus, Phase
    from waltz_trio.client.application import Application
    from waltz_trio.client.calls import Submission
    from waltz_trio.client.client import Client
    from waltz_trio.client.codecs import Codec, Codecs, Json, Raw, Utf8
    from waltz_trio.client.connect import open_client
    from waltz_trio.client.dict_view import DictView
    from waltz_trio.client.events import Avro, Events, MsgPack, Protobuf, UnknownEvent
    from waltz_trio.client.feed import Batches, Feed
    from waltz_trio.client.instrument import Instrument, TimedInstrument
    from waltz_trio.client.many import Outcomes, PendingMany
    from waltz_trio.client.mysql_view import MySqlView
    from waltz_trio.client.otel import OpenTelemetryInstrument
    from waltz_trio.client.parts import ApplicationStatus
    from waltz_trio.client.pending import Pending
    from waltz_trio.client.postgres_view import PostgresView
    from waltz_trio.client.prometheus import PrometheusInstrument
    from waltz_trio.client.sqlite_view import SqliteView
    from waltz_trio.client.values import TAIL, Append, Batch, Key, Receipt, Retry, Transaction
    from waltz_trio.client.views import ApplyError, KeyedView, Keys, View

__all__ = [
    "TAIL",
    "Append",
    "Application",
    "ApplicationStatus",
    "ApplyError",
    "ApplyFailedError",
    "Avro",
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
    "Events",
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
    "MsgPack",
    "MySqlView",
    "NotCommittedError",
    "OpenTelemetryInstrument",
    "Outcomes",
    "PartitionNotFoundError",
    "PartitionStatus",
    "PartitionUnavailableError",
    "PayloadInvalidError",
    "Pending",
    "PendingMany",
    "Phase",
    "PostgresView",
    "PrometheusInstrument",
    "Protobuf",
    "Raw",
    "Receipt",
    "RetriesExhaustedError",
    "Retry",
    "SqliteView",
    "StateReadOnlyError",
    "Submission",
    "TimedInstrument",
    "Transaction",
    "UnknownEvent",
    "UnknownHeaderError",
    "Utf8",
    "View",
    "ViewIdentityError",
    "ViewRegressedError",
    "WaltzError",
    "WrongProcessError",
    "WrongThreadError",
    "open_client",
]

# In the order of what they take to import: storage nodes, servers and tools need none of it, so a name is looked
# for when it is asked for.
_MODULES = (
    "waltz_core.base.errors",
    "waltz_core.locks.table",
    "waltz_trio.client.values",
    "waltz_trio.client.codecs",
    "waltz_trio.client.events",
    "waltz_trio.client.views",
    "waltz_trio.client.dict_view",
    "waltz_trio.client.sqlite_view",
    "waltz_trio.client.postgres_view",
    "waltz_trio.client.mysql_view",
    "waltz_trio.client.instrument",
    "waltz_trio.client.prometheus",
    "waltz_trio.client.otel",
    "waltz_core.client.calls",
    "waltz_trio.client.feed",
    "waltz_trio.client.pending",
    "waltz_trio.client.many",
    "waltz_trio.client.client",
    "waltz_trio.client.application",
    "waltz_trio.client.calls",
    "waltz_trio.client.connect",
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
