"""What the pipeline raises. Every class survives pickling: most of them are raised in a Spark executor."""

from __future__ import annotations

from waltz_core.base.errors import WaltzError


class PipelineError(WaltzError):
    """Root of the errors of this package."""


class OptionError(PipelineError):
    """An option is unknown, missing, or its value cannot be used."""


class UnreachableError(PipelineError):
    """A source of records cannot be read now: a file is gone, a node does not answer, a connection broke."""


class SourceRefusedError(UnreachableError):
    """A node answers, but not with what it was asked for; the text is the node's."""


class LogStartError(UnreachableError):
    """A sink must read what the storage nodes gave up; `text` says where the log begins."""

    def __init__(self, partition: int, text: str) -> None:
        super().__init__(partition, text)
        self.partition = partition
        self.text = text

    def __str__(self) -> str:
        return (
            f"partition {self.partition}: whether an earlier attempt wrote rows of this batch cannot be read any more: "
            f"{self.text}. If there are none of it in the archive, begin with another checkpointLocation"
        )


class RecordDamagedError(PipelineError):
    """A record that must be there is missing, torn, or does not match its checksum."""

    def __init__(self, partition: int, transaction_id: int, place: str, reason: str) -> None:
        super().__init__(partition, transaction_id, place, reason)
        self.partition = partition
        self.transaction_id = transaction_id
        self.place = place
        self.reason = reason

    def __str__(self) -> str:
        return f"partition {self.partition}, transaction {self.transaction_id}, {self.place}: {self.reason}"


class DataLossError(PipelineError):
    """Ids that must exist are in no place: half-open range `start..end`."""

    def __init__(self, partition: int, start: int, end: int, place: str, reason: str) -> None:
        super().__init__(partition, start, end, place, reason)
        self.partition = partition
        self.start = start
        self.end = end
        self.place = place
        self.reason = reason

    def __str__(self) -> str:
        return f"partition {self.partition}, transactions {self.start} to {self.end - 1}, {self.place}: {self.reason}"


class WrongClusterError(PipelineError):
    """Files, checkpoints or nodes that belong to another cluster."""

    def __init__(self, place: str, expected: str, actual: str) -> None:
        super().__init__(place, expected, actual)
        self.place = place
        self.expected = expected
        self.actual = actual

    def __str__(self) -> str:
        return f"{self.place} belongs to cluster {self.actual}, not to {self.expected}"


class WentBackError(PipelineError):
    """A log ends below the id up to which it was read: it was restored, or this is another cluster."""

    def __init__(self, partition: int, read_up_to: int, end: int) -> None:
        super().__init__(partition, read_up_to, end)
        self.partition = partition
        self.read_up_to = read_up_to
        self.end = end

    def __str__(self) -> str:
        return (
            f"partition {self.partition}: was read up to id {self.read_up_to - 1}, but the log now ends at "
            f"{self.end - 1}; was it restored, or is this the wrong cluster?"
        )


class ArchiveError(PipelineError):
    """An archive contradicts itself, or its source or replicas."""


class FencedError(PipelineError):
    """Another attempt at the same rows has taken over; nothing more of this one will be committed."""

    def __init__(self, partition: int, task: int, batch: int, attempt: str) -> None:
        super().__init__(partition, task, batch, attempt)
        self.partition = partition
        self.task = task
        self.batch = batch
        self.attempt = attempt

    def __str__(self) -> str:
        return (
            f"partition {self.partition}: task {self.task} of batch {self.batch} (attempt {self.attempt}) has taken "
            "over; if that is another task of the same job, to bring the rows of a partition together: "
            "waltz_spark.arrange"
        )


class DifferentRowsError(PipelineError):
    """An earlier attempt at a batch wrote rows that this one does not have."""

    def __init__(self, partition: int, count: int) -> None:
        super().__init__(partition, count)
        self.partition = partition
        self.count = count

    def __str__(self) -> str:
        return (
            f"partition {self.partition}: an earlier attempt at this batch wrote {self.count} rows that are not "
            "among the rows of this one: rows must be the same every time they are computed, and there must be one "
            "task for each partition; to bring the rows of a partition together: waltz_spark.arrange"
        )


class JournalError(PipelineError):
    """A decision journal that cannot be read as it is: damaged, incomplete, or of another cluster."""

    def __init__(self, path: str, offset: int, reason: str) -> None:
        super().__init__(path, offset, reason)
        self.path = path
        self.offset = offset
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}, offset {self.offset}: {self.reason}"
