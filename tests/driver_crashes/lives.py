"""Lives of real drivers on a real directory, and what must be there after a power failure at any point of them."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import os
import queue
import random
import ssl
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path, PurePath
from typing import Any

import attrs
import trio
from cryptography import x509

from tests.disks.remainders import Tree, volume_of
from tests.disks.versions import Versions
from tests.driver_crashes.disk import lay_out
from tests.driver_crashes.recorder import Recorder
from tests.model import crash_sweep
from tests.spark.logs import make_log, random_payloads, write_start
from waltz_core.base.edge import Send, ZkCreate, ZkDone, ZkSet
from waltz_core.base.errors import WaltzError
from waltz_core.base.ids import Endpoint
from waltz_core.operations.restart import Kind, Progress, Step, marked
from waltz_core.operations.transparency import Checkpoint
from waltz_core.server.journal import JournalWrite, JournalWritten
from waltz_core.server.journal_format import (
    SUFFIX,
    Gap,
    Mode,
    Started,
    Synced,
    decode_entries,
    encode_entry,
    sound_size,
)
from waltz_core.storage import control
from waltz_core.storage.effects import (
    Create,
    DiskBatch,
    DiskDone,
    DiskList,
    DiskRead,
    MakeDirectory,
    Operation,
    SyncDirectory,
    SyncFile,
    WriteAt,
)
from waltz_spark.archive.archive import plan_archive, run_archive
from waltz_spark.archive.restore import may_begin, restore
from waltz_spark.base.objects import LocalStore
from waltz_spark.base.runners import Here
from waltz_spark.read.options import parse_options
from waltz_spark.seal.keys import make_key
from waltz_spark.seal.places import open_seal
from waltz_spark.seal.tiles import Growth, Tiles, write_checkpoint
from waltz_testing.simulation.volume import Volume
from waltz_trio.base import durable
from waltz_trio.cli import main as waltz
from waltz_trio.cli.restart_plan import PlanFile
from waltz_trio.net.key_pair import KeyPair
from waltz_trio.net.ports import HeldPorts
from waltz_trio.net.tls import load_pair
from waltz_trio.node.embedded import Layout, make_certificates, open_directory, read_layout, write_layout
from waltz_trio.node.journal import JournalFiles
from waltz_trio.node.journal_directory import JournalDirectory
from waltz_trio.storage.disk import Disk
from waltz_trio.storage.files import Files
from waltz_trio.storage.syncs import SyncTimes
from waltz_trio.zk.embedded import open_embedded_znodes, read_znodes

_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # where directories come and go quickly
PATIENCE = 30.0  # seconds for one answer of a real disk
_KEY = bytes(range(16))
_CLUSTER = "00010203-0405-0607-0809-0a0b0c0d0e0f"
_INDEX_HEADER, _INDEX_ENTRY = 128, 8  # bytes


@attrs.frozen
class Life:
    """One story of a driver, and the judgement of what a power failure leaves of it."""

    name: str
    run: Callable[[Path, Recorder], Awaitable[None]]
    judge: Callable[[Tree, Any], str | None]  # why what was acknowledged is not there


def _never(reason: str) -> None:
    raise AssertionError(reason)


def _files(root: Path, *, whole: bool) -> Files:
    """A data directory that is synced file by file, or as a whole: time decides in the product, the life here."""
    files = Files(root)
    files._sync_whole = (lambda: None) if whole else None  # what the call does, the simulated disk does
    return files


class _WholeIsFaster(SyncTimes):
    def choose(self, count: int) -> bool:
        return True


# ---- a storage node --------------------------------------------------------------------------


class _RealDisk:
    """The driver's disk, as the story in a thread of its own sees it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.open()

    def open(self) -> None:
        self._disk = trio.from_thread.run_sync(lambda: Disk(_files(self._root, whole=False), self._arrive, _never))

    def _arrive(self, events: Sequence[Any]) -> None:
        for event in events:
            self._events.put(event)

    def perform(self, effect: DiskBatch | DiskRead | DiskList) -> None:
        self._disk.perform(effect)

    def next(self) -> Any:
        return self._events.get(timeout=PATIENCE)

    def close(self) -> None:
        trio.from_thread.run(self._disk.close)


class _Process(crash_sweep.Process):
    """A node whose effects a real disk carries out."""

    def __init__(self, real: _RealDisk, now: int) -> None:
        self.real = real
        super().__init__(Volume(Versions), now)

    def step(self, events: Sequence[Any]) -> None:
        todo, pending = list(events), 0
        while True:
            out: list[Any] = []
            self.node.step(self.now, todo, out)
            todo = []
            for effect in out:
                if isinstance(effect, DiskBatch | DiskRead | DiskList):
                    self.real.perform(effect)
                    pending += 1
                elif isinstance(effect, Send):
                    self._conns[effect.conn].receive(effect.data, self._answers)
            if not pending:
                return
            todo.append(self.real.next())
            pending -= 1


class _StorageLife(crash_sweep.Life):
    """The requests of the crash sweep, with `r` for a process that ends and another that begins."""

    def __init__(self, root: Path) -> None:
        self.real = _RealDisk(root)
        self.promise = crash_sweep.Promise()
        self.volume = Volume(Versions)
        self.process = _Process(self.real, 0)
        self.process.dial()
        self._assign()

    def do(self, letter: str) -> bool:
        if letter != "r":
            return super().do(letter)
        self.real.close()
        self.real.open()
        now = self.process.now
        self.process = _Process(self.real, now)
        self.process.dial()
        return True


async def _run_storage(word: str, root: Path, recorder: Recorder) -> None:
    def story() -> None:
        life: Any = None
        recorder.acknowledged = lambda: None if life is None else (copy.deepcopy(life.promise), life.process.now)
        life = _StorageLife(root)
        for letter in word:
            life.do(letter)
        life.real.close()

    await trio.to_thread.run_sync(story)


def _judge_storage(content: Tree, acknowledged: Any) -> str | None:
    if acknowledged is None:
        return None  # the node was still being made
    promise, now = acknowledged
    files = tuple((name, data) for name, data in content.items() if data is not None)
    try:
        crash_sweep.judge(volume_of(content), promise, now)
    except crash_sweep.Violation as violation:
        return str(violation)
    # Ours rebuilds an index. 0.13.2 takes the highest id from its size, and must find the low-water mark there.
    indexed = [
        int(path.stem) + (len(data) - _INDEX_HEADER) // _INDEX_ENTRY - 1
        for path, data in ((PurePath(name), data) for name, data in files)
        if path.suffix == ".idx"
    ]
    if promise.held and promise.floor >= promise.start and max(indexed, default=-1) < promise.floor:
        return f"the indexes end at {max(indexed, default=-1)}, the low-water mark is {promise.floor}"
    return None


# ---- group commit ----------------------------------------------------------------------------

_RECORD = 40  # bytes


async def _run_groups(seed: int, whole: bool, root: Path, recorder: Recorder) -> None:
    """Bursts of batches over several files: what is acknowledged is durable, whatever shared its syncs.

    Each burst is a step of the machine: the disk carries out in place what is alone in it.
    """
    rng = random.Random(seed)
    names = [f"{folder}/{number}.seg" for folder in "01" for number in range(2)]
    ends = dict.fromkeys(names, 0)
    written: dict[int, list[tuple[str, int, bytes]]] = {}
    done: list[int] = []
    changed = trio.Event()

    def deliver(events: Sequence[Any]) -> None:
        nonlocal changed
        for event in events:
            assert isinstance(event, DiskDone), event
            done.append(event.ticket)
        changed.set()
        changed = trio.Event()

    def snapshot() -> list[tuple[str, int, bytes]]:
        return [place for ticket in tuple(done) for place in written[ticket]]

    recorder.acknowledged = snapshot
    disk = Disk(_files(root, whole=whole), deliver, _never)
    if whole:
        disk._syncs._times = _WholeIsFaster()
    made: list[Operation] = [MakeDirectory("0"), MakeDirectory("1"), SyncDirectory("")]
    made += [Create(name) for name in names]
    made += [SyncFile(name) for name in names]
    made += [SyncDirectory("0"), SyncDirectory("1")]
    ticket = 1
    written[ticket] = [(name, 0, b"") for name in names]
    disk.perform(DiskBatch(ticket, tuple(made)))
    for burst in range(8):
        alone = burst % 2 == 1
        for _ in range(1 if alone else rng.randint(1, 4)):
            ticket += 1
            touched = rng.sample(names, 1 if alone else rng.randint(1, 2))
            operations: list[Operation] = []
            written[ticket] = []
            for name in touched:
                data = f"{ticket:08}".encode() * (_RECORD // 8)
                operations.append(WriteAt(name, ends[name], data))
                written[ticket].append((name, ends[name], data))
                ends[name] += _RECORD
            for _ in range(100):
                disk._in_place.took(0.0)  # it has been quick
            disk.offer(DiskBatch(ticket, (*operations, *map(SyncFile, touched))))
        disk.settle()
        with trio.fail_after(PATIENCE):
            while len(done) < ticket:
                await changed.wait()
    await disk.close()
    assert disk.statistics.in_place >= 4


def _judge_groups(content: Tree, acknowledged: Any) -> str | None:
    for name, offset, data in acknowledged:
        held = content.get(name)
        if held is None or held[offset : offset + len(data)] != data:
            return f"{len(data)} bytes at {offset} of {name} were acknowledged"
    return None


# ---- the decision journal --------------------------------------------------------------------


async def _run_journal(root: Path, recorder: Recorder) -> None:
    acknowledged: list[tuple[int, int]] = []  # partition, number of the entry
    recorder.acknowledged = lambda: tuple(acknowledged)
    number = 0
    for _ in range(2):
        answers: list[Any] = []
        changed = trio.Event()

        def deliver(events: Sequence[Any], answers: list[Any] = answers) -> None:
            nonlocal changed
            answers += events
            for event in events:
                assert isinstance(event, JournalWritten), event
                acknowledged.append((event.ticket % 2, event.ticket))
            changed.set()
            changed = trio.Event()

        files = JournalFiles(
            root / "journal", Mode.SYNC, 0, Endpoint("a", 1), deliver, lambda level, text: None, _never
        )
        for _ in range(4):
            first = number
            for _ in range(2):
                number += 1
                # Some groups lie in two sectors, of which a power failure may leave the second alone.
                long = Gap(number, 0, 0, "x" * (500 if number % 4 < 2 else 1))
                data = encode_entry(long) + encode_entry(Gap(number, 0, 0, "y"))
                files.perform(JournalWrite(number, number % 2, _KEY, data, True))
            with trio.fail_after(PATIENCE):
                while {answer.ticket for answer in answers} < set(range(first + 1, number + 1)):
                    await changed.wait()
        await files.close()
        _kill_between_write_and_sync(root / "journal")


def _kill_between_write_and_sync(journal: Path) -> None:
    """Of every partition the last file gets what another process wrote, and had not synced when it ended."""
    for folder in sorted(journal.glob("?")):
        path = max(folder.iterdir())
        handle = durable.open_file(path, os.O_WRONLY)
        durable.write_at(handle, encode_entry(Synced()) + encode_entry(Gap(0, 0, 0, "z")), path.stat().st_size)
        durable.close(handle)


def _counted(data: bytes, name: str) -> int:
    """How many bytes of the file before a file says count; -1 if it does not say yet."""
    first = next(iter(decode_entries(data[: sound_size(data)[0]], name)), None)
    return first[1].previous_size if first is not None and isinstance(first[1], Started) else -1


def _judge_journal(content: Tree, acknowledged: Any) -> str | None:
    held: set[tuple[int, int]] = set()
    names = sorted(name for name, data in content.items() if data is not None and name.endswith(SUFFIX))
    for at, name in enumerate(names):
        data = content[name]
        assert data is not None
        partition = int(name.split("/")[1])
        size, torn = sound_size(data)
        following = names[at + 1] if at + 1 < len(names) and names[at + 1].split("/")[1] == str(partition) else None
        if following is not None:
            counted = _counted(content[following] or b"", following)
            if counted > size:
                return f"{name} has {size} sound bytes, the next file counts {counted}"
        elif not torn:
            return f"{name} is damaged at {size}"
        held |= {(partition, entry.count) for _, entry in decode_entries(data[:size], name) if isinstance(entry, Gap)}
    missing = sorted(set(acknowledged) - held)
    return f"entries {missing} (partition, number) were acknowledged" if missing else None


_ENTRIES_KEPT = 2  # of the last ones that were acknowledged, in the room that the life below has


async def _run_trimmed(root: Path, recorder: Recorder) -> None:
    """A journal that has room for few files: the oldest are deleted, and never one between others."""
    acknowledged: list[int] = []
    recorder.acknowledged = lambda: tuple(acknowledged)
    size_max = 0
    for process in range(2):
        directory = JournalDirectory(
            root,
            Mode.SYNC,
            Endpoint("a", 1),
            lambda level, text: None,
            file_max=1,
            size_max=size_max,
            now_us=lambda: 7,
        )
        for number in range(4 * process, 4 * process + 4):
            write = JournalWrite(number, 0, _KEY, encode_entry(Gap(number, 0, 0, "x")), True)
            acknowledged.extend(number for _ in directory.carry_out([write]))
        directory.close()
        size_max = sum(len(call.data) for call in recorder.calls) // 4 * (_ENTRIES_KEPT + 1)


def _judge_trimmed(content: Tree, acknowledged: Any) -> str | None:
    numbers = sorted(int(PurePath(name).stem) for name, data in content.items() if data is not None)
    if numbers and numbers != [*range(numbers[0], numbers[-1] + 1)]:
        return f"the files that are left have the numbers {numbers}"
    held = set()
    for name, data in content.items():
        if data is not None:
            entries = decode_entries(data[: sound_size(data)[0]], name)
            held |= {entry.count for _, entry in entries if isinstance(entry, Gap)}
    missing = sorted({*acknowledged[-_ENTRIES_KEPT:]} - held)
    return f"entries {missing} were acknowledged last" if missing else None


# ---- the files of an embedded cluster --------------------------------------------------------


async def _run_znodes(root: Path, recorder: Recorder) -> None:
    acknowledged: dict[str, bytes] = {}
    recorder.acknowledged = lambda: dict(acknowledged)
    async with open_embedded_znodes(root / "znodes") as store:
        answers: list[Any] = []
        changed = trio.Event()

        def deliver(events: Sequence[Any]) -> None:
            nonlocal changed
            answers.extend(events)
            changed.set()
            changed = trio.Event()

        with store.session(deliver) as session:
            for number in range(4):
                path, data = f"/node{number % 2}", f"value {number}".encode()
                request = ZkCreate(number, path, data) if number < 2 else ZkSet(number, path, data, -1)
                session.submit([request])
                with trio.fail_after(PATIENCE):
                    while not any(isinstance(event, ZkDone) and event.ticket == number for event in answers):
                        await changed.wait()
                acknowledged[path] = data


def _on_disk(content: Tree, look: Callable[[Path], str | None]) -> str | None:
    with tempfile.TemporaryDirectory(dir=_MEMORY) as directory:
        root = Path(directory)
        lay_out(content, root)
        try:
            return look(root)
        except (WaltzError, OSError, ValueError) as error:
            return f"{type(error).__name__}: {error}"


def _judge_znodes(content: Tree, acknowledged: Any) -> str | None:
    def look(root: Path) -> str | None:
        stored = read_znodes(root / "znodes")
        held = {} if stored is None else {node.path: node.data for node in stored.znodes}
        for path, data in acknowledged.items():
            if (held.get(path) or b"") < data:  # later values are greater
                return f"{path} was acknowledged with {data!r}, it holds {held.get(path)!r}"
        return None

    return _on_disk(content, look)


async def _run_layout(root: Path, recorder: Recorder) -> None:
    """A cluster's directory is made ready, then says that it is complete."""
    stage = 0
    recorder.acknowledged = lambda: stage
    with HeldPorts() as ports:
        path, layout = open_directory(root / "deep" / "cluster", 2, 3, ports)
    stage = 1
    write_layout(path, Layout(layout.partitions, layout.storage_ports, True))
    stage = 2


def _judge_layout(content: Tree, acknowledged: Any) -> str | None:
    def look(root: Path) -> str | None:
        path = root / "deep" / "cluster"
        if not acknowledged and not (path / "cluster.json").exists():
            return None
        layout = read_layout(path)
        if acknowledged >= 1 and not all((path / f"storage-{number}").is_dir() for number in range(3)):
            return "the directory of a storage node is gone with all that was acknowledged in it"
        return "it is not complete any more" if acknowledged == 2 and not layout.complete else None

    return _on_disk(content, look)


async def _run_certificates(root: Path, recorder: Recorder) -> None:
    authority = b""
    recorder.acknowledged = lambda: authority
    make_certificates(root / "tls")
    authority = (root / "tls" / "ca.pem").read_bytes()


def _judge_certificates(content: Tree, acknowledged: Any) -> str | None:
    def look(root: Path) -> str | None:
        make_certificates(root / "tls")  # the next start makes what is missing
        held = (root / "tls" / "ca.pem").read_bytes()
        pair = KeyPair((root / "tls" / "node.pem").read_bytes(), (root / "tls" / "node.key").read_bytes())
        load_pair(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), pair)
        x509.load_pem_x509_certificate(pair.certificate).verify_directly_issued_by(x509.load_pem_x509_certificate(held))
        return "the authority that clients were shown is another one" if acknowledged not in (b"", held) else None

    return _on_disk(content, look)


async def _run_authority(root: Path, recorder: Recorder) -> None:
    """`waltz certificates make`: what it has written when it returns stays."""
    written: dict[str, bytes] = {}
    recorder.acknowledged = lambda: dict(written)
    folder = root / "certificates"
    with contextlib.redirect_stdout(io.StringIO()):
        status = waltz.main(["certificates", "make", str(folder), "--server", "s1=localhost", "--client", "c1"])
    assert status == 0
    written |= {path.relative_to(root).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _judge_authority(content: Tree, acknowledged: Any) -> str | None:
    lost = sorted(name for name, data in acknowledged.items() if content.get(name) != data)
    return f"{', '.join(lost)} were written" if lost else None


async def _run_archive(root: Path, recorder: Recorder) -> None:
    """Files of an archive, each of which exists once: what a committer has published stays."""
    published: dict[str, bytes] = {}
    recorder.acknowledged = lambda: dict(published)
    store = LocalStore(str(root / "deep" / "vault"))
    for name in ("state/0.json", "state/1.json", "parts/a/0.parquet"):
        data = name.encode() * 3
        assert store.put_if_absent(name, data)
        published[f"deep/vault/{name}"] = data


async def _run_restore(root: Path, recorder: Recorder) -> None:
    """A log that comes back from an archive: all of it when the command is through, and no control file before."""
    written: dict[str, bytes] = {}
    through = False
    recorder.acknowledged = lambda: (through, dict(written))
    with tempfile.TemporaryDirectory() as elsewhere:
        log, archive, again = (Path(elsewhere) / name for name in ("log", "archive", "again"))
        make_log(log, [random_payloads(count, seed=at) for at, count in enumerate((40, 9))], threshold=2000)
        first, second, *_ = sorted((log / "0").glob("*.seg"))
        write_start(log, 0, int(second.stem))
        first.unlink()  # freed, and in another archive
        first.with_suffix(".idx").unlink()
        run_archive(plan_archive(parse_options({"directory": str(log)}), str(archive), partial=True), Here())
        restore(str(archive), again, Here())
        whole = {path.relative_to(again).as_posix(): path.read_bytes() for path in again.rglob("*") if path.is_file()}
        del whole[control.NAME]  # which has a time in it
        written |= {f"deep/storage/{name}": data for name, data in whole.items()}
        restore(str(archive), root / "deep" / "storage", Here())
        made = f"deep/storage/{control.NAME}"
        written[made] = (root / made).read_bytes()
        through = True


def _judge_restore(content: Tree, acknowledged: Any) -> str | None:
    through, written = acknowledged
    if not through and f"deep/storage/{control.NAME}" not in content:  # no node starts on it
        names = {name.split("/")[2] for name in content if name.startswith("deep/storage/")}
        return None if may_begin(names) else f"it cannot be begun anew: {sorted(names)}"
    if content.get(f"deep/storage/{control.NAME}") is None:
        return "the control file is gone"
    return _judge_authority(content, written)


async def _run_seal(root: Path, recorder: Recorder) -> None:
    """A log that is sealed twice: what a checkpoint was signed for can be proved for ever."""
    sealed: tuple[int, bytes] = (0, b"")
    kept: dict[str, bytes] = {}
    recorder.acknowledged = lambda: (sealed, dict(kept))
    signer = make_key(root / "key", "example.com/ledger")
    kept |= {name: (root / name).read_bytes() for name in ("key", "key.pub")}
    places = open_seal(str(root / "seal"))
    place = places.of(0)
    growth = Growth(Tiles(place, 0))
    for size in (3, 256):  # a full tile whose directory nothing else syncs
        old_size = growth.size
        with places.writing():
            while growth.size < size:
                growth.add(hashlib.sha256(str(growth.size).encode()).digest())
            tiles = growth.finish()
            write_checkpoint(place, signer.sign(Checkpoint("example.com/ledger", size, tiles.root())), old_size)
        sealed = size, tiles.root()
        growth = Growth(tiles)


def _judge_seal(content: Tree, acknowledged: Any) -> str | None:
    (size, root_hash), kept = acknowledged

    def look(directory: Path) -> str | None:
        place = open_seal(str(directory / "seal")).of(0)
        signed = place.checkpoint()
        if signed is None:
            return f"the checkpoint of {size} records is gone" if size else None
        held = signed.checkpoint
        if held.size < size or (held.size == size and held.root != root_hash):
            return f"{size} records were sealed, the checkpoint is for {held.size}"
        tiles = Tiles(place, held.size)
        tiles.check()
        return None if tiles.root() == held.root else "the tiles lead to another root"

    return _judge_authority(content, kept) or _on_disk(content, look)


async def _run_plan(root: Path, recorder: Recorder) -> None:
    """A walk of restarts: what was written down before a node was stopped stays written down."""
    steps = tuple(Step(Kind.STORAGE, f"node-{number}:55280") for number in range(3))
    saved: tuple[Step, ...] = ()
    recorder.acknowledged = lambda: saved
    file = PlanFile(root / "restart-plan.json", _CLUSTER)
    for number in range(4):
        file.save(steps)
        saved = steps
        if number < 3:
            steps = marked(steps, steps[number].name, Progress.DONE)


def _judge_plan(content: Tree, acknowledged: Any) -> str | None:
    def look(directory: Path) -> str | None:
        steps = PlanFile(directory / "restart-plan.json", _CLUSTER).read() or ()
        kept = [step.progress for step in steps].count(Progress.DONE)
        written = [step.progress for step in acknowledged].count(Progress.DONE)
        if len(steps) < len(acknowledged) or kept < written:
            return f"{written} of {len(acknowledged)} nodes were marked as done, {kept} of {len(steps)} are left"
        return None

    return _on_disk(content, look)


# ---- all of them -----------------------------------------------------------------------------


def storage_life(word: str) -> Life:
    """A storage node that gets these requests of the crash sweep."""
    return Life(f"storage {word}", partial(_run_storage, word), _judge_storage)


def group_life(seed: int, *, whole: bool = False) -> Life:
    """Bursts of batches, their files synced one by one or all at once."""
    return Life(f"groups {seed}{' whole' if whole else ''}", partial(_run_groups, seed, whole), _judge_groups)


OTHERS = (
    Life("journal", _run_journal, _judge_journal),
    Life("journal with little room", _run_trimmed, _judge_trimmed),
    Life("znodes", _run_znodes, _judge_znodes),
    Life("layout", _run_layout, _judge_layout),
    Life("certificates", _run_certificates, _judge_certificates),
    Life("authority", _run_authority, _judge_authority),
    Life("archive", _run_archive, _judge_authority),
    Life("restore", _run_restore, _judge_restore),
    Life("seal", _run_seal, _judge_seal),
    Life("restart plan", _run_plan, _judge_plan),
)
WORDS = ("abm", "bbtw", "amrab", "babsw", "bmjra", "aabbmtr")


def short_lives() -> tuple[Life, ...]:
    """What `make test` runs."""
    return (*map(storage_life, WORDS), group_life(1), group_life(2), group_life(3, whole=True), *OTHERS)
