"""Reading the log straight from the files of a storage node, without any node."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from waltz_core.base.errors import CorruptionError
from waltz_core.base.log import Record
from waltz_core.storage.record_codec import decode_run
from waltz_core.storage.segment import HEADER_SIZE, decode_header
from waltz_trio.demo import bank
from waltz_trio.demo.bank import Account
from waltz_trio.demo.proof import Database

_EVERYTHING = 1 << 62


def read_log(directory: Path) -> dict[int, list[Record]]:
    """Partition → intact records, as the data files of one storage node hold them.

    Raises:
        CorruptionError: a data file has no header.
    """
    logs = {}
    for folder in sorted(path for path in directory.iterdir() if path.name.isdecimal()):
        records: list[Record] = []
        for segment in sorted(folder.glob("*.seg")):
            data = segment.read_bytes()
            header = decode_header(data)
            if header is None:
                raise CorruptionError(f"{segment} has no header")
            records += decode_run(data[HEADER_SIZE:], header.first_id, _EVERYTHING)[0]
        logs[int(folder.name)] = records
    return logs


def read_database(path: Path, client: int) -> Database:
    """Accounts and marks in the database of a client."""
    db = sqlite3.connect(path)
    try:
        rows = db.execute("SELECT ACCOUNT_ID, BALANCE, ACTIVE FROM ACCOUNTS").fetchall()
        marks = db.execute(f"SELECT PARTITION_ID, HIGH_WATER_MARK FROM {bank.MARK_TABLE}").fetchall()
    finally:
        db.close()
    return Database(client, {number: Account(balance, active == "Y") for number, balance, active in rows}, dict(marks))
