"""What people copy from a table is whole, however narrow the terminal; times are those of the reader's clock."""

from __future__ import annotations

import time
from typing import Any

import pytest

from taskgate.cli import approvals, printing, tools
from taskgate.cli.display import Display
from taskgate.cli.target import Target
from taskgate.client import ServerError, TaskStatus, TaskUpdate, Tool
from taskgate.core.governance.approval import State
from taskgate.replies.approvals import ApprovalRow

LONG = "warehouse_of_the_north__move_everything_to_another_shelf"


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")


def test_the_id_of_an_approval_is_not_broken(capsys: pytest.CaptureFixture[str]) -> None:
    row = ApprovalRow(
        id="ap_01M7HBKMS104FK60WXAVQD3R2D",
        state=State.OPEN,
        tool=LONG,
        server="store",
        name=LONG,
        kind="tool",
        requester="a caller with a long name",
        scope="default",
        workflow="default",
        rule="rules[0] move_*",
        arguments_digest="",
        definition_digest="",
        approvals_needed=1,
        approvals_given=0,
        asked_at="2026-07-28T10:00:00.000Z",
        expires_at="2026-07-28T10:10:00.000Z",
        decided_at=None,
        reason="",
        task_id=None,
        url="",
        batchable=False,
    )
    approvals._table([row])
    assert row.id in capsys.readouterr().out


def test_the_name_of_a_tool_is_not_broken(capsys: pytest.CaptureFixture[str]) -> None:
    tool = Tool.from_wire({"name": LONG, "description": "Moves. " * 40, "inputSchema": {"type": "object"}})
    tools._print_table([tool], Target("http://127.0.0.1:7467/mcp", None, None))
    assert LONG in capsys.readouterr().out


def test_a_column_that_would_be_empty_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    target = Target("http://127.0.0.1:7467/mcp", None, None)
    described: dict[str, Any] = {"name": "look", "description": "Looks.", "inputSchema": {"type": "object"}}
    tools._print_table([Tool.from_wire(described)], target)
    assert "Task support" not in capsys.readouterr().out
    tools._print_table([Tool.from_wire({**described, "execution": {"taskSupport": "optional"}})], target)
    assert "optional" in capsys.readouterr().out


def test_a_message_and_its_progress_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    display = Display("look", as_json=False)
    seen = [("working", "a", 1.0), ("working", "b", 1.0), ("working", "b", 2.0), ("completed", "", 2.0)]
    for status, message, progress in seen:
        display.update(TaskUpdate("tg_1", TaskStatus(status), message, progress, 4.0))
    lines = [line.partition(" s  ")[2] for line in capsys.readouterr().err.splitlines()]
    assert lines == ["working  25%  a", "working  50%  b", "completed"]


def test_a_failure_states_its_reason_once(capsys: pytest.CaptureFixture[str]) -> None:
    unknown = {"error_type": "outcome_unknown"}
    printing.failure(ServerError(-32000, "Outcome unknown. It may have run.", unknown), as_json=False, executed=None)
    printing.failure(ServerError(-32000, "It may have run.", unknown), as_json=False, executed=None)
    text = ["Outcome unknown. It may have run. (-32000)", "Outcome unknown: It may have run. (-32000)"]
    assert capsys.readouterr().err.splitlines() == text


def test_the_first_column_of_a_row_is_not_broken(capsys: pytest.CaptureFixture[str]) -> None:
    printing.table(["Scope", "Address"], [[LONG, f"http://127.0.0.1:7467/mcp/{LONG}"]])
    assert LONG in capsys.readouterr().out


@pytest.mark.parametrize(("zone", "shown"), [("UTC", "10:00:00"), ("Asia/Tokyo", "19:00:00")])
def test_times_are_shown_in_the_local_time_zone(monkeypatch: pytest.MonkeyPatch, zone: str, shown: str) -> None:
    with monkeypatch.context() as patched:
        patched.setenv("TZ", zone)
        time.tzset()
        try:
            assert printing.local_time("2026-07-28T10:00:00.000Z") == f"2026-07-28 {shown}"
        finally:
            patched.undo()
            time.tzset()
