"""No module needs another that needs it in turn: also not by imports inside functions or for type checkers only."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.structure.source import nodes_of

SOURCE = Path(__file__).resolve().parents[2] / "src" / "taskgate"
Graph = Mapping[str, set[str]]


def imports_of(name: str, source: str, known: set[str]) -> set[str]:
    """The modules of `known` that this one imports anywhere; a package counts only where nothing in it was named."""
    found: set[str] = set()
    for node in nodes_of(source):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            named = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (named & known) or {node.module}
    return (found & known) - {name}


def circles_in(graph: Graph) -> list[list[str]]:
    """Groups of modules that each reach all others of the group (Tarjan)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        order[node] = lowest[node] = len(order)
        stack.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in order:
                visit(other)
                lowest[node] = min(lowest[node], lowest[other])
            elif other in stack:
                lowest[node] = min(lowest[node], order[other])
        if lowest[node] == order[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(group) > 1:
                found.append(sorted(group))

    for node in sorted(graph):
        if node not in order:
            visit(node)
    return found


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(SOURCE.rglob("*.py")):
        parts = ("taskgate", *path.relative_to(SOURCE).with_suffix("").parts)
        yield ".".join(parts).removesuffix(".__init__"), path


def test_no_modules_import_each_other_in_a_cycle() -> None:
    known = dict(modules())
    graph = {name: imports_of(name, path.read_text(), set(known)) for name, path in known.items()}
    assert sum(map(len, graph.values())) > len(graph), "the imports must have been seen"
    assert circles_in(graph) == []


def test_the_check_detects_every_kind_of_import() -> None:
    known = {"t", "t.a", "t.b", "t.c", "t.d"}
    source = (
        "import t.b\nif TYPE_CHECKING:\n    from t.c import C\ndef f():\n    from t import d\nfrom t import VERSION"
    )
    assert imports_of("t.a", source, known) == {"t", "t.b", "t.c", "t.d"}


def test_the_check_detects_cycles() -> None:
    graph = {"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": {"e"}, "e": set(), "f": {"g"}, "g": {"f"}}
    assert circles_in(graph) == [["a", "b", "c"], ["f", "g"]]
