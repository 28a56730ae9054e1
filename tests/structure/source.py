"""The source as its syntax trees, read once for all checks: parsing all of it takes a second, walking it half of one."""

from __future__ import annotations

import ast
import gc
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TypeVar

Node = TypeVar("Node", bound=ast.AST)


@cache
def parsed(source: str) -> ast.Module:
    """It is kept, and excluded from later garbage collections."""
    on = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(source)
    finally:
        gc.freeze()
        if on:
            gc.enable()


@cache
def nodes_of(source: str) -> tuple[ast.AST, ...]:
    """Every node of it, in the order of `ast.walk`."""
    return tuple(ast.walk(parsed(source)))


@cache
def _by_kind(source: str) -> Mapping[type[ast.AST], Sequence[ast.AST]]:
    found = defaultdict[type[ast.AST], list[ast.AST]](list)
    for node in nodes_of(source):
        found[type(node)].append(node)
    return found


def nodes_of_kind(source: str, *kinds: type[Node]) -> Iterator[Node]:
    """Its nodes of these classes, one class after the other: a check that needs few kinds does not look at all nodes."""
    by_kind = _by_kind(source)
    for kind in kinds:
        yield from by_kind.get(kind, ())  # type: ignore[misc]
