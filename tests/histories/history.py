"""A history: what clients called and what they were answered, when. One JSON line an event, a call before it is made.

The same history is written in the forms that public checkers read: registers for Porcupine, list-append for Elle.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs

NEVER = 1 << 62
"""When an operation without a known outcome returned: it may take effect at any later time."""

REGISTER = ("read", "write", "cas")


@attrs.frozen
class Operation:
    """One call.

    Attributes:
        process: who called; each has one call under way at a time.
        argument: of a write the value, of a compare-and-set the old and the new one, of a transaction its micro
            operations: [["append", key, value], ["r", key, None]].
        result: of a read the value, of a compare-and-set whether it took place, of a transaction its micro
            operations with the lists that were read.
        known: whether it returned; False: nobody knows whether it took place.
    """

    process: str
    kind: str
    key: int
    argument: Any
    result: Any
    call: int  # ns of a clock that all processes of a machine share
    back: int
    known: bool = True


class Recorder:
    """Writes the events of one process; what was called and not answered when it is killed stands there as called."""

    def __init__(self, path: Path, name: str) -> None:
        self._file = path.open("a", buffering=1, encoding="utf-8")
        self._name = name

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def event(self, task: str, what: str, time: int, **fields: Any) -> None:
        """`what` is "call", "ok", or "fail": it did not take place."""
        self._file.write(json.dumps({"process": f"{self._name}.{task}", "what": what, "time": time, **fields}) + "\n")


def load(paths: Iterable[Path]) -> list[Operation]:
    """All operations of the files of one run, in the order of their calls; those that did not take place left out."""
    operations: list[Operation] = []
    for path in paths:
        calls: dict[str, dict[str, Any]] = {}
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
            if not line.endswith("\n"):
                break  # the process was killed while it wrote
            event = json.loads(line)
            if event["what"] == "final":
                continue
            if event["what"] == "call":
                calls[event["process"]] = event
            else:
                call = calls.pop(event["process"])
                if event["what"] == "ok":
                    operations.append(_operation(call, event["result"], event["time"]))
        operations += [_operation(call, None, NEVER) for call in calls.values()]
    return sorted(operations, key=lambda one: one.call)


def final_lists(paths: Iterable[Path]) -> dict[int, list[int]] | None:
    """The lists as they stood in the end, None if nobody looked."""
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith('{"what": "final"'):
                return {int(key): elements for key, elements in json.loads(line)["lists"].items()}
    return None


def _operation(call: dict[str, Any], result: Any, back: int) -> Operation:
    who, kind, key, argument = call["process"], call["kind"], call["key"], call["argument"]
    return Operation(who, kind, key, argument, result, call["time"], back, back != NEVER)


def registers(operations: Iterable[Operation]) -> dict[int, list[Operation]]:
    """Key → operations on that register."""
    found: dict[int, list[Operation]] = {}
    for one in operations:
        if one.kind in REGISTER:
            found.setdefault(one.key, []).append(one)
    return found


# ---- for public checkers ---------------------------------------------------------------------------


def porcupine(operations: Iterable[Operation]) -> Iterator[str]:
    """One JSON object a line: the fields of `porcupine.Operation`, with 0 for a register that holds nothing yet.

    A read without an answer says nothing and is left out.
    """
    numbers: dict[str, int] = {}
    for one in operations:
        if one.kind not in REGISTER or (one.kind == "read" and not one.known):
            continue
        old, new = one.argument if one.kind == "cas" else (0, one.argument)
        yield json.dumps(
            {
                "ClientId": numbers.setdefault(one.process, len(numbers)),
                "Input": {"Op": one.kind, "Key": one.key, "Old": old or 0, "New": new or 0},
                "Call": one.call,
                "Output": {
                    "Value": (one.result or 0) if one.kind == "read" else 0,
                    "Done": bool(one.result) if one.kind == "cas" else True,
                    "Known": one.known,
                },
                "Return": one.back,
            }
        )


def elle(operations: Iterable[Operation]) -> Iterator[str]:
    """Jepsen's EDN, one operation a line: transactions of list-append, invocations and completions by time."""
    events: list[tuple[int, int, Operation]] = []
    for one in operations:
        if one.kind == "txn":
            events += [(one.call, 1, one), (one.back, 0, one)]
    numbers: dict[str, int] = {}
    for index, (time, invoked, one) in enumerate(sorted(events, key=lambda event: event[:2])):
        process = numbers.setdefault(one.process, len(numbers))
        kind = ":invoke" if invoked else ":ok" if one.known else ":info"
        micro = one.argument if invoked or not one.known else one.result
        value = " ".join(f"[:{what} {key} {_edn(element)}]" for what, key, element in micro)
        yield f"{{:index {index}, :type {kind}, :process {process}, :time {time}, :f :txn, :value [{value}]}}"


def _edn(value: Any) -> str:
    if isinstance(value, list):
        return "[" + " ".join(map(_edn, value)) + "]"
    return "nil" if value is None else str(value)
