"""Payloads as a client is told of them, one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def numbered(payloads: Sequence[tuple[int, Sequence[bytes]]]) -> Iterator[tuple[int, bytes]]:
    """Each with its id."""
    for first, run in payloads:
        yield from enumerate(run, start=first)
