"""Refuse a script before it runs if it uses something that the script language lacks, with the line and what to write instead.

This check is for early errors, not for safety: the interpreter refuses the same at run time, when calls may have been made.
Sources are hostile: size and nesting are limited before they are parsed, and the depth of the tree before it is read. Nothing
here descends into it recursively.
"""

from __future__ import annotations

import ast
import builtins
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from taskgate.core.scripts.names import FUNCTIONS, MODULES, PythonName
from taskgate.core.scripts.source_size import exceeding_line
from taskgate.core.text.similar_names import similar_names

MAX_BYTES: Final = 200_000
_MAX_DEPTH: Final = 400
"""Of the syntax tree. Every version of Python parses several times as much; at which depth one stops differs between them."""
_MAX_FOUND: Final = 20
_MAX_COMPARED: Final = 200
_LONG_NAME: Final = 120
"""Characters of a wrong name that are compared and reported."""
_ANY_TOOL: Final = "a tool that describe_tools lists"
_ASYNC: Final = frozenset({"call_tool", "map_tool", "ask", "sleep"})
_SYNC: Final = frozenset({"progress", "now", "random", "tool_error", "print"})
_BUILT_IN: Final = frozenset(dir(builtins))
_ASYNCIO: Final = frozenset({"gather", "sleep", "run"})
_ASYNCIO_INSTEAD: Final = {
    "create_task": "pass the calls to asyncio.gather(...)",
    "ensure_future": "pass the calls to asyncio.gather(...)",
    "TaskGroup": "use await asyncio.gather(...)",
    "wait": "use await asyncio.gather(...)",
    "as_completed": "use await asyncio.gather(...)",
    "wait_for": "pass timeout=SECONDS to the call of the tool",
    "timeout": "pass timeout=SECONDS to the call of the tool",
    "Semaphore": "use await map_tool(name, list_of_arguments, limit=8)",
    "Queue": "use await map_tool(name, list_of_arguments, limit=8)",
}
_MISSING_FUNCTIONS: Final = {
    "input": "await ask(message, schema)",
    "open": "a tool that reads files, or inputs",
    "__import__": "an import statement",
    "globals": "a dict of your own",
    "vars": "a dict of your own",
    "dir": "the names in describe_tools",
    "callable": "isinstance(...)",
    "super": "a function",
    "compile": "a function",
    "exit": "the result on the last line, or raise an exception",
    "quit": "the result on the last line, or raise an exception",
    "breakpoint": "print(...)",
    "help": "describe_tools",
}


class SourceFault(msgspec.Struct, frozen=True):
    """Something that a script cannot use."""

    line: int
    problem: str
    instead: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.problem}" + (f"; instead: {self.instead}" if self.instead else "")


def check_source(tree: ast.Module | SourceFault, tools: Iterable[PythonName] = ()) -> tuple[SourceFault, ...]:
    """Return what is wrong with a parsed script, in the order of its lines; empty if it may run."""
    if isinstance(tree, SourceFault):
        return (tree,)
    named = tuple(tools)
    nodes = list(ast.walk(tree))
    defined = frozenset(_defined_names(nodes))
    namespaces = frozenset(tool.namespace for tool in named) - defined
    found = [fault for node in nodes for fault in _faults(node, namespaces)]
    if "*" not in defined:  # `from json import *` defines names that are not in the source
        found += _undefined_calls(nodes, namespaces | defined, named)
        found += _unknown_tools(nodes, namespaces, named)
    return tuple(sorted(found, key=lambda fault: fault.line)[:_MAX_FOUND])


def parse(code: str) -> ast.Module | SourceFault:
    """Parse a source of limited size, nesting and depth."""
    if len(code) > MAX_BYTES or len(code.encode(errors="replace")) > MAX_BYTES:
        return SourceFault(
            1, f"the script has more than {MAX_BYTES:,} bytes", "a shorter script, and pass data as inputs"
        )
    if line := exceeding_line(code):
        return _nested(line)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = _tree(code)
    except SyntaxError as error:
        return SourceFault(error.lineno or 1, f"syntax error: {error.msg}", "")
    except (RecursionError, MemoryError):
        # Far deeper than the limit, so that this version of Python builds no tree.
        return _nested(1)
    except (ValueError, SystemError) as error:
        return SourceFault(1, f"the script cannot be parsed: {type(error).__name__}", "")
    line = _beyond_depth(tree)
    return _nested(line) if line else tree


def _nested(line: int) -> SourceFault:
    problem = "the script is nested too deeply or has too many parts"
    return SourceFault(line, problem, "shorter statements, and data as inputs")


def _beyond_depth(tree: ast.Module) -> int:
    """The line of the first part that is too deep in the tree, or 0. Parts of the tree need no brackets or indentation to nest:
    calls of results, attributes, `elif`, and whatever is in an f-string.
    """
    level: list[tuple[ast.AST, int]] = [(tree, 1)]
    for _ in range(_MAX_DEPTH):
        level = [
            (child, child.lineno if isinstance(child, ast.stmt | ast.expr | ast.pattern) else line)
            for node, line in level
            for child in ast.iter_child_nodes(node)
        ]
    return level[0][1] if level else 0


def _dotted(node: ast.expr) -> str:
    """The name or the attributes of a name as written in the source; empty for other expressions."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(names)]) if isinstance(node, ast.Name) else ""


def _tree(code: str) -> ast.Module:
    """Parse the source; after a SystemError parse it again, because CPython 3.11 sometimes raises one for valid source."""
    try:
        return ast.parse(code)
    except SystemError:
        return ast.parse(code)


def _faults(node: ast.AST, namespaces: frozenset[str]) -> Iterator[SourceFault]:
    rule = _RULES.get(type(node).__name__)
    if rule is not None:
        yield from (SourceFault(line, problem, instead) for line, problem, instead in rule(node, namespaces))


def _undefined_calls(
    nodes: Sequence[ast.AST], names: frozenset[str], tools: Iterable[PythonName]
) -> Iterator[SourceFault]:
    """Calls of functions that exist nowhere. Models guess such names, most often the tool's name in `tools/list`."""
    known = {*_BUILT_IN, *FUNCTIONS, *names}
    listed = {tool.tool: f"{tool.namespace}.{tool.function}" for tool in tools}
    unknown = [
        (node.lineno, node.func.id)
        for node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id not in known
    ]
    for line, name in _first(unknown):
        tool, close = listed.get(name), _similar(name, FUNCTIONS)
        instead = f"await {tool}(...)" if tool else f"{close}(...)" if close else _ANY_TOOL
        yield SourceFault(line, f"there is no function {name[:_LONG_NAME]}", instead)


def _unknown_tools(
    nodes: Sequence[ast.AST], namespaces: frozenset[str], tools: Sequence[PythonName]
) -> Iterator[SourceFault]:
    """Calls of tools that a server does not have, as `files.nothing()`."""
    functions: dict[str, set[str]] = {}
    for tool in tools:
        functions.setdefault(tool.namespace, set()).add(tool.function)
    unknown: list[tuple[int, str, str]] = []
    for node in nodes:
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=server), attr=name)) if server in namespaces:
                if name not in functions[server]:
                    unknown.append((node.lineno, server, name))
    for line, server, name in _first(unknown):
        close = _similar(name, sorted(functions[server]))
        instead = f"await {server}.{close}(...)" if close else _ANY_TOOL
        yield SourceFault(line, f"{server} has no tool {name[:_LONG_NAME]}", instead)


_Place = TypeVar("_Place", bound=tuple[int, *tuple[str, ...]])


def _first(found: list[_Place]) -> list[_Place]:
    """Those that are reported, chosen before similar names are searched, because that takes long."""
    return sorted(found)[:_MAX_FOUND]


def _similar(name: str, known: Sequence[str]) -> str | None:
    """A known name for a wrong one. Of many, only those that begin alike are compared."""
    if len(known) > _MAX_COMPARED:
        known = [each for each in known if each[:2] == name[:2]][:_MAX_COMPARED]
    return next(iter(similar_names(name[:_LONG_NAME], known, cutoff=0.5)), None)


def _defined_names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Every name that the script binds somewhere."""
    for node in nodes:
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.alias(name=name, asname=own_name):
                yield own_name or name.split(".")[0]
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                yield name


_Found = Iterator[tuple[int, str, str]]


def _class(node: ast.ClassDef, _namespaces: frozenset[str]) -> _Found:
    if node.bases or node.keywords:
        own = (
            "tool_error(e).type to distinguish errors"
            if any("E" in _dotted(base) for base in node.bases)
            else "functions or dicts"
        )
        yield node.lineno, "classes cannot inherit", own
    for member in node.body:
        if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef) and member.decorator_list:
            yield member.lineno, "methods cannot have decorators", "a plain method or function"


def _import(node: ast.Import, _namespaces: frozenset[str]) -> _Found:
    for alias in node.names:
        yield from _module(node.lineno, alias.name)


def _import_from(node: ast.ImportFrom, _namespaces: frozenset[str]) -> _Found:
    if node.module == "__future__":
        return
    yield from _module(node.lineno, node.module or ".")
    for alias in node.names:
        if node.module == "asyncio" and alias.name not in _ASYNCIO:
            yield (
                node.lineno,
                f"asyncio has no {alias.name} here",
                _ASYNCIO_INSTEAD.get(alias.name, "asyncio.gather or sleep"),
            )
        if node.module == "typing" and alias.name == "TypedDict":
            yield node.lineno, "typing has no TypedDict here", "dict"


def _module(line: int, name: str) -> _Found:
    top = name.split(".")[0]
    if top not in MODULES:
        yield line, f"there is no module {name}", "what tools and these modules offer: " + ", ".join(sorted(MODULES))


def _attribute(node: ast.Attribute, _namespaces: frozenset[str]) -> _Found:
    if not isinstance(node.value, ast.Name):
        return
    if node.value.id == "asyncio" and node.attr not in _ASYNCIO:
        yield (
            node.lineno,
            f"asyncio has no {node.attr} here",
            _ASYNCIO_INSTEAD.get(node.attr, "asyncio.gather or sleep"),
        )
    if (node.value.id, node.attr) == ("time", "sleep"):
        yield node.lineno, "time.sleep does not wait here", "await sleep(seconds)"
    if (node.value.id, node.attr) == ("typing", "TypedDict"):
        yield node.lineno, "typing has no TypedDict here", "dict"


def _call(node: ast.Call, _namespaces: frozenset[str]) -> _Found:
    name = _dotted(node.func)
    if name in _MISSING_FUNCTIONS:
        yield node.lineno, f"there is no {name}()", _MISSING_FUNCTIONS[name]
    if name in ("asyncio.gather", "gather") and node.keywords:
        yield node.lineno, "gather takes calls only", "an async function with try and except around each call"


def _constant(node: ast.Constant, _namespaces: frozenset[str]) -> _Found:
    if isinstance(node.value, str) and any("\ud800" <= character <= "\udfff" for character in node.value):
        yield node.lineno, "a text with half of a surrogate pair cannot be sent", "the whole character"


def _await(node: ast.Await, _namespaces: frozenset[str]) -> _Found:
    if isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name) and node.value.func.id in _SYNC:
        yield node.lineno, f"{node.value.func.id}() is not awaited", f"{node.value.func.id}(...) without await"


def _expression(node: ast.Expr, namespaces: frozenset[str]) -> _Found:
    """A statement that calls a tool without awaiting the call."""
    if not isinstance(node.value, ast.Call):
        return
    called = node.value.func
    of_server = (
        isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id in namespaces
    )
    if of_server or (isinstance(called, ast.Name) and called.id in _ASYNC):
        yield (
            node.lineno,
            f"{_dotted(called)}(...) is not awaited, so it is not called",
            f"await {_dotted(called)}(...)",
        )


def _fixed(problem: str, instead: str) -> Callable[[ast.stmt | ast.expr, frozenset[str]], _Found]:
    def rule(node: ast.stmt | ast.expr, _namespaces: frozenset[str]) -> _Found:
        yield node.lineno, problem, instead

    return rule


def _comprehension(node: ast.ListComp, _namespaces: frozenset[str]) -> _Found:
    if any(part.is_async for part in node.generators):
        yield node.lineno, "there is no async for", "await asyncio.gather(...) and a loop over its result"
    # The interpreter uses the built-in function in its place, without an error.
    targets = {name.id for part in node.generators for name in ast.walk(part.target) if isinstance(name, ast.Name)}
    for name in sorted(targets & _BUILT_IN):
        yield (
            node.lineno,
            f"a variable of a comprehension cannot be named {name}, like the built-in function",
            f"another name, such as {name}_",
        )


_RULES: Final[Mapping[str, Callable[..., _Found]]] = {
    "ClassDef": _class,
    "Import": _import,
    "ImportFrom": _import_from,
    "Attribute": _attribute,
    "Call": _call,
    "Constant": _constant,
    "Await": _await,
    "Expr": _expression,
    "Yield": _fixed("there is no yield", "a function that returns a list"),
    "YieldFrom": _fixed("there is no yield", "a function that returns a list"),
    "Delete": _fixed("there is no del", "x = None, or d.pop(key)"),
    "TryStar": _fixed("there is no except*", "except Exception as e"),
    "AsyncWith": _fixed("there is no async with", "a plain call"),
    "AsyncFor": _fixed("there is no async for", "await asyncio.gather(...) and a loop over its result"),
    "TypeAlias": _fixed("there is no type statement", "an assignment"),
    "ListComp": _comprehension,
    "SetComp": _comprehension,
    "DictComp": _comprehension,
    "GeneratorExp": _comprehension,
}
