"""`waltz may-stop -c CONFIG NODE…`: may these storage nodes and servers be stopped now, and what would that mean?"""

from __future__ import annotations

import json
import sys

import trio

from waltz_core.operations.findings import ranges_text
from waltz_core.operations.stopping import Answer, Verdict, committed_marks, may_stop
from waltz_trio.base.printable import printable
from waltz_trio.cli.help import Parser
from waltz_trio.cli.options import CONFIG, JSON, Arguments, Command, CommandError, Option, parser_of
from waltz_trio.cli.progress import ASKING, waiting
from waltz_trio.cli.tool import in_session
from waltz_trio.ports.gather import NODE_MAX, gather
from waltz_trio.ports.tool import Tool

UNKNOWN = 3  # exit status where no answer is possible

_LOOK_AGAIN = 1.0  # seconds between two looks
_STATUS = {Verdict.YES: 0, Verdict.NO: 1, Verdict.UNKNOWN: UNKNOWN}
_HEAD = {
    Verdict.YES: "yes: {} may be stopped now",
    Verdict.NO: "no: {} must not be stopped now",
    Verdict.UNKNOWN: "not known: whether {} may be stopped could not be determined",
}
_PAUSE = (
    "appends wait until another server has recovered the partition: after SIGTERM at once, after a kill or the loss of "
    "its host once its ZooKeeper session has timed out (zookeeper.sessionTimeout)"
)


async def _ask(tool: Tool, arguments: Arguments) -> int:
    seconds = arguments.number("timeout", int(NODE_MAX), least=1)
    patience = arguments.number("wait", 0, least=0)
    end = trio.current_time() + patience
    with waiting(ASKING):
        first = await gather(tool, seconds, certificates=False)
    if first.proxy_of is not None:
        raise CommandError(
            f"{first.root} is the root of a proxy, which holds nothing that is not its cluster's: it may be stopped at "
            "any time, and its clients wait until it is back or go elsewhere"
        )
    before = committed_marks(first)
    said = ""
    while True:
        with waiting(ASKING):
            view = await gather(tool, seconds, certificates=False)
        answer = may_stop(view, arguments.operands, before)
        if answer.verdict is Verdict.YES or trio.current_time() >= end:
            break
        reasons = "; ".join(answer.reasons())
        if reasons != said:
            print(printable(f"waiting for up to {patience} s: {reasons}"), file=sys.stderr)
            said = reasons
        before = committed_marks(view)
        await trio.sleep(_LOOK_AGAIN)
    print(json.dumps(_row(answer), indent=2) if arguments.flag("json") else printable("\n".join(_lines(answer)), "\n"))
    return _STATUS[answer.verdict]


def _lines(answer: Answer) -> list[str]:
    named = [f"storage node {name}" for name in answer.storages] + [f"server {name}" for name in answer.servers]
    lines = [_HEAD[answer.verdict].format(" and ".join(named))]
    lines += [f"   because {reason}" for reason in answer.reasons()]
    if answer.losing_owner:
        lines.append(f"   partitions {ranges_text(answer.losing_owner)} would lose their owner: {_PAUSE}")
    lines += [f"   {text}" for text in answer.quorums()]
    if not answer.partitions:
        lines.append(f"   no partition needs {'it' if len(named) == 1 else 'them'}")
    return lines


def _row(answer: Answer) -> dict[str, object]:
    return {
        "may_stop": None if answer.verdict is Verdict.UNKNOWN else answer.verdict is Verdict.YES,
        "storage_nodes": answer.storages,
        "servers": answer.servers,
        "servers_left": answer.servers_left,
        "reasons": list(answer.reasons()),
        "losing_owner": answer.losing_owner,
        "owner_pause": _PAUSE if answer.losing_owner else None,
        "next_failure": list(answer.quorums()),
        "partitions": [
            {
                "partition": after.partition_id,
                "verdict": after.verdict.name.lower(),
                "replicas": after.replicas,
                "needed": after.needed,
                "left": after.left,
                "missing": dict(after.missing),
                "unknown": dict(after.unknown),
            }
            for after in answer.partitions
        ],
    }


COMMAND = Command(
    "",
    "Says whether these nodes may be stopped now, all of them together: which partitions lose their owner, which "
    "quorum is left, what one more failure would mean. NODE is host:port of a storage node or a server, or a host "
    "with everything on it. Changes nothing; does not look at ZooKeeper's own servers. "
    f"Exit status 0 = yes, 1 = no, {UNKNOWN} = could not be determined.",
    (
        CONFIG,
        Option("t", "timeout", f"Seconds that each node may take to answer (default {NODE_MAX:.0f})"),
        Option("w", "wait", "Seconds to wait until the answer is yes (default 0)"),
        JSON,
    ),
    lambda arguments: in_session(_ask, arguments),
    operand="NODE",
    repeated=True,
    failed=UNKNOWN,
    example="-c tools.yml storage-1.example:7071 --wait 300",
)


def make_parser() -> Parser:
    """The only command."""
    return parser_of("waltz may-stop", (COMMAND,))
