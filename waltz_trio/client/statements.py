"""What SQL text says, as far as views must know: which statements it holds, and which tables it makes."""

from __future__ import annotations

import functools
import re

_PIECES = re.compile(
    r"""
    (?P<comment> --[^\n]* | /\*.*?\*/ )
    | (?P<quoted> '(?:''|[^'])*' | "(?:""|[^"])*" | `[^`]*` | \$(?P<tag>\w*)\$.*?\$(?P=tag)\$ )
    | (?P<end> ; )
    """,
    re.DOTALL | re.VERBOSE,
)
_QUOTED_NAME = r'(?:[A-Za-z_][\w$]*|"(?:""|[^"])*"|`[^`]*`)'
_TABLE = re.compile(
    rf"""\bCREATE\s+(?:OR\s+REPLACE\s+)?(?:UNLOGGED\s+)?TABLE\s+(?:IF\s+NOT\s+EXISTS\s+)?
    ({_QUOTED_NAME}(?:\s*\.\s*{_QUOTED_NAME})?)""",
    re.IGNORECASE | re.VERBOSE,
)
_WORD = re.compile(r"[A-Za-z_]+")


@functools.lru_cache(maxsize=4096)
def openings(text: str) -> tuple[tuple[str, ...], ...]:
    """The first three words of each statement, in capitals; comments and literals are passed over."""
    parts = [""]
    at = 0
    for piece in _PIECES.finditer(text):
        parts[-1] += text[at : piece.start()] + (" ? " if piece.lastgroup != "comment" else " ")
        if piece.group("end"):
            parts.append("")
        at = piece.end()
    parts[-1] += text[at:]
    found = (tuple(word.upper() for word in _WORD.findall(part[:200])[:3]) for part in parts)
    return tuple(words for words in found if words)


def tables_of(schema: str) -> list[str]:
    """The tables that a schema makes, as it writes their names."""
    text = _PIECES.sub(lambda piece: " " if piece.group("comment") else piece.group(), schema)
    return [str(name) for name in dict.fromkeys(_TABLE.findall(text))]
