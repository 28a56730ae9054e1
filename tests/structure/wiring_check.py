"""Finds hidden wiring: attributes that are assigned after construction, and guards that are optional.

The rules, for each file:
- an attribute is assigned by its own class (`self`, `cls`), or in the module that defines the class, on a parameter or local
  whose class can be read off the code (an annotation, or a constructor call); nor is it put there past its class
  (`object.__setattr__`, `force_setattr`, `__dict__`, `vars`);
- no attribute, class field or parameter has a lambda or a function without an effect as its default;
- no capability is detected with `getattr(x, "name", default)` or `hasattr`.

What only a library's own objects have (`OF_LIBRARIES`) is named with its file. What Python itself keeps at functions
(`__doc__`, `__signature__`) is not a wire.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

from tests.structure.source import nodes_of_kind

Function = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS: tuple[type[Function], ...] = (ast.FunctionDef, ast.AsyncFunctionDef)
WITH_DEFAULTS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef, ast.Assign, ast.AnnAssign)
WITH_TARGETS = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For, ast.AsyncFor, ast.With, ast.AsyncWith)
OF_LIBRARIES = {
    ("channels/slack.py", "assigns socket.wss_uri"),
    ("channels/slack_api.py", "getattr(response, 'data', None)"),
    ("channels/slack_api.py", "getattr(response, 'status_code', None)"),
    ("channels/slack_api.py", "getattr(response, 'status', None)"),
    ("config/yaml_text.py", "getattr(yaml, 'CSafeLoader', yaml.SafeLoader)"),
    ("config/explain.py", "getattr(value, 'type', '{}')"),
    # Functions that only some systems have.
    ("operating_system.py", "hasattr(os, 'killpg')"),
    ("operating_system.py", "hasattr(os, 'geteuid')"),
    ("operating_system.py", "getattr(signal, name, None)"),
}


def violations_in(path: str, source: str) -> Iterator[tuple[str, int, str]]:
    """File, line and violation."""
    classes = {node.name for node in nodes_of_kind(source, ast.ClassDef)}
    promised = {id(line) for node in nodes_of_kind(source, ast.ClassDef) if _is_protocol(node) for line in node.body}
    functions = [node for node in nodes_of_kind(source, *FUNCTIONS) if id(node) not in promised]
    idle = {node.name for node in functions if _does_nothing(node)}
    for line, target in _foreign_assignments(source, classes):
        yield path, line, f"assigns {target}"
    for node in nodes_of_kind(source, *WITH_DEFAULTS):
        for default in _defaults(node):
            if isinstance(default, ast.Lambda) or (isinstance(default, ast.Name) and default.id in idle):
                yield path, default.lineno, f"default {ast.unparse(default)}"
    for call in nodes_of_kind(source, ast.Call):
        if _reads_by_name(call) or _puts_past_the_class(call):
            yield path, call.lineno, ast.unparse(call)
    for part in nodes_of_kind(source, ast.Subscript):
        if _puts_past_the_class(part):
            yield path, part.lineno, ast.unparse(part)


def _is_protocol(node: ast.AST) -> TypeGuard[ast.ClassDef]:
    """A method of a Protocol has no body and is no default implementation."""
    return isinstance(node, ast.ClassDef) and any(ast.unparse(base).startswith("Protocol") for base in node.bases)


def _reads_by_name(call: ast.Call) -> bool:
    """Constants in capitals are the platform's, and not every platform has each of them."""
    name = call.func.id if isinstance(call.func, ast.Name) else ""
    asked = call.args[1] if len(call.args) > 1 else None
    if isinstance(asked, ast.Constant) and str(asked.value).isupper():
        return False
    return (name == "getattr" and len(call.args) > 2) or name in ("hasattr", "setattr")


def _puts_past_the_class(node: ast.AST) -> bool:
    """`object.__setattr__(other, ...)`, `force_setattr(other, ...)`, `vars(other)[...] = ...`, `other.__dict__[...] = ...`."""
    if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in ("__setattr__", "force_setattr"):
        return not node.args or ast.unparse(node.args[0]) not in ("self", "cls")
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        return ast.unparse(node.value).startswith("vars(") or ast.unparse(node.value).endswith(".__dict__")
    return False


def _does_nothing(function: Function) -> bool:
    """A body of nothing but a docstring, `pass` and `return` of a constant."""
    for statement in function.body:
        constant = isinstance(statement, ast.Expr | ast.Return) and (
            statement.value is None or isinstance(statement.value, ast.Constant)
        )
        if not constant and not isinstance(statement, ast.Pass):
            return False
    return True


def _defaults(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return [*node.args.defaults, *(default for default in node.args.kw_defaults if default is not None)]
    if isinstance(node, ast.ClassDef):
        return [line.value for line in node.body if isinstance(line, ast.Assign | ast.AnnAssign) and line.value]
    if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return [node.value] if any(isinstance(target, ast.Attribute) for target in targets) else []
    return []


def _foreign_assignments(source: str, classes: set[str]) -> Iterator[tuple[int, str]]:
    """Every assignment to an attribute of what is neither `self` nor a value of this module's own classes."""
    suspects = [
        (node, target)
        for node in nodes_of_kind(source, *WITH_TARGETS)
        for target in _targets(node)
        if not (isinstance(target.value, ast.Name) and target.value.id in ("self", "cls"))
    ]
    functions = list(nodes_of_kind(source, *FUNCTIONS)) if suspects else []
    for node, target in suspects:
        around = (function for function in functions if any(inner is node for inner in ast.walk(function)))
        known = {name for function in around for name in _own_names(function, classes)}
        if not (isinstance(target.value, ast.Name) and target.value.id in known):
            yield target.lineno, ast.unparse(target)


def _targets(node: ast.AST) -> Iterator[ast.Attribute]:
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = list(node.targets)
    elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.For | ast.AsyncFor):
        targets = [node.target]
    elif isinstance(node, ast.With | ast.AsyncWith):
        targets = [item.optional_vars for item in node.items if item.optional_vars is not None]
    while targets:
        target = targets.pop()
        if isinstance(target, ast.Tuple | ast.List):
            targets.extend(target.elts)
        elif isinstance(target, ast.Starred):
            targets.append(target.value)
        elif isinstance(target, ast.Attribute) and not target.attr.startswith("__"):
            yield target


def _own_names(function: Function, classes: set[str]) -> set[str]:
    """Parameters and locals that are annotated with a class of this module."""
    every = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    names = {argument.arg for argument in every if _names_a_class(argument.annotation, classes)}
    for node in ast.walk(function):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            if _names_a_class(node.annotation, classes):
                names.add(node.target.id)
        elif isinstance(node, ast.Assign) and _makes_one(node.value, classes | {"cls"}):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def _makes_one(value: ast.expr, classes: set[str]) -> bool:
    return isinstance(value, ast.Call) and _names_a_class(value.func, classes)


def _names_a_class(annotation: ast.expr | None, classes: set[str]) -> bool:
    """`Own`, or `Own | None`."""
    if isinstance(annotation, ast.BinOp):
        sides = (annotation.left, annotation.right)
        return any(_names_a_class(side, classes) for side in sides) and any(
            isinstance(side, ast.Constant) and side.value is None for side in sides
        )
    return isinstance(annotation, ast.Name) and annotation.id in classes


def violations_of(root: Path) -> list[tuple[str, int, str]]:
    found = [
        violation
        for file in sorted(root.rglob("*.py"))
        for violation in violations_in(str(file.relative_to(root)), file.read_text())
    ]
    return [(path, line, what) for path, line, what in found if (path, what) not in OF_LIBRARIES]
