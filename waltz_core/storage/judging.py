"""What a storage node finds wrong with a data file when it opens the partition, from bytes that were read before. Pure.

For tools that look and change nothing: the procedures are those of the node. They run on the bytes in memory, and what
they would write is left out.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from waltz_core.base.record import record
from waltz_core.storage import control, side
from waltz_core.storage.control import ControlEntry, ControlStruct
from waltz_core.storage.effects import FileEntry
from waltz_core.storage.evidence import Evidence
from waltz_core.storage.log_files import LogPlace
from waltz_core.storage.procedure import Procedure, ReadSpan, ReadSpans, T
from waltz_core.storage.segment import SegmentHeader, decode_header, id_of_name, index_name
from waltz_core.storage.segment_opening import SegmentOpening, wrong_field
from waltz_core.storage.side import Belongs, LogStart


@record
class Surroundings:
    """What the directory of a partition and the control file say about its data files."""

    directory: str
    partition_id: int | None  # by the name of the directory, None if that is no number
    key: bytes | None  # cluster key, None without a control file
    local_low_water_mark: int | None  # None if neither the control file nor its copy can be read
    mark: int | None  # durable mark, None if none counts
    start: LogStart
    present: tuple[FileEntry, ...]

    @property
    def firsts(self) -> list[int]:
        """First ids of the data files, in order."""
        names = sorted(entry.name for entry in self.present if entry.name.endswith(".seg"))
        return [first for name in names if (first := id_of_name(name)) is not None]

    @property
    def floor(self) -> int:
        """Everything up to here was on disk, -1 if that is not known."""
        if self.mark is not None:
            return self.mark
        return -1 if self.local_low_water_mark is None else self.local_low_water_mark


def surroundings(
    directory: str,
    partition_id: int | None,
    control_file: bytes,
    sides: Mapping[str, bytes],
    present: tuple[FileEntry, ...],
) -> Surroundings:
    """Read them.

    Args:
        control_file: its content, empty if there is none.
        sides: contents of the side files that exist, by name.
    """
    header = control.decode_header(control_file)
    current: ControlStruct | None = None
    if header is not None and partition_id is not None:
        entry = control.decode_entry(control_file[control.HEADER_SIZE :], partition_id)
        current = entry.current if isinstance(entry, ControlEntry) else None
    slots = {name: side.newest_slot(data) for name, data in sides.items()}
    current = side.newer_copy(current, side.decode_fence(slots.get(side.FENCE))) or current
    around = Surroundings(
        directory,
        partition_id,
        None if header is None else header.key,
        None if current is None else current.local_low_water_mark,
        None,
        side.decode_start(slots.get(side.START)),
        present,
    )
    if current is None or not around.firsts:
        return around
    belongs = Belongs(current.sequence, current.session_id, around.firsts[-1])
    return attrs.evolve(around, mark=side.decode_mark(slots.get(side.MARK), belongs))


def held_throughout(before: Surroundings, after: Surroundings) -> Surroundings:
    """What was so before a data file was read and still is after it: a live node appends, cuts and begins files."""
    kept = {entry.name for entry in after.present}
    weaker = min(before, after, key=lambda one: one.floor)
    return attrs.evolve(
        before,
        mark=weaker.mark,
        local_low_water_mark=weaker.local_low_water_mark,
        present=tuple(entry for entry in before.present if entry.name in kept),
        start=max(before.start, after.start, key=lambda start: start.first_id),
    )


@record
class Judgement:
    """What a node would find."""

    problem: str | None  # why the partition would be in limbo
    grave: bool  # the problem is not, or not only, one of records that are damaged
    index_problem: str | None  # why the whole index does not count
    following: int | None  # first id of the next data file, None for the newest one
    lost: int | None  # the first of the ids that were on disk and are not in the file


def judge(around: Surroundings, first: int, header: SegmentHeader, files: Mapping[str, bytes]) -> Judgement:
    """Judge the data file that is to begin with the id `first`.

    Args:
        header: of the data file.
        files: contents of the data file and, if it exists, of its index, by name.
    """
    where = LogPlace(
        around.directory,
        header.partition_id if around.partition_id is None else around.partition_id,
        header.key if around.key is None else around.key,
        0,
    )
    others = [entry for entry in around.present if entry.name not in files]
    present = (*others, *(FileEntry(name, len(data)) for name, data in files.items()))
    evidence = Evidence(where, present, 0, around.floor)
    evidence.adopt_mark(around.mark)
    name = next(name for name in files if name.endswith(".seg"))
    following = next((one for one in around.firsts if one > first), None)
    if around.key is not None and first == min(around.firsts, default=first):  # else it may be the copy of one file
        evidence.check_gap(min(first, around.start.first_id), first)
    held = {evidence.path(one): data for one, data in files.items()}
    segment = _run(SegmentOpening(evidence).run(name, first, following), held)
    evidence.out.forgive(around.start.first_id)
    lost = None
    if following is None:
        evidence.check_end(segment)
        lost = segment.next_id if segment.next_id <= around.floor else None
        if lost is not None and evidence.out.problem is None:
            # A node lets this pass, as 0.13.2 truncates below its mark, and keeps no other one. A tool tells it.
            end, floor = segment.next_id - 1, around.floor
            text = f"the log ends at transaction {end}, but the control file says that {floor} was on disk"
            evidence.out.blame(f"{evidence.path(name)}: {text}")
    index = files.get(index_name(name))
    absent = "expected an index, found no file"
    wrong = absent if index is None else wrong_field(decode_header(index), len(index), where, first)
    index_problem = None if wrong is None else f"{evidence.path(index_name(name))}: {wrong}"
    return Judgement(evidence.out.problem, evidence.out.grave, index_problem, following, lost)


def _run(procedure: Procedure[T], files: Mapping[str, bytes]) -> T:
    """Run a procedure to its end, which reads nothing but these files; what it writes is left out."""

    def read(span: ReadSpan) -> bytes:
        return files.get(span.path, b"")[span.offset : span.offset + span.length]

    work = next(procedure)
    while True:
        try:
            match work:
                case ReadSpan():
                    work = procedure.send(read(work))
                case ReadSpans(spans):
                    work = procedure.send([read(span) for span in spans])
                case _:
                    work = procedure.send(None)
        except StopIteration as end:
            result: T = end.value
            return result
