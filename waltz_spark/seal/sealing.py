"""Sealing a log, comparing it with its seal, and proving things about it.

Leaf `n` of a partition's tree is the record of transaction `n` as data files hold it: id, request id, header, payload
and both checksums. So every copy of a log (segment files, an archive, what storage nodes send) has the same tree, and a
record cannot change, vanish, or take another's place without another root.

A seal says that nothing was changed *since it was made*; it is as trustworthy as the place where an older checkpoint is
kept. Give checkpoints to others: an auditor, a witness, a write-once bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from uuid import UUID

from waltz_core.base.record import record
from waltz_core.operations.merkle import (
    ProofError,
    check_consistency,
    check_inclusion,
    consistency_path,
    inclusion_path,
    leaf_hash,
)
from waltz_core.operations.transparency import (
    Checkpoint,
    ConsistencyProof,
    InclusionProof,
    SignedCheckpoint,
    VerifierKey,
    parse_proof,
)
from waltz_spark.audit.coverage import FAILED, PASSED, UNPROVEN
from waltz_spark.base.errors import PipelineError, UnreachableError
from waltz_spark.read.inventory import Inventory, check_believed
from waltz_spark.read.options import Options
from waltz_spark.read.reading import Patience, read_blocks
from waltz_spark.records.columns import Shape
from waltz_spark.seal.keys import Signer, check_signature
from waltz_spark.seal.places import Place, open_seal
from waltz_spark.seal.tiles import Growth, Tiles, write_checkpoint
from waltz_trio.base.durable import reason_of

ORIGIN = "waltz.log"
_COMMIT_COUNT = 1 << 18  # records between two checkpoints, which bounds the work that an interruption repeats
_SHAPE = Shape(verify="record")

OnProgress = Callable[[int, int], None]
"""Given records done and records in all."""


@record
class PartitionSeal:
    """What became of one partition."""

    partition: int
    verdict: str
    size: int  # records under the seal
    looked_at: int  # records that were read for it
    beyond: int  # committed records behind the seal
    root: str  # in hex, empty where there is no seal
    problem: str = ""


class SealedLog:
    """A log and its seal.

    Args:
        options: where records are.
        root: of the seal, a folder or the URI of an object store; has a folder for each partition.
        read_only: nothing will be sealed.

    Raises:
        PipelineError: the log cannot be looked at.
    """

    def __init__(self, options: Options, root: str, *, read_only: bool = False) -> None:
        self.places = open_seal(root, read_only=read_only)
        self._patience = Patience(options.request_timeout_ms / 1000, options.retries)
        self._inventory = Inventory(options)
        self._look = self._inventory.look()
        check_believed(self._look)

    def close(self) -> None:
        """Drop connections."""
        self._inventory.close()

    @property
    def partitions(self) -> tuple[int, ...]:
        """Those that were asked for."""
        return self._inventory.partitions

    def place_of(self, partition: int) -> Place:
        """Where the seal of a partition is."""
        return self.places.of(partition)

    def start(self, partition: int) -> int:
        """The first id that can be read."""
        return self._look.earliest[partition]

    def end(self, partition: int) -> int:
        """The id behind the last committed record."""
        return self._look.ends[partition]

    def origin(self, partition: int) -> str:
        """The name of the log in checkpoints."""
        return f"{ORIGIN}/{UUID(bytes=self._inventory.key)}/{partition}"

    def records(self, partition: int, start: int, end: int) -> Iterator[tuple[int, memoryview]]:
        """Ids and bytes of records; errors as `read_blocks`."""
        starts, ends = ([0] * self._inventory.partition_count for _ in range(2))
        starts[partition], ends[partition] = start, end
        for each in self._inventory.ranges(self._look, tuple(starts), tuple(ends)):
            if each.partition != partition:
                continue
            for block in read_blocks(each, _SHAPE, self._patience):
                data, places = block.buffer.data, block.offsets.tolist()
                for at in range(block.count):
                    yield block.first_id + at, data[places[at] : places[at + 1]]

    def sealed(self, partition: int, key: VerifierKey) -> tuple[SignedCheckpoint, Tiles] | None:
        """The checkpoint of a partition and its hashes, None before the first one.

        Raises:
            ProofError: they are of another log, of another key, or were changed.
        """
        place = self.place_of(partition)
        signed = place.checkpoint()
        while signed is not None:
            try:
                return signed, self._tiles_of(place, partition, signed, key)
            except ProofError:
                # A run that seals may have removed the partial tiles of this checkpoint since it was read.
                before, signed = signed, place.checkpoint()
                if signed == before:
                    raise
        return None

    def _tiles_of(self, place: Place, partition: int, signed: SignedCheckpoint, key: VerifierKey) -> Tiles:
        checkpoint = signed.checkpoint
        if checkpoint.origin != self.origin(partition):
            raise ProofError(f"{place} seals {checkpoint.origin}, the log is {self.origin(partition)}")
        check_signature(signed, key)
        tiles = Tiles(place, checkpoint.size)
        if tiles.root() != checkpoint.root:
            raise ProofError(f"{place}: the tiles do not lead to the root of the checkpoint: one of them was changed")
        return tiles


# ---- sealing -------------------------------------------------------------------------------------


def seal(log: SealedLog, signer: Signer, on_progress: OnProgress | None = None) -> list[PartitionSeal]:
    """Seal every partition up to what is committed. A partition's problem does not stop the others.

    Raises:
        PipelineError: another run seals in the same folder, or no seal can be kept there.
    """

    def grow(partition: int) -> PartitionSeal:
        return _grow(log, partition, signer, on_progress)

    with log.places.writing():
        return [_judged(log, partition, signer.public, grow) for partition in log.partitions]


def _grow(log: SealedLog, partition: int, signer: Signer, on_progress: OnProgress | None) -> PartitionSeal:
    before = log.sealed(partition, signer.public)
    tiles = before[1] if before is not None else Tiles(log.place_of(partition), 0)
    first, end = tiles.size, log.end(partition)
    if end < first:
        raise ProofError(f"{first} records are sealed, the log ends at id {end - 1}: the last {first - end} are gone")
    if first < end and log.start(partition) > first:
        raise UnreachableError(
            f"ids {first} to {log.start(partition) - 1} are in no place that was named: name the archive that has them"
        )
    growth = Growth(tiles)
    for transaction_id, content in log.records(partition, first, end) if first < end else ():
        growth.add(leaf_hash(content))
        if (transaction_id + 1 - first) % _COMMIT_COUNT == 0 or transaction_id + 1 == end:
            old_size, tiles = tiles.size, growth.finish()
            signed = signer.sign(Checkpoint(log.origin(partition), tiles.size, tiles.root()))
            write_checkpoint(tiles.place, signed, old_size)
            growth = Growth(tiles)
            if on_progress is not None:
                on_progress(transaction_id + 1 - first, end - first)
    root = tiles.root().hex() if tiles.size else ""
    return PartitionSeal(partition, PASSED, tiles.size, tiles.size - first, 0, root)


# ---- comparing -----------------------------------------------------------------------------------


def compare(log: SealedLog, key: VerifierKey, on_progress: OnProgress | None = None) -> list[PartitionSeal]:
    """Read the sealed part of every partition and compare it, record by record. Nothing is written."""
    return [_judged(log, each, key, lambda at: _compare(log, at, key, on_progress)) for each in log.partitions]


def _compare(log: SealedLog, partition: int, key: VerifierKey, on_progress: OnProgress | None) -> PartitionSeal:
    before = log.sealed(partition, key)
    end = log.end(partition)
    if before is None:
        verdict = UNPROVEN if end else PASSED
        return PartitionSeal(partition, verdict, 0, 0, end, "", f"nothing seals {end} records" if end else "")
    signed, tiles = before
    size, start = tiles.size, min(log.start(partition), tiles.size)
    if end < size:
        raise ProofError(f"{size} records are sealed, the log ends at id {end - 1}: the last {size - end} are gone")
    tiles.check()
    different: list[int] = []
    for transaction_id, content in log.records(partition, start, size) if start < size else ():
        if leaf_hash(content) != tiles.leaf(transaction_id):
            different.append(transaction_id)
        if on_progress is not None and (transaction_id + 1 - start) % _COMMIT_COUNT == 0:
            on_progress(transaction_id + 1 - start, size - start)
    root = signed.checkpoint.root.hex()
    done = size - start
    if different:
        shown = ", ".join(map(str, different[:5])) + (", ..." if len(different) > 5 else "")
        text = f"{len(different)} of {done} records are not those that were sealed: id {shown}"
        return PartitionSeal(partition, FAILED, size, done, end - size, root, text)
    text = f"ids 0 to {start - 1} are in no place that was named: name the archive that has them" if start else ""
    return PartitionSeal(partition, UNPROVEN if start else PASSED, size, done, end - size, root, text)


def _judged(log: SealedLog, partition: int, key: VerifierKey, work: Callable[[int], PartitionSeal]) -> PartitionSeal:
    try:
        return work(partition)
    except UnreachableError as problem:
        verdict, text = UNPROVEN, str(problem)
    except (ProofError, PipelineError, OSError) as problem:
        verdict, text = FAILED, reason_of(problem)
    try:
        before = log.sealed(partition, key)
    except (ProofError, PipelineError, OSError):
        before = None  # the problem is with the seal itself
    size, root = (0, "") if before is None else (before[1].size, before[0].checkpoint.root.hex())
    return PartitionSeal(partition, verdict, size, 0, max(0, log.end(partition) - size), root, text)


# ---- proofs --------------------------------------------------------------------------------------


def prove_record(log: SealedLog, partition: int, transaction_id: int, key: VerifierKey) -> InclusionProof:
    """The proof that a record stands in the sealed log.

    Raises:
        ProofError: it is not under the seal, or not what was sealed.
        PipelineError: it cannot be read.
    """
    signed, tiles = _sealed(log, partition, key)
    if not 0 <= transaction_id < tiles.size:
        raise ProofError(
            f"partition {partition} is sealed up to id {tiles.size - 1}; {transaction_id} is behind that: "
            "seal the log again, or name an earlier one"
        )
    for found, content in log.records(partition, transaction_id, transaction_id + 1):
        assert found == transaction_id
        leaf = leaf_hash(content)
        path = tuple(inclusion_path(transaction_id, tiles.size, tiles.subtree))
        check_inclusion(transaction_id, tiles.size, leaf, path, signed.checkpoint.root)
        return InclusionProof(bytes(content), transaction_id, path, signed)
    raise ProofError(f"transaction {transaction_id} of partition {partition} could not be read")


def prove_growth(log: SealedLog, partition: int, old: SignedCheckpoint, key: VerifierKey) -> ConsistencyProof:
    """The proof that the sealed log begins with what an older checkpoint sealed.

    Raises:
        ProofError: it does not, or the checkpoint is of another log.
    """
    signed, tiles = _sealed(log, partition, key)
    earlier, now = old.checkpoint, signed.checkpoint
    if earlier.origin != now.origin:
        raise ProofError(f"the older checkpoint is of {earlier.origin}, the seal of {now.origin}")
    if earlier.size > now.size:
        raise ProofError(f"the older checkpoint has {earlier.size} records, the seal only {now.size}")
    path = tuple(consistency_path(earlier.size, now.size, tiles.subtree)) if 0 < earlier.size < now.size else ()
    check_consistency(earlier.size, now.size, earlier.root, now.root, path)
    return ConsistencyProof(earlier.size, path, signed)


def _sealed(log: SealedLog, partition: int, key: VerifierKey) -> tuple[SignedCheckpoint, Tiles]:
    if partition not in log.partitions:
        raise ProofError(f"there is no partition {partition} in the log that was named")
    before = log.sealed(partition, key)
    if before is None:
        raise ProofError(f"{log.place_of(partition)} holds no seal: make one with 'waltz seal'")
    return before


def check_proof(text: str, key: VerifierKey, old: SignedCheckpoint | None = None) -> InclusionProof | ConsistencyProof:
    """Check a proof with nothing but the public key, and the older checkpoint if it is one of growth.

    Raises:
        ProofError: it does not hold.
    """
    proof = parse_proof(text)
    check_signature(proof.signed, key)
    now = proof.signed.checkpoint
    if isinstance(proof, InclusionProof):
        if old is not None:
            raise ProofError("this proof is of one transaction; --since is for one that says that a log has grown")
        check_inclusion(proof.index, now.size, leaf_hash(proof.content), proof.path, now.root)
        return proof
    if old is None:
        raise ProofError("this proof says that a log has grown: name the older checkpoint too (--since)")
    check_signature(old, key)
    earlier = old.checkpoint
    if (earlier.origin, earlier.size) != (now.origin, proof.old_size):
        raise ProofError(
            f"the proof begins with {proof.old_size} records of {now.origin}, the older checkpoint has {earlier.size} "
            f"of {earlier.origin}"
        )
    check_consistency(earlier.size, now.size, earlier.root, now.root, proof.path)
    return proof
