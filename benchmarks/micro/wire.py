"""`python -m benchmarks.micro.wire`: microseconds per message of the hot paths of the wire layer."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from waltz_core.base.ids import make_req_id
from waltz_core.base.log import Record
from waltz_core.server.feed_cache import encode_frames
from waltz_core.wire import client_codec, client_messages, storage_codec, storage_messages
from waltz_core.wire.connection import CLIENT_PROTOCOL, STORAGE_PROTOCOL, Connection
from waltz_core.wire.primitives import checksum_of

COUNT = 100  # a run is short, so that the best of many is rarely interrupted
DATA = os.urandom(200)
CHECKSUM = checksum_of(DATA)
REQ_IDS = [make_req_id(7, 3, 1, sequence) for sequence in range(COUNT)]
RECORDS = tuple(Record(at, req_id, 5, DATA, CHECKSUM) for at, req_id in enumerate(REQ_IDS))


def best(work: Callable[[], object], messages: int = COUNT) -> float:
    """Best of many runs, in microseconds per message."""
    least = float("inf")
    for _ in range(1000):
        start = time.perf_counter()
        work()
        least = min(least, time.perf_counter() - start)
    return least / messages * 1e6


def client() -> Connection[client_messages.ClientMessage]:
    connection = Connection(CLIENT_PROTOCOL, "", client_codec.VERSIONS)
    connection.receive(connection.hello(), [])
    return connection


def storage() -> Connection[storage_messages.StorageMessage]:
    connection = Connection(STORAGE_PROTOCOL, "", storage_codec.VERSIONS)
    connection.receive(connection.hello(), [])
    return connection


def encoded(messages: list[client_messages.ClientMessage]) -> bytes:
    out = bytearray()
    connection = client()
    for message in messages:
        connection.encode(message, out)
    return bytes(out)


def in_pieces(frames: bytes, size: int) -> list[bytes]:
    return [frames[at : at + size] for at in range(0, len(frames), size)]


def decoding(frames: bytes, size: int = 65536) -> float:
    pieces = in_pieces(frames, size)
    connection = client()

    def work() -> None:
        for piece in pieces:
            connection.receive(piece, [])

    return best(work)


def main() -> None:
    none: tuple[int, ...] = ()
    appends: list[client_messages.ClientMessage] = [
        client_messages.AppendRequest(req_id, 99, none, none, none, 5, DATA, CHECKSUM) for req_id in REQ_IDS
    ]
    locked: list[client_messages.ClientMessage] = [
        client_messages.AppendRequest(req_id, 99, (1, 2), (3,), none, 5, DATA, CHECKSUM) for req_id in REQ_IDS
    ]
    feed: list[client_messages.ClientMessage] = [
        client_messages.FeedData(req_id, at, 5) for at, req_id in enumerate(REQ_IDS)
    ]
    answers: list[client_messages.ClientMessage] = [
        client_messages.TransactionDataResponse(req_id, at, True, DATA, CHECKSUM) for at, req_id in enumerate(REQ_IDS)
    ]
    print(f"decode AppendRequest, 200 B, no locks   {decoding(encoded(appends)):6.2f} us")
    print(f"decode AppendRequest, 200 B, 3 locks    {decoding(encoded(locked)):6.2f} us")
    print(f"decode FeedData                         {decoding(encoded(feed)):6.2f} us")
    print(f"decode FeedData, reads of 1400 B        {decoding(encoded(feed), 1400):6.2f} us")
    print(f"decode TransactionDataResponse, 200 B   {decoding(encoded(answers)):6.2f} us")
    print(f"encode AppendRequest, 200 B, no locks   {best(lambda: encoded(appends)):6.2f} us")
    print(f"encode AppendRequest, 200 B, 3 locks    {best(lambda: encoded(locked)):6.2f} us")
    print(f"encode_frames                           {best(lambda: encode_frames(0, RECORDS)):6.2f} us")
    print(f"encode_run, per record                  {best(lambda: storage_codec.encode_records(0, RECORDS)):6.2f} us")
    batch = storage_codec.encode_records(0, RECORDS)
    head, tail = storage_codec.append_around(1, 2, 3, COUNT, len(batch), False, version=1)
    node, frames = storage(), head + batch + tail
    print(f"decode storage AppendRequest, per record{best(lambda: node.receive(frames, [])):6.2f} us")


if __name__ == "__main__":
    main()
