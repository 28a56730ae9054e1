"""The version is defined in one place."""

from __future__ import annotations

import re
from pathlib import Path

from taskgate import __version__

ROOT = Path(__file__).resolve().parents[2]


def test_no_other_file_of_the_package_contains_the_version() -> None:
    spelled = re.compile(rf'"{re.escape(__version__)}"|version":"{re.escape(__version__)}')
    package = ROOT / "src" / "taskgate"
    found = [str(path.relative_to(ROOT)) for path in package.rglob("*.py") if spelled.search(path.read_text())]
    assert found == ["src/taskgate/__init__.py"]
    assert not re.search(r'^version\s*=\s*"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
