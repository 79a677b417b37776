"""What an invariant may look at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.model.observer import Observer, Token
    from waltz_core.zookeeper.znodes import PartitionMetadata


class InvariantError(AssertionError):
    """An invariant does not hold."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name


def require(holds: bool, name: str, text: str) -> None:
    """Fail the run unless `holds`.

    Raises:
        InvariantError: it does not.
    """
    if not holds:
        raise InvariantError(name, text)


class Invariant:
    """Base of all; a subclass overrides the hooks it needs. Hooks that are not overridden cost nothing."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer

    def require(self, holds: bool, text: str) -> None:
        """Fail the run unless `holds`.

        Raises:
            InvariantError: it does not hold.
        """
        if not holds:
            raise InvariantError(type(self).__name__, text)

    def on_commit(self, partition: int, transaction_id: int, body: bytes, server: Any, session: Any) -> None:
        """A server's commit mark reached an id for the first time in the cluster."""

    def on_mark(self, partition: int, mark: int, server: Any) -> None:
        """The commit mark of a server process rose."""

    def on_server(self, server: Any, epoch: int, partition: int, mark: int) -> None:
        """A server was stepped."""

    def on_storage(self, storage: Any) -> None:
        """A storage node was stepped."""

    def on_gone(self, storage: Any, partition: int, ids: Sequence[int]) -> None:
        """Records went away from a disk, or became others."""

    def on_metadata(self, partition: int, before: PartitionMetadata | None, after: PartitionMetadata) -> None:
        """The metadata of a partition was written."""

    def on_submit(self, token: Token) -> None:
        """A client submitted an append."""

    def on_deliver(self, client: Any, partition: int, run: Sequence[Any]) -> None:
        """A client got transactions."""

    def on_committed(self, client: Any, token: Token, transaction_id: int) -> None:
        """A client was told that an append committed."""

    def on_failed(self, client: Any, token: Token, failed: Any) -> None:
        """A client was told that an append did not commit, or that nobody knows."""

    def on_read(self, client: Any, partition: int, floor: int, mark: int) -> None:
        """A client read the committed mark; when it began, some client knew that `floor` is committed."""

    def on_second(self) -> None:
        """A second of simulated time has passed."""

    def on_quiet(self, seen: list[set[str]]) -> None:
        """Nothing is to do any more; what each machine held all the same, each time somebody looked."""

    def at_end(self) -> None:
        """The liveness phase is over; everything has settled."""
