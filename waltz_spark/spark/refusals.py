"""What Spark says of a call that is refused: one line, not the frames of a worker that the user never started.

Spark runs a Python data source in workers of its own and passes on the whole traceback of what they raise. Errors of
this package say what is wrong and where; frames add nothing to them.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from waltz_spark.base.errors import PipelineError

F = TypeVar("F", bound=Callable[..., Any])

_HIDE = "SPARK_HIDE_TRACEBACK"  # what `spark.sql.execution.pyspark.udf.hideTraceback.enabled` sets in workers
_WORKER = ("PYTHON_WORKER_FACTORY_SECRET", "PYTHON_WORKER_FACTORY_SOCK_DIR")


def in_one_line(method: F) -> F:
    """Of a method that Spark calls: errors of ours reach the user as one line."""

    @functools.wraps(method)
    def call(*arguments: Any, **named: Any) -> Any:
        try:
            return method(*arguments, **named)
        except PipelineError as error:
            _hide_traceback()
            raise error from None

    return call  # type: ignore[return-value]  # the same signature


def rows_in_one_line(items: Iterator[Any]) -> Iterator[Any]:
    """The same of what a generator raises."""
    try:
        yield from items
    except PipelineError as error:
        _hide_traceback()
        raise error from None


def _hide_traceback() -> None:
    """A worker ends with the error, so this is said of nothing else; the user's own process is left as it is."""
    if any(name in os.environ for name in _WORKER):
        os.environ[_HIDE] = "1"
