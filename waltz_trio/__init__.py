"""Waltz on Trio: the public client. `import waltz_trio as waltz`; `docs/api.md` lists every name."""

from waltz_core.client.calls import PartitionStatus, Phase
from waltz_core.errors import (
    ApplyFailedError,
    BeforeStartError,
    ClientAheadError,
    ClientClosedError,
    ClientError,
    ClientFailedError,
    ConfigError,
    FeedBusyError,
    LockConflictError,
    NotCommittedError,
    PartitionNotFoundError,
    PartitionUnavailableError,
    PayloadInvalidError,
    RetriesExhaustedError,
    UnknownHeaderError,
    ViewRegressedError,
    WaltzError,
)
from waltz_core.locks import Lock
from waltz_trio.application import Application, ApplicationStatus
from waltz_trio.client import Client, Pending
from waltz_trio.codecs import Codec, Codecs, Json, Raw, Utf8
from waltz_trio.connect import open_client
from waltz_trio.feed import Batches, Feed
from waltz_trio.instrument import Instrument
from waltz_trio.values import TAIL, Append, Batch, Receipt, Retry, Transaction
from waltz_trio.views import ApplyError, DictView, SqliteView, View

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
    "Lock",
    "LockConflictError",
    "NotCommittedError",
    "PartitionNotFoundError",
    "PartitionStatus",
    "PartitionUnavailableError",
    "PayloadInvalidError",
    "Pending",
    "Phase",
    "Raw",
    "Receipt",
    "RetriesExhaustedError",
    "Retry",
    "SqliteView",
    "Transaction",
    "UnknownHeaderError",
    "Utf8",
    "View",
    "ViewRegressedError",
    "WaltzError",
    "open_client",
]
