"""The manifest of an archive: numbered commits, each a small JSON file that is never changed.

A commit says which files were added, what is in them, and which segments the records came from. To commit,
a process reads the log of commits to its end and creates the next number; of two, one fails and reads again.
A hash chain runs through the files of each partition: two archives, or an archive and a replica, that agree
on one link agree on everything before it.
"""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Any, TypeAlias
from uuid import UUID

import attrs

from waltz_core.base.record import record
from waltz_spark.base.errors import ArchiveError
from waltz_spark.base.objects import Store, open_store
from waltz_spark.base.planning import ArchivePlace

FORMAT = 1
_FOLDER = "_waltz/manifest"
_CHECKPOINT_EVERY = 100
_RECORD_SIZE_MIN = 40  # bytes of a record without data
_ID_MAX = 2**63 - 1
_DIGEST = re.compile(r"[0-9a-f]{64}")
_LINK = Struct(">qq")
_SEED = Struct(">16si")


@record
class ArchivedFile:
    """One Parquet file: ids `first_id .. end_id - 1` of a partition."""

    partition: int
    first_id: int
    end_id: int
    path: str  # below the root
    raw_size: int  # bytes of the records on disk
    sha256: str  # of these bytes, end to end
    chain: str  # link of this file
    file_size: int
    file_crc32: int

    def place(self, root: str) -> ArchivePlace:
        """Where its records are, and their size."""
        return ArchivePlace(root, self.path, self.first_id, self.end_id, self.file_size, self.raw_size)


@record
class ArchivedSegment:
    """A segment that records came from: where the restored one starts, and the creation time in its header."""

    partition: int
    first_id: int
    created_ms: int


@record
class ArchiveState:
    """All commits up to one, taken together."""

    root: str
    key: bytes
    partition_count: int
    range_count: int  # ids per file, at most; files end at its multiples
    commits: int
    files: tuple[ArchivedFile, ...]  # by partition, then first id
    segments: tuple[ArchivedSegment, ...]  # the same
    _indexes: list[dict[int, tuple[ArchivedFile, ...]]] = attrs.field(factory=list, init=False, eq=False)  # once made

    def files_of(self, partition: int) -> tuple[ArchivedFile, ...]:
        """Files of a partition in order."""
        if not self._indexes:
            by_partition: dict[int, list[ArchivedFile]] = {}
            for file in _sorted(self.files):
                by_partition.setdefault(file.partition, []).append(file)
            # In one step: threads share a state.
            self._indexes.append({at: tuple(files) for at, files in by_partition.items()})
        return self._indexes[0].get(partition, ())

    def file_at(self, partition: int, transaction_id: int) -> ArchivedFile | None:
        """The file that holds an id, None if there is none."""
        files = self.files_of(partition)
        at = bisect_right(files, transaction_id, key=lambda file: file.first_id) - 1
        return files[at] if at >= 0 and transaction_id < files[at].end_id else None

    def segments_of(self, partition: int) -> tuple[ArchivedSegment, ...]:
        """Segments of a partition in order."""
        return tuple(one for one in self.segments if one.partition == partition)

    def end(self, partition: int) -> int | None:
        """The id behind the last archived one, None if there is none."""
        found = self.files_of(partition)
        return found[-1].end_id if found else None

    def last_link(self, partition: int) -> str:
        """The link that the next file of a partition continues."""
        found = self.files_of(partition)
        return found[-1].chain if found else first_link(self.key, partition)


def file_path(partition: int, first_id: int, end_id: int) -> str:
    """Path of a file below the root; ids are inclusive in the name. A file has no other place."""
    return f"data/partition={partition}/{first_id:019d}-{end_id - 1:019d}.parquet"


def first_link(key: bytes, partition: int) -> str:
    """The first link of the chain of a partition."""
    return hashlib.sha256(b"waltz archive" + _SEED.pack(key, partition)).hexdigest()


def next_link(link: str, first_id: int, end_id: int, digest: str) -> str:
    """The link of a file from that of its predecessor."""
    body = bytes.fromhex(link) + _LINK.pack(first_id, end_id) + bytes.fromhex(digest)
    return hashlib.sha256(body).hexdigest()


# ---- reading ---------------------------------------------------------------------------------


def read_archive(root: str) -> ArchiveState:
    """The archive as of its last commit.

    Raises:
        ArchiveError: there is none, or its manifest contradicts itself.
        UnreachableError: it cannot be read.
    """
    return Reader(open_store(root)).read()


def load(store: Store) -> ArchiveState | None:
    """As `read_archive`; None if there is no commit."""
    return Reader(store).load()


def ids_from_files(root: str) -> dict[int, list[tuple[int, int]]]:
    """Half-open ids whose records came from segments, by partition, in order. Only the commits tell, so all are read.

    Raises:
        ArchiveError: a commit cannot be read.
        UnreachableError: likewise.
    """
    store = open_store(root)
    ranges_of: dict[int, list[tuple[int, int]]] = {}
    for name in _commits(store.names(_FOLDER)):
        commit = _state_from_json(store.root, _parse(store, f"{_FOLDER}/{name}"))
        sources = {segment.partition for segment in commit.segments}
        for file in _sorted(commit.files):
            if file.partition not in sources:
                continue
            ranges = ranges_of.setdefault(file.partition, [])
            joined = ranges.pop()[0] if ranges and ranges[-1][1] == file.first_id else file.first_id
            ranges.append((joined, file.end_id))
    return ranges_of


def _commits(names: Sequence[str]) -> list[str]:
    return [name for name in names if name.endswith(".json") and name[:-5].isdecimal()]


class Reader:
    """Follows a manifest: a commit never changes, so each is fetched once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._state: ArchiveState | None = None

    def read(self) -> ArchiveState:
        """As `read_archive`."""
        state = self.load()
        if state is None:
            raise ArchiveError(f"{self._store.root} holds no archive: {_FOLDER} has no commit")
        return state

    def load(self) -> ArchiveState | None:
        """The archive as of its last commit; None if there is none.

        Raises:
            ArchiveError: the manifest contradicts itself.
            UnreachableError: it cannot be read.
        """
        store, state = self._store, self._state
        names = store.names(_FOLDER)
        commits = _commits(names)
        if not commits:
            if state is not None:
                raise ArchiveError(f"{store.root}: the commits of {_FOLDER} are gone")
            return None
        if [int(name[:-5]) for name in commits] != list(range(len(commits))):
            raise ArchiveError(f"{store.root}: a commit is missing in {_FOLDER}: {len(commits)} up to {commits[-1]}")
        if state is not None and len(commits) < state.commits:
            raise ArchiveError(f"{store.root}: {_FOLDER} had {state.commits} commits, now it has {len(commits)}")
        checkpoints = [name for name in names if name.startswith("checkpoint-")]
        if checkpoints and state is None:
            state = _state_from_json(store.root, _parse(store, f"{_FOLDER}/{checkpoints[-1]}"))
            check_links(attrs.evolve(state, files=()), state.files)
        fresh = [_parse(store, f"{_FOLDER}/{name}") for name in commits[state.commits if state else 0 :]]
        self._state = state = _apply(store.root, state, fresh)
        return state


def _parse(store: Store, name: str) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(store.read(name))
        if content["waltz_archive"] != FORMAT:
            raise ArchiveError(f"{store.root}/{name}: format {content['waltz_archive']}, this program knows {FORMAT}")
    except (ValueError, KeyError, TypeError) as error:
        raise ArchiveError(f"{store.root}/{name} is no commit: {error!r}") from error
    return content


def _apply(root: str, state: ArchiveState | None, contents: Sequence[dict[str, Any]]) -> ArchiveState:
    """Add commits, all of them in one step: there may be as many as files."""
    commits = [_state_from_json(root, content) for content in contents]
    if state is None:
        state = attrs.evolve(commits[0], files=(), segments=(), commits=0)
    ends: Ends = {}
    for number, fresh in enumerate(commits, state.commits):
        if (fresh.key, fresh.partition_count) != (state.key, state.partition_count):
            raise ArchiveError(f"{root}: commit {number} is of cluster {UUID(bytes=fresh.key)}")
        check_links(state, fresh.files, ends)
    if not commits:
        return state
    segments = {(one.partition, one.first_id): one for all_ in (state, *commits) for one in all_.segments}
    return attrs.evolve(
        state,
        commits=state.commits + len(commits),
        files=_sorted((*state.files, *(file for fresh in commits for file in fresh.files))),
        segments=tuple(segments[at] for at in sorted(segments)),
    )


Ends: TypeAlias = dict[int, tuple[int | None, str]]
"""By partition, the id behind the last archived one, None if there is none, and the last link."""


def check_links(state: ArchiveState, fresh: Sequence[ArchivedFile], ends: Ends | None = None) -> None:
    """See that new files continue those that are there.

    Args:
        ends: where partitions end that others were added to since `state`; the new files are noted there.

    Raises:
        ArchiveError: they do not, or the chain is broken.
    """
    ends = {} if ends is None else ends
    for file in _sorted(fresh):
        _check_file(state, file)
        if file.partition not in ends:
            ends[file.partition] = state.end(file.partition), state.last_link(file.partition)
        end, link = ends[file.partition]
        if (end is not None and file.first_id != end) or file.end_id <= file.first_id:
            raise ArchiveError(
                f"{state.root}: partition {file.partition} goes on at id {end}, "
                f"but {file.path} starts at {file.first_id}"
            )
        link = next_link(link, file.first_id, file.end_id, file.sha256)
        if link != file.chain:
            raise ArchiveError(f"{state.root}: the hash chain of partition {file.partition} breaks at {file.path}")
        ends[file.partition] = file.end_id, link


def _check_file(state: ArchiveState, file: ArchivedFile) -> None:
    """What a commit says about a file decides what is opened and decoded, so all of it is checked first."""
    numbers = (file.partition, file.first_id, file.end_id, file.raw_size, file.file_size, file.file_crc32)
    if any(type(number) is not int or not 0 <= number <= _ID_MAX for number in numbers):
        raise ArchiveError(f"{state.root}: a commit names a file with numbers that cannot be: {numbers}")
    if file.partition >= state.partition_count:
        raise ArchiveError(f"{state.root}: a commit names partition {file.partition} of {state.partition_count}")
    if file.path != file_path(file.partition, file.first_id, file.end_id):
        expected = file_path(file.partition, file.first_id, file.end_id)
        raise ArchiveError(f"{state.root}: a commit names the file {file.path!r}, for its ids it would be {expected}")
    if not (isinstance(file.sha256, str) and isinstance(file.chain, str)) or not (
        _DIGEST.fullmatch(file.sha256) and _DIGEST.fullmatch(file.chain)
    ):
        raise ArchiveError(f"{state.root}/{file.path}: its digests are none: {file.sha256!r}, {file.chain!r}")
    if file.raw_size < _RECORD_SIZE_MIN * (file.end_id - file.first_id):
        count = file.end_id - file.first_id
        raise ArchiveError(f"{state.root}/{file.path}: {count} records cannot have {file.raw_size} bytes")


def _sorted(files: Iterable[ArchivedFile]) -> tuple[ArchivedFile, ...]:
    return tuple(sorted(files, key=lambda one: (one.partition, one.first_id)))


# ---- writing ---------------------------------------------------------------------------------


def commit(
    store: Store,
    before: ArchiveState,
    files: Sequence[ArchivedFile],
    segments: Sequence[ArchivedSegment],
    about: dict[str, Any],
) -> ArchiveState | None:
    """Add files; None if another archiver committed meanwhile: read and decide again.

    Args:
        about: for people and audits: source, cut, software.

    Raises:
        ArchiveError: the files do not continue the archive.
    """
    check_links(before, files)
    content = {**_state_to_json(attrs.evolve(before, files=_sorted(files), segments=tuple(segments))), "about": about}
    name = f"{_FOLDER}/{before.commits:020d}.json"
    if not store.put_if_absent(name, json.dumps(content, indent=1).encode()):
        return None
    after = _apply(store.root, before if before.commits else None, [content])
    if after.commits % _CHECKPOINT_EVERY == 0:
        checkpoint = json.dumps(_state_to_json(after)).encode()
        store.put_if_absent(f"{_FOLDER}/checkpoint-{after.commits:020d}.json", checkpoint)
    return after


def _state_to_json(state: ArchiveState) -> dict[str, Any]:
    return {
        "waltz_archive": FORMAT,
        "cluster": str(UUID(bytes=state.key)),
        "partitions": state.partition_count,
        "rangeCount": state.range_count,
        "commits": state.commits,
        "files": [attrs.asdict(one) for one in state.files],
        "segments": [[one.partition, one.first_id, one.created_ms] for one in state.segments],
    }


def _state_from_json(root: str, content: dict[str, Any]) -> ArchiveState:
    try:
        return ArchiveState(
            root=root,
            key=UUID(content["cluster"]).bytes,
            partition_count=int(content["partitions"]),
            range_count=int(content["rangeCount"]),
            commits=int(content["commits"]),
            files=tuple(ArchivedFile(**file) for file in content["files"]),
            segments=tuple(ArchivedSegment(*segment) for segment in content["segments"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ArchiveError(f"{root}: a commit cannot be read: {error!r}") from error
