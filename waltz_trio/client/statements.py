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
_PRAGMA = re.compile(r"""\s*PRAGMA\s+(?:["'`[]?\w+["'`\]]?\s*\.\s*)?["'`[]?(\w+)""", re.IGNORECASE)
# fmt: off
_OF_CONNECTIONS = frozenset((
    "analysis_limit", "automatic_index", "busy_timeout", "cache_size", "cache_spill", "case_sensitive_like",
    "cell_size_check", "checkpoint_fullfsync", "count_changes", "foreign_keys", "full_column_names", "fullfsync",
    "ignore_check_constraints", "journal_mode", "journal_size_limit", "legacy_alter_table", "locking_mode",
    "max_page_count", "mmap_size", "read_uncommitted", "recursive_triggers", "reverse_unordered_selects",
    "secure_delete", "short_column_names", "synchronous", "temp_store", "threads", "trusted_schema",
    "wal_autocheckpoint",
))
# fmt: on
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
    """Those statements of a schema of SQLite's that set up a connection.

    Other pragmas are about the file, such as user_version, optimize and wal_checkpoint: they need the lock of a writer,
    for which a connection that only reads must not wait.
    """
    text = _without_comments(schema)
    ends = [piece.start() for piece in _PIECES.finditer(text) if piece.group("end")]
    parts = (text[start + 1 : end] for start, end in itertools.pairwise([-1, *ends, len(text)]))
    return "".join(f"{part};" for part in parts if _sets_up_connection(part))


def _sets_up_connection(statement: str) -> bool:
    pragma = _PRAGMA.match(statement)
    return pragma is not None and pragma.group(1).lower() in _OF_CONNECTIONS


def _without_comments(schema: str) -> str:
    return _PIECES.sub(lambda piece: " " if piece.group("comment") else piece.group(), schema)
