"""What the packages declare: modules, classes with their members, and what a name in them stands for."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

# Bases whose own code calls nothing by a name that we chose.
_HARMLESS_BASES = frozenset(
    {"ABC", "Enum", "Exception", "Flag", "Generic", "IntEnum", "IntFlag", "NamedTuple", "Protocol", "TypedDict"}
)
_ENUMERATIONS = frozenset({"Enum", "Flag", "IntEnum", "IntFlag"})

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


class Class:
    """A class of the packages."""

    def __init__(self, module: Module, node: ast.ClassDef) -> None:
        self.module, self.node = module, node
        self.methods: dict[str, Function] = {}
        self.values: dict[str, list[Source]] = {}  # what its attributes may be
        self.bases: list[Class] = []
        self.heirs: list[Class] = []
        self.line: tuple[Class, ...] = ()  # itself and all that it inherits from
        self.names: frozenset[str] = frozenset()  # of members, inherited ones included
        self.foreign = False  # inherits from somebody else's class, which may call what is overridden
        bases = {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases}
        self.protocol = "Protocol" in bases
        self.enumeration = bool(bases & _ENUMERATIONS)
        self.generic = any(isinstance(base, ast.Subscript) for base in node.bases)

    def above(self) -> Iterator[Class]:
        """Itself and all that it inherits from, the nearest first."""
        yield self
        for base in self.bases:
            yield from base.above()

    def below(self) -> Iterator[Class]:
        """Itself and all that inherit from it."""
        yield self
        for heir in self.heirs:
            yield from heir.below()

    def fields(self) -> Iterator[str]:
        """Annotated attributes in the order of the constructor's arguments."""
        for each in reversed(self.line):
            for statement in each.node.body:
                if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                    yield statement.target.id


Types: TypeAlias = frozenset[Class] | None
"""The classes that something may be of; None where nothing is known."""
Source: TypeAlias = Callable[[], Types]
NOTHING: frozenset[Class] = frozenset()


def union(parts: Iterable[Types]) -> Types:
    """All of them; what is unknown in part is unknown."""
    together: set[Class] = set()
    for part in parts:
        if part is None:
            return None
        together |= part
    return frozenset(together)


class Module:
    """A file: what its top-level names stand for."""

    def __init__(self, name: str, path: Path) -> None:
        self.name, self.path = name, path
        self.tree = ast.parse(path.read_bytes())
        self.classes: dict[str, Class] = {}
        self.functions: dict[str, Function] = {}
        self.values: dict[str, ast.expr] = {}  # annotations where there are any
        self.imports: dict[str, tuple[str, str]] = {}  # name here → module, and name there; no name: the module itself
        self._declare(self.tree.body)

    def _declare(self, body: list[ast.stmt]) -> None:
        for statement in body:
            match statement:
                case ast.ClassDef(name=name):
                    self.classes[name] = Class(self, statement)
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    self.functions[name] = statement
                case ast.Import(names=names):
                    for alias in names:
                        whole = alias.name if alias.asname else alias.name.partition(".")[0]
                        self.imports[alias.asname or whole] = whole, ""
                case ast.ImportFrom(module=str(module), names=names):
                    self.imports.update((alias.asname or alias.name, (module, alias.name)) for alias in names)
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self.values.setdefault(name, value)
                case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=value):
                    is_alias = value is not None and ast.unparse(annotation).endswith("TypeAlias")
                    self.values[name] = value if is_alias and value is not None else annotation
                case ast.If() | ast.Try():
                    self._declare([*statement.body, *statement.orelse])

    def names(self) -> set[str]:
        """All of them."""
        return {*self.classes, *self.functions, *self.values, *self.imports}


Definition: TypeAlias = tuple[Module, Class | Function | ast.expr | None]
"""Where something is defined, and as what; nothing: it is the module itself."""


class Scope:
    """Names inside a function, or of what a module does by itself."""

    def __init__(self, module: Module, owner: Class | None = None, outer: Scope | None = None) -> None:
        self.module, self.owner, self.outer = module, owner, outer
        self.names: dict[str, list[Source]] = {}

    def holder(self, name: str) -> Scope | None:
        """The scope in which a name is assigned, this one or one around it."""
        at: Scope | None = self
        while at is not None and name not in at.names:
            at = at.outer
        return at


class Declared:
    """All modules."""

    def __init__(self, root: Path, packages: Iterable[str]) -> None:
        self.modules: dict[str, Module] = {}
        for path in (path for package in packages for path in sorted((root / package).rglob("*.py"))):
            name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
            self.modules[name] = Module(name, path)
        self.classes = [each for module in self.modules.values() for each in module.classes.values()]
        for each in self.classes:
            self._inherit(each)
        for each in self.classes:
            each.line = tuple(each.above())

    def _inherit(self, each: Class) -> None:
        for base in each.node.bases:
            plain = base.value if isinstance(base, ast.Subscript) else base
            match self.find(plain, each.module):
                case (_, Class() as above):
                    each.bases.append(above)
                    above.heirs.append(each)
                case _ if ast.unparse(plain).rpartition(".")[2] not in _HARMLESS_BASES:
                    each.foreign = True

    def find(self, node: ast.expr, module: Module) -> Definition | None:
        """What a name, or a module's name, stands for; None if it is not ours."""
        match node:
            case ast.Name(id=name):
                return self.named(module, name)
            case ast.Attribute(value=ast.Name() | ast.Attribute() as value, attr=attr):
                match self.find(value, module):
                    case (there, None):
                        return self.named(there, attr)
        return None

    def named(self, module: Module, name: str) -> Definition | None:
        """What a name of a module stands for."""
        tables: tuple[dict[str, Class] | dict[str, Function] | dict[str, ast.expr], ...]
        tables = module.classes, module.functions, module.values
        for table in tables:
            if name in table:
                return module, table[name]
        if name in module.imports:
            there, their_name = module.imports[name]
            if f"{there}.{their_name}" in self.modules:
                return self.modules[f"{there}.{their_name}"], None
            if there in self.modules:
                return self.named(self.modules[there], their_name) if their_name else (self.modules[there], None)
        below = self.modules.get(f"{module.name}.{name}")
        return None if below is None else (below, None)
