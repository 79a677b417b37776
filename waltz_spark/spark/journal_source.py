"""The source `waltz.journal` of Spark: decisions of servers, one task per file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from waltz_spark.base.errors import OptionError
from waltz_spark.read.options import partitions_option, read_values
from waltz_spark.records.journal import DDL, JournalFile, find_journals, read_table
from waltz_spark.spark.api import DataSource, DataSourceReader, InputPartition
from waltz_spark.spark.refusals import in_one_line, rows_in_one_line

NAME = "waltz.journal"


def _names(name: str, value: str) -> tuple[str, ...]:
    return tuple(one.strip() for one in value.split(",") if one.strip())


_KNOWN: dict[str, tuple[Any, Any]] = {"directory": (_names, ()), "partitions": (partitions_option, None)}


class Task(InputPartition):  # type: ignore[misc]  # pyspark is not looked into
    """One file, and the one behind it, which may hold the times at which the last decisions were committed."""

    def __init__(self, file: JournalFile, following: JournalFile | None) -> None:
        super().__init__(0)
        self.file = file
        self.following = following


class JournalReader(DataSourceReader):  # type: ignore[misc]  # pyspark is not looked into
    """All decisions that are in the files when it is planned."""

    def __init__(self, options: Mapping[str, str]) -> None:
        found, _ = read_values(options, _KNOWN)
        self._places: tuple[str, ...] = found["directory"]
        self._partitions: tuple[int, ...] | None = found["partitions"]
        if not self._places:
            raise OptionError("say what to read: directory (of one or more servers, separated by commas)")

    @in_one_line
    def partitions(self) -> list[Task]:
        """One task per file.

        Raises:
            OptionError: there is a journal of none of the partitions.
            JournalError: a journal cannot be read.
        """
        every = find_journals(self._places)
        files = [file for file in every if self._partitions is None or file.partition in self._partitions]
        if not files:
            known = ", ".join(map(str, sorted({file.partition for file in every})))
            raise OptionError(f"partitions: there is no journal of any of them, but of {known}")
        tasks = []
        for at, file in enumerate(files):
            behind = files[at + 1] if at + 1 < len(files) else None
            same = behind is not None and (behind.place, behind.partition) == (file.place, file.partition)
            tasks.append(Task(file, behind if same else None))
        return tasks

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """One Arrow record batch; runs in an executor."""
        assert isinstance(partition, Task)
        return rows_in_one_line(_tables(partition))


def _tables(task: Task) -> Iterator[Any]:
    yield read_table(task.file, task.following)


class JournalDataSource(DataSource):  # type: ignore[misc]  # pyspark is not looked into
    """`spark.read.format("waltz.journal")`."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return NAME

    def schema(self) -> str:
        """The same for every journal."""
        return DDL

    @in_one_line
    def reader(self, schema: Any) -> JournalReader:
        """A batch reader."""
        return JournalReader(self.options)
