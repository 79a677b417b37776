"""A function run in a forked child of the test's own process."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable

_HANGS_S = 60
"""A child that waits for a thread of its parent waits for ever: it is ended by a signal then, which no status says."""


def exit_status_of_child(function: Callable[[], int]) -> int:
    """What `function` returns in a forked child, which does nothing else; below 0: the signal that ended it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork with threads, which is what this is about
        child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = 255
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_HANGS_S)
        status = function()
    finally:
        os._exit(status)
