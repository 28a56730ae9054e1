"""Which test files start programs in earnest, so that `make quick` can leave them out: those that reach a module which does."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
STARTS = {ROOT / "tests" / "harness" / "programs.py", ROOT / "tests" / "client" / "conftest.py"}


def reaches_programs(test_file: Path) -> bool:
    """Whether this file, its folder's conftest, or anything of tests/ they import starts programs."""
    found: set[Path] = set()
    left = [test_file, test_file.with_name("conftest.py")]
    while left:
        file = left.pop()
        if file not in found and file.exists():
            found.add(file)
            left += _imported(file)
    return not STARTS.isdisjoint(found)


@cache
def _imported(file: Path) -> tuple[Path, ...]:
    names: list[str] = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    ours = [ROOT / Path(*name.split(".")) for name in names if name.startswith("tests.")]
    return tuple(each for place in ours for each in (place.with_suffix(".py"), place / "__init__.py") if each.exists())
