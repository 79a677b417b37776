"""Every exception of the project, one tree; names end in `Error`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from waltz_core.base.lock import Lock


class WaltzError(Exception):
    """Root of all errors raised by this project. They can be copied, and pickled to another process."""

    def __reduce__(self) -> tuple[object, ...]:
        # That of Exception makes the error anew from its text alone, which is not what most classes here take.
        return _made_again, (type(self), self.args, self.__dict__)


def _made_again(kind: type[WaltzError], args: tuple[object, ...], attributes: dict[str, object]) -> WaltzError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error


class ConfigError(WaltzError):
    """A configuration is missing a key, or a value cannot be used."""


class ProtocolError(WaltzError):
    """Bytes or a sequence of messages that no correct peer sends: the connection is dropped."""


class FrameTooLargeError(ProtocolError):
    """A frame announces more bytes than the limit of this side."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(
            f"frame of {size} bytes announced, at most {limit} accepted (configuration key network.frameSizeMax)"
        )
        self.size = size
        self.limit = limit


class ChecksumError(ProtocolError):
    """A payload or record does not match its checksum."""


class HandshakeError(ProtocolError):
    """The peers have no protocol version in common, or did not greet properly."""


class NoCommonVersionError(HandshakeError):
    """The peer greeted properly, and speaks none of our versions."""


class StorageError(WaltzError):
    """This replica cannot do what was asked; becomes a failure response."""


class CorruptionError(StorageError):
    """Files contradict themselves: stop, keep the files."""


class ClusterError(WaltzError):
    """ZooKeeper contradicts what we hold."""


class ClientError(WaltzError):
    """Base of what application code sees."""


class ClientClosedError(ClientError):
    """The client or the partition was closed."""


class PartitionNotFoundError(ClientError):
    """A partition id outside 0..n-1."""


class PartitionUnavailableError(ClientError):
    """The partition cannot be used now; `reason` says why, `since_ms` for how long."""

    def __init__(self, partition: int, reason: str, since_ms: int = 0) -> None:
        super().__init__(f"partition {partition} is unavailable: {reason} (for {since_ms / 1000:.1f} s)")
        self.partition = partition
        self.reason = reason
        self.since_ms = since_ms


class LockConflictError(ClientError):
    """The append was refused: something it depended on changed at or before `blocking_id`.

    What follows is known where the server explains its refusals, and None elsewhere. `kind` is "write" or "read" and
    `lock` the lock that was refused; of several, one that was really taken. `conflict` is True if one was, by
    transaction `taken_by`; False if the server's table confused them with others; None if the server does not remember
    far enough back, or has no time to look, as it refuses very many.
    """

    def __init__(
        self,
        partition: int,
        blocking_id: int,
        *,
        kind: str | None = None,
        lock: Lock | None = None,
        conflict: bool | None = None,
        taken_by: int | None = None,
    ) -> None:
        which = f"{kind} lock {lock.name}/{lock.id}" if lock is not None else f"a {kind} lock" if kind else "a lock"
        how = (
            f"was taken by transaction {taken_by}"
            if conflict
            else f"shares its place in the server's table with one taken by transaction {blocking_id} or earlier"
            if conflict is False
            else f"was taken by transaction {blocking_id} or earlier"
        )
        super().__init__(f"partition {partition}: {which} {how}")
        self.partition = partition
        self.blocking_id = blocking_id
        self.kind = kind
        self.lock = lock
        self.conflict = conflict
        self.taken_by = taken_by


class NotCommittedError(ClientError):
    """The append is not in the log and never will be: it was lost, or a server refused it (`refused`).

    It is safe to send it again; what was refused would be refused again.
    """

    def __init__(self, partition: int, reason: str, *, refused: bool = False) -> None:
        again = "the same append would be refused again" if refused else "it is safe to send it again"
        super().__init__(f"partition {partition}: the append is not in the log ({reason}); {again}")
        self.partition = partition
        self.reason = reason
        self.refused = refused


class RetriesExhaustedError(ClientError):
    """A submit gave up; `__cause__` is the last failure."""

    def __init__(self, attempts: int, reason: str = "") -> None:
        count = f"{attempts} attempt{'' if attempts == 1 else 's'}"
        super().__init__(f"gave up after {count}{reason and f': {reason}'}")
        self.attempts = attempts
        self.reason = reason


class KeyReusedError(ClientError):
    """The idempotency key belongs to another request, which `transaction_id` has committed."""

    def __init__(self, partition: int, key: str, transaction_id: int) -> None:
        super().__init__(
            f"partition {partition}: key {key!r} was used by transaction {transaction_id} for another request; "
            "nothing was appended. A new request needs a key of its own"
        )
        self.partition = partition
        self.key = key
        self.transaction_id = transaction_id


class ClientAheadError(ClientError):
    """The client has applied more than the log holds: a restored log, or the wrong cluster."""

    def __init__(self, partition: int, client_mark: int, log_mark: int | None) -> None:
        super().__init__(
            f"partition {partition}: this client has applied up to {client_mark}, the log ends at "
            f"{'an earlier id' if log_mark is None else log_mark}; is this the right cluster, or was the log restored?"
        )
        self.partition = partition
        self.client_mark = client_mark
        self.log_mark = log_mark


class BeforeStartError(ClientError):
    """The storage nodes gave up what the client needs next; `text` says where the log begins, and the archive."""

    def __init__(self, partition: int, text: str) -> None:
        super().__init__(f"partition {partition}: {text}")
        self.partition = partition
        self.text = text


class ViewRegressedError(ClientError):
    """The mark stored by a view went backwards while it was in use."""

    def __init__(self, partition: int, stored: int | None, expected: int) -> None:
        super().__init__(
            f"partition {partition}: the view holds mark {stored}, expected at least {expected}; "
            "was its database restored or deleted, or its mark row?"
        )
        self.partition = partition
        self.stored = stored
        self.expected = expected


class ViewIdentityError(ClientError):
    """The database belongs to another view, or to another version of it; `stored` and `given` name both."""

    def __init__(self, database: str, stored: str, given: str, advice: str) -> None:
        super().__init__(f"{database} holds {stored}; this is {given}: {advice}")
        self.database = database
        self.stored = stored
        self.given = given
        self.advice = advice


class StateReadOnlyError(ClientError):
    """A function that decides or reads tried to change the state; only `apply` may."""


class ApplyFailedError(ClientError):
    """The application's apply function failed; `__cause__` is its exception."""

    def __init__(self, partition: int, transaction_id: int, reason: str = "") -> None:
        super().__init__(
            f"partition {partition}: applying transaction {transaction_id} failed{reason and f': {reason}'}. "
            "Everything before it is applied; mend apply, and the view goes on there"
        )
        self.partition = partition
        self.transaction_id = transaction_id
        self.reason = reason


class PayloadInvalidError(ClientError):
    """A payload that its codec cannot decode."""


class UnknownHeaderError(ClientError):
    """No codec is registered for the header of a transaction."""

    def __init__(self, header: int) -> None:
        super().__init__(f"no codec for header {header}")
        self.header = header


class FeedBusyError(ClientError):
    """A second feed on one partition of one client."""


class WrongThreadError(ClientError):
    """A client of Trio was used in another thread than the one that it runs in."""

    def __init__(self) -> None:
        super().__init__(
            "a client of waltz_trio belongs to the thread that runs its `async with open_client(...)`: come back with "
            "trio.from_thread.run(...), or use waltz_sync, whose clients are for all threads"
        )


class WrongProcessError(ClientError, RuntimeError):
    """A client was used in a process that was forked from its own."""

    def __init__(self) -> None:
        super().__init__(
            "this client belongs to another process, and this one is forked from it: no thread and no connection of "
            "the client is here, and nothing was sent. Call open_client in each process, after the fork"
        )


class ClientFailedError(ClientError):
    """A background task of the client broke; `__cause__` says why."""
