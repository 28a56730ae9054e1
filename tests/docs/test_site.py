"""The documentation builds as a site in which every link leads somewhere, and the lock file names no package index."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import yaml
from tests.docs.blocks import ROOT
from tests.harness.programs import start as start  # what `make quick` leaves out is told by such an import

KINDS = ["Start", "Tutorial", "How-to", "Reference", "Explanation", "Decisions"]


def built(folder: Path) -> subprocess.CompletedProcess[str]:
    shutil.copytree(ROOT / "docs", folder / "docs")
    shutil.copy(ROOT / "mkdocs.yml", folder)
    return rebuilt(folder)


def rebuilt(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder / "site")],
        cwd=folder,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_the_site_builds_strictly(tmp_path: Path) -> None:
    done = built(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "site" / "scopes.html").read_text()
    assert 'class="mermaid"' in page
    assert "fonts.googleapis.com" not in page
    assert "decisions" not in done.stdout + done.stderr, "the table of decisions is where they are looked for"


def test_a_broken_link_or_a_page_outside_the_menu_stops_the_site(tmp_path: Path) -> None:
    """With the settings of the real one, and as few pages as it takes."""
    settings = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[0]
    (tmp_path / "mkdocs.yml").write_text(f"{settings}\nnav:\n  - Start: index.md\n")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Start\n[Why](decisions/README.md)\n")
    (tmp_path / "docs" / "nowhere-in-the-menu.md").write_text("# A page\n")
    broken = rebuilt(tmp_path)
    assert broken.returncode != 0
    assert "decisions" in broken.stdout + broken.stderr
    assert "nowhere-in-the-menu.md" in broken.stdout + broken.stderr


def test_every_decision_is_in_their_table() -> None:
    notes = {path.name for path in (ROOT / "docs" / "decisions").glob("*.md")} - {"README.md"}
    table = (ROOT / "docs" / "decisions" / "README.md").read_text()
    assert {note for note in notes if f"]({note})" not in table} == set()


def test_the_pages_are_sorted_into_the_four_kinds() -> None:
    text = (ROOT / "mkdocs.yml").read_text().replace("!!python/name:", "")
    assert [next(iter(part)) for part in yaml.safe_load(text)["nav"]] == KINDS


def test_the_lock_names_no_index() -> None:
    for name in ("runtime.txt", "dev.txt"):
        text = (ROOT / "requirements" / name).read_text()
        assert not re.search(r"://|^\s*-{1,2}(i|f|index-url|extra-index-url|find-links)\b", text, re.M)
        assert "--hash=sha256:" in text
