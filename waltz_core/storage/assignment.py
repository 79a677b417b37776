"""Assigning a partition to this node, taking it away, and allowing or forbidding its use.

Theory of operation:

* **Two flags of the control struct** say what the node may do with a partition, and are durable before the answer
  leaves: ASSIGNED (it is ours) and AVAILABLE (it may be read and written). Assigning opens the files, and opens them
  again where damage had put them out of service.
* **Taking away is ordered for a crash after every write.** First the fence is durable in a file of its own and the
  second copy of the control struct can no longer come back; then both copies are reset. From then on a late
  session of the partition is refused, although the struct that knew of it is gone.
* **Files are deleted newest first**, an index before its segment, the fence last: what a crash leaves is a shorter log
  of this partition, which a new assignment can read, never one with a hole.
"""

from __future__ import annotations

from waltz_core.base.errors import CorruptionError
from waltz_core.storage import side
from waltz_core.storage.control import ASSIGNED, AVAILABLE
from waltz_core.storage.effects import MakeDirectory, SyncDirectory, Unlink
from waltz_core.storage.log_files import remove_operations
from waltz_core.storage.procedure import Procedure, list_names
from waltz_core.storage.refusals import SE, not_assigned
from waltz_core.storage.replica_files import ReplicaFiles, State
from waltz_core.storage.replica_opening import open_for_assignment
from waltz_core.storage.segment import index_name


def assign(files: ReplicaFiles) -> Procedure[None]:
    """Assign the partition to this node; one that is out of service is opened again.

    Raises:
        StorageError: its files are damaged, or the disk failed.
    """
    if files.state is not State.OPEN:
        yield from open_for_assignment(files)
    current = files.entry.current
    yield from files.update_control(
        current.session_id, current.low_water_mark, current.local_low_water_mark, current.flags | ASSIGNED
    )


def unassign(files: ReplicaFiles, delete: bool) -> Procedure[None]:
    """Remove the partition from this node and, on request, delete its files.

    Raises:
        StorageError: it is not ours, or the disk failed.
    """
    if files.state is State.UNASSIGNED:
        raise not_assigned(files.partition_id)
    if files.log is not None:
        # From here on the copy of the control struct must not come back; the fence stays as long as the files.
        yield from files.create_sides(files.write, (side.FENCE,))
        yield from files.write(*files.durable.fence_operations(files.raised_fence, None, files.belongs()))
    yield from _reset_control(files)
    files.state, files.reason, files.log, files.control_problem = State.UNASSIGNED, "", None, None
    files.plan_mark(None)
    files.faults.clear()
    if delete:
        yield from _delete_files(files)


def set_available(files: ReplicaFiles, available: bool) -> Procedure[None]:
    """Allow or forbid reads and writes.

    Raises:
        StorageError: the control struct does not count, or the disk failed.
    """
    if files.control_problem is not None:
        raise CorruptionError(f"{SE}partition {files.partition_id}: {files.control_problem}")
    current = files.entry.current
    flags = current.flags | AVAILABLE if available else current.flags & ~AVAILABLE
    yield from files.update_control(current.session_id, current.low_water_mark, current.local_low_water_mark, flags)


def _reset_control(files: ReplicaFiles) -> Procedure[None]:
    yield from files.write_control(*files.entry.reset_writes())
    files.entry.adopt_reset()


def _delete_files(files: ReplicaFiles) -> Procedure[None]:
    directory = files.where.directory
    yield from files.write(MakeDirectory(directory))  # it may be gone with its files; what follows needs it
    present = yield from list_names(directory)
    names = {entry.name for entry in present if not entry.is_directory}
    indexes = [name for name in names if name.endswith(".idx") and name.replace(".idx", ".seg") not in names]
    yield from files.write(*(Unlink(f"{directory}/{name}") for name in sorted(indexes)), SyncDirectory(directory))
    for name in sorted((name for name in names if name.endswith(".seg")), reverse=True):
        # Newest first, so that a crash leaves a shorter log.
        data_path = f"{directory}/{name}"
        yield from files.write(*remove_operations(directory, index_name(data_path), data_path))
    yield from files.write(*files.durable.remove_operations(), SyncDirectory(directory))
    files.raised_fence = -1
