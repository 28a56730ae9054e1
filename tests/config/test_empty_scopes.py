"""A scope whose lists together select no server is named; one that selects any server is not."""

from __future__ import annotations

import pytest

from taskgate.config import load_text

FILE = """\
servers: {files: {command: x, tags: [local]}, bank: {command: y}}
profiles:
  local: {tags: local}
  none: {servers: [files], exclude_servers: [files]}
  base: {servers: [files, bank], exclude_servers: [bank]}
  derived: {extends: base}
"""


@pytest.mark.parametrize(
    "scope",
    [
        "{profile: none}",
        "{profile: local, default_servers: [bank]}",
        "{profile: local, profile_overrides: {servers: [bank]}}",
        "{profile: derived, profile_overrides: {exclude_servers: [files]}}",
        "{profile: base, default_servers: [bank]}",
    ],
)
def test_scope_that_selects_no_server_is_named(scope: str) -> None:
    (warning,) = load_text(f"{FILE}scopes: {{work: {scope}}}\n", "t.yaml", environment={}).warnings
    assert (warning.key, warning.line) == ("scopes.work", 7)
    assert "select no server" in warning.message


@pytest.mark.parametrize(
    "scope",
    [
        "{profile: local}",
        "{profile: derived}",
        "{tags: local}",
        "{default_servers: bank}",
        "{default_servers: [], allowed_servers: [files]}",
    ],
)
def test_scope_that_selects_a_server_is_not_named(scope: str) -> None:
    assert load_text(f"{FILE}scopes: {{work: {scope}}}\n", environment={}).warnings == ()


@pytest.mark.parametrize("scope", ["{}", "{default_servers: 'x*'}"])
def test_reason_in_the_scope_itself_is_named_alone(scope: str) -> None:
    (warning,) = load_text(f"{FILE}scopes: {{work: {scope}}}\n", environment={}).warnings
    assert "selects no" in warning.message or "no server matches" in warning.message
