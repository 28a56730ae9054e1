"""The copies of the reference and the example in docs/ match the sections."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from taskgate.config import load_text
from taskgate.config.explain import example, reference
from taskgate.config.explain_conditions import conditions_page
from taskgate.config.json_schema import EDITOR_COMMENT
from taskgate.core.settings.gateway_file import GatewayFile

DOCS = Path(__file__).resolve().parents[3] / "docs"


@pytest.mark.parametrize(
    ("name", "text", "command"),
    [
        ("configuration.md", reference, "python -m taskgate.config.explain > docs/configuration.md"),
        ("taskgate.example.yaml", example, "python -m taskgate.config.explain example > docs/taskgate.example.yaml"),
        ("conditions.md", conditions_page, "python -m taskgate.config.explain_conditions > docs/conditions.md"),
    ],
)
def test_the_copy_in_docs_is_current(name: str, text: object, command: str) -> None:
    assert callable(text)
    assert (DOCS / name).read_text(encoding="utf-8") == text(), f"stale; run: {command}"


def test_the_example_loads_as_it_is() -> None:
    assert list(load_text(example(), environment={}).root.servers) == ["files"]


def test_the_example_with_every_key_uncommented_is_the_default_configuration() -> None:
    is_key = re.compile(r"# ( *(?:- \{|[a-z_-]+:(?: |$)).*)")
    lines = [
        found[1] if (found := is_key.match(line)) else line for line in example().splitlines() if line != EDITOR_COMMENT
    ]
    samples = iter("ab")
    text = re.sub(r"<64 hex digits[^>]*>", lambda _: next(samples) * 64, "\n".join(lines))
    loaded = load_text(text, environment={}).root
    defaults = GatewayFile()
    for name in ("governance", "tasks", "limits", "telemetry", "errors", "facade", "completion", "compat", "listen"):
        assert getattr(loaded, name) == getattr(defaults, name)
    assert set(loaded.scopes) == {"default", "review"}


def test_every_key_has_a_description() -> None:
    for line in reference().splitlines():
        if line.startswith("| `"):
            assert line.rstrip(" |").count(" | ") >= 3 or "TASKGATE_" in line, line
