"""The complete example of the documentation loads as it is printed and has the described values."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from taskgate.config import ConfigError, LoadedConfig, load

EXAMPLE = Path(__file__).parents[2] / "config/complete"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(EXAMPLE, tmp_path, dirs_exist_ok=True)
    (tmp_path / "mcp.d").mkdir()
    return tmp_path


@pytest.fixture
def loaded(folder: Path) -> LoadedConfig:
    return load(folder / "taskgate.yaml", {"HOME": str(folder)})


def test_the_complete_example_loads_without_warnings_and_uses_every_key(loaded: LoadedConfig) -> None:
    assert loaded.warnings == ()
    assert loaded.skipped == ()


def test_its_servers_are_read(loaded: LoadedConfig) -> None:
    files, reports = loaded.root.servers["files"], loaded.root.servers["reports"]
    assert (files.command, files.args, files.tags) == ("python", ("-m", "taskgate.demo.files"), ("local",))
    assert (files.instances, files.allowed_tools, files.transport) == ("per_session", ("*",), "auto")
    assert (reports.url, reports.headers) == ("http://127.0.0.1:9001/mcp", {"Authorization": "Bearer none"})
    assert reports.trust_annotations
    budgets = reports.budgets
    assert (budgets.tool_timeout_ms, budgets.max_concurrency, budgets.max_tool_output_bytes) == (600_000, 8, 1_048_576)
    assert {name: traits.tool_class for name, traits in reports.tools.items()} == {
        "charge_card": "once",
        "read_report": "read",
    }


def test_its_governance_is_read(loaded: LoadedConfig) -> None:
    governance = loaded.root.governance
    assert governance.defaults.action == "forward"
    assert [(r.match, r.server, r.action, r.approval, r.policy_id) for r in governance.rules] == [
        ("drop_*", None, "deny", None, None),
        ("delete_*", None, "approve", "ops", None),
        ("pay_*", "reports", "policy", "money", "payments"),
    ]
    assert governance.force_required == ("export_all",)


def test_its_approvals_and_tokens_are_read(loaded: LoadedConfig) -> None:
    ops, money = loaded.root.approval["ops"], loaded.root.approval["money"]
    assert (ops.timeout, ops.on_timeout, ops.approvers) == (600, "deny", ("*",))
    assert (ops.redact_fields, ops.approvals_needed, ops.self_approval) == (("token", "*.password"), 1, False)
    assert (money.timeout, money.approvals_needed) == (1800, 2)
    assert [channel.type for channel in money.channels] == ["inbox", "webhook"]
    token = loaded.root.tokens[0]
    assert (token.id, token.roles, token.scope, token.sha256[:8]) == ("ann", ("approver",), None, "5d0c3d1f")


def test_its_scopes_tasks_and_switches_are_read(loaded: LoadedConfig) -> None:
    root = loaded.root
    assert root.scopes["default"].default_servers == ("*",)
    assert (root.scopes["review"].profile, root.scopes["review"].allowed_servers) == (
        "code-review",
        ("files", "reports"),
    )
    assert root.profiles["code-review"].tool_denylist == ("delete_*",)
    assert (root.tasks.default_ttl_ms, root.tasks.hold_ms, root.tasks.execute_on) == (600_000, 300_000, "demand")
    assert (root.pins, root.validate_arguments, root.profile) == ("warn", "warn", "production")
    assert (root.telemetry.metrics, root.compat.vendor_methods) == (True, False)


def test_its_paths_are_relative_to_the_file(loaded: LoadedConfig, folder: Path) -> None:
    root = loaded.root
    assert root.cedar.policies == (str(folder / "payments.cedar"),)
    assert root.store is not None
    assert root.store.url == f"sqlite:///{folder}/taskgate.db"
    assert loaded.watch == (folder / "taskgate.yaml", folder / "mcp.d", folder / "payments.cedar")


def test_a_missing_policy_file_is_an_error_with_its_line(folder: Path) -> None:
    (folder / "payments.cedar").unlink()
    with pytest.raises(ConfigError) as caught:
        load(folder / "taskgate.yaml", {"HOME": str(folder)})
    (problem,) = caught.value.problems
    assert (problem.line, problem.key) == (21, "cedar.policies[0]")


def test_a_missing_folder_of_records_is_only_a_warning(folder: Path) -> None:
    (folder / "mcp.d").rmdir()
    (warning,) = load(folder / "taskgate.yaml", {"HOME": str(folder)}).warnings
    assert (warning.line, warning.key) == (8, "registry_dir")
