"""The source as its syntax trees, read once for all checks: parsing all of it takes a second, walking it half of one."""

from __future__ import annotations

import ast
import gc
from functools import cache


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
