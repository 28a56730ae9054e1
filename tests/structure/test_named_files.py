"""Documents for contributors name files that exist: `NAME` and `NUMBER` in a path are placeholders."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = ("CONTRIBUTING.md", "docs/architecture.md")
_QUOTED = re.compile(r"`([\w./*-]*/[\w./*-]*|[\w-]+\.(?:py|sql|yaml))`")
_ANYTHING = re.compile(r"NAME|NUMBER")


def missing_in(text: str, root: Path) -> list[str]:
    """Paths in backticks that are neither of the repository, nor of the package, nor (a bare name) anywhere in the package."""
    return [named for named in _QUOTED.findall(text) if not _exists(named, root)]


def _exists(named: str, root: Path) -> bool:
    pattern = _ANYTHING.sub("*", named).strip("/")
    package = root / "src" / "taskgate"
    if "/" not in pattern:
        return any(package.rglob(pattern)) or (root / pattern).exists()
    return any(place.exists() for base in (root, package) for place in base.glob(pattern))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_file_that_is_named_exists(document: str) -> None:
    text = (ROOT / document).read_text()
    assert len(_QUOTED.findall(text)) > 10, "the paths must have been seen"
    # Methods of MCP look like paths.
    found = [named for named in missing_in(text, ROOT) if not re.fullmatch(r"[a-z]+/(?:[a-z]+/)?[a-zA-Z]+", named)]
    assert found == []


def test_the_check_detects_missing_files(tmp_path: Path) -> None:
    (tmp_path / "src" / "taskgate" / "channels").mkdir(parents=True)
    (tmp_path / "src" / "taskgate" / "channels" / "slack.py").touch()
    text = "`channels/NAME.py`, `channels/`, `slack.py`, `channels/gone.py`, `ports/services.py`, `gone.py`, `call(x)`"
    assert missing_in(text, tmp_path) == ["channels/gone.py", "ports/services.py", "gone.py"]
