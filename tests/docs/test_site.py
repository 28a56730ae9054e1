"""The documentation builds without broken links, every page is in the navigation, and the lock file names no index."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from tests.docs.blocks import ROOT
from tests.harness.programs import start as start  # marks the tests as starting programs (`make quick` omits them)

KINDS = ["Start", "Tutorial", "How-to", "Reference", "Explanation"]
_COLOR = re.compile(r"\x1b\[[\d;]*m")


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def navigation() -> list[dict[str, Any]]:
    text = (ROOT / "mkdocs.yml").read_text().replace("!!python/name:", "")
    entries: list[dict[str, Any]] = yaml.safe_load(text)["nav"]
    return entries


def pages_in(entry: Any) -> set[str]:
    if isinstance(entry, str):
        return {entry}
    children = entry.values() if isinstance(entry, dict) else entry
    return set().union(*(pages_in(child) for child in children))


def test_the_site_builds_strictly(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    done = build(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "build" / "site" / "scopes.html").read_text()
    assert 'class="mermaid"' in page
    assert "fonts.googleapis.com" not in page
    assert not list((tmp_path / "build" / "site").rglob("second-person*")), "decision notes stay in the repository"


def test_a_broken_link_or_anchor_stops_the_build(tmp_path: Path) -> None:
    """With the settings of the real site and one page."""
    settings = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[0]
    (tmp_path / "mkdocs.yml").write_text(f"{settings}\nnav:\n  - Start: index.md\n")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Start\n[Why](decisions/README.md)\n[Where](index.md#nowhere)\n")
    broken = build(tmp_path)
    assert broken.returncode != 0
    report = _COLOR.sub("", broken.stdout + broken.stderr)
    assert "decisions/README.md" in report
    assert "#nowhere" in report


def test_every_page_is_in_the_navigation() -> None:
    docs = ROOT / "docs"
    pages = {str(path.relative_to(docs)) for path in docs.rglob("*.md")}
    assert {page for page in pages if not page.startswith("decisions/")} == pages_in(navigation())


def test_every_decision_is_in_their_table() -> None:
    notes = {path.name for path in (ROOT / "docs" / "decisions").glob("*.md")} - {"README.md"}
    table = (ROOT / "docs" / "decisions" / "README.md").read_text()
    assert {note for note in notes if f"]({note})" not in table} == set()


def test_the_pages_are_grouped_by_the_four_kinds() -> None:
    assert [next(iter(part)) for part in navigation()] == KINDS


def test_the_lock_file_names_no_package_index() -> None:
    for name in ("runtime.txt", "dev.txt"):
        text = (ROOT / "requirements" / name).read_text()
        assert not re.search(r"://|^\s*-{1,2}(i|f|index-url|extra-index-url|find-links)\b", text, re.M)
        assert "--hash=sha256:" in text
