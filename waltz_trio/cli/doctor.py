"""`waltz doctor -c CONFIG`: what is wrong with a cluster, why, and the command that mends it."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator, Sequence

import trio

from waltz_core.base.checksum import CRC32_BY
from waltz_core.operations.diagnosis import SETTLE_MS, diagnose, notices
from waltz_core.operations.findings import Finding
from waltz_core.operations.view import ClusterView
from waltz_core.wire.client_messages import ServedState
from waltz_speedups import in_use
from waltz_trio.base.printable import printable
from waltz_trio.cli.help import Parser
from waltz_trio.cli.options import CONFIG, JSON, Arguments, Command, Option, parser_of
from waltz_trio.cli.progress import ASKING, waiting
from waltz_trio.cli.tool import in_session
from waltz_trio.ports.gather import NODE_MAX, UNSEEN, gather, unseen
from waltz_trio.ports.tool import Tool

GRACE = SETTLE_MS // 1000  # seconds that what may end by itself is given
_LOOK_AGAIN = 1.0  # seconds between two looks
_SHOWN_MAX = 3  # consequences of one kind that are printed below a finding


async def _examine(tool: Tool, arguments: Arguments) -> int:
    seconds = arguments.number("timeout", int(NODE_MAX), least=1)
    grace = arguments.number("grace", GRACE, least=0)
    with waiting(ASKING):
        view = await gather(tool, seconds)
    roots = diagnose(view)
    waiting_for = ""
    with trio.move_on_after(grace):
        while grace and roots and all(root.settles for root in roots):
            causes = ", ".join(sorted({root.cause for root in roots}))
            if causes != waiting_for:
                print(f"{causes}: may end by itself, looking again for up to {grace} s", file=sys.stderr)
                waiting_for = causes
            await trio.sleep(_LOOK_AGAIN)
            with waiting(ASKING):
                view = await gather(tool, seconds, certificates=False)
            roots = diagnose(view)
    _print(roots, arguments, view)
    for notice in notices(view):  # not among the rows of --json: they are of what is wrong
        text = f"note: {notice.cause}: {notice.evidence}\n   → {notice.command}"
        print(text, file=sys.stderr if arguments.flag("json") else sys.stdout)
    print(f"loops over transactions here: {in_use()}, CRC-32 by {CRC32_BY}", file=sys.stderr)
    return 1 if roots else 0


def _run(arguments: Arguments) -> int:
    try:
        return in_session(_examine, arguments)
    except UNSEEN as error:
        finding = unseen(error)
    _print((finding,), arguments, None)
    return 1


def _print(roots: Sequence[Finding], arguments: Arguments, view: ClusterView | None) -> None:
    config = f"-c {shlex.quote(arguments.text('cli-config-path'))}"
    if arguments.flag("json"):
        print(json.dumps([_row(root, config) for root in roots], indent=2))
        return
    for number, root in enumerate(roots, start=1):
        evidence, command = printable(root.evidence), printable(root.command, "\n")
        print(f"{number}. {root.cause}: {evidence}\n   → {command.replace('-c CONFIG', config)}")
        for line in _consequences(root.follows):
            print(f"   {printable(line)}")
        print()
    if view is not None and not roots:
        print(_healthy(view))
    elif roots:
        follow = sum(len(root.rows()) - 1 for root in roots)
        print(
            f"{len(roots)} finding{'s' if len(roots) > 1 else ''}" + (f", {follow} follow from them" if follow else "")
        )


def _row(finding: Finding, config: str) -> dict[str, object]:
    row: dict[str, object] = {
        "cause": finding.cause,
        "evidence": finding.evidence,
        "command": finding.command.replace("-c CONFIG", config),
    }
    if finding.follows:
        row["follows"] = [_row(consequence, config) for consequence in finding.follows]
    return row


def _consequences(follows: Sequence[Finding]) -> Iterator[str]:
    """A few lines for each kind of consequence, so that a thousand partitions do not hide the cause."""
    by_cause: dict[str, list[Finding]] = {}
    for finding in follows:
        by_cause.setdefault(finding.cause, []).append(finding)
    for cause, alike in by_cause.items():
        for finding in alike[:_SHOWN_MAX]:
            yield f"· {cause}: {finding.evidence}"
        if len(alike) > _SHOWN_MAX:
            yield f"· {cause}: {len(alike) - _SHOWN_MAX} more; --json lists them all"


def _healthy(view: ClusterView) -> str:
    if view.proxy_of is not None:
        names = ", ".join(server.name for server in view.servers)
        return f"nothing is wrong: proxy {names} of cluster {view.proxy_of!r}, {view.num_partitions} partitions"
    silent = [server.name for server in view.servers if server.status is None]
    ready = sum(status.state == ServedState.READY for server in view.servers for status in server.status or ())
    text = (
        f"nothing is wrong: cluster {view.name!r}, {view.num_partitions} partitions, {len(view.servers)} servers, "
        f"{len(view.storages)} storage nodes"
    )
    return text if silent else f"{text}; {ready} partitions ready"


_GRACE = Option(
    "g",
    "grace",
    f"Seconds to look again while all that is wrong may end by itself (default {GRACE}): a server redials a storage "
    "node that has come back, a partition moves to another server",
)

COMMAND = Command(
    "",
    "Reads ZooKeeper, asks every server and storage node, and says what is wrong; changes nothing. "
    "Exit status 1 if anything is.",
    (CONFIG, Option("t", "timeout", f"Seconds that each node may take (default {NODE_MAX:.0f})"), _GRACE, JSON),
    _run,
)


def make_parser() -> Parser:
    """The only command."""
    return parser_of("waltz doctor", (COMMAND,))
