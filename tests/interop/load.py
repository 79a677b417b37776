"""Clients of both kinds that load one cluster, and the verdict on what they, the disks and the feeds say afterwards."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import trio

import waltz_trio as waltz
from tests.interop.cluster import PATIENCE, Kind, MixedCluster
from tests.interop.installation import DRIVER
from tests.processes.cluster import poll
from tests.processes.load import Load
from tests.processes.worker import READY
from tests.witness.log import Payload, Verdict

Row = tuple[int, str, int, bytes]  # transaction id, request id in hexadecimal, header, payload
_SEGMENT_HEADER = 128


class MixedLoad(Load):
    """Clients `client-0`…, of the kinds given; those of the original run `InteropDriver work`.

    Args:
        cluster: what they write to.
        kinds: of the clients.
        files: client → its configuration, where it has one of its own.
        options: of `Load`.
    """

    def __init__(
        self,
        cluster: MixedCluster,
        kinds: Sequence[Kind],
        files: Mapping[str, Path] | None = None,
        **options: Any,
    ) -> None:
        # Windows of a few: the original's clients fetch payloads one by one and must keep up with the feed.
        super().__init__(cluster, len(kinds), **{"submitters": 3, "window": 4, **options})
        self.mixed = cluster
        self._files = dict(files or {})
        self.kinds = dict(zip(self.names, kinds, strict=True))

    def start(self, *names: str, **options: Any) -> None:
        """Start clients (all by default); each goes on where it left off."""
        for name in names or self.names:
            if self.kinds[name] is Kind.OURS:
                super().start(name, **options)
            else:
                self._start_java(name, **options)

    def client_file(self, name: str) -> Path:
        """As `Load.client_file`."""
        return self._files.get(name, self.cluster.client_file)

    def leave(self, name: str) -> None:
        """End one client in order while the others go on."""
        child = self.cluster.children[name]
        poll(f"{name} heeds signals", lambda: child.text().count(READY) == child.starts)
        child.interrupt()
        assert child.wait(PATIENCE) == 0, f"{name} ended with status {child.status}"

    def finish(self) -> Verdict:
        """As `Load.finish`; besides, the bytes of all storage nodes are equal and both kinds of client read the log.

        Clients that have left come back to catch up.
        """
        for name in self.names:
            if self.cluster.children[name].running:
                self.leave(name)
        self.start(submitters=0, window=0)
        for name in self.names:
            child = self.cluster.children[name]
            assert child.wait(PATIENCE) == 0, f"{name} ended with status {child.status}"
        verdict = self.verify()
        self.check_readers(verdict)
        return verdict

    def check_readers(self, verdict: Verdict) -> None:
        """The storage nodes hold equal bytes, and what they hold is what clients of both kinds read."""
        for partition, length in verdict.log.items():
            if self._archive is None:  # else each node frees when it is its turn
                poll("the bytes of all storage nodes are equal", partial(self._equal_files, partition))
            rows = self.rows_on_disk(partition)[:length]
            for file in {self.cluster.client_file, *self._files.values()}:
                ours = trio.run(read_ours, file, partition, length)
                assert ours == rows, f"our client with {file.name} reads another log"
                java = self._read_java(file, partition)
                assert java == rows, f"the original's client with {file.name} reads another log"

    def _start_java(self, name: str, **options: Any) -> None:
        child = self.cluster.children[name]
        run = f"{name}-{child.starts + 1}"
        journal = self.cluster.directory / f"{run}.journal"
        self.journals.append(journal)
        wanted = {"submitters": 3, "accounts": 20, **self._options, **options}
        arguments = ["work", "--config", str(self.client_file(name)), "--name", run, "--journal", str(journal)]
        arguments += ["--applied", str(self._applied_file(name)), "--partitions", str(self.cluster.partitions)]
        arguments += ["--seed", str(len(self.journals))]
        for option in ("submitters", "accounts"):
            arguments += [f"--{option}", str(wanted[option])]
        child.command = self.mixed.installation.command(DRIVER, *arguments)
        child.start()

    def _applied_file(self, name: str) -> Path:
        return self.cluster.directory / f"{name}.applied"

    def rows_on_disk(self, partition: int) -> list[Row]:
        """The log of one storage node; what it has freed is taken from the archive."""
        entries = self._replicas(partition)[0]
        return [(entry.transaction_id, entry.req_id.hex(), entry.header, entry.data) for entry in entries]

    def _equal_files(self, partition: int) -> bool:
        """Every storage node holds the same bytes, but for the times in the headers of its files."""
        directories = [self.cluster.directory / name / str(partition) for name in self.cluster.storage_names]
        return len({_log_bytes(directory) for directory in directories}) == 1

    def _read_java(self, config: Path, partition: int) -> list[Row]:
        rows: list[Row] = []
        told_all = self.mixed.drive(
            "read", "--partition", str(partition), "--data", "hex", "--timeout", f"{PATIENCE / 2:.0f}", config=config
        )
        for line in told_all.splitlines():
            told = json.loads(line)
            if told["event"] == "transaction":
                parts = (told["client_id"], told["generation"], told["partition"], told["seq_num"])
                req_id = b"".join(part.to_bytes(4, "big", signed=True) for part in parts)
                rows.append((told["transaction_id"], req_id.hex(), told["header"], bytes.fromhex(told["data"])))
        return rows

    def _applied(self, name: str) -> dict[int, list[tuple[int, str]]]:
        """What a client applied; of the original's, names stand in for request ids that were seen in the feed."""
        if self.kinds[name] is Kind.OURS:
            return super()._applied(name)
        logs = {partition: self.rows_on_disk(partition) for partition in range(self.cluster.partitions)}
        found: dict[int, list[tuple[int, str]]] = {}
        for line in self._applied_file(name).read_text().splitlines():
            partition, transaction_id, req_id, payload = line.split()
            _, expected, _, data = logs[int(partition)][int(transaction_id)]
            attempt = Payload.loads(data).name if req_id == expected else f"request {req_id}"
            if payload != "-":
                assert payload == attempt, f"{name} was given the payload of {payload} for {transaction_id}, {attempt}"
            found.setdefault(int(partition), []).append((int(transaction_id), attempt))
        return found

    def _lists(self, name: str) -> dict[tuple[int, int], list[str]] | None:
        return super()._lists(name) if self.kinds[name] is Kind.OURS else None

    def _check_balances(self, name: str, expected: dict[tuple[int, int], int]) -> None:
        if self.kinds[name] is Kind.OURS:  # the driver of the original's keeps none
            super()._check_balances(name, expected)


def _log_bytes(directory: Path) -> bytes:
    return b"".join(path.read_bytes()[_SEGMENT_HEADER:] for path in sorted(directory.glob("*.seg")))


async def read_ours(config: Path, partition: int, count: int) -> list[Row]:
    """The first `count` transactions of a partition as our client's feed and payload requests give them.

    Reading them by their ids gives the same: by ranges, and where the server is the original's, without them.
    """
    rows: list[Row] = []
    with trio.fail_after(60):
        async with waltz.open_client(config) as client:
            async with client.feed(partition, after=-1) as feed:
                while len(rows) < count:
                    rows.append(_row(await anext(feed)))
            again = [_row(txn) for txn in await client.read(partition, 0, count - 1)]
            assert again == rows, "reading by ids gives another log than the feed"
    return rows


def _row(txn: waltz.Transaction) -> Row:
    return txn.id, txn.req_id.hex(), txn.header, txn.load(waltz.Raw())
