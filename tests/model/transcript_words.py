"""What messages, disk operations and writes to ZooKeeper are called in a transcript."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from waltz_core.base.edge import ZkCreate, ZkDelete, ZkSet
from waltz_core.base.ids import ReqId, req_client, req_sequence
from waltz_core.base.lock import Conflict, LockKind
from waltz_core.client.calls import Committed, Deliver, Failed, Fetched, StatusChanged
from waltz_core.storage import effects as disk
from waltz_core.wire import client_messages as client
from waltz_core.wire import storage_messages as storage
from waltz_core.wire.lock_names import unpack_names
from waltz_core.zookeeper.znodes import (
    UNRESOLVED,
    PartitionMetadata,
    ReplicaState,
    decode_partition_assignment,
    decode_partition_metadata,
)

Clients = Callable[[int], str]
"""The name of the process that has a client id."""


def span(ids: Iterable[int]) -> str:
    """Ids in a row."""
    first, *others = ids
    return f"{first}..{others[-1]}" if others else f"{first}"


def request_id(req_id: ReqId, clients: Clients) -> str:
    """Which request of which client."""
    return f"{clients(req_client(req_id))}#{req_sequence(req_id)}"


# ---- clients and servers -------------------------------------------------------------------------


def client_message(message: Any, clients: Clients) -> str | None:
    """A message between a client and a server; None: it is left out."""
    match message:
        case (
            client.ClusterInfoRequest()
            | client.ClusterInfoResponse()
            | client.FeedWindowRequest()
            | client.TransactionDataRequest()
            | client.TransactionDataResponse()
        ):
            return None
        case client.MountRequest(req_id, client_mark):
            return f"mount {request_id(req_id, clients)}, transactions are known up to {client_mark}"
        case client.MountResponse(req_id, state):
            return f"mount {request_id(req_id, clients)}: {client.PartitionState(state).name}"
        case client.NamedAppendRequest():
            return f"append {request_id(message.req_id, clients)}: {_append(message)}"
        case client.FeedData(req_id, transaction_id):
            return f"feed: transaction {transaction_id} is append {request_id(req_id, clients)}"
        case client.AppendRefused(req_id):
            return f"append {request_id(req_id, clients)} is refused: {_refusal(message)}"
    raise AssertionError(f"no words for {message}")


def _refusal(message: client.AppendRefused) -> str:
    assert message.refusal == client.Refusal.LOCK
    kind = LockKind(message.lock_kind).name.lower()
    if message.conflict == Conflict.TRUE:
        return f"its {kind} lock was taken by transaction {message.blocking_id}"
    return f"its {kind} lock was taken by a transaction up to {message.transaction_id}"


def _append(message: client.NamedAppendRequest) -> str:
    names = [name for name in unpack_names(message.names, 1) if name is not None]
    assert (message.read_locks, message.append_locks) == ((), ())
    locks = "".join(f", write lock on {name} {number}" for name, number in names)
    return f"{message.data.decode()!r}{locks}, decided at {message.client_mark}"


# ---- servers and storage nodes -------------------------------------------------------------------


def storage_request(message: Any, clients: Clients) -> str | None:
    """A request of a server; None: it is left out."""
    match message:
        case storage.OpenRequest():
            return None
        case storage.LastSessionInfoRequest(session_id):
            return f"[session {session_id}] obey no older session; which was your last?"
        case storage.LogStartRequest(session_id):
            return f"[session {session_id}] where does your log begin?"
        case storage.MaxTransactionIdRequest(session_id):
            return f"[session {session_id}] where does your log end?"
        case storage.TruncateRequest(session_id, transaction_id=last):
            return f"[session {session_id}] cut what is above {last}"
        case storage.SetLowWaterMarkRequest(session_id, low_water_mark=mark):
            return f"[session {session_id}] begin at low-water mark {mark}"
        case storage.AppendRequest(session_id, records=records):
            requests = ", ".join(request_id(record.req_id, clients) for record in records)
            return f"[session {session_id}] write {span(r.transaction_id for r in records)} ({requests})"
        case storage.RecordListRequest(session_id, transaction_id=first, max_num_records=count):
            return f"[session {session_id}] read {span(range(first, first + count))}"
        case storage.RecordHeaderListRequest(session_id, transaction_id=first, max_num_records=count):
            return f"[session {session_id}] read the headers of {span(range(first, first + count))}"
        case storage.RecordRangeRequest(session_id, first_id=first, last_id=last):
            return f"[session {session_id}] read {span(range(first, last + 1))}"
    raise AssertionError(f"no words for {message}")


def storage_answer(message: Any, request: str) -> str:
    """The answer of a storage node to a request that is worded already."""
    match message:
        case storage.SuccessResponse():
            return f"done: {request}"
        case storage.LastSessionInfoResponse(last_session_info=last):
            marks = f"low-water mark {last.low_water_mark}, its own {last.local_low_water_mark}"
            return f"obeyed: my last session is {last.session_id}, {marks}"
        case storage.LogStartResponse(log_start=start):
            return f"my log begins at {start}"
        case storage.MaxTransactionIdResponse(transaction_id=last):
            return f"my log ends at {last}"
        case storage.RecordHeaderListResponse(record_headers=headers):
            return f"here are the headers of {span(header.transaction_id for header in headers)}"
        case storage.RecordListResponse(records=records):
            return f"here is {span(record.transaction_id for record in records)}"
    raise AssertionError(f"no words for {message}")


# ---- ZooKeeper -----------------------------------------------------------------------------------


def znode_write(request: ZkSet | ZkCreate | ZkDelete) -> str:
    """A write to ZooKeeper."""
    path = request.path.removeprefix("/waltz/")
    if isinstance(request, ZkSet) and request.data is not None:
        if path.startswith("store/partition/"):
            return f"set {path}: {_metadata(decode_partition_metadata(request.data))}"
        if path == "serverDescriptors":
            assignment = decode_partition_assignment(request.data)
            owners = [
                f"server id {server.server_id} owns partition {partition}, generation {generation}"
                for server in assignment.servers
                for partition, generation in server.partitions
            ]
            return f"set {path}: {', '.join(owners)}"
    if isinstance(request, ZkDelete):
        return f"delete {path}"
    raise AssertionError(f"no words for {request}")


def _metadata(metadata: PartitionMetadata) -> str:
    replicas: dict[str, list[str]] = {}
    for state in metadata.replica_states:
        replicas.setdefault(_standing(state), []).append(state.replica_id.storage.partition(":")[0])
    states = [f"{standing}: {', '.join(names)}" for standing, names in replicas.items()]
    return f"session {metadata.session_id}; {'; '.join(states)}"


def _standing(state: ReplicaState) -> str:
    end = "unresolved" if state.closing_mark == UNRESOLVED else f"closed at {state.closing_mark}"
    return f"{end} in {state.session_id}"


# ---- disks ---------------------------------------------------------------------------------------

_FILES = {
    "waltz-storage.ctl": "the control file",
    "waltz.fence": "the fence",
    "waltz.mark": "the durable mark",
    "waltz.faults": "the known faults",
}


def file_name(path: str) -> str:
    """What a file is for."""
    name = path.rpartition("/")[2]
    if name.endswith((".seg", ".idx")):
        return "the segment" if name.endswith(".seg") else "the index"
    return _FILES.get(name, name or "the directory")


def disk_batch(batch: disk.DiskBatch) -> str:
    """What is written, cut and made durable."""
    parts: dict[str, None] = {}
    for operation in batch.operations:
        parts[_operation(operation)] = None
    return "disk: " + ", ".join(parts)


def _operation(operation: disk.Operation) -> str:
    match operation:
        case disk.WriteAt(path, offset, data):
            if path.endswith((".seg", ".idx")):
                return f"write {file_name(path)} from {offset} to {offset + len(data)}"
            return f"write {file_name(path)}"
        case disk.Cut(path, size):
            return f"cut {file_name(path)} to {size}"
        case disk.SyncFile(path):
            return f"sync {file_name(path)}"
        case disk.SyncDirectory():
            return "sync the directory"
    raise AssertionError(f"no words for {operation}")


def disk_read(read: disk.DiskRead) -> str:
    """What is read."""
    if read.path.endswith((".seg", ".idx")):
        return f"disk: read {file_name(read.path)} from {read.offset}"
    return f"disk: read {file_name(read.path)}"


# ---- what an application hears -------------------------------------------------------------------


def told(effect: Any) -> str | None:
    """What a client says to its application; None: it is left out."""
    match effect:
        case Committed(outcomes=outcomes):
            return ", ".join(f"{token!r} is committed as transaction {number}" for token, number in outcomes)
        case Failed(token=token, reason=reason, blocking_id=blocking_id):
            return f"{token!r} failed, {reason.value}: nothing above {blocking_id} is to blame"
        case Deliver(run=run):
            return f"apply {span(data.transaction_id for data in run)}"
        case Fetched(payloads=payloads):
            known = ((number, data) for first, run in payloads for number, data in enumerate(run, first))
            return ", ".join(f"transaction {number} says {data.decode()!r}" for number, data in known)
        case StatusChanged(phase=phase):
            return f"the partition is: {phase.value}"
    return None
