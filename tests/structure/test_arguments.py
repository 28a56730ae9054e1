"""Arguments of classes and functions are explicit: use cases get the parts that they need, and no others."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.structure.source import nodes_of

SOURCE = Path(__file__).resolve().parents[2] / "src" / "taskgate"
USE_CASES = ("gateway/calls", "gateway/methods", "gateway/own_tools")
MAX_COLLABORATORS = 10
MAX_POSITIONAL = 5
PARTS = ("taskgate.gateway", "taskgate.ports", "taskgate.telemetry")


def collaborators_in(source: str) -> Iterator[tuple[str, int]]:
    """Each class, and how many parts of the gateway it is made with; plain values do not count."""
    nodes = nodes_of(source)
    parts = {
        alias.asname or alias.name
        for node in nodes
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PARTS)
        for alias in node.names
    }
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            annotations = [line.annotation for line in node.body if isinstance(line, ast.AnnAssign)]
            for line in node.body:
                if isinstance(line, ast.FunctionDef) and line.name == "__init__":
                    annotations += [
                        arg.annotation for arg in (*line.args.args, *line.args.kwonlyargs) if arg.annotation
                    ]
            yield node.name, sum(bool(parts & _names(annotation)) for annotation in annotations)


def _names(annotation: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)}


def test_use_cases_get_what_they_need_and_not_everything() -> None:
    found = {
        f"{path.relative_to(SOURCE)}: {name}": count
        for room in USE_CASES
        for path in sorted((SOURCE / room).glob("*.py"))
        for name, count in collaborators_in(path.read_text())
        if count > MAX_COLLABORATORS
    }
    assert found == {}


@pytest.mark.parametrize("made", ["{}", "def __init__(self, {}) -> None: ..."])
def test_the_check_counts_collaborators(made: str) -> None:
    separator = "; " if made == "{}" else ", "
    fields = separator.join([*(f"f{number}: Live[Relay]" for number in range(11)), "name: str"])
    source = f"from taskgate.gateway.relay.relay import Relay\nclass Everything:\n    {made.format(fields)}"
    assert list(collaborators_in(source)) == [("Everything", 11)]


def many_positional_in(source: str) -> Iterator[tuple[int, str]]:
    """Functions whose callers would have to count, and in which line each is."""
    for node in nodes_of(source):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args) if arg.arg not in ("self", "cls")]
            if len(given) > MAX_POSITIONAL:
                yield node.lineno, node.name


def test_no_function_has_many_positional_arguments() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{line} {name}"
        for path in sorted(SOURCE.rglob("*.py"))
        for line, name in many_positional_in(path.read_text())
    ]
    assert found == [], "from the sixth on by keyword, or as one value where they are one thing"


def test_the_check_counts_positional_arguments() -> None:
    source = "class A:\n    async def f(self, a, b, c, d, e, f=0): ...\n    def g(self, a, b, c, d, e, *, f): ..."
    assert list(many_positional_in(source)) == [(2, "f")]
