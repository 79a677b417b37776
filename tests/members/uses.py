"""Methods and properties of the packages' classes that no code of the packages uses.

A name alone does not tell: `Recovery.is_open` is unused although something else named `is_open` is not. So this follows
the annotations, which strict typing has everywhere. The type of an expression is the set of our classes that its
annotation mentions: `dict[int, Recovery]` is {Recovery}, and so is all that comes out of it; a function is what it
returns. Where nothing is known (`Any`, `object`), every class that has a member of that name counts as used: what is
listed is unused, but not all that is unused is listed. The order of statements does not matter: a name is all that it
is ever assigned. What refers to itself in a circle is looked at again until no further use comes to light.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from tests.members.declared import (
    NOTHING,
    Class,
    Declared,
    Definition,
    Function,
    Module,
    Scope,
    Source,
    Types,
    union,
)

_UNKNOWN_NAMES = frozenset({"Any", "object"})
_BY_NAME = frozenset({"attrgetter", "getattr", "methodcaller"})


def unused_members(root: Path, packages: Iterable[str]) -> Iterator[tuple[Path, int, str]]:
    """Path, line and `Class.name`."""
    declared = Declared(root, packages)
    types = _Types(declared)
    names = _Names(types)
    types.names = names
    for each in declared.classes:
        names.of_class(each)
    for each in declared.classes:
        each.names = frozenset(name for above in each.line for name in (*above.methods, *above.values))
    for module in declared.modules.values():
        names.follow(module.tree, names.of_module(module))
    found = -1
    while found != len(types.used) + len(types.by_name):
        found = len(types.used) + len(types.by_name)
        types.begin()
        for look in names.looks:
            look()
    _use_through_protocols(declared, types)
    for each in declared.classes:
        for name, method in each.methods.items():
            used = name.startswith("__") or name in types.by_name or (each, name) in types.used
            if not used and not any(above.foreign for above in each.line):
                yield each.module.path.relative_to(root), method.lineno, f"{each.node.name}.{name}"


def _use_through_protocols(declared: Declared, types: _Types) -> None:
    """What has all members of a protocol passes for it."""
    for protocol in [each for each in declared.classes if each.protocol]:
        called = [name for name in protocol.names if (protocol, name) in types.used]
        for each in declared.classes:
            if protocol.names <= each.names:
                for name in called:
                    types.use(each, name)


class _Types:
    """What an annotation or an expression may be, and which members it uses."""

    names: _Names

    def __init__(self, declared: Declared) -> None:
        self._declared = declared
        self.used: set[tuple[Class, str]] = set()
        self.by_name: set[str] = set()  # of whatever has such a member
        self._types: dict[ast.expr, Types] = {}  # of expressions, in this pass
        self._values: dict[tuple[object, str], Types] = {}  # of names, in this pass or the one before
        self._begun: set[tuple[object, str]] = set()  # names that were looked at in this pass
        self._aliases: set[ast.expr] = set()  # under way

    def begin(self) -> None:
        """Look at everything again, with what the last pass knew of each name."""
        self._types.clear()
        self._begun.clear()

    # ---- annotations -------------------------------------------------------------------------

    def mentioned(self, node: ast.expr | None, scope: Scope, instead: Types = None) -> Types:
        """Classes that an annotation mentions; `instead` of a variable for types."""
        match node:
            case ast.Constant(value=str(text)):
                return self.mentioned(_parsed(text), scope, instead)
            case ast.Name(id="Self") if scope.owner is not None:
                return frozenset({scope.owner})
            case ast.Name(id=name) | ast.Attribute(attr=name):
                definition = self._declared.find(node, scope.module)
                if definition is None:
                    return None if name in _UNKNOWN_NAMES else NOTHING
                return self._meant(definition, instead)
            case ast.Subscript(value=value, slice=arguments):
                if ast.unparse(value).endswith("Literal"):
                    return NOTHING
                return union([self.mentioned(value, scope, instead), self.mentioned(arguments, scope, instead)])
            case ast.BinOp(left=left, right=right):
                return union([self.mentioned(left, scope, instead), self.mentioned(right, scope, instead)])
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                return union(self.mentioned(element, scope, instead) for element in elements)
        return NOTHING

    def _meant(self, definition: Definition, instead: Types) -> Types:
        match definition:
            case (_, Class() as each):
                return frozenset({each})
            case (_, ast.Call(func=made)):
                return instead if ast.unparse(made).endswith(("TypeVar", "ParamSpec")) else NOTHING
            case (home, ast.expr() as alias) if alias not in self._aliases:  # else it mentions itself
                self._aliases.add(alias)
                meant = self.mentioned(alias, Scope(home), instead)
                self._aliases.discard(alias)
                return meant
        return NOTHING

    def returned(self, function: Function, scope: Scope, given: Types = None) -> Types:
        """What a function returns, as declared; it is `given` what variables for types stand for."""
        return None if function.returns is None else self.mentioned(function.returns, scope, given)

    # ---- expressions -------------------------------------------------------------------------

    def type(self, node: ast.expr, scope: Scope) -> Types:
        """What an expression may be."""
        if node not in self._types:
            self._types[node] = self._look(node, scope)
        return self._types[node]

    def together(self, nodes: Iterable[ast.expr], scope: Scope) -> Types:
        """What any of them may be."""
        return union(self.type(node, scope) for node in nodes)

    def _look(self, node: ast.expr, scope: Scope) -> Types:
        match node:
            case ast.Name(id=name):
                holder = scope.holder(name)
                return self._defined(node, scope) if holder is None else self._value(holder, name, holder.names[name])
            case ast.Attribute(value=value, attr=attr):
                if not _is_local(node, scope) and self._declared.find(node, scope.module) is not None:
                    return self._defined(node, scope)
                return self.member(self.type(value, scope), attr)
            case ast.Call():
                return self._called(node, scope)
            case ast.Constant() | ast.Compare() | ast.JoinedStr():
                return NOTHING
            case ast.Lambda(body=body):
                return self.type(body, self.names.of_lambda(node, scope))
            case ast.Yield():
                return None
            case ast.Subscript(value=value):
                return self.type(value, scope)
            case ast.DictComp(key=key, value=value):
                return self.together([key, value], scope)
            case ast.ListComp(elt=element) | ast.SetComp(elt=element) | ast.GeneratorExp(elt=element):
                return self.type(element, scope)
        return self.together((child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)), scope)

    def _defined(self, node: ast.expr, scope: Scope) -> Types:
        match self._declared.find(node, scope.module):
            case (_, Class() as each):
                return frozenset({each})
            case (home, ast.FunctionDef() | ast.AsyncFunctionDef() as function):
                return self.returned(function, Scope(home))
            case (home, ast.expr() as value):  # a value, or its annotation
                return union([self.type(value, Scope(home)), self.mentioned(value, Scope(home), NOTHING)])
        return NOTHING  # a module, a built-in, or somebody else's

    def _value(self, holder: object, name: str, sources: list[Source]) -> Types:
        key = holder, name
        if key not in self._begun:
            self._begun.add(key)
            self._values[key] = union([source() for source in sources])
        return self._values.get(key, NOTHING)

    def member(self, owners: Types, name: str) -> Types:
        """Use a member, and say what it is."""
        if owners is None:
            self.by_name.add(name)
            return None
        parts: list[Types] = []
        for owner in owners:
            if name in owner.names:
                self.use(owner, name)
                parts += [self._of(above, name, owners) for above in owner.line]
                parts += [frozenset({owner})] * owner.enumeration
            elif any(above.foreign for above in owner.line):
                parts.append(None)
        return union(parts) if parts else owners  # of a container: what it holds

    def _of(self, owner: Class, name: str, given: Types) -> Types:
        if name in owner.methods:
            return self.returned(owner.methods[name], Scope(owner.module, owner), given)
        return self._value(owner, name, owner.values[name]) if name in owner.values else NOTHING

    def use(self, owner: Class, name: str) -> None:
        """Whoever calls it may mean what overrides it, or what it overrides."""
        self.used.update((each, name) for each in (*owner.line, *owner.below()))

    def _called(self, node: ast.Call, scope: Scope) -> Types:
        given = self.together(_arguments(node), scope)
        name = ast.unparse(node.func).rpartition(".")[2]
        match None if _is_local(node.func, scope) else self._declared.find(node.func, scope.module):
            case (home, ast.FunctionDef() | ast.AsyncFunctionDef() as function):
                return self.returned(function, Scope(home), given)
            case (_, Class() as each):
                return union([frozenset({each}), given if each.generic else NOTHING])
            case None if name == "super" and scope.owner is not None:
                return frozenset(scope.owner.bases) or None
            case None if name in _BY_NAME:
                texts = (argument.value for argument in node.args if isinstance(argument, ast.Constant))
                self.by_name.update(text for text in texts if isinstance(text, str))
                return None
            case None if name == "cast":
                return self.mentioned(node.args[0], scope)
        callee = self.type(node.func, scope)
        if not callee:  # somebody else's function gives back what it got
            return None if callee is None else given
        calls = (self.member(frozenset({each}), "__call__") for each in callee if "__call__" in each.names)
        return union([callee, *calls])


class _Names:
    """What each name inside a function and each attribute may be, and every place where a member is used."""

    def __init__(self, types: _Types) -> None:
        self._types = types
        self._scopes: dict[ast.AST, Scope] = {}
        self.looks: list[Source] = []

    def of_class(self, each: Class) -> None:
        """Find its members."""
        scope = Scope(each.module, each)
        for statement in each.node.body:
            match statement:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    each.methods.setdefault(statement.name, statement)  # a setter comes behind its property
                case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation):
                    each.values.setdefault(name, []).append(partial(self._types.mentioned, annotation, scope))
                case ast.Assign(targets=targets, value=value):
                    for part in (part for target in targets for part in ast.walk(target)):
                        if isinstance(part, ast.Name):
                            each.values.setdefault(part.id, []).append(partial(self._types.type, value, scope))
        for method in each.methods.values():
            for node in ast.walk(method):
                for target, source in self._written(node, self.of_function(method, scope)):
                    for part in ast.walk(target):
                        if isinstance(part, ast.Attribute) and ast.unparse(part.value) == "self":
                            each.values.setdefault(part.attr, []).append(source)

    def of_module(self, module: Module) -> Scope:
        """Names in loops and comprehensions at its top level."""
        scope = Scope(module)
        self._bind(module.tree, scope)
        for name in module.names():
            scope.names.pop(name, None)
        return scope

    def of_function(self, function: Function, outer: Scope) -> Scope:
        """Names inside a function."""
        if function in self._scopes:
            return self._scopes[function]
        inside = self._scopes[function] = Scope(outer.module, outer.owner, outer)
        given = function.args
        ordered = [*given.posonlyargs, *given.args]
        for parameter in (*ordered, *given.kwonlyargs, *filter(None, (given.vararg, given.kwarg))):
            source: Source = _nothing_known
            if parameter.annotation is not None:
                source = partial(self._types.mentioned, parameter.annotation, inside)
            elif outer.owner is not None and ordered and parameter is ordered[0]:
                source = partial(frozenset, {outer.owner})
            inside.names[parameter.arg] = [source]
        for statement in function.body:
            self._bind(statement, inside)
        return inside

    def of_lambda(self, node: ast.Lambda, scope: Scope, given: Source | None = None) -> Scope:
        """Names inside a lambda, which gets what the function gets that it is an argument of."""
        if node not in self._scopes:
            inside = self._scopes[node] = Scope(scope.module, scope.owner, scope)
            parameters = [*node.args.posonlyargs, *node.args.args]
            inside.names = {parameter.arg: [given or _nothing_known] for parameter in parameters}
            for parameter, default in zip(reversed(parameters), reversed(node.args.defaults), strict=False):
                inside.names[parameter.arg] = [partial(self._types.type, default, scope)]
            self._bind(node.body, inside)
        return self._scopes[node]

    def _written(self, node: ast.AST, scope: Scope) -> Iterator[tuple[ast.expr, Source]]:
        """What is assigned here, or said to be of a class, and what it may be."""
        value = partial(partial, self._types.type, scope=scope)
        match node:
            case ast.Assign(targets=targets):
                yield from ((target, value(node.value)) for target in targets)
            case ast.AnnAssign():
                yield node.target, partial(self._types.mentioned, node.annotation, scope)
            case ast.AugAssign() | ast.NamedExpr():
                yield node.target, value(node.value)
            case ast.For() | ast.AsyncFor() | ast.comprehension():
                yield node.target, value(node.iter)
            case ast.withitem() if node.optional_vars is not None:
                yield node.optional_vars, value(node.context_expr)
            case ast.Call(func=ast.Name(id="isinstance"), args=[target, kind]):
                yield target, value(kind)

    def _bind(self, node: ast.AST, scope: Scope) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                scope.names.setdefault(node.name, []).append(partial(self._types.returned, node, scope))
                return
            case ast.Lambda() | ast.ClassDef():
                return
            case ast.ExceptHandler(name=str(name), type=ast.expr() as kind):
                scope.names.setdefault(name, []).append(partial(self._types.type, kind, scope))
            case ast.Match():
                for case in node.cases:
                    self._capture(case.pattern, partial(self._types.type, node.subject, scope), scope)
        for target, source in self._written(node, scope):
            narrowed = isinstance(node, ast.Call)
            for part in ast.walk(target):
                if isinstance(part, ast.Name) and (
                    part.id in scope.names if narrowed else isinstance(part.ctx, ast.Store)
                ):
                    scope.names.setdefault(part.id, []).append(source)
        for child in ast.iter_child_nodes(node):
            self._bind(child, scope)

    def _capture(self, pattern: ast.pattern, subject: Source, scope: Scope) -> None:
        match pattern:
            case ast.MatchClass():
                own = partial(self._types.type, pattern.cls, scope)
                for at, inner in enumerate(pattern.patterns):
                    self._capture(inner, partial(self._positional, own, at), scope)
                for name, inner in zip(pattern.kwd_attrs, pattern.kwd_patterns, strict=True):
                    self._capture(inner, partial(self._attribute, own, name), scope)
            case ast.MatchAs(name=name, pattern=inner):
                if name is not None:
                    scope.names.setdefault(name, []).append(partial(self._matched, inner, subject, scope))
                if inner is not None:
                    self._capture(inner, subject, scope)
            case ast.MatchStar(name=str(name)):
                scope.names.setdefault(name, []).append(subject)
            case (
                ast.MatchOr(patterns=patterns)
                | ast.MatchSequence(patterns=patterns)
                | ast.MatchMapping(patterns=patterns)
            ):
                for each in patterns:
                    self._capture(each, subject, scope)

    def _matched(self, pattern: ast.pattern | None, subject: Source, scope: Scope) -> Types:
        match pattern:
            case ast.MatchClass(cls=expected):
                return self._types.type(expected, scope)
            case ast.MatchOr(patterns=patterns):
                return union(self._matched(each, subject, scope) for each in patterns)
        return subject()

    def _attribute(self, owners: Source, name: str) -> Types:
        return self._types.member(owners(), name)

    def _positional(self, owners: Source, at: int) -> Types:
        """The field that a class pattern names by its place."""
        names = [name for owner in owners() or () for name in owner.fields()]
        return self._types.member(owners(), names[at]) if at < len(names) else owners()

    def follow(self, node: ast.AST, scope: Scope) -> None:
        """Note every use of a member, here and below."""
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                for each in (*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)):
                    self.follow(each, scope)
                inside = self.of_function(node, scope)
                for statement in node.body:
                    self.follow(statement, inside)
                return
            case ast.ClassDef(name=name):
                scope = Scope(scope.module, scope.module.classes.get(name), scope)
            case ast.Lambda():
                self.follow(node.body, self.of_lambda(node, scope))
                return
            case ast.Call():
                arguments = _arguments(node)
                others = [argument for argument in (node.func, *arguments) if not isinstance(argument, ast.Lambda)]
                for argument in arguments:
                    if isinstance(argument, ast.Lambda):
                        self.of_lambda(argument, scope, partial(self._types.together, others, scope))
                self.looks.append(partial(self._types.type, node, scope))
            case ast.Attribute():
                self.looks.append(partial(self._types.type, node, scope))
            case ast.MatchClass():
                own = partial(self._types.type, node.cls, scope)
                self.looks += [partial(self._attribute, own, name) for name in node.kwd_attrs]
        for child in ast.iter_child_nodes(node):
            self.follow(child, scope)


def _arguments(node: ast.Call) -> list[ast.expr]:
    return [*node.args, *(keyword.value for keyword in node.keywords)]


def _is_local(node: ast.expr, scope: Scope) -> bool:
    """Whether it begins with something else than a name of the module."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return not isinstance(node, ast.Name) or scope.holder(node.id) is not None


def _nothing_known() -> Types:
    return None


def _parsed(text: str) -> ast.expr | None:
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError:
        return None  # a text, not an annotation
