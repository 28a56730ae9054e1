"""Environments, variables that override the file, records in a folder, scopes as strings, and which file is used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.harness.raised import raises_problem

from taskgate.assembly.plan import build_plan
from taskgate.config import ConfigError, default_config, find, load, load_or_default, load_text
from taskgate.config.env_overrides import FORCE_REQUIRED
from taskgate.core.scoping.profile import Profile
from taskgate.core.scoping.scope import ScopePolicy
from taskgate.core.scoping.task_config import KEYS, TaskConfigError, scope_from_task_config

OVERLAID = """
servers: {a: {command: x, tags: [t]}, b: {command: y}}
limits: {sessions: 5}
tasks: {grace_ms: 1}
environments:
  staging:
    servers: {a: {command: z}, b: null, c: {command: w}}
    limits: {sessions: 7}
    tasks:
"""


def test_an_environment_overrides_the_file() -> None:
    loaded = load_text(OVERLAID, environment={"TASKGATE_ENV": "staging"})
    servers = loaded.root.servers
    assert loaded.environment == "staging"
    assert {name: s.command for name, s in servers.items()} == {"a": "z", "c": "w"}
    assert servers["a"].tags == ("t",)
    assert (loaded.root.limits.sessions, loaded.root.tasks.grace_ms) == (7, 8_000)


def test_without_an_environment_the_file_is_unchanged() -> None:
    loaded = load_text(OVERLAID, environment={})
    assert (set(loaded.root.servers), loaded.root.limits.sessions) == ({"a", "b"}, 5)


def test_the_variable_wins_over_the_key_and_an_unknown_name_is_an_error() -> None:
    text = "environment: one\nenvironments: {one: {profile: development}, two: {profile: production}}\n"
    assert load_text(text, environment={}).root.profile == "development"
    assert load_text(text, environment={"TASKGATE_ENV": "two"}).root.profile == "production"
    with raises_problem("environment", "three", file="$TASKGATE_ENV"):
        load_text(text, environment={"TASKGATE_ENV": "three"})


def test_a_file_without_environments_ignores_the_variable() -> None:
    assert load_text("profile: development", environment={"TASKGATE_ENV": "x"}).root.profile == "development"


def test_the_schema_cannot_differ_by_environment() -> None:
    with raises_problem("environments.a.schema"):
        load_text("environments: {a: {schema: 1}}", environment={"TASKGATE_ENV": "a"})


def test_variables_win_over_the_file() -> None:
    environment = {
        "TASKGATE_TASK_DEFAULT_TTL_MS": "1000",
        "TASKGATE_TASK_MAX_TTL_MS": "2000",
        "TASKGATE_SYNC_FORWARD_TIMEOUT_SECS": "5",
        "TASKGATE_TOOLS_FETCH_TIMEOUT_MS": "7",
        "TASKGATE_TOOLS_MAX_PAGES": "9",
        "TASKGATE_TASK_FORCE_REQUIRED": "b, c,",
        "TASKGATE_STATE_DIR": "/somewhere",
    }
    text = "tasks: {default_ttl_ms: 5}\ngovernance: {force_required: [a]}\n"
    for loaded in (load_text(text, environment=environment), default_config(environment)):
        tasks, limits = loaded.root.tasks, loaded.root.limits
        assert (tasks.default_ttl_ms, tasks.max_ttl_ms, tasks.sync_forward_timeout_ms) == (1_000, 2_000, 5_000)
        assert (limits.tools_fetch_timeout_ms, limits.tools_max_pages) == (7, 9)
        assert loaded.state_dir == Path("/somewhere")
    assert load_text(text, environment=environment).root.governance.force_required == ("a", "b", "c")


def test_thoughtgate_variables_are_reported() -> None:
    environment = {
        "THOUGHTGATE_TASK_MAX_TTL_MS": "9",
        "THOUGHTGATE_COLOUR": "blue",
        "TASKGATE_TASK_MAX_TTL_MS": "700000",
    }
    for loaded in (load_text("", environment=environment), default_config(environment)):
        colour, ttl = loaded.warnings
        assert (colour.file, ttl.file) == ("$THOUGHTGATE_COLOUR", "$THOUGHTGATE_TASK_MAX_TTL_MS")
        assert "TASKGATE_TASK_MAX_TTL_MS" in ttl.hint
        assert "blue" not in str(colour)
        assert loaded.root.tasks.max_ttl_ms == 700_000


@pytest.mark.parametrize("value", ["soon", "-1", "0", "1.5", "1e3"])
def test_a_bad_variable_is_named(value: str) -> None:
    with raises_problem("", file="$TASKGATE_TASK_MAX_TTL_MS"):
        load_text("", environment={"TASKGATE_TASK_MAX_TTL_MS": value})


def test_two_names_for_the_same_list_are_joined() -> None:
    text = "task_annotation_overrides: {force_required: [delete_user]}\ngovernance: {force_required: [a]}\n"
    assert load_text(text, environment={}).root.governance.force_required == ("a", "delete_user")


def _records(folder: Path, **texts: str) -> Path:
    (folder / "mcp.d").mkdir()
    for name, text in texts.items():
        stem, _, ending = name.rpartition("_")
        (folder / "mcp.d" / f"{stem}.{ending}").write_text(text, encoding="utf-8")
    path = folder / "taskgate.yaml"
    path.write_text("registry_dir: mcp.d\nservers: {own: {command: x}}\n", encoding="utf-8")
    return path


def test_good_records_load_in_every_format_and_bad_ones_are_reported(tmp_path: Path) -> None:
    path = _records(
        tmp_path,
        one_yaml="id: one\ncommand: c\nallowed_tools: ['*']\nbudgets: {max_concurrency: 2}\n",
        two_json='{"server_id": "two", "transport": "http", "http": {"url": "http://127.0.0.1:1/"},'
        ' "allowed_tools": ["read_*"]}',
        three_toml='display_name = "Three"\ncommand = "c"\nallowed_tools = []\ntags = ["x"]\n',
        four_yaml="command: c\n",
        five_yaml="command: '${NOT_SET}'\nallowed_tools: ['*']\n",
        bad_yaml="comand: c\nallowed_tools: ['*']\n",
        broken_json="{",
        broken_toml="a = [",
        twin_yaml="id: one\ncommand: c\nallowed_tools: ['*']\n",
        own_yaml="id: OWN\ncommand: c\nallowed_tools: ['*']\n",
        odd_yaml="id: a b\ncommand: c\n",
    )
    (tmp_path / "mcp.d" / "notes.txt").write_text("not a record")
    (tmp_path / "mcp.d" / "huge.yaml").write_text("#" * 300_000)
    (tmp_path / "mcp.d" / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    loaded = load(path, {})
    servers = loaded.root.servers
    assert set(servers) == {"own", "one", "two", "three", "four"}
    assert (servers["one"].allowed_tools, servers["one"].budgets.max_concurrency) == (("*",), 2)
    assert (servers["two"].url, servers["two"].allowed_tools) == ("http://127.0.0.1:1/", ("read_*",))
    assert (servers["three"].display_name, servers["three"].allowed_tools) == ("Three", ())
    assert servers["four"].allowed_tools == ()
    assert [(item.server, item.detail) for item in loaded.skipped] == [("five", "NOT_SET")]
    reported = {Path(w.file).name: str(w).partition(": ")[2] for w in loaded.warnings}
    assert set(reported) == {
        "four.yaml",
        "bad.yaml",
        "broken.json",
        "broken.toml",
        "twin.yaml",
        "own.yaml",
        "odd.yaml",
        "huge.yaml",
        "binary.yaml",
    }
    assert "is already used" in reported["twin.yaml"]
    assert "is already used" in reported["own.yaml"]
    assert "no tool of this server is visible" in reported["four.yaml"]


def test_with_a_folder_of_records_an_unknown_server_is_only_a_warning(tmp_path: Path) -> None:
    path = _records(tmp_path)
    with path.open("a") as file:
        file.write("governance: {rules: [{match: x, server: gone, action: deny}]}\n")
    assert [w.message for w in load(path, {}).warnings] == ['there is no server "gone"']


def test_a_thousand_records_load(tmp_path: Path) -> None:
    path = _records(tmp_path, **{f"s{i}_yaml": "command: c\nallowed_tools: ['*']\n" for i in range(1_000)})
    assert len(load(path, {}).root.servers) == 1_001


STRINGS = {
    "mcp.enabled": "true",
    "mcp.default_server_ids": '["a","b"]',
    "mcp.allowed_server_ids": "a, b, c",
    "mcp.tool_allowlist": '["*"]',
    "mcp.tool_denylist": '["delete_*"]',
    "mcp.profile_overrides": '{"tool_denylist": ["x"]}',
    "runner.image": "not ours",
}


@pytest.mark.parametrize("nested", [True, False])
def test_a_scope_may_be_a_map_of_strings(nested: bool) -> None:
    ours = {key: value for key, value in STRINGS.items() if key.startswith("mcp.")}
    scope: dict[str, object] = {"config": STRINGS, "mode": "both"} if nested else {**ours, "mode": "both"}
    servers = {name: {"command": "c"} for name in "abc"}
    found = load_text(json.dumps({"servers": servers, "scopes": {"work": scope}}), environment={}).root.scopes["work"]
    assert (found.enabled, found.default_servers, found.allowed_servers) == (True, ("a", "b"), ("a", "b", "c"))
    assert (found.tool_allowlist, found.tool_denylist, found.mode) == (("*",), ("delete_*",), "both")
    assert found.profile_overrides.tool_denylist == ("x",)


def from_file(settings: dict[str, str]) -> ScopePolicy:
    """The scope that results from a file with this map."""
    tree = {
        "servers": {name: {"command": "c", "tags": ["t"]} for name in "abc"},
        "profiles": {"p": {"servers": ["a", "b"]}},
        "scopes": {"work": {"config": settings}},
    }
    plan = build_plan(load_text(json.dumps(tree), environment={}))
    return plan.scopes.get("work") or ScopePolicy("work", enabled=False)


def handed_over(settings: dict[str, str]) -> ScopePolicy:
    """The scope that results from the same map when it is created at run time."""
    scope = scope_from_task_config(settings, "work", {"p": Profile("p", servers=("a", "b"))})
    return scope if scope.enabled else ScopePolicy("work", enabled=False)


ON = {"mcp.enabled": "true"}
MAPS = [
    {"mcp.default_server_ids": "a"},
    ON,
    {**ON, "mcp.profile": "p"},
    {**ON, "mcp.default_server_ids": '["a","b"]', "mcp.allowed_server_ids": "a,b,c"},
    {**ON, "mcp.default_server_ids": "a", "mcp.tool_allowlist": '["*"]', "mcp.tool_denylist": "x,y"},
    {**ON, "mcp.tags": "t", "mcp.mode": "search", "mcp.names": "plain", "mcp.helper_tools": "never"},
    {**ON, "mcp.profile": "p", "mcp.profile_overrides": '{"exclude_servers": ["b"], "tool_denylist": ["z"]}'},
    {**ON, "mcp.profile": "p", "mcp.profile_overrides": '{"servers": ["a"], "tool_allowlist": ["q"]}'},
    {**ON, "mcp.default_server_ids": "a", "runner.image": "not ours"},
]


@pytest.mark.parametrize("settings", MAPS, ids=lambda settings: " ".join(settings))
def test_a_map_of_strings_means_the_same_in_the_file_and_at_run_time(settings: dict[str, str]) -> None:
    assert from_file(settings) == handed_over(settings)


def test_the_maps_above_use_every_key_there_is() -> None:
    assert {key for settings in MAPS for key in settings if key.startswith("mcp.")} == set(KEYS)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("mcp.enabled", "TRUE"),
        ("mcp.default_server_ids", "[1"),
        ("mcp.profile_overrides", "[]"),
        ("mcp.unknown", "x"),
        ("mcp.mode", "fast"),
    ],
)
def test_a_bad_map_of_strings_is_refused(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf"scopes\.work\.(config\.mcp\.)?{key.removeprefix('mcp.')}"):
        from_file({**ON, "mcp.profile": "p", key: value})
    with pytest.raises(TaskConfigError, match=key.replace(".", r"\.")):
        handed_over({**ON, "mcp.profile": "p", key: value})


def test_the_file_is_searched_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    environment = {"HOME": str(tmp_path / "home")}
    assert find(None, environment) is None
    at_home = tmp_path / "home" / ".config" / "taskgate" / "taskgate.yaml"
    at_home.parent.mkdir(parents=True)
    at_home.write_text("")
    assert find(None, environment) == at_home
    (tmp_path / "taskgate.yaml").write_text("")
    assert find(None, environment) == Path("taskgate.yaml")
    assert find(None, {**environment, "TASKGATE_CONFIG": "a.yaml"}) == Path("a.yaml")
    assert find("b.yaml", {**environment, "TASKGATE_CONFIG": "a.yaml"}) == Path("b.yaml")


def test_a_named_file_that_is_missing_is_an_error_and_no_file_is_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with raises_problem("", file="gone.yaml"):
        load_or_default("gone.yaml", {})
    loaded = load_or_default(None, {"HOME": str(tmp_path)})
    assert list(loaded.root.servers) == ["demo"]
    assert [(rule.match, rule.action) for rule in loaded.root.governance.rules] == [("delete_*", "approve")]
    assert loaded.state_dir == tmp_path / ".local" / "state" / "taskgate"


def test_variables_override_the_demo_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    loaded = load_or_default(None, {"HOME": str(tmp_path), FORCE_REQUIRED: "demo:write_*"})
    assert len(loaded.root.governance.force_required) == 1
    assert len(loaded.root.governance.rules) == 1


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("profile: ${STAGE}", "a.yaml"),
        ('profile: "\\x24{STAGE}"', "a.yaml"),
        ('{"profile": "\\u0024{STAGE}"}', "a.json"),
        ('profile = "\\u0024{STAGE}"', "a.toml"),
    ],
)
def test_reference_is_expanded_however_it_is_written(text: str, name: str) -> None:
    assert load_text(text, name, environment={"STAGE": "development"}).root.profile == "development"


def test_reference_in_an_overriding_variable_is_expanded() -> None:
    root = load_text("", environment={FORCE_REQUIRED: "${TOOL}", "TOOL": "wipe"}).root
    assert root.governance.force_required == ("wipe",)
