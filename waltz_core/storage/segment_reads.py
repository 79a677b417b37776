"""What tools read of whole data files: which there are, and their bytes as they stand on disk.

Bytes are given up to the end of the last durable record and no further. They are not looked at: whoever asks
finds in every record its id and its checksum.
"""

from __future__ import annotations

from waltz_core.base.checksum import crc32
from waltz_core.storage.log_files import LogFiles, Segment
from waltz_core.storage.procedure import Procedure, read
from waltz_core.storage.reading import locate
from waltz_core.storage.refusals import SE, Refusal
from waltz_core.storage.scanning import read_readable
from waltz_core.storage.segment import HEADER_SIZE, decode_header
from waltz_core.wire import admin_messages as admin
from waltz_core.wire.shared import FailureCode


def list_segments(log: LogFiles, request: admin.SegmentListRequest) -> Procedure[admin.SegmentListResponse]:
    """All data files of a log.

    Raises:
        DiskError: a file is gone.
    """
    infos = []
    for segment in tuple(log.segments):
        size, next_id = segment.end, segment.next_id
        data = yield from read_readable(segment.data_path, 0, HEADER_SIZE)
        header = None if data is None else decode_header(data)
        created_ms = -1 if header is None else header.created_ms
        sealed = segment is not log.last
        infos.append(admin.SegmentInfo(segment.first_id, next_id - 1, size, created_ms, sealed))
    return admin.SegmentListResponse(request.seq_num, request.partition_id, tuple(infos))


def read_segment(
    log: LogFiles, request: admin.SegmentReadRequest, size_max: int
) -> Procedure[admin.SegmentReadResponse]:
    """Bytes of one data file from an offset, or from a record on.

    Raises:
        Refusal: there is no such file, it does not hold the record, or that is damaged.
        DiskError: it cannot be read.
    """
    segment = next((one for one in log.segments if one.first_id == request.first_id), None)
    if segment is None:
        raise Refusal(f"{SE}no data file begins at transaction {request.first_id}", FailureCode.OTHER)
    offset = request.offset if request.offset >= 0 else (yield from _place(log, segment, -1 - request.offset))
    size = min(request.size, size_max, segment.end - offset)
    data = (yield from read(segment.data_path, offset, size)) if size > 0 else b""
    checksum = crc32(data)
    checksum -= (checksum & 1 << 31) << 1
    return admin.SegmentReadResponse(request.seq_num, request.partition_id, request.first_id, offset, data, checksum)


def _place(log: LogFiles, segment: Segment, transaction_id: int) -> Procedure[int]:
    """Where a record stands; behind the last one stands the next."""
    if transaction_id == segment.next_id:
        return segment.end
    if not segment.first_id <= transaction_id < segment.next_id:
        text = (
            f"{SE}the data file that begins at transaction {segment.first_id} ends at {segment.next_id - 1}: "
            f"it does not hold {transaction_id}"
        )
        raise Refusal(text, FailureCode.OTHER)
    place = yield from locate(log, segment, transaction_id)
    if place is None:
        raise Refusal(
            f"{SE}transaction {transaction_id} is damaged on this storage node", FailureCode.CORRUPT, transaction_id
        )
    return place[0]
