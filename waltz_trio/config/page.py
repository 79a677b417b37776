"""Makes `docs/configuration.md` from the table of keys.

python -m waltz_trio.config.page > docs/configuration.md
"""

from __future__ import annotations

from collections.abc import Iterable

from waltz_trio.config.keys.key import Key, Use
from waltz_trio.config.keys.table import KEYS

_HEAD = """\
# Configuration

This page is generated: `python -m waltz_trio.config.page > docs/configuration.md`.

Server, storage node, client and tools read YAML files with the keys of Waltz 0.13.2; one file may serve them all. A
key may be written flat (`a.b.c: v`), nested, or mixed (`a.b: {c: v}`); if it is written twice, the later one wins. A
key that no component knows causes a warning with the name of the nearest one (an error in a mapping given to
`open_client`). Two port keys of one process must not have the same value; port 0 takes a free one. Sizes and times
written as text may carry a unit (`64 MiB`, `10 s`); plain numbers are in the unit of the table. For booleans only the
text `true`, in any case, is true. Keys marked + do not exist in 0.13.2, which ignores them. "required" means that a
process which needs the key does not start without it.

TLS is always on. Key stores may be PEM, PKCS12 or JKS; a JCEKS file is converted with
`keytool -importkeystore -srckeystore OLD -srcstoretype JCEKS -destkeystore NEW.p12 -deststoretype PKCS12`.
"""

_TITLES = {
    Use.ALL: "All processes",
    Use.SERVER: "Server",
    Use.STORAGE: "Storage node",
    Use.CLIENT: "Client",
    Use.TOOLS: "Tools",
    Use.GATEWAY: "Gateway",
    Use.PROXY: "Proxy (and all of the server's, for its own port)",
    Use.DEMO: "Demo",
}


def page(keys: Iterable[Key] = KEYS.values()) -> str:
    """The text of `docs/configuration.md`."""
    lines = [_HEAD]
    table = list(keys)
    for use, title in _TITLES.items():
        lines.append(f"## {title}\n")
        lines.append("| key | type | default | unit | meaning |")
        lines.append("|---|---|---|---|---|")
        lines.extend(_row(key) for key in table if key.use is use)
        lines.append("")
    return "\n".join(lines)


def _row(key: Key) -> str:
    name = f"`{key.name}`" + ("" if key.original else " +")
    kind = ", ".join(key.choices) if key.choices else key.kind.value
    return f"| {name} | {kind} | {_default(key)} | {key.unit or '-'} | {key.meaning} |"


def _default(key: Key) -> str:
    if key.required:
        return "required"
    if key.default is None:
        return "none"
    if isinstance(key.default, bool):
        return str(key.default).lower()
    return str(key.default)


if __name__ == "__main__":
    print(page(), end="")
