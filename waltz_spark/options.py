"""Options of the source: names, defaults, meaning. Spark hands them over as text, names in lower case."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from typing import Any

from waltz_core.record import record
from waltz_spark.columns import NAMES, TYPES, VERIFY, Shape
from waltz_spark.directories import TRUST
from waltz_spark.errors import OptionError

_SIZE = re.compile(r"^(\d+)\s*([kmgt]?)i?b?$", re.IGNORECASE)
_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_SPARKS_OWN = {"checkpointlocation", "queryname", "path"}  # put there by Spark itself


def _text(name: str, value: str) -> str:
    return value


def _flag(name: str, value: str) -> bool:
    if value.strip().lower() not in ("true", "false"):
        raise OptionError(f"{name}: expected true or false, found {value!r}")
    return value.strip().lower() == "true"


def _number(name: str, value: str) -> int:
    if not value.strip().isdecimal() or int(value) < 1:
        raise OptionError(f"{name}: expected a whole number of at least 1, found {value!r}")
    return int(value)


def _size(name: str, value: str) -> int:
    """Bytes; `128m` and `128 MiB` are 128 * 2^20."""
    match = _SIZE.match(value.strip())
    if match is None or int(match[1]) == 0:
        raise OptionError(f"{name}: expected a size such as 128m, found {value!r}")
    return int(match[1]) << _UNITS[match[2].lower()]


def _one_of(*words: str) -> Callable[[str, str], str]:
    def parse(name: str, value: str) -> str:
        if value.strip().lower() not in words:
            raise OptionError(f"{name}: expected one of {', '.join(words)}, found {value!r}")
        return value.strip().lower()

    return parse


def _list(name: str, value: str) -> tuple[str, ...]:
    found = tuple(piece.strip() for piece in value.split(",") if piece.strip())
    if not found:
        raise OptionError(f"{name} is empty")
    return found


def _partitions(name: str, value: str) -> tuple[int, ...]:
    """`0-3,7`."""
    found: set[int] = set()
    for piece in _list(name, value):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", piece)
        if match is None or int(match[2] or match[1]) - int(match[1]) > 1_000_000:
            raise OptionError(f"{name}: expected ids and ranges such as 0-3,7, found {value!r}")
        found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(sorted(found))


_KNOWN: dict[str, tuple[Callable[[str, str], Any], Any]] = {
    "url": (_text, None),
    "zookeeper": (_text, None),
    "clusterRoot": (_text, None),
    "directory": (_list, ()),
    "archive": (_text, None),
    "via": (_one_of("auto", "files", "storage", "server"), "auto"),
    "trust": (_one_of(*TRUST), "control"),
    "adminEndpoints": (_list, ()),
    "partitions": (_partitions, None),
    "startingOffsets": (_text, "earliest"),
    "endingOffsets": (_text, "latest"),
    "cut": (_text, None),
    "maxTransactionsPerTrigger": (_number, None),
    "maxBytesPerTrigger": (_size, None),
    "minTransactionsPerTrigger": (_number, None),
    "maxTriggerDelay": (_number, 600_000),
    "minPartitions": (_number, 1),
    "maxRecordsPerPartition": (_number, None),
    "targetSplitBytes": (_size, 128 << 20),
    "packSmall": (_flag, True),
    "verify": (_one_of(*VERIFY), "payload"),
    "batchRows": (_number, 16_384),
    "batchBytes": (_size, 4 << 20),
    "includeData": (_flag, True),
    "columns": (_list, None),
    "codec": (_text, None),
    "origin": (_flag, False),
    "pollIntervalMs": (_number, 100),
    "requestTimeoutMs": (_number, 10_000),
    "retries": (_number, 3),
    "ssl.ca": (_text, None),
    "ssl.certificate": (_text, None),
    "ssl.key": (_text, None),
    "ssl.verify": (_flag, None),
}
_BY_LOWER = {name.lower(): name for name in _KNOWN}


@record
class Options:
    """The options of one reader; times in ms, sizes in bytes. docs/pipeline.md tells what each means."""

    url: str | None
    zookeeper: str | None
    cluster_root: str | None
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
        """What batches are to look like.

        Raises:
            OptionError: no such column.
        """
        columns = self.columns or NAMES
        for name in columns:
            if name not in TYPES:
                raise OptionError(f"columns: there is no {name}{_hint(name, TYPES)}")
        if self.origin:
            columns = (*columns, *(name for name in ("_origin", "_verified") if name not in columns))
        if not self.include_data:
            columns = tuple(name for name in columns if name != "data")
        if not columns:
            raise OptionError("no column is left to read")
        return Shape(columns, self.verify, self.batch_rows, self.batch_bytes, self.codec)


def parse_options(values: Mapping[str, str]) -> Options:
    """Read what the user gave.

    Raises:
        OptionError: an option is unknown (the nearest known one is named), or a value cannot be used.
    """
    found: dict[str, Any] = {name: default for name, (_, default) in _KNOWN.items()}
    for given, value in values.items():
        name = _BY_LOWER.get(given.lower())
        if name is None:
            if given.lower() in _SPARKS_OWN:
                continue
            raise OptionError(f"unknown option {given}{_hint(given, _KNOWN)}")
        found[name] = _KNOWN[name][0](name, str(value))
    options = Options(**{_attribute(name): value for name, value in found.items()})
    _check(options, {name for given in values if (name := _BY_LOWER.get(given.lower()))})
    return options


def _check(options: Options, given: set[str]) -> None:
    if not (options.url or options.zookeeper or options.directory or options.archive):
        raise OptionError("say what to read: url, zookeeper, directory or archive")
    if options.url and options.zookeeper:
        raise OptionError("url and zookeeper both name a cluster; give one of them")
    if options.zookeeper and not options.cluster_root:
        raise OptionError("zookeeper needs clusterRoot, the znode of the cluster")
    if "cut" in given and "endingOffsets" in given:
        raise OptionError("cut and endingOffsets both say where to end; give one of them")
    live = options.url or options.zookeeper
    if options.via in ("storage", "server") and not live:
        raise OptionError(f"via={options.via} needs url or zookeeper")
    if options.via == "files" and not options.directory:
        raise OptionError("via=files needs directory")


def _attribute(name: str) -> str:
    return re.sub(r"([A-Z])", lambda match: "_" + match[1].lower(), name).replace(".", "_")


def _hint(name: str, known: Mapping[str, object]) -> str:
    lower = {one.lower(): one for one in known}
    near = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.5)
    return f"; did you mean {lower[near[0]]}?" if near else f"; known are {', '.join(sorted(known))}"
