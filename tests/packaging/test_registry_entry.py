"""server.json, the entry for the MCP Registry: valid by its published schema, and true of this package."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.harness.absent import HOME

import taskgate
from taskgate.bridge.main import options

ROOT = Path(__file__).resolve().parents[2]
ENTRY = json.loads((ROOT / "server.json").read_text())
RULE = "mcp-registry-server-json-valid"
DEADLINE_S = 120


def lint(folder: Path) -> int:
    program = [str(HOME / "deployment" / "bin" / "skillsaw"), "lint", "--strict", "--rule", RULE, str(folder)]
    return subprocess.run(program, capture_output=True, timeout=DEADLINE_S).returncode


@pytest.mark.peers("deployment")
def test_entry_is_valid_by_the_published_schema(tmp_path: Path) -> None:
    shutil.copy(ROOT / "server.json", tmp_path)
    assert lint(tmp_path) == 0
    (tmp_path / "server.json").write_text(json.dumps({**ENTRY, "version": "latest"}))
    assert lint(tmp_path) != 0, "the check notices a wrong entry"


def test_entry_names_this_version_and_package() -> None:
    (package,) = ENTRY["packages"]
    assert ENTRY["version"] == package["version"] == taskgate.__version__
    assert (package["registryType"], package["identifier"]) == ("pypi", "taskgate")


def test_readme_states_the_name_by_which_the_registry_verifies_the_owner() -> None:
    assert f"mcp-name: {ENTRY['name']}" in (ROOT / "README.md").read_text()


def test_arguments_are_those_of_taskgate_stdio() -> None:
    (package,) = ENTRY["packages"]
    first, *named = package["packageArguments"]
    assert first["value"] == "stdio"
    for argument in named:
        assert options([argument["name"], "x"]), argument
