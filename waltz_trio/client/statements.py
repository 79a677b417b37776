"""What SQL text says, as far as views must know: which statements it holds, and which tables and views it makes."""

from __future__ import annotations

import functools
import itertools
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
_KINDS_OF_VIEWS = r"""(?: (?:RECURSIVE|MATERIALIZED|SQL\s+SECURITY\s+\w+|ALGORITHM\s*=\s*\w+)\s+
    | DEFINER\s*=\s*\S+(?:\s*@\s*\S+)?\s+ )*"""
_TABLE = re.compile(
    rf"""\bCREATE\s+(?:OR\s+REPLACE\s+)?(?:(?:UNLOGGED\s+)?TABLE|{_KINDS_OF_VIEWS}VIEW)\s+(?:IF\s+NOT\s+EXISTS\s+)?
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
    """The tables and views that a schema makes, as it writes their names."""
    return [str(name) for name in dict.fromkeys(_TABLE.findall(_without_comments(schema)))]


def pragmas_of(schema: str) -> str:
    """Those statements of a schema of SQLite's that set up a connection, not the database."""
    text = _without_comments(schema)
    ends = [piece.start() for piece in _PIECES.finditer(text) if piece.group("end")]
    parts = (text[start + 1 : end] for start, end in itertools.pairwise([-1, *ends, len(text)]))
    return "".join(f"{part};" for part in parts if part.split()[:1] and part.split()[0].upper() == "PRAGMA")


def _without_comments(schema: str) -> str:
    return _PIECES.sub(lambda piece: " " if piece.group("comment") else piece.group(), schema)
