"""Find the calls of a script whose results it only passes on, to other tools or as its own result.

Such a result need not enter the interpreter: the script gets a reference instead, and the gateway puts the result in its place. In
doubt, a result counts as used, so a script never sees a reference where it expects a value.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from typing import Final

from taskgate.core.scripts.check_source import SourceFault
from taskgate.core.scripts.names import FUNCTIONS, MODULES

_CALL_TOOL: Final = "call_tool"
_NO_TOOLS: Final = frozenset({*dir(builtins), *FUNCTIONS, *MODULES, "inputs"}) - {_CALL_TOOL}
_LITERALS: Final = (ast.Dict, ast.List, ast.Tuple)


def passed_on(code: str, tree: ast.Module | SourceFault) -> frozenset[int]:
    """Return where these calls begin, in bytes of UTF-8 from the start of the source. `tree` is the parsed code."""
    if not isinstance(tree, ast.Module):
        return frozenset()
    bound = frozenset(_bound(tree))
    passing = frozenset(_passing(tree, bound))
    names = _names_only_passed(tree, passing)
    begins = _line_starts(code)
    found: set[int] = set()
    for node in ast.walk(tree):
        value = None
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            value = node.value if node.targets[0].id in names else None
        elif isinstance(node, ast.Await) and id(node) in passing:
            value = node
        if isinstance(value, ast.Await) and isinstance(value.value, ast.Call) and _calls_tool(value.value, bound):
            found.add(begins[value.value.lineno - 1] + value.value.col_offset)
    return frozenset(found)


def _line_starts(code: str) -> list[int]:
    starts = [0]
    for line in code.encode().split(b"\n"):
        starts.append(starts[-1] + len(line) + 1)
    return starts


def _bound(tree: ast.Module) -> Iterator[str]:
    """Every name that the script binds: such a name does not refer to a server or to a function of the gateway."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.alias):
            yield node.asname or node.name
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name is not None:
            yield node.name


def _calls_tool(call: ast.Call, bound: frozenset[str]) -> bool:
    function = call.func
    if isinstance(function, ast.Attribute):
        function = function.value
        if isinstance(function, ast.Name) and function.id == _CALL_TOOL:
            return False
    return isinstance(function, ast.Name) and function.id not in bound and function.id not in _NO_TOOLS


def _passing(tree: ast.Module, bound: frozenset[str]) -> Iterator[int]:
    """The expressions that are arguments of tools or the result, or parts of a literal there."""
    last = tree.body[-1] if tree.body else None
    waiting: list[ast.expr] = [last.value] if isinstance(last, ast.Expr) else []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _calls_tool(node, bound):
            by_name = isinstance(node.func, ast.Name) and node.func.id == _CALL_TOOL
            waiting += node.args[1:] if by_name else node.args
            waiting += [given.value for given in node.keywords if given.arg not in (None, "timeout")]
    while waiting:
        expression = waiting.pop()
        yield id(expression)
        if isinstance(expression, _LITERALS):
            values = expression.values if isinstance(expression, ast.Dict) else expression.elts
            waiting += values


def _names_only_passed(tree: ast.Module, passing: frozenset[int]) -> frozenset[str]:
    """Names whose every use passes the value on."""
    given: set[str] = set()
    used: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and id(node) not in passing:
            used.add(node.id)
        elif isinstance(node, ast.Assign):
            given.update(target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            used.add(node.target.id)
    return frozenset(given - used)
