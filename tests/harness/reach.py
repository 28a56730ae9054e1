"""Which test files start real programs, so that `make quick` can skip them: those that import a module which does."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
STARTS = {ROOT / "tests" / "harness" / "programs.py", ROOT / "tests" / "client" / "conftest.py"}
_STARTS = re.compile(r"subprocess\.(?:run|Popen)\(|create_subprocess_exec\(")
_TASKGATE = re.compile(r'"-m",\s+"taskgate"|taskgate\.(?:cli|demo)\b')
_IMPORT = re.compile(r"^\s*(?:from (tests[\w.]*) import (?:\(([^)]*)\)|(.+))|import (tests[\w.]*))", re.MULTILINE)
_NAME = re.compile(r"\w+")


@cache
def reaches_programs(test_file: Path) -> bool:
    """Whether this file, its folder's conftest, or anything of tests/ they import starts programs."""
    found: set[Path] = set()
    left = [test_file, test_file.with_name("conftest.py")]
    while left:
        file = left.pop()
        if file not in found and file.exists():
            found.add(file)
            left += _imported(file)
    return not STARTS.isdisjoint(found) or any(map(_starts_taskgate, found))


@cache
def _starts_taskgate(file: Path) -> bool:
    """By itself, without the harness; in virtual time such commands run on the test's own loop."""
    text = file.read_text()
    return "virtual_time" not in file.parts and _STARTS.search(text) is not None and _TASKGATE.search(text) is not None


@cache
def _imported(file: Path) -> tuple[Path, ...]:
    """Read from the text of the import lines: every worker needs this for every test file, and parsing them all would take
    seconds."""
    names: list[str] = []
    for module, parenthesized, listed, alone in _IMPORT.findall(file.read_text()):
        names += (
            [alone] if alone else [module, *(f"{module}.{name}" for name in _NAME.findall(parenthesized or listed))]
        )
    ours = [ROOT / Path(*name.split(".")) for name in names]
    return tuple(each for place in ours for each in (place.with_suffix(".py"), place / "__init__.py") if each.exists())
