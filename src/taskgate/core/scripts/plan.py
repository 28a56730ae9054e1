"""Which tools a script names, without running it.

A name that is computed at run time cannot be known; it is reported with its line. The plan is for people who approve a
script, and decides nothing: every call is checked when it is made.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Final

import msgspec

from taskgate.core.scripts.check_source import SourceFault
from taskgate.core.scripts.names import PythonName

_BY_NAME: Final = frozenset({"call_tool", "map_tool"})
"""Functions that call a tool by its listed name."""
_REACH_ANY: Final = frozenset({"eval", "exec", "locals"})
"""Functions with which a script reaches tools that it does not name."""


class NamedCall(msgspec.Struct, frozen=True):
    """A tool that a script names, with every line that does."""

    tool: str
    lines: tuple[int, ...]


class ScriptPlan(msgspec.Struct, frozen=True):
    """What a script may call."""

    tools: tuple[NamedCall, ...] = ()
    """In the order of their first lines."""
    unknown: tuple[NamedCall, ...] = ()
    """Names in `call_tool` or below a server's name that the scope does not have."""
    dynamic: tuple[int, ...] = ()
    """Lines where the name of the tool is computed at run time, or which mention `eval`, `exec` or `locals`: any tool of the scope
    may be called.
    """
    question_lines: tuple[int, ...] = ()
    """Lines that ask the caller."""
    fault: SourceFault | None = None
    """Why there is no plan."""


def plan_of(tree: ast.Module | SourceFault, names: Iterable[PythonName]) -> ScriptPlan:
    """Return what a parsed script names."""
    if isinstance(tree, SourceFault):
        return ScriptPlan(fault=tree)
    return _Planning(names).of(tree)


class _Planning:
    def __init__(self, names: Iterable[PythonName]) -> None:
        listed = tuple(names)
        self._by_function = {(name.namespace, name.function): name.tool for name in listed}
        self._namespaces = {name.namespace for name in listed}
        self._tools = {name.tool for name in listed}
        self._found: dict[str, list[int]] = {}
        self._unknown: dict[str, list[int]] = {}
        self._dynamic: set[int] = set()
        self._question_lines: set[int] = set()

    def of(self, tree: ast.Module) -> ScriptPlan:
        nodes = list(ast.walk(tree))
        # The receiver of an attribute is not a use of the namespace as a value.
        receivers = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
        called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
        for node in nodes:
            if line := _mentions_any_name(node) or self._augments(node):
                self._dynamic.add(line)
            if isinstance(node, ast.Attribute):
                self._attribute(node)
            elif isinstance(node, ast.Call):
                self._call(node)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                self._name(node, id(node) in receivers, id(node) in called)
        return ScriptPlan(
            _listed(self._found),
            _listed(self._unknown),
            tuple(sorted(self._dynamic)),
            tuple(sorted(self._question_lines)),
        )

    def _attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.value, ast.Name) and node.value.id in self._namespaces:
            tool = self._by_function.get((node.value.id, node.attr))
            self._note(tool, f"{node.value.id}.{node.attr}", node.lineno)

    def _call(self, node: ast.Call) -> None:
        if not isinstance(node.func, ast.Name) or node.func.id not in _BY_NAME:
            return
        if node.args and isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str):
            name = node.args[0].value
            self._note(name if name in self._tools else None, name, node.lineno)
        else:
            self._dynamic.add(node.lineno)

    def _name(self, node: ast.Name, is_receiver: bool, is_called: bool) -> None:
        """A namespace or `call_tool` that is passed around can call anything."""
        if node.id == "ask":
            self._question_lines.add(node.lineno)
        elif (node.id in self._namespaces and not is_receiver) or (node.id in _BY_NAME and not is_called):
            self._dynamic.add(node.lineno)

    def _augments(self, node: ast.AST) -> int:
        """The line, if `files += x` passes a namespace or `call_tool` to a method of `x`; otherwise 0."""
        match node:
            case ast.AugAssign(target=ast.Name(id=name)) if name in self._namespaces or name in _BY_NAME:
                return node.lineno
        return 0

    def _note(self, tool: str | None, written: str, line: int) -> None:
        kept = self._unknown if tool is None else self._found
        kept.setdefault(written if tool is None else tool, []).append(line)


def _mentions_any_name(node: ast.AST) -> int:
    """The line, if this part of the tree names a function that runs text as code or returns all variables; otherwise 0. Any mention
    counts, because a script can pass a function around under other names.
    """
    names: tuple[str | None, ...]
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=name):
            names = (name,)
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            names = (name,)
        case ast.alias(name=name, asname=own_name):
            names = (name, own_name)
        case _:
            return 0
    return node.lineno if any(each in _REACH_ANY for each in names) else 0


def _listed(found: dict[str, list[int]]) -> tuple[NamedCall, ...]:
    calls = [NamedCall(tool, tuple(sorted(set(lines)))) for tool, lines in found.items()]
    return tuple(sorted(calls, key=lambda call: (call.lines[0], call.tool)))
