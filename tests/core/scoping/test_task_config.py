"""A scope from a map of strings: accepted formats and reported mistakes."""

from __future__ import annotations

import pytest

from taskgate.core.catalog.names import NameStyle
from taskgate.core.patterns import PatternSet
from taskgate.core.scoping.profile import Profile
from taskgate.core.scoping.scope import HelperTools, ScopeMode
from taskgate.core.scoping.task_config import MAX_VALUE, TaskConfigError, scope_from_task_config

PROFILES = {
    "code-review": Profile("code-review", servers=("files", "gitlab"), tool_denylist=PatternSet.of(["delete_*"]))
}


def test_the_documented_example_is_read() -> None:
    scope = scope_from_task_config(
        {
            "mcp.enabled": "true",
            "mcp.default_server_ids": '["gitlab","fs"]',
            "mcp.allowed_server_ids": '["gitlab","fs","duckduckgo-search"]',
            "mcp.tool_allowlist": '["*"]',
            "mcp.tool_denylist": '["delete_*"]',
            "other.key": "not ours",
        },
        "job-7",
    )
    assert scope.name == "job-7"
    assert scope.enabled
    assert scope.default_servers == ("gitlab", "fs")
    assert scope.allowed_servers == ("gitlab", "fs", "duckduckgo-search")
    assert scope.tool_allowlist == PatternSet.of(["*"])
    assert scope.tool_denylist == PatternSet.of(["delete_*"])


def test_comma_lists_and_the_other_keys_are_read() -> None:
    scope = scope_from_task_config(
        {
            "mcp.enabled": " true ",
            "mcp.default_server_ids": " gitlab , fs,",
            "mcp.tags": "scm,search",
            "mcp.mode": "search",
            "mcp.names": "plain",
            "mcp.helper_tools": "never",
        }
    )
    assert scope.default_servers == ("gitlab", "fs")
    assert scope.allowed_servers is None
    assert (scope.tags, scope.mode, scope.names) == (("scm", "search"), ScopeMode.SEARCH, NameStyle.PLAIN)
    assert scope.helper_tools is HelperTools.NEVER


@pytest.mark.parametrize("config", [{}, {"mcp.enabled": "false"}])
def test_only_explicitly_enabled_entries_are_enabled(config: dict[str, str]) -> None:
    assert not scope_from_task_config(config).enabled


def test_a_profile_is_resolved_and_overrides_narrow_it() -> None:
    config = {
        "mcp.enabled": "true",
        "mcp.profile": "code-review",
        "mcp.profile_overrides": """
            {"servers": ["files"], "exclude_servers": ["git*"], "tool_allowlist": ["read_*"], "tool_denylist": ["x"]}
        """,
    }
    profile = scope_from_task_config(config, profiles=PROFILES).profile
    assert profile is not None
    assert profile.keeps("files")
    assert not profile.keeps("gitlab")
    assert profile.tool_allowlists == (PatternSet.of(["read_*"]),)
    assert profile.tool_denylist == PatternSet.of(["delete_*", "x"])
    plain = scope_from_task_config({"mcp.profile": "code-review"}, profiles=PROFILES).profile
    assert plain is not None
    assert plain.keeps("gitlab")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"mcp.enabled": "yes"}, 'mcp.enabled must be "true" or "false", not \'yes\'.'),
        ({"mcp.default_server_id": "a"}, "Unknown key 'mcp.default_server_id'. Did you mean 'mcp.default_server_ids'?"),
        ({"mcp.zzzzzzzzzzz": "a"}, "Unknown key 'mcp.zzzzzzzzzzz'."),
        ({"mcp.default_server_ids": '["a"'}, "mcp.default_server_ids must be a JSON array of strings"),
        ({"mcp.default_server_ids": "[1]"}, "must be a JSON array of strings"),
        ({"mcp.default_server_ids": "[" * 40_000}, "must be a JSON array of strings"),
        ({"mcp.default_server_ids": "[a"}, "must be a JSON array of strings"),
        ({"mcp.default_server_ids": '["[a"]'}, "mcp.default_server_ids: The pattern '[a' opens a ["),
        ({"mcp.tool_allowlist": '["[a"]'}, "mcp.tool_allowlist: The pattern '[a' opens a ["),
        ({"mcp.default_server_ids": "a,c,*", "mcp.allowed_server_ids": "a,b"}, "mcp.default_server_ids has 'c', which"),
        ({"mcp.mode": "fast"}, "mcp.mode must be one of direct, facade, both, search, not 'fast'."),
        ({"mcp.profile": "code-reviw"}, "The profile 'code-reviw' does not exist. Did you mean 'code-review'?"),
        ({"mcp.profile_overrides": "{}"}, "mcp.profile_overrides needs mcp.profile."),
        ({"mcp.profile": "code-review", "mcp.profile_overrides": "[]"}, "mcp.profile_overrides must be a JSON object"),
        ({"mcp.profile": "code-review", "mcp.profile_overrides": '{"x": []}'}, "must be a JSON object with the keys"),
        (
            {"mcp.profile": "code-review", "mcp.profile_overrides": '{"servers": 1}'},
            "mcp.profile_overrides.servers must",
        ),
        ({"mcp.tags": "x" * (MAX_VALUE + 1)}, "mcp.tags must be a string of at most"),
        ({"mcp.tags": 5}, "mcp.tags must be a string"),
    ],
)
def test_a_mistake_is_named_with_its_key(config: dict[str, str], message: str) -> None:
    with pytest.raises(TaskConfigError) as caught:
        scope_from_task_config(config, profiles=PROFILES)
    assert message in caught.value.message


def test_all_mistakes_are_reported_at_once() -> None:
    with pytest.raises(TaskConfigError) as caught:
        scope_from_task_config({"mcp.enabled": "1", "mcp.mode": "x"})
    assert len(caught.value.data["problems"]) == 2


def test_default_within_allowed_is_fine() -> None:
    scope_from_task_config({"mcp.default_server_ids": "a,b", "mcp.allowed_server_ids": "*"})
