"""The state of a sink between batches, beside Spark's own checkpoint: `<checkpointLocation>/waltz-sink/`.

`start.json` says who the sink is and where the log ended when it began; `batches/<number>.json` is there if and only
if every row of that batch is in the log or rejected, and says behind which ids the next one is. Files are only
created, never changed; of two drivers that finish the same batch, the first one counts, and both are right. The
files of all but the last hundred batches are removed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any
from uuid import UUID, uuid4

from waltz_core.base.record import record
from waltz_spark.base.errors import OptionError, UnreachableError, WrongClusterError
from waltz_spark.base.objects import Store, open_store

FOLDER = "waltz-sink"
_START = "start.json"
_BATCHES = "batches"
_DIGITS = 19
_KEPT = 100  # batches; Spark goes back one or two
_REMEMBERED_MAX = 256  # files

_remembered: dict[tuple[str, str, str], Mapping[str, Any]] = {}  # by folder, sink and name; oldest first


@record
class Start:
    """How a sink began."""

    sink: str
    cluster: str
    marks: tuple[int, ...]  # committed marks of all partitions
    key: str = ""  # digest of the key of the cluster; empty where none was shown, or an earlier version wrote this


class SinkState:
    """The folder of one sink; made by the driver, looked at by executors.

    Files are created once and never change, so this process caches finished batches: Spark
    makes new writers for every batch, and on an object store every look is a request. Who began the sink is asked by
    each object of this class: a folder that was removed and begun again is another sink, with batches of its own.
    """

    def __init__(self, checkpoint: str, kept: int = _KEPT) -> None:
        self._kept = kept
        self._start: Mapping[str, Any] | None = None
        self._store: Store = open_store(f"{checkpoint.rstrip('/')}/{FOLDER}")

    def _begun(self) -> Mapping[str, Any] | None:
        """The content of the file that begins a sink; None if there is none yet."""
        if self._start is None:
            data = self._store.find(_START)
            self._start = json.loads(data) if data is not None else None
        return self._start

    def _batch(self, name: str) -> Mapping[str, Any] | None:
        """What is noted of a finished batch; None if it is not finished."""
        begun = self._begun()
        key = self._store.root, begun["sink"] if begun is not None else "", name
        content = _remembered.get(key)
        if content is None:
            data = self._store.find(f"{_BATCHES}/{name}")
            if data is None:
                return None
            content = _remembered[key] = json.loads(data)
            while len(_remembered) > _REMEMBERED_MAX:
                del _remembered[next(iter(_remembered))]
        return content

    @property
    def root(self) -> str:
        """The folder."""
        return self._store.root

    def begin(self, cluster: str, marks: tuple[int, ...], key: UUID | None = None) -> Start:
        """The beginning as it was recorded first, by this call or an earlier one.

        Args:
            cluster: its name.
            marks: committed marks of all partitions.
            key: of the cluster; None if no server shows it.

        Raises:
            WrongClusterError: the checkpoint is of another cluster.
        """
        content = {"version": 1, "sink": uuid4().hex, "cluster": cluster, "marks": list(marks)}
        if key is not None:
            content["key"] = _digest(key)
        self._store.put_if_absent(_START, json.dumps(content).encode())
        return self.check(cluster, len(marks), key)

    def check(self, cluster: str, partition_count: int, key: UUID | None) -> Start:
        """The beginning of a sink of this cluster; errors as those of `begin`."""
        start = self.start()
        place = f"{self._store.root}: the checkpoint"
        if start.cluster != cluster:
            raise WrongClusterError(place, cluster, start.cluster)
        if len(start.marks) != partition_count:
            theirs, ours = (f"{cluster} of {count} partitions" for count in (len(start.marks), partition_count))
            raise WrongClusterError(place, ours, theirs)
        if key is not None and start.key not in ("", _digest(key)):
            raise WrongClusterError(place, cluster, f"{start.cluster} with another key")
        return start

    def begun(self) -> bool:
        """`begin` was called."""
        return self._begun() is not None

    def start(self) -> Start:
        """How it began; raises UnreachableError if it did not."""
        begun = self._begun()
        if begun is None:
            raise UnreachableError(f"{self._store.root}/{_START}: No such file or directory")
        if begun.get("version") != 1:
            raise OptionError(f"{self._store.root}/{_START}: written by a later version of this package")
        return Start(begun["sink"], begun["cluster"], tuple(begun["marks"]), begun.get("key", ""))

    def finished(self, batch: int) -> bool:
        """Every row of the batch is in the log or rejected."""
        return self._batch(_name(batch)) is not None

    def latest(self) -> int:
        """The highest batch that is finished, -1 if none is."""
        return max((int(name.removesuffix(".json")) for name in self._store.names(_BATCHES)), default=-1)

    def base(self, batch: int) -> tuple[int, ...]:
        """By partition, a mark that is behind all earlier batches and before everything of this one."""
        before = self._batch(_name(batch - 1)) if batch else None
        if before is None:  # the first batch, or numbers that leave some out
            earlier = [name for name in self._store.names(_BATCHES) if name < _name(batch)] if batch else []
            before = self._batch(earlier[-1]) if earlier else None
        return tuple(before["marks"]) if before is not None else self.start().marks

    def finish(
        self,
        batch: int,
        last_ids: Mapping[int, int],
        rejects: Mapping[str, bytes],
        source: Mapping[str, Any] | None = None,
    ) -> None:
        """Every row of the batch is in the log, up to `last_ids`, or in `rejects`: Parquet files by name.

        `source` says what the rows were made of; it comes back from `source`.
        """
        if self.finished(batch):
            return
        names = {}
        for name, data in rejects.items():
            names[name] = f"rejects/{uuid4().hex}.parquet"
            self._store.put_if_absent(names[name], data)
        marks = [max(mark, last_ids.get(at, mark)) for at, mark in enumerate(self.base(batch))]
        content = {"version": 1, "batch": batch, "marks": marks, "rejects": names}
        if source is not None:
            content["source"] = dict(source)
        self._store.put_if_absent(f"{_BATCHES}/{_name(batch)}", json.dumps(content).encode())

    def source(self, batch: int) -> Mapping[str, Any] | None:
        """What the rows of a finished batch were made of, if that was noted."""
        found = self._batch(_name(batch))
        return found.get("source") if found is not None else None

    def publish_rejects(self, batch: int, target: str | None) -> None:
        """Put the rejected rows of a finished batch into their place for users; may be repeated."""
        names = self._rejects(_name(batch))
        if target is not None and names:
            publish(target, {name: self._store.read(kept) for name, kept in names.items()})
        self._tidy_up()

    def _rejects(self, name: str) -> dict[str, str]:
        found = self._batch(name)
        return dict(found["rejects"]) if found is not None else {}

    def _tidy_up(self) -> None:
        for name in self._store.names(_BATCHES)[: -self._kept]:
            for kept in self._rejects(name).values():
                self._store.remove(kept)
            self._store.remove(f"{_BATCHES}/{name}")
            _remembered.pop((self._store.root, self.start().sink, name), None)


def publish(target: str, files: Mapping[str, bytes]) -> None:
    """Create files of rejected rows; those that are there stay."""
    store = open_store(target)
    for name, data in files.items():
        store.put_if_absent(name, data)


def _digest(key: UUID) -> str:
    """Tells clusters apart; the key itself opens storage nodes, and is not for a checkpoint."""
    return hashlib.sha256(b"waltz.sink" + key.bytes).hexdigest()[:32]


def _name(batch: int) -> str:
    return f"{batch:0{_DIGITS}}.json"
