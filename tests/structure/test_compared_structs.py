"""A structure that defines its own equality also defines inequality: that of `msgspec.Struct` compares identities."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.structure.source import nodes_of

import taskgate

SOURCE = Path(taskgate.__file__).parent


def half_compared(source: str) -> list[str]:
    """The structures with `__eq__` and without `__ne__`."""
    found = []
    for node in nodes_of(source):
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "msgspec.Struct" for base in node.bases):
            methods = {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
            if "__eq__" in methods and "__ne__" not in methods:
                found.append(node.name)
    return found


def test_equality_and_inequality_agree() -> None:
    found = {path.name: names for path in SOURCE.rglob("*.py") if (names := half_compared(path.read_text()))}
    assert found == {}, "define __ne__ as well"


def test_the_check_finds_a_structure() -> None:
    assert half_compared("class A(msgspec.Struct):\n    def __eq__(self, other): ...\n") == ["A"]
