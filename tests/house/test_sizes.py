"""No file and no function grows beyond what one reads at a time."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.house.source import nodes_of

SOURCE = Path(__file__).resolve().parents[2] / "src" / "taskgate"
LONGEST_FILE = 400
FILES = 330
LONGEST_FUNCTION = 60


def test_no_file_is_too_long() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in SOURCE.rglob("*.py")}
    assert {str(path): length for path, length in lengths.items() if length > LONGEST_FILE} == {}


def test_no_function_is_too_long() -> None:
    found = {
        f"{path}:{node.lineno} {node.name}"
        for path in SOURCE.rglob("*.py")
        for node in nodes_of(path.read_text())
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= LONGEST_FUNCTION
    }
    assert found == set()


def test_the_source_is_not_scattered_over_many_small_files() -> None:
    """Who adds a file looks first for the one where a reader would expect its contents."""
    assert len(list(SOURCE.rglob("*.py"))) < FILES
