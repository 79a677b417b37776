"""Standard input, output and error of a command, wherever a service manager or a shell lets them lead.

A note that nobody can take must not end a server: where standard error is a file on a full disk, or a pipe whose reader
is gone, what is said there is lost, and the process goes on. Standard output is a command's result, so an error there
is an error of the command, and says where it happened.
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

OUTPUT = "standard output"


class _Output(io.FileIO):
    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            error.filename = OUTPUT
            raise


class _Notes(io.FileIO):
    def write(self, data: ReadableBuffer, /) -> int:
        size = memoryview(data).nbytes
        with suppress(OSError):
            return super().write(data) or size  # nothing: the reader of a pipe that does not block is behind
        return size


def settle() -> None:
    """Make the standard streams of this process such that notes cannot fail and results say where they failed.

    Descriptors 0 to 2 that were closed lead to nowhere from here on. Otherwise the next files that are opened, of a log
    perhaps, would have these numbers, and what a library in C says on its standard error would be written into them.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    if sys.stdin is None:  # Python makes none of a descriptor that was closed when it began
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
    # Streams that something else has put there, such as a test that looks at what is said, stay as they are.
    if sys.stdout is sys.__stdout__:
        sys.stdout = _like(sys.stdout, _Output(1, "w", closefd=False))
    if sys.stderr is sys.__stderr__:
        sys.stderr = _like(sys.stderr, _Notes(2, "w", closefd=False))


def abandon_output() -> None:
    """What is still to be written to standard output goes nowhere; Python would try once more when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _like(before: TextIO | None, raw: io.FileIO) -> TextIO:
    """A stream of text as Python had made one, if the descriptor was open: its encoding, and when it passes text on."""
    if not isinstance(before, io.TextIOWrapper):
        return io.TextIOWrapper(io.BufferedWriter(raw), errors="backslashreplace", line_buffering=True)
    return io.TextIOWrapper(
        raw if before.write_through else io.BufferedWriter(raw),  # PYTHONUNBUFFERED
        encoding=before.encoding,
        # A sign that an old terminal does not have must not end a command just where it has something to say.
        errors="backslashreplace" if before.errors == "strict" else before.errors,
        line_buffering=before.line_buffering,
        write_through=before.write_through,
    )
