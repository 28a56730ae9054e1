"""Every row of the threat model and of what gateways share names tests, and they are there: a test that was renamed or removed does
not go unnoticed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEADS = ("| threat |", "| guarantee |", "| data |", "|---")
ROWS = [
    line
    for page in ("threat-model.md", "storage-internals.md")
    for line in (ROOT / "docs" / page).read_text().splitlines()
    if line.startswith("|") and not line.startswith(HEADS)
]
SAME = "the same"
"""As in the row above."""


def named(row: str) -> list[str]:
    return re.findall(r"`(tests/[^`]+)`", row)


def missing(name: str) -> str | None:
    path, _, test = name.partition("::")
    place = ROOT / path
    if not place.exists():
        return f"{path} is not there"
    if test and f"def {test}(" not in place.read_text():
        return f"{path} has no {test}"
    if place.is_dir() and not any(place.rglob("test_*.py")):
        return f"{path} has no tests"
    return None


@pytest.mark.parametrize("row", ROWS, ids=[row.split("|")[1].strip()[:60] for row in ROWS])
def test_every_file_and_test_named_in_a_row_exists(row: str) -> None:
    names = named(row)
    assert names or SAME in row
    assert [problem for name in names if (problem := missing(name)) is not None] == []
    for path, test in re.findall(r"`(tests/[^`:]+)`[^`|]*\(`(test_\w+)`\)", row):
        assert any(f"def {test}(" in file.read_text() for file in (ROOT / path).rglob("*.py")), test


def test_a_missing_test_is_reported() -> None:
    assert missing("tests/structure/test_threat_model.py::test_that_nobody_wrote") is not None
    assert missing("tests/nowhere") is not None
    assert missing("tests/structure/test_threat_model.py::test_every_file_and_test_named_in_a_row_exists") is None
