"""Records as SPEAR's registry writes them are read as they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from taskgate.assembly.channels import Outbound
from taskgate.assembly.plan import build_plan
from taskgate.assembly.server_accounts import ServerAccounts
from taskgate.assembly.server_specs import server_specs
from taskgate.config.load import LoadedConfig, load
from taskgate.core.scoping.registry import ApprovalDemand

GITLAB = """
server_id = "gitlab"
display_name = "GitLab"
transport = "stdio"
tool_namespace = ""
allowed_tools = ["*"]

[stdio]
command = "npx"
args = ["-y", "server-gitlab@1"]
env = { TOKEN = "${ENV:GITLAB_TOKEN}", API = "${ENV:GITLAB_API:-https://gitlab.com/api/v4}" }
env_from = ["GITLAB_USER", " "]
cwd = ""

[approval_policy]
default_policy = "never"
per_tool = { delete_repo = "always", push = "deny", list = "policy" }

[budgets]
tool_timeout_ms = 15000
max_concurrency = 2
"""
HTTP: dict[str, Any] = {
    "server_id": "search",
    "display_name": "",
    "transport": "streamable_http",
    "http": {"url": "https://search.example.test/mcp", "headers": {"X-Team": "a"}, "auth_ref": "SEARCH_TOKEN"},
    "tool_namespace": "find",
    "allowed_tools": ["search_*"],
    "approval_policy": {"default_policy": "always", "per_tool": {}},
    "budgets": {"tool_timeout_ms": 0, "max_concurrency": 0, "max_tool_output_bytes": 0},
    "updated_at_ms": 0,
}
ENVIRONMENT = {"GITLAB_TOKEN": "t", "GITLAB_USER": "ann", "SEARCH_TOKEN": "s3"}


def accounts(loaded: LoadedConfig) -> ServerAccounts:
    return ServerAccounts(Outbound(), loaded, b"secret", lambda: "")


def loaded(folder: Path, environment: dict[str, str], http: dict[str, Any] = HTTP) -> LoadedConfig:
    records = folder / "mcp.d"
    records.mkdir()
    (records / "gitlab.toml").write_text(GITLAB)
    (records / "search.json").write_text(json.dumps(http))
    (folder / "taskgate.yaml").write_text("registry_dir: ./mcp.d\n")
    return load(folder / "taskgate.yaml", environment)


def test_a_stdio_record(tmp_path: Path) -> None:
    found = loaded(tmp_path, ENVIRONMENT)
    assert [str(warning) for warning in found.warnings] == []
    spec = server_specs(found, accounts(found))["gitlab"]
    assert (spec.command, spec.args, spec.cwd) == ("npx", ("-y", "server-gitlab@1"), None)
    assert spec.env == {"TOKEN": "t", "API": "https://gitlab.com/api/v4", "GITLAB_USER": "ann"}
    record = build_plan(found).registry.records["gitlab"]
    assert (record.namespace, record.budgets.tool_timeout_ms, record.budgets.max_concurrency) == ("", 15000, 2)
    asked = [record.approval_policy.for_tool("gitlab", tool) for tool in ("delete_repo", "push", "list", "read")]
    assert asked == [ApprovalDemand.APPROVE, ApprovalDemand.DENY, ApprovalDemand.FORWARD, ApprovalDemand.FORWARD]


def test_an_http_record(tmp_path: Path) -> None:
    found = loaded(tmp_path, ENVIRONMENT)
    spec = server_specs(found, accounts(found))["search"]
    assert spec.url == "https://search.example.test/mcp"
    assert spec.headers == {"X-Team": "a", "Authorization": "Bearer s3"}
    record = build_plan(found).registry.records["search"]
    assert (record.namespace, record.budgets.tool_timeout_ms) == ("find", None)
    assert record.approval_policy.for_tool("search", "search_web") is ApprovalDemand.APPROVE


@pytest.mark.parametrize(
    "reference", ["SEARCH_TOKEN", "env:SEARCH_TOKEN", "${ENV:SEARCH_TOKEN}", "vault://team/search"]
)
def test_a_server_is_left_out_when_its_credential_cannot_be_found(tmp_path: Path, reference: str) -> None:
    http = {**HTTP, "http": {**HTTP["http"], "auth_ref": reference}}
    without = {name: value for name, value in ENVIRONMENT.items() if name != "SEARCH_TOKEN"}
    found = loaded(tmp_path, without, http)
    assert "search" not in found.root.servers
    (gone,) = [gone for gone in found.skipped if gone.server == "search"]
    assert gone.reason == "env_missing"
    assert ("SEARCH_TOKEN" if "SEARCH" in reference else "vault://team/search") in gone.detail


def test_a_record_with_a_misspelt_policy_is_skipped_with_a_hint(tmp_path: Path) -> None:
    found = loaded(tmp_path, ENVIRONMENT, {**HTTP, "approval_policy": {"default_policy": "sometimes"}})
    assert "search" not in found.root.servers
    assert any("sometimes" in str(warning) for warning in found.warnings)
