"""Files are replaced by `taskgate.atomic_files` only: everywhere else a crash or a second writer would meet a half-written one."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.structure.source import nodes_of

SOURCE = Path(__file__).resolve().parents[2] / "src" / "taskgate"
BY_HAND = {
    ("os", "replace"),
    ("os", "rename"),
    ("os", "renames"),
    ("os", "link"),
    ("shutil", "move"),
    ("tempfile", "mkstemp"),
    ("tempfile", "NamedTemporaryFile"),
}
ELSEWHERE = {
    "atomic_files.py": {"replace", "link"},
    "bridge/starter.py": {"replace"},  # rotates a log, under the lock that a starter holds
    "store/postgres/copy.py": {"link"},  # SQLite has written the new database under a name from `temporary_name`
}


def _replaces_by_hand(source: str) -> set[str]:
    found = set()
    for node in nodes_of(source):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if (node.value.id, node.attr) in BY_HAND:
                found.add(node.attr)
        elif isinstance(node, ast.ImportFrom) and node.module in {"os", "shutil", "tempfile"}:
            found |= {name.name for name in node.names if (node.module, name.name) in BY_HAND}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            found |= _path_method(node.func.attr, node)
    return found


def _path_method(name: str, call: ast.Call) -> set[str]:
    """Path.replace and Path.rename take one argument, str.replace at least two."""
    return {name} if name in ("rename", "replace") and len(call.args) == 1 and not call.keywords else set()


def test_files_are_replaced_in_one_module_only() -> None:
    found = {
        str(path.relative_to(SOURCE)): names
        for path in SOURCE.rglob("*.py")
        if path.relative_to(SOURCE).parts[0] != "gateway"  # it writes no files, and its `Live.replace` is another thing
        if (names := _replaces_by_hand(path.read_text()))
    }
    assert found == ELSEWHERE


def test_the_check_detects_each_way_to_replace_a_file() -> None:
    for line in ("os.replace(a, b)", "partial.replace(path)", "tempfile.mkstemp()", "from os import link"):
        assert _replaces_by_hand(line), line
    assert not _replaces_by_hand("'a'.replace('b', 'c')")
