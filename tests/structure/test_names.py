"""Names of classes are unique, so that a search finds the class."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from tests.structure.source import parsed

SOURCE = Path(__file__).resolve().parents[2] / "src" / "taskgate"
APART = ("client/", "config/", "core/settings/", "bridge/", "cli/", "dashboard/")
"""The client library, the file as it is written, and pages show the gateway's things under the same names."""
ADAPTERS = {"Wakeups", "Writer"}
"""What each store has: named by its port, or by its place in each of them."""


def homonyms_in(files: Mapping[str, str]) -> dict[str, list[str]]:
    found = defaultdict[str, list[str]](list)
    for path, source in files.items():
        for node in parsed(source).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(path)
    return {name: paths for name, paths in found.items() if len(paths) > 1 and name not in ADAPTERS}


def test_no_two_classes_of_the_gateway_have_one_name() -> None:
    files = {path.relative_to(SOURCE).as_posix(): path.read_text() for path in sorted(SOURCE.rglob("*.py"))}
    assert homonyms_in({path: source for path, source in files.items() if not path.startswith(APART)}) == {}


def test_the_check_detects_duplicate_class_names() -> None:
    assert homonyms_in({"a.py": "class Line: ...", "b.py": "class Line: ...\nclass _Own: ...", "c.py": "Line = 1"}) == {
        "Line": ["a.py", "b.py"]
    }
