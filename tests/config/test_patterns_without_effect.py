"""`check` warns about every pattern of a file that cannot be meant, at its position, and with what to write instead."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import msgspec
import pytest

from taskgate.config import load, load_text
from taskgate.config.problems import Problem
from taskgate.core.settings.gateway_file import GatewayFile
from taskgate.core.settings.section import Section, members
from taskgate.core.settings.values import Pattern

SERVERS = "servers: {files: {command: files}, github: {command: github}}\n"


def warnings_of(text: str) -> dict[str, Problem]:
    return {warning.key: warning for warning in load_text(text, "t.yaml", environment={}).warnings}


EVERYWHERE = """\
servers:
  files:
    command: files
    expose: {mode: blocklist, tools: ["delete_.*"]}
    allowed_tools: ["Read_*", "write_*"]
    approval_policy: {tools: {"^x$": deny}}
governance:
  rules: [{match: "delete_.*", action: deny}]
  force_required: [slow_*, "/slow.*/"]
telemetry: {otel: {baggage: "^tenant"}}
profiles: {p: {servers: files, tool_allowlist: ["(a|b)"], tool_denylist: "d\u0435lete_*"}}
scopes:
  default:
    profile: p
    profile_overrides: {tool_allowlist: ["a|b"], tool_denylist: ["x", ".*"]}
    tool_allowlist: ["DROP_*"]
    tool_denylist: ["drop_.*"]
"""
PLACES = {
    "servers.files.expose.tools[0]": "write delete_*",
    "servers.files.allowed_tools[0]": "write read_*",
    "servers.files.approval_policy.tools.^x$": "write x",
    "governance.rules[0].match": "write delete_*",
    "governance.force_required[1]": "write slow*",
    "telemetry.otel.baggage": "write tenant*",
    "profiles.p.tool_allowlist[0]": "write a and b as 2 patterns",
    "profiles.p.tool_denylist": "write delete_*",
    "scopes.default.profile_overrides.tool_allowlist[0]": "write a and b as 2 patterns",
    "scopes.default.profile_overrides.tool_denylist[1]": "write *",
    "scopes.default.tool_allowlist[0]": "write drop_*",
    "scopes.default.tool_denylist[0]": "write drop_*",
}


def test_pattern_that_cannot_be_meant_is_named_at_every_key() -> None:
    found = warnings_of(EVERYWHERE)
    assert {key: warning.hint for key, warning in found.items()} == PLACES
    assert (found["governance.rules[0].match"].line, found["governance.rules[0].match"].column) == (8, 19)


(IS_PATTERN,) = get_args(Pattern)[1:]


def _keys_with_patterns(section: type[Section]) -> set[str]:
    """Return the names of all keys below a section whose values or keys are patterns."""
    found: set[str] = set()
    waiting, seen = [section], set[type]()
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        for each in members(current):
            if IS_PATTERN in each.attached or _has_patterns(each.type):
                found.add(each.key)
            waiting += _sections_in(each.type)
    return found


def _has_patterns(annotation: object) -> bool:
    attached = getattr(annotation, "__metadata__", ())
    return IS_PATTERN in attached or any(map(_has_patterns, getattr(annotation, "__args__", ())))


def _sections_in(annotation: object) -> list[type[Section]]:
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return [annotation] if issubclass(annotation, Section) else []
    return [each for argument in getattr(annotation, "__args__", ()) for each in _sections_in(argument)]


def test_no_key_with_patterns_is_left_out() -> None:
    examined = {part.partition("[")[0] for key in PLACES for part in key.split(".")}
    assert _keys_with_patterns(GatewayFile) <= examined
    assert "tool_denylist" in _keys_with_patterns(GatewayFile)


def test_registry_records_are_examined_too(tmp_path: Path) -> None:
    records = tmp_path / "records"
    records.mkdir()
    (records / "files.yaml").write_text('command: files\nallowed_tools: ["read_.*"]\n', encoding="utf-8")
    (tmp_path / "t.yaml").write_text("registry_dir: records\n", encoding="utf-8")
    (warning,) = load(tmp_path / "t.yaml", {}).warnings
    assert (Path(warning.file).name, warning.line, warning.hint) == ("files.yaml", 2, "write read_*")


@pytest.mark.parametrize(
    ("text", "key", "hint"),
    [
        ("governance: {rules: [{match: 'g?:x', action: deny}]}", "governance.rules[0].match", "before the colon"),
        (
            "governance: {rules: [{match: 'github:drop', server: files, action: deny}]}",
            "governance.rules[0].match",
            "write drop",
        ),
        ("governance: {force_required: ['prompt:x']}", "governance.force_required[0]", "remove it"),
        ("scopes: {default: {default_servers: '*', tool_denylist: 'x*:y'}}", "scopes.default.tool_denylist", "colon"),
    ],
)
def test_pattern_that_applies_to_no_server_is_named(text: str, key: str, hint: str) -> None:
    assert hint in warnings_of(SERVERS + text)[key].hint


@pytest.mark.parametrize(
    ("settings", "key", "hint"),
    [
        ("expose: {mode: blocklist, tools: ['github:drop']}", "expose.tools[0]", "write drop"),
        ("expose: {mode: blocklist, tools: ['github:prompt:drop']}", "expose.tools[0]", "write prompt:drop"),
        ("expose: {mode: blocklist, tools: ['files__drop']}", "expose.tools[0]", "write files:drop"),
        ("allowed_tools: ['hub:read']", "allowed_tools[0]", "write read"),
        ("approval_policy: {tools: {'github:drop': deny}}", "approval_policy.tools.github:drop", "write drop"),
        ("approval_policy: {tools: {'prompt:drop': deny}}", "approval_policy.tools.prompt:drop", "remove it"),
    ],
)
def test_pattern_for_another_server_in_the_lists_of_one_is_named(settings: str, key: str, hint: str) -> None:
    found = warnings_of(f"servers: {{files: {{command: files, {settings}}}, github: {{command: github}}}}\n")
    assert found[f"servers.files.{key}"].hint == hint


def test_correct_configuration_has_no_warnings() -> None:
    text = """\
servers:
  files:
    command: files
    expose: {mode: allowlist, tools: [read_*, "files:write_*", "prompt:ask", getUser]}
    allowed_tools: ["*"]
    approval_policy: {tools: {delete_*: deny, "f*:drop": approve}}
governance:
  rules:
  - {match: "taskgate:run_script", action: approve}
  - {match: "task*:add_server", action: deny}
  - {match: "files:delete_*", server: files, action: deny}
  - {match: "resource:file:///A/.*", action: deny}
  - {match: "[!a]*", action: approve}
  force_required: ["f*:slow_*"]
telemetry: {otel: {baggage: [tenant, "x-*"]}}
scopes: {default: {default_servers: ["*"], tool_denylist: ["files:*_all", "admin.*"]}}
"""
    assert warnings_of(text) == {}


def test_value_of_a_variable_is_not_in_a_warning() -> None:
    text = "governance: {rules: [{match: '^${env:SECRET_NAME}', action: deny}]}\n"
    (warning,) = load_text(SERVERS + text, environment={"SECRET_NAME": "hunter2"}).warnings
    assert "hunter2" not in str(warning)
