"""Texts of peers, for a terminal or a log: what they show is what they are."""

from __future__ import annotations


def printable(text: str, keep: str = "") -> str:
    """The text on one line, without what moves a cursor, colours, or turns the direction of writing.

    Such characters, but those of `keep`, are escaped as in Python, and backslashes with them, so that no text looks
    like the escaped form of another.
    """
    if text.isprintable():
        return text
    if all(each.isprintable() or each in keep for each in text):
        return text
    escaped = (each if each in keep or (each.isprintable() and each != "\\") else _escaped(each) for each in text)
    return "".join(escaped)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
