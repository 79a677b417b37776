"""What one replica keeps durably besides its log and its control struct, in side files (`side.py` has their layout).

| datum | file | durable before |
|---|---|---|
| fence | `waltz.fence` | the first answer to a session |
| copy of the control struct | `waltz.fence` | the answer to the change of the struct |
| durable mark | `waltz.mark` | raised lazily; lowered before a truncation cuts |
| damaged ids | `waltz.faults` | lazily: the next read of the record finds the damage again |
| log start | `waltz.start` | the first file below it is removed |

This class decides nothing: it knows what was written last, and returns the operations that write the
next slot. The caller puts them into a batch, since only it knows what must be durable before them.
"""

from __future__ import annotations

from waltz_core.storage import side
from waltz_core.storage.control import ControlStruct
from waltz_core.storage.effects import Create, FileEntry, Operation, SyncDirectory, SyncFile, Unlink, WriteAt
from waltz_core.storage.evidence import MarkedEnd
from waltz_core.storage.procedure import DiskError, Procedure, read, write
from waltz_core.storage.side import FROM_ZERO, Belongs, Fence, LogStart

NAMES = (side.FENCE, side.MARK, side.FAULTS)
_ALL = (*NAMES, side.START)


class DurableState:
    """Values as of the last durable write, and the counters of the slots."""

    __slots__ = ("_counters", "_directory", "_present", "fence", "mark", "remembered", "slots", "start")

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._counters = dict.fromkeys(_ALL, 0)
        self._present: set[str] = set()
        self.slots: dict[str, side.Slot | None] = dict.fromkeys(_ALL)
        self.fence = Fence(-1, None)
        self.start = FROM_ZERO
        self.mark = -1  # as written beside the present control struct and last segment
        self.remembered: list[tuple[int, int]] = []  # ranges of damaged ids

    def load(self, present: tuple[FileEntry, ...]) -> Procedure[None]:
        """Read the files that are there.

        Damaged ids are found again when they are read: a file of them that cannot be read says nothing.

        Raises:
            DiskError: another file exists and cannot be read.
        """
        self._present = {entry.name for entry in present} & set(_ALL)
        for name in _ALL:
            data, path = b"", self._path(name)
            if name in self._present:
                try:
                    data = yield from read(path, 0, 2 * side.SLOT_SIZE)
                except DiskError:
                    if name != side.FAULTS:
                        raise
                    data = bytes(2 * side.SLOT_SIZE)
                # Written again and synced: a state that a crash could undo is not trusted.
                yield from write(WriteAt(path, 0, data), SyncFile(path))
            slot = self.slots[name] = side.newest_slot(data)
            self._counters[name] = 0 if slot is None else slot.counter
        self.fence = side.decode_fence(self.slots[side.FENCE]) or Fence(-1, None)
        self.remembered = side.decode_faults(self.slots[side.FAULTS])
        self.start = side.decode_start(self.slots[side.START])

    def mark_beside(self, belongs: Belongs) -> int | None:
        """The durable mark if it was written beside these files, else None."""
        return side.decode_mark(self.slots[side.MARK], belongs)

    def missing(self, names: tuple[str, ...] = NAMES) -> tuple[str, ...]:
        """Those of the files that are not there yet."""
        return tuple(name for name in names if name not in self._present)

    def create_operations(self, names: tuple[str, ...]) -> tuple[Operation, ...]:
        """Create files that were never written to; their names are durable afterwards."""
        return (
            *(Create(self._path(name)) for name in names),
            # Later slots overwrite these bytes in place, so a full disk cannot keep a fence from being raised.
            *(WriteAt(self._path(name), 0, bytes(2 * side.SLOT_SIZE)) for name in names),
            *(SyncFile(self._path(name)) for name in names),
            SyncDirectory(self._directory),
        )

    def created(self, names: tuple[str, ...]) -> None:
        """These files are there, durably. Before, nothing is written into them: to create them again empties them."""
        self._present.update(names)

    def fence_operations(
        self, session_id: int, struct: ControlStruct | None, belongs: Belongs
    ) -> tuple[Operation, ...]:
        """Write the fence into both slots, one after the other: rot in one must not bring back an older fence."""
        path = self._path(side.FENCE)
        operations: list[Operation] = []
        for _ in range(2):
            counter = self._next(side.FENCE)
            data = side.encode_fence(Fence(session_id, struct), belongs, counter)
            operations += (WriteAt(path, side.slot_place(counter), data), SyncFile(path))
        return tuple(operations)

    def mark_operations(self, mark: int, belongs: Belongs) -> tuple[Operation, ...]:
        """Write the durable mark; synced, so that at most one slot can ever be torn."""
        path, counter = self._path(side.MARK), self._next(side.MARK)
        data = side.encode_mark(mark, belongs, counter)
        self.slots[side.MARK] = side.newest_slot(data)
        return WriteAt(path, side.slot_place(counter), data), SyncFile(path)

    def marked_end(self, struct: ControlStruct) -> MarkedEnd | None:
        """The durable mark if it was written beside this control struct, with the segment that was the last then."""
        slot = self.slots[side.MARK]
        if slot is None or (slot.belongs.sequence, slot.belongs.session_id) != (struct.sequence, struct.session_id):
            return None
        mark = side.decode_mark(slot, slot.belongs)
        return None if mark is None else MarkedEnd(mark, slot.belongs.last_segment)

    def moved_mark_operations(self, old: ControlStruct, struct: ControlStruct) -> tuple[Operation, ...]:
        """Write the mark that counts beside `old` beside `struct`: nothing of the log has changed."""
        marked = self.marked_end(old)
        if marked is None:
            return ()
        return self.mark_operations(marked.mark, Belongs(struct.sequence, struct.session_id, marked.last_segment))

    def faults_operations(self, faults: set[int], belongs: Belongs) -> tuple[Operation, ...]:
        """Write the ids of damaged records."""
        path, counter = self._path(side.FAULTS), self._next(side.FAULTS)
        return WriteAt(path, side.slot_place(counter), side.encode_faults(faults, belongs, counter)), SyncFile(path)

    def start_operations(self, start: LogStart, belongs: Belongs) -> tuple[Operation, ...]:
        """Write the log start into both slots, one after the other: an older one must not come back."""
        operations: list[Operation] = []
        for _ in range(2):
            path, counter = self._path(side.START), self._next(side.START)
            data = side.encode_start(start, belongs, counter)
            operations += (WriteAt(path, side.slot_place(counter), data), SyncFile(path))
        return tuple(operations)

    def forget_start(self) -> Procedure[None]:
        """The log that had a start is gone: a new one begins at 0.

        Raises:
            DiskError: the file may still be there.
        """
        self._present.discard(side.START)
        yield from write(Unlink(self._path(side.START)), SyncDirectory(self._directory))
        self.start = FROM_ZERO

    def remove_operations(self) -> tuple[Operation, ...]:
        """Remove all of them."""
        self._present.clear()
        self.start = FROM_ZERO
        return tuple(Unlink(self._path(name)) for name in _ALL)

    def _next(self, name: str) -> int:
        self._counters[name] += 1
        return self._counters[name]

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"
