"""Blocking connections to servers and storage nodes: one request after the other, each with a deadline.

A reader in Spark is a generator, in which no scope of Trio may be suspended. The core has the protocol; this module
adds a socket, TLS, and one fast path: lists of records become blocks without an object per record.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
import zlib
from collections.abc import Collection
from typing import Generic, TypeVar
from uuid import UUID

import numpy as np
import numpy.typing as npt

from waltz_core.base.errors import ProtocolError
from waltz_core.base.ids import Endpoint, ReqId, make_req_id
from waltz_core.wire import admin_messages as admin
from waltz_core.wire import client_messages as client
from waltz_core.wire.admin_codec import VERSIONS as ADMIN_VERSIONS
from waltz_core.wire.client_codec import EXTENDED
from waltz_core.wire.client_codec import VERSIONS as CLIENT_VERSIONS
from waltz_core.wire.connection import ADMIN_PROTOCOL, CLIENT_PROTOCOL
from waltz_core.wire.port_session import PortSession, PortState, Refusal, refusal_of
from waltz_core.wire.shared import STARTED, name_of
from waltz_core.wire.table import WireProtocol
from waltz_spark.base.errors import (
    DataLossError,
    RecordDamagedError,
    SourceRefusedError,
    UnreachableError,
    WrongClusterError,
)
from waltz_spark.records.blocks import OVERHEAD, Block
from waltz_spark.records.crc import crc32
from waltz_trio.net.tls import ClientTls

_FRAME = struct.Struct(">bhi")
_WIRE_HEAD = struct.Struct(">q16sii")
_INT = struct.Struct(">i")
_CHECKSUM = struct.Struct(">I")
_WIRE_OVERHEAD = 36
_FRAME_MAX = 1 << 30
_RECORD_LIST = 8
_RANGE_RESPONSE = 37
_SEGMENT_READ = 45
_SEGMENT_HEAD = struct.Struct(">qi")
_FOR_GOOD = (client.ErrorCode.NOT_IMPLEMENTED, client.ErrorCode.INVALID, client.ErrorCode.NOT_ALLOWED)

M = TypeVar("M")
A = TypeVar("A")


class BlockingPort(Generic[M]):
    """One connection. Close it, or use it in a `with` block.

    Raises:
        UnreachableError: no answer in time, or one that breaks the protocol.
    """

    def __init__(
        self,
        protocol: WireProtocol[M],
        text: str,
        versions: Collection[int],
        endpoint: Endpoint,
        tls: ClientTls,
        timeout: float,
        opening: M | None = None,
    ) -> None:
        self.endpoint = endpoint
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout
        self._session: PortSession[M] = PortSession(protocol, text, versions, opening)
        try:
            plain = socket.create_connection((endpoint.host, endpoint.port), timeout)
        except OSError as error:
            raise UnreachableError(f"{endpoint}: {error.strerror or error}") from error
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = tls.context.wrap_socket(plain, server_hostname=tls.host_name(endpoint))
            refusal = tls.check(endpoint, self._socket.getpeercert(binary_form=True))
            if refusal is not None:
                raise UnreachableError(refusal)
            self._greet()
        except (OSError, ProtocolError) as error:
            plain.close()
            if isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER":
                text = f"{endpoint} answers without TLS: is it an HTTP port? Name the node's own port instead"
                raise UnreachableError(text) from error
            raise UnreachableError(f"{endpoint}: {error}") from error
        except BaseException:
            plain.close()
            raise

    def close(self) -> None:
        """Drop the connection."""
        self._socket.close()

    @property
    def version(self) -> int:
        """The negotiated codec."""
        return self._session.version

    @property
    def refusal(self) -> Refusal | None:
        """Why the node refuses us."""
        return self._session.refusal

    def _greet(self) -> None:
        self._socket.sendall(self._session.hello())
        while self._session.state in (PortState.GREETING, PortState.OPENING):
            head, body = self._frame()
            self._socket.sendall(self._session.receive(head + body))

    def send(self, message: M) -> None:
        """Send a request; its time begins now."""
        self._deadline = time.monotonic() + self._timeout
        try:
            data = self._session.encode(message)
            self._socket.settimeout(self._timeout)
            self._socket.sendall(data)
        except (OSError, ProtocolError) as error:
            raise UnreachableError(f"{self.endpoint}: {error}") from error

    def receive_raw(self) -> tuple[bytearray, bytearray]:
        """The next frame that is no keep-alive: head and body."""
        try:
            while True:
                head, body = self._frame()
                if body:
                    return head, body
        except (OSError, ProtocolError) as error:
            raise UnreachableError(f"{self.endpoint}: {error}") from error

    def decode(self, head: bytearray, body: bytearray) -> M:
        """The message of a frame."""
        try:
            self._session.receive(head + body)
        except ProtocolError as error:
            raise UnreachableError(f"{self.endpoint}: {error}") from error
        answer = self._session.answer()
        if answer is None:
            raise UnreachableError(f"{self.endpoint}: a frame that answers nothing")
        return answer

    def _of_type(self, answer: object, wanted: type[A]) -> A:
        if not isinstance(answer, wanted):
            raise UnreachableError(f"{self.endpoint}: expected {wanted.__name__}, found {type(answer).__name__}")
        return answer

    def _frame(self) -> tuple[bytearray, bytearray]:
        head = self._exactly(_FRAME.size)
        magic, _, size = _FRAME.unpack(head)
        if not 0 <= size <= _FRAME_MAX:
            raise ProtocolError(f"a frame of {size} bytes (magic {magic})")
        return head, self._exactly(size)

    def _exactly(self, size: int) -> bytearray:
        buffer = bytearray(size)
        view, done = memoryview(buffer), 0
        while done < size:
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"no answer within {self._timeout:.1f} s")
            self._socket.settimeout(left)
            count = self._socket.recv_into(view[done:])
            if count == 0:
                raise ProtocolError("the connection was closed")
            done += count
        return buffer


class AdminPort(BlockingPort[admin.AdminMessage]):
    """The admin port of a storage node; the greeting checks that it belongs to the cluster."""

    def __init__(self, endpoint: Endpoint, tls: ClientTls, key: bytes, partition_count: int, timeout: float) -> None:
        opening = admin.AdminOpenRequest(-1, UUID(bytes=key), partition_count)
        super().__init__(ADMIN_PROTOCOL, "Waltz Storage Admin Client", ADMIN_VERSIONS, endpoint, tls, timeout, opening)
        self._seq_num = 0
        self.capabilities: int | None = None  # once asked for
        if self.refusal is not None:
            self.close()
            text = f"{endpoint}: {self.refusal.message}"
            if self.refusal.wrong_cluster:
                raise WrongClusterError(str(endpoint), str(UUID(bytes=key)), f"another ({text})")
            raise SourceRefusedError(text)

    def __enter__(self) -> AdminPort:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, request: admin.AdminMessage, wanted: type[A]) -> A:
        """Send a request and wait for its answer, of this type.

        Raises:
            SourceRefusedError: the node refuses it; the text is the node's.
            UnreachableError: no answer in time, or another one.
        """
        self.send(request)
        return self._of_type(self._checked(self.decode(*self.receive_raw())), wanted)

    def _checked(self, answer: admin.AdminMessage) -> admin.AdminMessage:
        refusal = refusal_of(answer)
        if refusal is not None:
            raise SourceRefusedError(f"{self.endpoint}: {refusal.message}")
        return answer

    def next_seq(self) -> int:
        """A sequence number for a request."""
        self._seq_num += 1
        return self._seq_num

    def assigned(self) -> dict[int, bool]:
        """Partitions of the node and whether each is available."""
        answer = self.ask(admin.AssignedPartitionStatusRequest(self.next_seq()), admin.AssignedPartitionStatusResponse)
        return dict(answer.partition_status)

    def started_ms(self) -> int:
        """When the process of the node started, which no other one has in common with it; 0 if it does not say."""
        if self.version < 1:
            return 0
        answer = self.ask(admin.StatisticsRequest(self.next_seq(), -1, (STARTED,)), admin.StatisticsResponse)
        return next((int(figure.value) for figure in answer.statistics if figure.name == STARTED), 0)

    def session(self, partition: int) -> tuple[int, int]:
        """Store session of the replica and its local low-water mark."""
        answer = self.ask(admin.LastSessionInfoRequest(self.next_seq(), partition), admin.LastSessionInfoResponse)
        found = answer.last_session_info
        return found.session_id, found.local_low_water_mark

    def request_records(self, partition: int, start: int, count: int) -> None:
        """Ask for up to `count` records; the answer is fetched by `records`. Requests may be pipelined."""
        self.send(admin.RecordListRequest(self.next_seq(), partition, start, count))

    def records(self, partition: int, start: int, end: int) -> Block | None:
        """The answer to the oldest `request_records`; None if the node has nothing from `start` on.

        Raises:
            UnreachableError: no answer in time, or a failure.
            RecordDamagedError: the records are not the ones asked for.
        """
        head, body = self.receive_raw()
        if body[0] != _RECORD_LIST:
            self._checked(self.decode(head, body))
            raise UnreachableError(f"{self.endpoint}: unexpected answer of type {body[0]}")
        return block_of_wire(body, 13, partition, start, end, str(self.endpoint), "storage")

    def reads_segments(self) -> bool:
        """Whether the node sends bytes of its files; one of 0.13.2 does not."""
        return self._can(admin.AdminCapability.SEGMENTS)

    def digests(self) -> bool:
        """Whether the node computes digests of records; one of 0.13.2 does not."""
        return self._can(admin.AdminCapability.DIGEST)

    def _can(self, capability: admin.AdminCapability) -> bool:
        if self.capabilities is None:
            self.capabilities = 0
            if self.version >= 1:
                answer = self.ask(admin.NodeInfoRequest(self.next_seq()), admin.NodeInfoResponse)
                self.capabilities = answer.capabilities
        return bool(self.capabilities & capability)

    def digest(self, partition: int, first: int, last: int) -> tuple[int, bytes]:
        """SHA-256 over the bytes of some records on the disk of the node: the last id that it covers, and the digest.

        Raises:
            UnreachableError: no answer in time, or a failure.
        """
        answer = self.ask(admin.DigestRequest(self.next_seq(), partition, first, last), admin.DigestResponse)
        return answer.last_id, answer.digest

    def segments(self, partition: int) -> tuple[admin.SegmentInfo, ...]:
        """The files of a replica, as far as they are durable."""
        answer = self.ask(admin.SegmentListRequest(self.next_seq(), partition), admin.SegmentListResponse)
        return answer.segments

    def request_bytes(self, partition: int, segment: int, offset: int, size: int) -> None:
        """Ask for bytes of the file that begins at id `segment`; negative: from the record −1 − `offset` on."""
        self.send(admin.SegmentReadRequest(self.next_seq(), partition, segment, offset, size))

    def bytes_read(self) -> tuple[int, npt.NDArray[np.uint8]]:
        """The answer to the oldest `request_bytes`: the offset in the file, and the bytes.

        Raises:
            UnreachableError: no answer in time, or a failure.
        """
        head, body = self.receive_raw()
        if body[0] != _SEGMENT_READ:
            self._checked(self.decode(head, body))
            raise UnreachableError(f"{self.endpoint}: unexpected answer of type {body[0]}")
        if len(body) < 37:
            raise UnreachableError(f"{self.endpoint}: an answer of {len(body)} bytes, expected 37 and more")
        offset, size = _SEGMENT_HEAD.unpack_from(body, 21)
        data = np.frombuffer(body, np.uint8)[33 : 33 + size]
        if len(body) != 37 + size or crc32(data) != _CHECKSUM.unpack_from(body, 33 + size)[0]:
            raise UnreachableError(f"{self.endpoint}: {size} bytes of a file arrived damaged")
        return offset, data


class ClientPort(BlockingPort[client.ClientMessage]):
    """The port of a server."""

    def __init__(self, endpoint: Endpoint, tls: ClientTls, timeout: float) -> None:
        super().__init__(CLIENT_PROTOCOL, "Waltz Client", CLIENT_VERSIONS, endpoint, tls, timeout)
        self._seq_num = 0

    def __enter__(self) -> ClientPort:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _req_id(self, partition: int) -> ReqId:
        self._seq_num += 1
        return make_req_id(-1, 0, partition, self._seq_num)

    def ask(self, request: client.ClientMessage, wanted: type[A]) -> A:
        """Send a request and wait for its answer, of this type.

        Raises:
            SourceRefusedError: the request is refused for good.
            UnreachableError: no answer in time, another one, or one that may be another one later.
        """
        self.send(request)
        answer = self.decode(*self.receive_raw())
        if isinstance(answer, client.ErrorResponse):
            kind = SourceRefusedError if answer.code in _FOR_GOOD else UnreachableError
            raise kind(f"{self.endpoint}: {_words(answer)}")
        return self._of_type(answer, wanted)

    def cluster(self) -> client.ClusterInfoResponse:
        """What a client needs to know about the cluster, from servers that speak codec 5."""
        if self.version < EXTENDED:
            raise UnreachableError(f"{self.endpoint} speaks codec {self.version}; name the cluster by zookeeper")
        request = client.ClusterInfoRequest(self._req_id(0), client_id_wanted=False, subscribe=False)
        return self.ask(request, client.ClusterInfoResponse)

    def storage_node_count(self) -> int:
        """How many storage nodes have replicas of the partitions that this server owns; 0 if it does not say."""
        if self.version < EXTENDED or not self.cluster().capabilities & client.Capability.STORAGE_NODES:
            return 0
        answer = self.ask(client.StorageNodesRequest(self._req_id(0)), client.StorageNodesResponse)
        return len(answer.nodes)

    def partitions(self) -> dict[int, tuple[int, int]]:
        """Store session and committed mark of each partition that is open on this server; codec 5 only."""
        answer = self.ask(client.PartitionStatusRequest(self._req_id(0)), client.PartitionStatusResponse)
        return {
            one.partition_id: (one.session_id, one.high_water_mark)
            for one in answer.partitions
            if one.high_water_mark >= -1
        }

    def mark(self, partition: int) -> int:
        """Committed mark, by the oldest kind of request; a server that does not own the partition does not answer."""
        answer = self.ask(client.HighWaterMarkRequest(self._req_id(partition)), client.HighWaterMarkResponse)
        if answer.high_water_mark < -1:
            raise UnreachableError(f"{self.endpoint}: partition {partition} is not open yet")
        return answer.high_water_mark

    def log_start(self, partition: int) -> int:
        """The smallest id that can be read; 0 if the server does not know it."""
        if self.version < EXTENDED:
            return 0
        answer = self.ask(client.LogStartRequest(self._req_id(partition)), client.LogStartResponse)
        return answer.log_start

    def raise_log_start(self, partition: int, start: int) -> int:
        """Free everything below `start` on all replicas; returns the log start afterwards.

        Raises:
            SourceRefusedError: the request is refused for good.
            UnreachableError: it cannot be read now.
        """
        self.send(client.SetLogStartRequest(self._req_id(partition), start))
        answer = self.decode(*self.receive_raw())
        if isinstance(answer, client.ErrorResponse):
            text = f"{self.endpoint}: partition {partition}: {_words(answer)}"
            raise (UnreachableError if answer.code == client.ErrorCode.NOT_READY else SourceRefusedError)(text)
        return self._of_type(answer, client.LogStartResponse).log_start

    def range(self, partition: int, start: int, end: int, size_max: int) -> Block | None:
        """Committed records from `start` on.

        Raises:
            UnreachableError: no answer, or the server does not do this.
            DataLossError: the log starts behind `start`.
        """
        request = client.RecordRangeRequest(
            self._req_id(partition), start, end - 1, end - start, size_max, headers_only=False
        )
        self.send(request)
        head, body = self.receive_raw()
        if body[0] != _RANGE_RESPONSE:
            answer = self.decode(head, body)
            text = getattr(answer, "message", None) or type(answer).__name__
            if getattr(answer, "code", None) == client.ErrorCode.BEFORE_START:
                raise DataLossError(partition, start, end, str(self.endpoint), text)
            raise UnreachableError(f"{self.endpoint}: {text}")
        return block_of_wire(body, 33, partition, start, end, str(self.endpoint), "server")


def _words(refusal: client.ErrorResponse) -> str:
    return refusal.message or name_of(client.ErrorCode, refusal.code)


_LENGTH = struct.Struct(">I")
_LENGTH_AT = 28  # in a record


def record_places(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Offsets of the whole records at the beginning of `data`, and of the end of the last one."""
    # The only loop over records, kept as small as possible. A length is read as a positive
    # number, so that reading always advances; one that is too large ends it.
    last, at, view = len(data) - OVERHEAD, 0, data.data
    places = [0]
    put, length = places.append, _LENGTH.unpack_from
    while at <= last:
        at += OVERHEAD + length(view, at + _LENGTH_AT)[0]
        put(at)
    if at > len(data):
        places.pop()
    return np.array(places, np.int64)


def block_of_wire(
    body: bytearray, at: int, partition: int, start: int, end: int, place: str, origin: str
) -> Block | None:
    """Turn the list of records in a frame into records as on disk.

    Args:
        at: offset of the count.
        end: records from here on are left out.

    Raises:
        RecordDamagedError: the ids are not `start` and upward.
    """
    parts: list[bytes | bytearray] = []
    sizes: list[int] = []
    try:
        (count,) = _INT.unpack_from(body, at)
        at += 4
        for expected in range(start, min(start + count, end)):
            found, _, _, length = _WIRE_HEAD.unpack_from(body, at)
            if found != expected:
                raise RecordDamagedError(partition, expected, place, f"it sends id {found} instead")
            behind = at + 32 + length
            disk = body[at : at + 32] + body[behind : behind + 4] + body[at + 32 : behind]
            if length < 0 or len(disk) != _WIRE_OVERHEAD + length:
                raise UnreachableError(f"{place}: a list of records ends inside record {expected}")
            parts += (disk, _CHECKSUM.pack(zlib.crc32(disk)))
            sizes.append(len(disk) + 4)
            at = behind + 4
    except struct.error as error:
        raise UnreachableError(f"{place}: {error}") from error
    if not sizes:
        return None
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])
    return Block(partition, start, np.frombuffer(b"".join(parts), np.uint8), offsets, place, origin)
