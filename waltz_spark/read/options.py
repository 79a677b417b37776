"""Options of the source: names, defaults, meaning. Spark hands them over as text, names in lower case."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

from waltz_core.base.record import record
from waltz_spark.base.errors import OptionError
from waltz_spark.records.columns import NAMES, TYPES, VERIFY, Shape, arrow_schema
from waltz_spark.records.directories import TRUST

_SIZE = re.compile(r"^(\d{1,18})\s*([kmgt]?)i?b?$", re.IGNORECASE)
_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_NUMBER_MAX = 2**63 - 1
_SPARKS_OWN = {"checkpointlocation", "queryname", "path"}  # put there by Spark itself


def text_option(name: str, value: str) -> str:
    return value


def flag_option(name: str, value: str) -> bool:
    if value.strip().lower() not in ("true", "false"):
        raise OptionError(f"{name}: expected true or false, found {value!r}")
    return value.strip().lower() == "true"


def number_option(name: str, value: str) -> int:
    number = number_in(value)
    if number is None or number < 1:
        raise OptionError(f"{name}: expected a whole number of at least 1, found {value!r}")
    return number


def number_in(value: str) -> int | None:
    """A whole number from 0 on, of 63 bits at most; None for any other text."""
    text = value.strip()
    return int(text) if text.isdecimal() and len(text) <= 19 and int(text) <= _NUMBER_MAX else None


def wanted_partitions(given: Collection[int] | None, count: int, where: str) -> tuple[int, ...]:
    """The partitions to work on: those that were given, or all `count` of them; a pass over nothing would look well.

    Raises:
        OptionError: the log or the archive, `where`, has not all of them, or none was given.
    """
    if given is None:
        return tuple(range(count))
    unknown = sorted(one for one in given if not 0 <= one < count)
    if unknown:
        shown = ", ".join(map(str, unknown[:5])) + (", ..." if len(unknown) > 5 else "")
        raise OptionError(f"partitions: there is no {shown}: {where} has {count} partitions, 0 to {count - 1}")
    if not given:
        raise OptionError("partitions: expected at least one")
    return tuple(sorted(set(given)))


def check_number(name: str, value: int, least: int) -> None:
    """See that what a program was given for a number of ids or bytes can be one.

    Raises:
        OptionError: it is below `least`, or has more than 63 bits.
    """
    if not least <= value <= _NUMBER_MAX:
        raise OptionError(f"{name}: expected a whole number from {least} to {_NUMBER_MAX}, found {value}")


def _size(name: str, value: str) -> int:
    """Bytes; `128m` and `128 MiB` are 128 * 2^20."""
    match = _SIZE.match(value.strip())
    size = 0 if match is None else int(match[1]) << _UNITS[match[2].lower()]
    if not 0 < size <= _NUMBER_MAX:
        raise OptionError(f"{name}: expected a size such as 128m, found {value!r}")
    return size


def one_of(*words: str) -> Callable[[str, str], str]:
    def parse(name: str, value: str) -> str:
        if value.strip().lower() not in words:
            raise OptionError(f"{name}: expected one of {', '.join(words)}, found {value!r}")
        return value.strip().lower()

    return parse


def _list(name: str, value: str) -> tuple[str, ...]:
    pieces = tuple(piece.strip() for piece in value.split(",") if piece.strip())
    if not pieces:
        raise OptionError(f"{name} is empty")
    return pieces


def partitions_option(name: str, value: str) -> tuple[int, ...]:
    """`0-3,7`; a range that begins with the higher number would name nothing, so it is refused."""
    partitions: set[int] = set()
    for piece in _list(name, value):
        match = re.fullmatch(r"(\d{1,10})(?:-(\d{1,10}))?", piece)
        low, high = (0, -1) if match is None else (int(match[1]), int(match[2] or match[1]))
        if not low <= high <= low + 1_000_000:
            raise OptionError(f"{name}: expected ids and ranges such as 0-3,7, found {value!r}")
        partitions.update(range(low, high + 1))
    return tuple(sorted(partitions))


Known: TypeAlias = Mapping[str, tuple[Callable[[str, str], Any], Any]]

CONNECTION: Known = {
    "url": (text_option, None),
    "zookeeper": (text_option, None),
    "clusterRoot": (text_option, None),
    "zookeeperConfig": (text_option, None),
    "requestTimeoutMs": (number_option, 10_000),
    "retries": (number_option, 3),
    "ssl.ca": (text_option, None),
    "ssl.certificate": (text_option, None),
    "ssl.key": (text_option, None),
    "ssl.verify": (flag_option, None),
}
"""How a running cluster is reached."""

_KNOWN: Known = {
    **CONNECTION,
    "directory": (_list, ()),
    "archive": (text_option, None),
    "via": (one_of("auto", "files", "storage", "server"), "auto"),
    "trust": (one_of(*TRUST), "control"),
    "adminEndpoints": (_list, ()),
    "partitions": (partitions_option, None),
    "startingOffsets": (text_option, "earliest"),
    "endingOffsets": (text_option, "latest"),
    "cut": (text_option, None),
    "maxTransactionsPerTrigger": (number_option, None),
    "maxBytesPerTrigger": (_size, None),
    "minTransactionsPerTrigger": (number_option, None),
    "maxTriggerDelay": (number_option, 600_000),
    "minPartitions": (number_option, 1),
    "maxRecordsPerPartition": (number_option, None),
    "targetSplitBytes": (_size, 128 << 20),
    "packSmall": (flag_option, True),
    "verify": (one_of(*VERIFY), "record"),
    "batchRows": (number_option, 16_384),
    "batchBytes": (_size, 4 << 20),
    "includeData": (flag_option, True),
    "columns": (_list, None),
    "codec": (text_option, None),
    "origin": (flag_option, False),
    "pollIntervalMs": (number_option, 100),
}


@record
class Options:
    """The options of one reader; times in ms, sizes in bytes. docs/pipeline.md explains them."""

    url: str | None
    zookeeper: str | None
    cluster_root: str | None
    zookeeper_config: str | None
    directory: tuple[str, ...]
    archive: str | None
    via: str
    trust: str
    admin_endpoints: tuple[str, ...]
    partitions: tuple[int, ...] | None
    starting_offsets: str
    ending_offsets: str
    cut: str | None
    max_transactions_per_trigger: int | None
    max_bytes_per_trigger: int | None
    min_transactions_per_trigger: int | None
    max_trigger_delay: int
    min_partitions: int
    max_records_per_partition: int | None
    target_split_bytes: int
    pack_small: bool
    verify: str
    batch_rows: int
    batch_bytes: int
    include_data: bool
    columns: tuple[str, ...] | None
    codec: str | None
    origin: bool
    poll_interval_ms: int
    request_timeout_ms: int
    retries: int
    ssl_ca: str | None
    ssl_certificate: str | None
    ssl_key: str | None
    ssl_verify: bool | None

    def shape(self) -> Shape:
        """The shape of the batches.

        Raises:
            OptionError: no such column, or the codec has one of a name that is chosen too.
        """
        columns = self.columns or NAMES
        for name in columns:
            if name not in TYPES:
                raise OptionError(f"columns: there is no {name}{hint(name, TYPES)}")
        if self.origin:
            columns = (*columns, *(name for name in ("_origin", "_verified") if name not in columns))
        if not self.include_data:
            columns = tuple(name for name in columns if name != "data")
        if not columns:
            raise OptionError("no column is left to read")
        shape = Shape(columns, self.verify, self.batch_rows, self.batch_bytes, self.codec)
        if self.codec is not None:
            counts = Counter(name.lower() for name in arrow_schema(shape).names)  # Spark looks at no case
            twice = ", ".join(name for name, count in counts.items() if count > 1)
            if twice:
                raise OptionError(
                    f"codec {self.codec}: there would be two columns {twice}: give it another name in the codec's "
                    "schema, or leave the one of the log out (columns)"
                )
        return shape


def parse_options(values: Mapping[str, str]) -> Options:
    """Read what the user gave.

    Raises:
        OptionError: an option is unknown (the nearest known one is named), or a value cannot be used.
    """
    found, given = read_values(values, _KNOWN, _SPARKS_OWN)
    options = Options(**found)
    _check(options, given)
    return options


def read_values(
    values: Mapping[str, str], known: Known, ignored: Collection[str] = ()
) -> tuple[dict[str, Any], set[str]]:
    """Attributes by their Python names, defaults included, and the names of what was given.

    Args:
        known: by name as users write it, the parser and the default.
        ignored: names in lower case.

    Raises:
        OptionError: as `parse_options`.
    """
    by_lower = {name.lower(): name for name in known}
    parsed: dict[str, Any] = {name: default for name, (_, default) in known.items()}
    given = set()
    for written, value in values.items():
        name = by_lower.get(written.lower())
        if name is not None:
            given.add(name)
            parsed[name] = known[name][0](name, str(value))
        elif written.lower() not in ignored:
            raise OptionError(f"unknown option {written}{hint(written, known)}")
    return {_attribute(name): value for name, value in parsed.items()}, given


def _check(options: Options, given: set[str]) -> None:
    if not (options.url or options.zookeeper or options.directory or options.archive):
        raise OptionError("say what to read: url, zookeeper, directory or archive")
    check_connection(options.url, options.zookeeper, options.cluster_root)
    if "cut" in given and "endingOffsets" in given:
        raise OptionError("cut and endingOffsets both say where to end; give one of them")
    live = options.url or options.zookeeper
    if options.via in ("storage", "server") and not live:
        raise OptionError(f"via={options.via} needs url or zookeeper")
    if options.via == "files" and not options.directory:
        raise OptionError("via=files needs directory")


def check_connection(url: str | None, zookeeper: str | None, cluster_root: str | None) -> None:
    """Raises OptionError: they contradict each other."""
    if url and zookeeper:
        raise OptionError("url and zookeeper both name a cluster; give one of them")
    if zookeeper and not cluster_root:
        raise OptionError("zookeeper needs clusterRoot, the znode of the cluster")


def _attribute(name: str) -> str:
    return re.sub(r"([A-Z])", lambda match: "_" + match[1].lower(), name).replace(".", "_")


def hint(name: str, known: Mapping[str, object]) -> str:
    lower = {one.lower(): one for one in known}
    near = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.5)
    return f"; did you mean {lower[near[0]]}?" if near else f"; known are {', '.join(sorted(known))}"
