"""The format `waltz` of Spark, its reading side: thin, all decisions are made by plain objects that need no JVM.

Readers travel to executors as pickles: they hold options and plans, never files, sockets or Trio objects.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import attrs

from waltz_spark.base import planning
from waltz_spark.base.errors import OptionError, UnreachableError, WentBackError
from waltz_spark.base.planning import EARLIEST, NOT_READ, Range, Vector, clip
from waltz_spark.read.inventory import Inventory, Look, batch_bounds, check_believed, check_start
from waltz_spark.read.options import Options, parse_options
from waltz_spark.read.reading import Patience, read_batches
from waltz_spark.records.columns import Condition, Shape, spark_ddl
from waltz_spark.spark.api import (
    PUSH_FILTERS,
    READS_STREAMS,
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
    need_streams,
)
from waltz_spark.spark.refusals import in_one_line, rows_in_one_line

NAME = "waltz"
_ID_MAX = 2**63 - 1
_OPERATORS = {LessThan: "<", LessThanOrEqual: "<=", GreaterThan: ">", GreaterThanOrEqual: ">="}
_COMPARISONS = (EqualTo, EqualNullSafe, LessThan, LessThanOrEqual, GreaterThan, GreaterThanOrEqual)
_ROW_COLUMNS = ("header", "client_id", "generation", "seq")


class Task(InputPartition):  # type: ignore[misc]  # pyspark is not looked into
    """What one Spark task reads, and the version of this package that planned it."""

    def __init__(self, ranges: tuple[Range, ...], version: str) -> None:
        super().__init__(0)
        self.ranges = ranges
        self.version = version


def _version() -> str:
    from waltz_trio.base.version import version

    return version() or ""


def _tasks(options: Options, ranges: Sequence[Range]) -> list[Task]:
    plans = planning.plan(
        ranges,
        target_size=options.target_split_bytes,
        count_max=options.max_records_per_partition,
        tasks_min=options.min_partitions,
        pack_small=options.pack_small,
    )
    return [Task(one, _version()) for one in plans]


def _read(task: Task, options: Options, shape: Shape) -> Iterator[Any]:
    if task.version != _version():
        raise OptionError(f"the driver has version {task.version} of this package, this executor {_version()}")
    patience = Patience(options.request_timeout_ms / 1000, options.retries)
    for one in task.ranges:
        yield from read_batches(one, shape, patience)


class WaltzDataSource(DataSource):  # type: ignore[misc]  # pyspark is not looked into
    """`spark.read.format("waltz")`, `spark.readStream`, `df.write` and `df.writeStream` likewise."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return NAME

    @in_one_line
    def schema(self) -> str:
        """Columns as chosen by the options."""
        return spark_ddl(parse_options(self.options).shape())

    @in_one_line
    def reader(self, schema: Any) -> BatchReader:
        """A batch reader."""
        return BatchReader(parse_options(self.options))

    @in_one_line
    def streamReader(self, schema: Any) -> Any:  # noqa: N802
        """A streaming reader."""
        if not READS_STREAMS:
            return NoStream()
        return StreamReader(parse_options(self.options))

    @in_one_line
    def writer(self, schema: Any, overwrite: bool) -> Any:
        """A batch writer."""
        from waltz_spark.spark.sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    @in_one_line
    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802
        """A streaming writer."""
        from waltz_spark.spark.sink import stream_writer

        return stream_writer(self.options, schema, overwrite)


# ---- batch -----------------------------------------------------------------------------------


class _Pushdown:
    """`pushFilters` of one reader.

    Spark refuses every read of a reader that overrides `pushFilters` while its configuration
    `spark.sql.python.filterPushdown.enabled` is false, which it is by default. It recognises the base method
    by `__func__`; an attribute of the instance that shows it is called when pushdown is on, and tolerated
    when it is off.
    """

    __func__ = staticmethod(PUSH_FILTERS) if PUSH_FILTERS is not None else None

    def __init__(self, reader: BatchReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._reader.take_filters(filters)


class BatchReader(DataSourceReader):  # type: ignore[misc]  # pyspark is not looked into
    """A consistent cut of the log, frozen when it is planned."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.shape = options.shape()
        self.partitions_only: frozenset[int] | None = None
        self.first_id = 0
        self.last_id = _ID_MAX
        if PUSH_FILTERS is not None:
            self.pushFilters = _Pushdown(self)

    def take_filters(self, filters: Iterable[Filter]) -> Iterator[Filter]:
        """Use what can be used; yields what Spark must still check."""
        for one in filters:
            if not self._take(one):
                yield one

    @in_one_line
    def partitions(self) -> list[Task]:
        """Plan: look at the log, cut it into tasks.

        Raises:
            PipelineError: the log cannot be read as wanted.
        """
        inventory = Inventory(self.options)
        try:
            look = inventory.look()
            check_believed(look)
            start, ends = batch_bounds(self.options, look)
            start = tuple(max(first, self.first_id) for first in start)
            ends = tuple(
                0 if self.partitions_only is not None and at not in self.partitions_only else end
                for at, end in enumerate(ends)
            )
            ends = tuple(min(end, self.last_id + 1) for end in ends)
            parts = [
                part
                for whole in inventory.ranges(look, start, ends)
                if (part := clip(whole, start[whole.partition], ends[whole.partition])) is not None
            ]
            return _tasks(self.options, parts) or [Task((), _version())]
        finally:
            inventory.close()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Arrow record batches of one task; runs in an executor."""
        assert isinstance(partition, Task)
        return rows_in_one_line(_read(partition, self.options, self.shape))

    # ---- filters ---------------------------------------------------------------------------------

    def _take(self, condition: Filter) -> bool:
        """Whether Spark need not check this filter again."""
        column = ".".join(getattr(condition, "attribute", ()))
        if column not in self.shape.columns or (column == "data" and self.shape.codec is not None):
            return False  # a column of the codec: it may have the name of one of the log
        if isinstance(condition, IsNotNull):
            return True
        values = _values(condition)
        if values is None:
            return False
        operator = _OPERATORS.get(type(condition), "in")
        if column == "partition" and operator == "in":
            chosen = frozenset(values)
            self.partitions_only = chosen if self.partitions_only is None else self.partitions_only & chosen
            return True
        if column == "transaction_id" and (operator != "in" or len(values) == 1):
            self._bound(operator, values[0])
            return True
        if column in _ROW_COLUMNS:
            # Rows are left out before their data are touched; Spark checks again, which costs little.
            self.shape = attrs.evolve(
                self.shape, conditions=(*self.shape.conditions, Condition(column, operator, values))
            )
        elif column == "transaction_id":
            self._bound(">=", min(values))
            self._bound("<=", max(values))
        return False

    def _bound(self, operator: str, value: int) -> None:
        if operator in ("in", ">=", ">"):
            self.first_id = max(self.first_id, value + (operator == ">"))
        if operator in ("in", "<=", "<"):
            self.last_id = min(self.last_id, value - (operator == "<"))


def _values(condition: Filter) -> tuple[int, ...] | None:
    """The numbers of a comparison, None if it is none, or not with whole numbers."""
    if isinstance(condition, In):
        numbers = tuple(condition.value)
    elif isinstance(condition, _COMPARISONS):
        numbers = (condition.value,)
    else:
        return None
    return numbers if numbers and all(type(value) is int for value in numbers) else None


# ---- streaming -------------------------------------------------------------------------------


class NoStream(DataSourceStreamReader):  # type: ignore[misc]  # pyspark is not looked into
    """Refuses what a stream lacks; PySpark 4.0 shows errors of a reader, but not those of its construction."""

    @in_one_line
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Refused."""
        need_streams(reading=True)
        return {}

    @in_one_line
    def latestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Refused."""
        return self.initialOffset()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Task]:
        """There are none."""
        return []

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """There is nothing."""
        return iter(())


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Micro-batches; offsets are in Spark's checkpoint, nothing is kept in the cluster.

    Spark calls `initialOffset` twice and keeps it nowhere, never calls `stop`, and polls `latestOffset`
    every 10 ms while idle: so the first offset is symbolic, nothing needs cleaning up, and looks are cached.
    """

    def __init__(self, options: Options, clock: Callable[[], float] = time.monotonic) -> None:
        if options.cut is not None or options.ending_offsets != "latest":
            raise OptionError("a stream has no end: endingOffsets and cut are for batch reads")
        self.options = options
        self.shape = options.shape()
        self._clock = clock
        self._inventory: Inventory | None = None
        self._cached: tuple[float, Look] | None = None
        self._looked = 0.0  # when a look last succeeded
        self._target: Vector | None = None  # where AvailableNow ends
        self._behind_since: float | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Executors get options and shape alone."""
        return {"options": self.options, "shape": self.shape}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["options"])  # type: ignore[misc]

    # ---- what Spark calls ------------------------------------------------------------------------

    @in_one_line
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where to start, as configured."""
        return planning.symbolic_offset(self.options.starting_offsets)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """`maxTransactionsPerTrigger`. Only one limit can be announced: the others are applied here."""
        options = self.options
        if options.max_transactions_per_trigger is not None:
            return ReadMaxRows(options.max_transactions_per_trigger)
        limited = options.max_bytes_per_trigger is not None or options.min_transactions_per_trigger is not None
        return ReadMaxRows(_ID_MAX) if limited else ReadAllAvailable()

    @in_one_line
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Freeze where to end."""
        self._target = self._look(fresh=True).ends

    @in_one_line
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """How far the next batch goes. Never below `start`, never beyond what is committed or was prepared.

        Raises:
            WrongClusterError: the checkpoint is of another cluster.
            WentBackError: the log ends before `start`.
        """
        look = self._look()
        if planning.is_symbolic(start):
            return self._offset(self._resolve(start, look))
        began = self._ends_of(start)
        try:
            planning.check_not_back(began, self._wanted_ends(began, look))
        except WentBackError:
            look = self._look(fresh=True)  # a server that has just taken over may not know its mark yet
            planning.check_not_back(began, self._wanted_ends(began, look))
        begin = self._with_added(began, look)
        # A partition that is new begins with a batch without any of its rows, as a stream does: so its start is noted.
        ends = tuple(
            read if old == NOT_READ else end
            for old, read, end in zip(began, begin, self._wanted_ends(begin, look), strict=True)
        )
        if self._target is not None:
            ends = tuple(max(read, min(end, to)) for read, end, to in zip(begin, ends, self._target, strict=True))
        if isinstance(limit, ReadAllAvailable):
            return self._offset(ends)
        if self._waits(begin, ends):
            return self._offset(begin)
        count = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return self._offset(self._within_bytes(look, begin, planning.advance(begin, ends, count)))

    @in_one_line
    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """The end of the log, for Spark's progress reports: the lag is the difference."""
        return self._offset(self._look().ends)

    @in_one_line
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Task]:
        """Tasks for the ids between two offsets; the first offset is symbolic and stands for no record."""
        if planning.is_symbolic(start):
            return []
        begin, ends = self._ends_of(start), self._ends_of(end)
        moved = [at for at, read in enumerate(begin) if NOT_READ < read < ends[at]]
        begin = tuple(read if at in moved else ends[at] for at, read in enumerate(begin))
        assert self._inventory is not None
        if not set(moved) <= set(self._inventory.partitions):
            return self._planned_before(begin, ends)
        look = self._look()
        if any(ends[at] > look.ends[at] for at in moved):
            look = self._look(fresh=True)
            planning.check_not_back(ends, self._wanted_ends(ends, look))  # a batch that was planned before a restart
        check_start(begin, look, moved)
        return _tasks(self.options, self._inventory.ranges(look, begin, ends))

    def _planned_before(self, begin: Vector, ends: Vector) -> list[Task]:
        """The last batch before a restart that left partitions out: its rows are the same as they were then."""
        moved = tuple(at for at, read in enumerate(begin) if read < ends[at])
        inventory = Inventory(attrs.evolve(self.options, partitions=moved))
        try:
            look = inventory.look()
            planning.check_not_back(ends, tuple(look.ends[at] if at in moved else end for at, end in enumerate(ends)))
            check_start(begin, look, moved)
            return _tasks(self.options, inventory.ranges(look, begin, ends))
        finally:
            inventory.close()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Arrow record batches of one task; runs in an executor."""
        assert isinstance(partition, Task)
        return rows_in_one_line(_read(partition, self.options, self.shape))

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: Spark's checkpoint is the only place where progress is kept."""

    def stop(self) -> None:
        """Close connections. Spark does not call this; they end with the process."""
        if self._inventory is not None:
            self._inventory.close()

    # ---- looking ---------------------------------------------------------------------------------

    def _look(self, *, fresh: bool = False) -> Look:
        now = self._clock()
        if not fresh and self._cached is not None and now - self._cached[0] < self.options.poll_interval_ms / 1000:
            return self._cached[1]
        try:
            if self._inventory is None:
                self._inventory = Inventory(self.options)
            look = self._inventory.look(patient=self._cached is None)  # else what is known is good enough meanwhile
        except UnreachableError:
            # A fail-over takes some seconds; until then nothing is new. The query ends if it takes too long.
            patience = Patience(self.options.request_timeout_ms / 1000, self.options.retries)
            if self._cached is None or now - self._looked > patience.limit:
                raise
            self._cached = now, self._cached[1]
            return self._cached[1]
        self._cached, self._looked = (now, look), now
        return look

    def _resolve(self, start: dict[str, Any], look: Look) -> Vector:
        ids = planning.resolve(planning.symbol_of(start), look.earliest, look.ends, EARLIEST)
        wanted = self.options.partitions or range(len(ids))
        check_start(ids, look, wanted)
        return tuple(one if at in wanted else NOT_READ for at, one in enumerate(ids))

    def _wanted_ends(self, begin: Vector, look: Look) -> Vector:
        """The ends of the log; of a partition that is not wanted, or not any more, where it is."""
        assert self._inventory is not None
        wanted = set(self._inventory.partitions)
        return tuple(look.ends[at] if at in wanted else read for at, read in enumerate(begin))

    def _with_added(self, begin: Vector, look: Look) -> Vector:
        """Partitions that are wanted since a restart begin as `startingOffsets` says, of the log as it is now."""
        assert self._inventory is not None
        added = {at for at in self._inventory.partitions if begin[at] == NOT_READ}
        if not added:
            return begin
        symbol = planning.symbol_of(self.initialOffset())
        ids = planning.resolve(symbol, look.earliest, look.ends, EARLIEST)
        check_start(ids, look, added)
        return tuple(ids[at] if at in added else read for at, read in enumerate(begin))

    def _offset(self, ends: Vector) -> dict[str, Any]:
        assert self._inventory is not None
        return planning.offset_of(self._inventory.shown_key, ends)

    def _ends_of(self, offset: dict[str, Any]) -> Vector:
        if self._inventory is None:
            self._look()
        assert self._inventory is not None
        return planning.ends_of(offset, self._inventory.shown_key, self._inventory.partition_count)

    # ---- limits ----------------------------------------------------------------------------------

    def _waits(self, begin: Vector, ends: Vector) -> bool:
        """Whether to wait for more, within the limit. Under AvailableNow Spark would not call again, so never then."""
        wanted = self.options.min_transactions_per_trigger
        lag = sum(ends) - sum(begin)
        if wanted is None or self._target is not None or lag == 0 or lag >= wanted:
            self._behind_since = None
            return False
        now = self._clock()
        if self._behind_since is None:
            self._behind_since = now
        if now - self._behind_since >= self.options.max_trigger_delay / 1000:
            self._behind_since = None
            return False
        return True

    def _within_bytes(self, look: Look, begin: Vector, ends: Vector) -> Vector:
        """Fewer records, if their bytes would exceed the limit; as exact as the sizes of segments."""
        size_max = self.options.max_bytes_per_trigger
        if size_max is None or begin == ends:
            return ends
        assert self._inventory is not None
        size = sum(one.size for one in self._inventory.ranges(look, begin, ends))
        if size <= size_max:
            return ends
        lagging = sum(end > read for read, end in zip(begin, ends, strict=True))
        count = max(lagging, (sum(ends) - sum(begin)) * size_max // size)
        return planning.advance(begin, ends, count)
