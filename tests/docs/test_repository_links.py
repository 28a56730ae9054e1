"""Links of the documents that are no pages of the site (README, CHANGELOG, decision notes ...) lead to files and headings.

`zensical build --strict` checks those of the pages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs.blocks import ROOT

DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs" / "decisions").glob("*.md")])
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.M)
_NOTE = re.compile(r"docs/decisions/[\w-]+\.md")


def anchors_of(text: str) -> set[str]:
    """As the site and code hosts make them: lower case, without punctuation, hyphens for spaces."""
    return {re.sub(r"[^\w\s-]", "", heading).strip().lower().replace(" ", "-") for heading in _HEADING.findall(text)}


def broken_links(document: Path) -> Iterator[str]:
    for link in _LINK.findall(document.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = document.parent / path if path else document
        if not target.exists() or (anchor and anchor not in anchors_of(target.read_text(encoding="utf-8"))):
            yield link


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(document: Path) -> None:
    assert list(broken_links(document)) == []


def test_a_broken_link_is_reported(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# One, and `two`\n")
    document = tmp_path / "document.md"
    document.write_text(
        "[a](there.md#one-and-two) [b](gone.md) [c](there.md#gone) [d](#gone) [e](https://site.example/x)\n"
    )
    assert list(broken_links(document)) == ["gone.md", "there.md#gone", "#gone"]


def test_every_decision_note_that_a_page_or_a_module_names_exists() -> None:
    sources = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py"), *ROOT.glob("*.md")]
    named = {note for file in sources for note in _NOTE.findall(file.read_text(encoding="utf-8"))}
    assert len(named) > 20, "the notes must have been seen"
    assert {note for note in named if not (ROOT / note).exists()} == set()
