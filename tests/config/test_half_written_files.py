"""A reload rejects an empty or half-written file instead of using it as a configuration without rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from taskgate.config import ConfigError, load
from taskgate.config.truncation import refuse_truncated

WHOLE = """schema: 1
servers: {files: {command: python}, more: {command: python}}
pins: warn
governance:
  rules:
    - {match: "drop_*", action: deny}
    - {match: "delete_*", action: deny}
tokens: []
"""


def refused(tmp_path: Path, before: str, after: str) -> str:
    """Return why a file with this change is rejected; empty if it is accepted."""
    path = tmp_path / "taskgate.yaml"
    path.write_text(before)
    in_force = load(path, {})
    path.write_text(after)
    try:
        refuse_truncated(in_force, load(path, {}))
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("after", ["", "\n", "# nothing left\n"])
def test_an_empty_file_is_refused(tmp_path: Path, after: str) -> None:
    assert refused(tmp_path, WHOLE, after)


def test_a_file_truncated_at_any_point_is_refused(tmp_path: Path) -> None:
    cuts = 0
    for at in range(1, len(WHOLE)):
        path = tmp_path / "cut.yaml"
        path.write_text(WHOLE[:at])
        try:
            load(path, {})
        except ConfigError:
            continue
        cuts += 1
        assert refused(tmp_path, WHOLE, WHOLE[:at]), f"cut at {at}: {WHOLE[:at]!r}"
    assert cuts > 20, "some cuts must be files that can be read, or this shows nothing"


def test_a_rewritten_file_that_ends_within_a_line_is_refused(tmp_path: Path) -> None:
    assert "middle of a line" in refused(tmp_path, WHOLE, "schema: 1\nservers: {other: {command: x}}\npins: off")


def test_removing_all_servers_must_be_explicit(tmp_path: Path) -> None:
    assert "all 2 servers are missing" in refused(tmp_path, WHOLE, "schema: 1\npins: off\n")
    assert refused(tmp_path, WHOLE, "schema: 1\npins: off\nservers: {}\n") == ""


def test_a_file_may_be_marked_as_intentionally_short(tmp_path: Path) -> None:
    first_lines = "".join(WHOLE.splitlines(keepends=True)[:3])
    assert "the end of the file is missing (governance, tokens)" in refused(tmp_path, WHOLE, first_lines)
    assert refused(tmp_path, WHOLE, first_lines + "...\n") == ""


def test_ordinary_edits_pass(tmp_path: Path) -> None:
    assert refused(tmp_path, WHOLE, WHOLE) == ""
    assert refused(tmp_path, WHOLE, WHOLE + "profile: development\n") == ""
    assert refused(tmp_path, WHOLE, WHOLE.replace("pins: warn\n", "")) == ""
    assert refused(tmp_path, WHOLE, WHOLE.replace("drop_*", "wipe_*")) == ""
    assert refused(tmp_path, WHOLE.rstrip("\n"), WHOLE.replace("warn", "off").rstrip("\n")) == ""


POLICY = 'permit(principal, action, resource);\nforbid(principal, action, resource) when { context.tool == "drop" };\n'
RECORD = 'id: more\ncommand: python\ndenied_tools: ["drop_*"]\n'


@pytest.mark.parametrize(("name", "whole"), [("rules.cedar", POLICY), ("mcp.d/more.yaml", RECORD)])
def test_a_truncated_policy_or_record_is_refused(tmp_path: Path, name: str, whole: str) -> None:
    (tmp_path / "mcp.d").mkdir()
    (tmp_path / "rules.cedar").write_text(POLICY)
    beside = tmp_path / name
    beside.write_text(whole)
    text = "schema: 1\nservers: {files: {command: python}}\nregistry_dir: ./mcp.d\ncedar: {policies: [./rules.cedar]}\n"
    path = tmp_path / "taskgate.yaml"
    path.write_text(text)
    in_force = load(path, {})
    refuse_truncated(in_force, load(path, {}))
    shorter = whole[: whole.rstrip().rindex("\n") + 1]
    for cut in ("", "\n", shorter, shorter.rstrip()):
        beside.write_text(cut)
        with pytest.raises(ConfigError, match=beside.name):
            refuse_truncated(in_force, load(path, {}))
    for meant in (shorter + ("// ...\n" if name.endswith("cedar") else "...\n"), whole + "\n", "# another\n" + whole):
        beside.write_text(meant)
        refuse_truncated(in_force, load(path, {}))
    beside.unlink() if name.endswith("yaml") else None
    refuse_truncated(in_force, load(path, {}))
