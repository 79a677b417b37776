"""`waltz disk ...`: looks at data and control files, of a live node too; never opens anything for writing."""

from __future__ import annotations

import json
import os
import statistics
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from waltz_core.base.ids import req_id_parts
from waltz_core.base.log import Record
from waltz_core.storage import control, index, side
from waltz_core.storage.control import ControlDamage, ControlEntry
from waltz_core.storage.effects import FileEntry
from waltz_core.storage.judging import Judgement, Surroundings, held_throughout, judge, surroundings
from waltz_core.storage.segment import HEADER_SIZE, SegmentHeader, decode_header, id_of_name, index_name
from waltz_core.storage.walk import Row, Tail, record_at, walk
from waltz_trio.cli.help import Parser, UsageError
from waltz_trio.cli.options import JSON, Arguments, Command, CommandError, Option, parser_of
from waltz_trio.cli.progress import counted

_SHOWN_MAX = 100
_DUMP_WIDTH = 16  # bytes of a payload on a line
_PAD = " " * 6


class SegmentFile:
    """One data file with its index and what the control file says of its partition, as they are now."""

    def __init__(self, path: Path) -> None:
        """Read it.

        Raises:
            CommandError: it cannot be read, or is no data file.
        """
        first_id = id_of_name(path.name) if path.suffix == ".seg" else None
        if first_id is None:
            raise CommandError(f"expected a data file, named by its first transaction such as 0…0.seg, found {path}")
        self.path, self.first_id = path, first_id
        self.data = _read(path)
        header = decode_header(self.data)
        if header is None:
            raise CommandError(f"{path}: expected a header of {HEADER_SIZE} bytes, found {len(self.data)} bytes")
        self.header: SegmentHeader = header
        index_path = path.with_name(index_name(path.name))
        self.index = _read(index_path) if index_path.exists() else None
        self.entries: array[int] = index.decode_entries((self.index or b"")[HEADER_SIZE:])

    def rows(self) -> Iterator[Row | Tail]:
        """Its transactions, and what is left behind them; a terminal sees how far it is."""
        with counted(self.path.name, len(self.entries)) as progress:
            for row in walk(self.data, self.first_id, self.entries):
                progress.advance()
                yield row

    def record(self, transaction_id: int) -> Record:
        """One intact record.

        Raises:
            CommandError: it is not there, or damaged.
        """
        for row in self.rows():
            if isinstance(row, Row) and row.transaction_id == transaction_id:
                if row.place is None:
                    raise CommandError(f"transaction {transaction_id} is damaged in {self.path}")
                return record_at(self.data, row)
        raise CommandError(f"record not found for transaction id {transaction_id}")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}") from error


def _surroundings(path: Path) -> Surroundings:
    """What its directory, and the control file beside that, say of a data file."""
    folder = path.absolute().parent
    partition_id = int(folder.name) if folder.name.isdecimal() else None
    control_file = folder.parent / control.NAME
    sides = {name: _read(folder / name) for name in (side.FENCE, side.MARK, side.START) if (folder / name).exists()}
    known = partition_id is not None and control_file.exists()
    present = []
    try:
        for name in sorted(os.listdir(folder)):
            with suppress(FileNotFoundError):  # a live node removes files
                present.append(FileEntry(name, (folder / name).stat().st_size))
    except OSError as error:
        raise CommandError(f"cannot read {path.parent}: {error.strerror}") from error
    return surroundings(str(path.parent), partition_id, _read(control_file) if known else b"", sides, tuple(present))


def _wanted(arguments: Arguments) -> int | None:
    return arguments.number("transaction-id", bits=64) if arguments.flag("transaction-id") else None


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns with six blanks on both sides between lines of dashes; the last column may have several lines."""
    widths = [
        max(len(line) for cell in column for line in cell.split("\n")) for column in zip(heads, *rows, strict=True)
    ]
    rule = "-" * sum(width + 2 * len(_PAD) for width in widths)
    lines = [rule, _line(heads, widths), rule]
    for row in rows:
        first, *more = row[-1].split("\n")
        lines.append(_line([*row[:-1], first], widths))
        lines += [_line([*[""] * (len(row) - 1), line], widths) for line in more]
    return "\n".join([*lines, rule])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "".join(f"{_PAD}{cell:<{width}}{_PAD}" for cell, width in zip(cells, widths, strict=True)).rstrip()


# ---- verify-segment --------------------------------------------------------------------------


@dataclass
class _Verification:
    """What was found in one data file."""

    segment: SegmentFile
    around: Surroundings
    judged: Judgement
    checked: int = 0
    bad: list[Row] = field(default_factory=list)
    not_indexed: int = 0  # intact, without an entry in the index, and that is no failure
    tail: Tail | None = None
    wanted: Row | None = None

    @property
    def tail_lost(self) -> bool:
        """What the torn write held was there: behind the mark a power failure leaves such a write, below it never."""
        if self.tail is None:
            return False
        return self.tail.next_id <= self.around.floor or self.judged.following is not None

    @property
    def failed(self) -> bool:
        """A check has failed."""
        return bool(self.bad or self.tail_lost or self.judged.problem or self.judged.index_problem)

    def problems(self) -> list[str]:
        """What is wrong besides the records that are shown one by one."""
        shown = bool(self.bad) or self.tail_lost
        problem = self.judged.problem if self.judged.grave or not shown else None
        return [text for text in (problem, self.judged.index_problem) if text is not None]


def _verify(path: Path, wanted: int | None) -> _Verification:
    before = _surroundings(path)
    segment = SegmentFile(path)
    around = held_throughout(before, _surroundings(path))
    files = {path.name: segment.data}
    if segment.index is not None:
        files[index_name(path.name)] = segment.index
    result = _Verification(segment, around, judge(around, segment.first_id, segment.header, files))
    for row in segment.rows():
        if isinstance(row, Tail):
            result.tail = row
            continue
        result.checked += 1
        if row.transaction_id == wanted:
            result.wanted = row
        if row.index_right:
            continue
        if _not_yet_indexed(result, row):
            result.not_indexed += 1
        else:
            result.bad.append(row)
    return result


def _verify_segment(arguments: Arguments) -> int:
    wanted = _wanted(arguments)
    result = _verify(Path(arguments.operands[0]), wanted)
    if wanted is not None:
        if result.wanted is None:
            raise CommandError(f"record not found for transaction id {wanted}")
        result.bad = [] if result.wanted.index_right else [result.wanted]
    if arguments.flag("json"):
        print(json.dumps(_verify_json(result), indent=2))
    elif result.wanted is not None:
        print(table(_VERIFY_HEADS, [_verify_row(result.wanted)]))
    else:
        _print_verification(result)
    return 1 if (result.failed if wanted is None else result.bad) else 0


_VERIFY_HEADS = ("TRANSACTION ID", "INDEX VERIFICATION", "CHECKSUM VERIFICATION")


def _not_yet_indexed(result: _Verification, row: Row) -> bool:
    """An intact record behind the mark whose index entry is not there: the index is written after the data."""
    mark = result.around.local_low_water_mark
    behind = result.judged.following is None and (mark is None or row.transaction_id > mark)
    return row.place is not None and row.indexed is None and behind


def _verify_row(row: Row) -> tuple[str, str, str]:
    return (
        str(row.transaction_id),
        "pass" if row.index_right else "fail",
        "fail" if row.place is None else "pass",
    )


def _print_verification(result: _Verification) -> None:
    if result.bad:
        print(table(_VERIFY_HEADS, [_verify_row(row) for row in result.bad[:_SHOWN_MAX]]))
        if len(result.bad) > _SHOWN_MAX:
            print(f"......\nFail count exceed print limit: {_SHOWN_MAX}")
        print(f"VERIFICATION SUMMARY: {len(result.bad)} out of {result.checked} check failed")
    elif not result.failed:
        print(f"INDEX VERIFICATION SUMMARY: all check pass! ({result.checked} transactions)")
    for problem in result.problems():
        print(f"VERIFICATION FAILED: {problem}")
    if result.not_indexed and result.judged.index_problem is None:
        known = result.around.local_low_water_mark is not None
        why = "behind the mark, as after a power failure" if known else "which was not judged: no mark is known"
        print(f"{result.not_indexed} of {result.checked} transactions have no index entry, {why}")
    tail = result.tail
    if tail is None:
        return
    where = f"{tail.size} bytes at offset {tail.place}, where transaction {tail.next_id} would be, are no whole record"
    if result.judged.following is not None:
        print(f"{where}, and the next segment begins with transaction {result.judged.following}")
    elif result.tail_lost:
        told = "the control file" if result.around.mark is None else side.MARK
        print(f"{where}, and {told} says that transactions up to {result.around.floor} were there")
    else:
        print(f"{where}: a torn write, or one under way")


def _verify_json(result: _Verification) -> dict[str, object]:
    tail = result.tail
    return {
        "segment": str(result.segment.path),
        "first_id": result.segment.first_id,
        "checked": result.checked,
        "local_low_water_mark": result.around.local_low_water_mark,
        "durable_mark": result.around.mark,
        "failed": [
            {"transaction_id": row.transaction_id, "index": row.index_right, "checksum": row.place is not None}
            for row in result.bad
        ],
        "not_indexed": result.not_indexed,
        "tail": None if tail is None else {"transaction_id": tail.next_id, "offset": tail.place, "bytes": tail.size},
        "lost": result.tail_lost or result.judged.lost is not None,
        "problem": result.judged.problem,
        "index_problem": result.judged.index_problem,
    }


# ---- segment-statistic -----------------------------------------------------------------------


def _segment_statistic(arguments: Arguments) -> int:
    segment = SegmentFile(Path(arguments.operands[0]))
    sizes = [len(record_at(segment.data, row).data) for row in segment.rows() if isinstance(row, Row) and row.size]
    largest = max(sizes, default=-(2**31))  # what the original prints for an empty segment
    smallest = min(sizes, default=2**31 - 1)
    mean = sum(sizes) // len(sizes) if sizes else 0
    median = int(statistics.median(sizes)) if sizes else 0
    if arguments.flag("json"):
        output = {
            "rows": len(sizes),
            "max_bytes": largest,
            "min_bytes": smallest,
            "mean_bytes": mean,
            "median_bytes": median,
        }
        print(json.dumps(output if sizes else {"rows": 0}, indent=2))
        return 0
    heads = ("NUMBER OF ROWS", "MAXIMUM ROW BYTE", "MINIMUM ROW BYTE", "AVERAGE ROW BYTE", "MEDIAN ROW BYTE")
    print(table(heads, [tuple(map(str, (len(sizes), largest, smallest, mean, median)))]))
    return 0


# ---- dump-segment ----------------------------------------------------------------------------


def _dump_segment(arguments: Arguments) -> int:
    if not arguments.flag("metadata") and not arguments.flag("record"):
        raise UsageError("Must specify at least one of 'metadata' or 'record'")
    form = arguments.text_or_none("deserializer")
    if form not in (None, "text", "json"):
        raise UsageError(f"expected --deserializer text or json, found {form!r}: classes of Java cannot be loaded")
    _wanted(arguments)  # before the first line of an answer
    segment = SegmentFile(Path(arguments.operands[0]))
    if arguments.flag("json"):
        print(json.dumps(_segment_json(segment, arguments), indent=2))
        return 0
    if arguments.flag("metadata"):
        header = segment.header
        print("[dumping data file header]")
        heads = ("FORMAT VERSION", "CREATION TIME", "KEY", "PARTITION ID", "FIRST TRANSACTION ID")
        cells = (header.version, header.created_ms, UUID(bytes=header.key), header.partition_id, header.first_id)
        print(table(heads, [tuple(map(str, cells))]))
    if arguments.flag("record"):
        print("[dumping transaction record]")
        heads = ("TRANSACTION ID", "REQ ID", "HEADER", "CHECKSUM", "TRANSACTION DATA")
        print(table(heads, [_record_cells(one, arguments) for one in _chosen(segment, arguments)]))
    return 0


def _segment_json(segment: SegmentFile, arguments: Arguments) -> dict[str, object]:
    output: dict[str, object] = {}
    if arguments.flag("metadata"):
        header = segment.header
        output["header"] = {
            "version": header.version,
            "created_ms": header.created_ms,
            "key": str(UUID(bytes=header.key)),
            "partition": header.partition_id,
            "first_transaction_id": header.first_id,
        }
    if arguments.flag("record"):
        form = arguments.text_or_none("deserializer")
        output["records"] = [
            {
                "transaction_id": record.transaction_id,
                "req_id": record.req_id.hex(),
                "header": record.header,
                "checksum": record.checksum,
                "data": record.data.hex() if form is None else _as_text(record.data, form),
            }
            for record in _chosen(segment, arguments)
        ]
    return output


def _chosen(segment: SegmentFile, arguments: Arguments) -> Iterator[Record]:
    wanted = _wanted(arguments)
    if wanted is not None:
        yield segment.record(wanted)
        return
    for row in segment.rows():
        if isinstance(row, Row) and row.size:
            yield record_at(segment.data, row)


def _record_cells(record: Record, arguments: Arguments) -> tuple[str, ...]:
    client, generation, partition_id, sequence = req_id_parts(record.req_id)
    req_id = f"ReqId(c:{client},g:{generation},p:{partition_id},s:{sequence})"
    text = arguments.text_or_none("deserializer")
    data = hex_dump(record.data) if text is None else _as_text(record.data, text)
    return str(record.transaction_id), req_id, str(record.header), str(record.checksum), data


def _as_text(data: bytes, codec: str) -> str:
    try:
        text = data.decode()
        if codec == "json":
            text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except ValueError as error:
        return f"(not {codec}: {error})"
    except RecursionError:
        return f"(not shown as {codec}: nested too deeply)"
    return "".join(one if one == "\n" or one.isprintable() else f"\\x{ord(one):02x}" for one in text)


def hex_dump(data: bytes) -> str:
    """Rows of 16 bytes: offset, bytes in pairs, and what of them is printable ASCII (tools-T15)."""
    lines = []
    for at in range(0, len(data), _DUMP_WIDTH):
        piece = data[at : at + _DUMP_WIDTH]
        pairs = " ".join(piece[pair : pair + 2].hex() for pair in range(0, len(piece), 2))
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in piece)
        lines.append(f"{at:08x}: {pairs:<39}  {shown}")
    return "\n".join(lines)


# ---- dump-control-file -----------------------------------------------------------------------


def _dump_control_file(arguments: Arguments) -> int:
    wanted = arguments.number("partition") if arguments.flag("partition") else None
    if wanted is not None and arguments.flag("assigned"):
        raise UsageError("'assigned' is supported only if dumping for all partitions")
    path = Path(arguments.operands[0])
    if path.name != control.NAME:
        raise CommandError(f"Control file should be named as {control.NAME}, but it is {path.name}")
    data = _read(path)
    header = control.decode_header(data)
    if header is None or len(data) < control.file_size(header.partition_count):
        size = control.HEADER_SIZE if header is None else control.file_size(header.partition_count)
        raise CommandError(f"{path}: expected {size} bytes, found {len(data)}: the file is torn")
    partitions: Sequence[int] = range(header.partition_count)
    if wanted is not None:
        if wanted not in partitions:
            raise CommandError(
                f"Invalid partition id, Number of partitions: {header.partition_count}, Min partition id: 0, "
                f"Max partition id: {header.partition_count - 1}"
            )
        partitions = (wanted,)
    body = data[control.HEADER_SIZE :]
    entries = {number: control.decode_entry(body, number) for number in partitions}
    if arguments.flag("assigned"):
        entries = {
            number: entry
            for number, entry in entries.items()
            if isinstance(entry, ControlDamage) or entry.current.assigned
        }
    _print_control(header.key, entries, as_json=arguments.flag("json"))
    return 1 if any(isinstance(entry, ControlDamage) for entry in entries.values()) else 0


def _print_control(key: bytes, entries: dict[int, ControlEntry | ControlDamage], *, as_json: bool) -> None:
    if as_json:
        partitions = [
            {"partition": number, "damage": entry.value}
            if isinstance(entry, ControlDamage)
            else {
                "partition": number,
                "session_id": entry.current.session_id,
                "low_water_mark": entry.current.low_water_mark,
                "local_low_water_mark": entry.current.local_low_water_mark,
                "assigned": entry.current.assigned,
                "available": entry.current.available,
            }
            for number, entry in entries.items()
        ]
        print(json.dumps({"key": str(UUID(bytes=key)), "partitions": partitions}, indent=2))
        return
    print(f"Control File Key: {UUID(bytes=key)}")
    rows = []
    for number, entry in entries.items():
        if isinstance(entry, ControlDamage):
            rows.append((str(number), *["-"] * 4, entry.value))
            continue
        current = entry.current
        cells = (
            number,
            current.session_id,
            current.low_water_mark,
            current.local_low_water_mark,
            current.assigned,
            current.available,
        )
        rows.append(tuple(str(cell).lower() if isinstance(cell, bool) else str(cell) for cell in cells))
    heads = ("PARTITION ID", "SESSION ID", "LOW-WATER MARK", "LOCAL LOW-WATER MARK", "IS-ASSIGNED", "IS-AVAILABLE")
    print(table(heads, rows))


# ---- the table -------------------------------------------------------------------------------

_ID = Option("t", "transaction-id", "Specify the transaction; all if not given")

COMMANDS = (
    Command(
        "verify-segment",
        "Verify the records of a segment and its index; changes nothing. Exit status 1 if a check fails",
        (_ID, JSON),
        _verify_segment,
        operand="PATH.seg",
    ),
    Command(
        "segment-statistic",
        "Number and sizes of the payloads of a segment",
        (JSON,),
        _segment_statistic,
        operand="PATH.seg",
    ),
    Command(
        "dump-segment",
        "Print header or records of a segment",
        (
            Option("m", "metadata", "Print the header", takes_value=False),
            Option("r", "record", "Print the records", takes_value=False),
            _ID,
            Option("d", "deserializer", "How to print payloads: text or json; in hexadecimal if not given"),
            JSON,
        ),
        _dump_segment,
        operand="PATH.seg",
    ),
    Command(
        "dump-control-file",
        "Print the control file of a storage node",
        (
            Option("p", "partition", "Specify the partition; all if not given"),
            Option("a", "assigned", "Only assigned partitions", takes_value=False),
            JSON,
        ),
        _dump_control_file,
        operand="PATH/waltz-storage.ctl",
    ),
)


def make_parser() -> Parser:
    """The sub-commands."""
    return parser_of("waltz disk", COMMANDS, __doc__)
