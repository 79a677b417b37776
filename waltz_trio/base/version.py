"""The version of this distribution, if it is installed."""

from __future__ import annotations


def version() -> str | None:
    """Version of the installed package, None outside one."""
    from importlib import metadata  # a tenth of a second to load

    try:
        return metadata.version("waltz-log")
    except metadata.PackageNotFoundError:
        return None
