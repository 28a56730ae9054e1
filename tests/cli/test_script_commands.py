"""What commands print about scripts: the plan of one that waits for approval, its calls, and the report of a failure."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.cli.test_held_calls import APPROVER, CALLER, CONFIG, environment, run, waiting_approval
from tests.harness.gateway import Gateway, running_gateway
from tests.harness.programs import run_to_end

from taskgate.cli.script_calls import call_lines
from taskgate.cli.script_report import LISTED, report_lines
from taskgate.replies.scripts import CallOfScript, CallTree

pytestmark = [pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]
SCRIPTED: dict[str, Any] = {
    **CONFIG,
    "servers": {"demo": {"command": sys.executable, "args": ["-m", "taskgate.demo.files"]}},
    "scopes": {"default": {"default_servers": ["*"], "scripts": "on"}},
    "governance": {
        "rules": [
            {"match": "taskgate:run_script", "action": "approve"},
            {"match": "delete_*", "from": "script", "action": "deny"},
            {"match": "write_*", "from": "script", "action": "approve"},
        ]
    },
}
CODE = """found = await demo.list_files()
if False:
\tawait demo.delete_file(name="\u202e")
{}["missing"]
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    async with running_gateway(SCRIPTED, tmp_path_factory.mktemp("gateway")) as made:
        await made.until_listed()
        yield made


async def test_commands_show_plan_calls_and_report_of_a_script(gateway: Gateway, tmp_path: Path) -> None:
    pytest.importorskip("pydantic_monty")
    (tmp_path / "script.py").write_text(CODE, encoding="utf-8")
    program = [sys.executable, "-m", "taskgate", "run", str(tmp_path / "script.py")]
    running = asyncio.create_task(run_to_end(program, environment(gateway, CALLER)))
    held = await waiting_approval(gateway)
    assert held["plan_summary"]
    _, listed, _ = await run(gateway, "approvals", "list")
    assert held["plan_summary"] in listed
    _, shown, _ = await run(gateway, "approvals", "show", held["id"])
    assert "\u202e" not in shown
    assert "   1  found = await demo.list_files()" in shown
    assert "   3  →   await demo.delete_file" in shown
    assert "demo__delete_file: denied (line 3)" in shown
    await run(gateway, "approvals", "approve", held["id"], "--yes", token=APPROVER)
    code, out, _ = await running
    assert code == 1
    for line in ("Executed: 1", "Not executed: none"):
        assert line in out.splitlines()
    assert any(line.startswith("  line 1 demo__list_files") for line in out.splitlines())
    _, task, _ = await run(gateway, "tasks", "show", held["task_id"])
    assert "line 1  demo__list_files  completed" in task
    _, own, _ = await run(gateway, "tasks", "show", held["task_id"], token=CALLER)
    assert "line 1  demo__list_files  completed" in own
    _, own_row, _ = await run(gateway, "tasks", "show", held["task_id"], "--json", token=CALLER)
    _, row, _ = await run(gateway, "tasks", "show", held["task_id"], "--json")
    assert json.loads(own_row)["script_calls"] == json.loads(row)["script_calls"]
    [call] = json.loads(row)["script_calls"]["calls"]
    _, child, _ = await run(gateway, "tasks", "show", call["task_id"])
    assert f"{held['task_id']}, line 1" in child
    _, rest, _ = await run(gateway, "tasks", "show", held["task_id"], "--calls-after", str(call["number"]), "--json")
    assert json.loads(rest)["script_calls"]["calls"] == []
    _, approved, _ = await run(gateway, "approvals", "show", held["id"])
    assert call["task_id"] in approved


async def test_commands_show_which_script_made_a_call(gateway: Gateway, tmp_path: Path) -> None:
    pytest.importorskip("pydantic_monty")
    (tmp_path / "script.py").write_text('await demo.list_files()\nawait demo.write_file(name="a.txt", text="x")\n')
    program = [sys.executable, "-m", "taskgate", "run", str(tmp_path / "script.py")]
    running = asyncio.create_task(run_to_end(program, environment(gateway, CALLER)))
    script = await waiting_approval(gateway)
    await run(gateway, "approvals", "approve", script["id"], "--yes", token=APPROVER)
    async with asyncio.timeout(120):
        while (held := await waiting_approval(gateway))["id"] == script["id"]:
            await asyncio.sleep(0.05)
    assert held["from_script"] == {"task_id": script["task_id"], "line": 2}
    for command in (("list",), ("show", held["id"])):
        _, shown, _ = await run(gateway, "approvals", *command)
        assert f"{script['task_id']}, line 2" in shown
    await run(gateway, "approvals", "approve", held["id"], "--yes", token=APPROVER)
    assert (await running)[0] == 0


async def begun(gateway: Gateway, folder: Path, code: str) -> tuple[str, asyncio.Task[tuple[int, str, str]]]:
    """A script of ann that has been approved; its task, and `taskgate run` that waits for its end."""
    (folder / "script.py").write_text(code, encoding="utf-8")
    program = [sys.executable, "-m", "taskgate", "run", str(folder / "script.py")]
    running = asyncio.create_task(run_to_end(program, environment(gateway, CALLER)))
    held = await waiting_approval(gateway)
    await run(gateway, "approvals", "approve", held["id"], "--yes", token=APPROVER)
    task: str = held["task_id"]
    async with asyncio.timeout(120):
        while not (calls := await script_calls(gateway, task)) or calls[0]["state"] != "completed":
            await asyncio.sleep(0.05)
    return task, running


async def script_calls(gateway: Gateway, task: str) -> list[dict[str, Any]]:
    _, shown, _ = await run(gateway, "tasks", "show", task, "--json")
    found: list[dict[str, Any]] = json.loads(shown)["script_calls"]["calls"]
    return found


async def test_scripts_are_listed_and_stopped(gateway: Gateway, tmp_path: Path) -> None:
    pytest.importorskip("pydantic_monty")
    assert await run(gateway, "scripts", "list", "--json") == (0, "", "")
    code, out, err = await run(gateway, "scripts", "list")
    assert (code, out, "No scripts are running." in err) == (0, "", True)
    script = "await demo.list_files()\nawait sleep(3_600)\nawait demo.list_files()"
    task, running = await begun(gateway, tmp_path, script)

    _, listed, _ = await run(gateway, "scripts", "list", "--principal", "ann", "--scope", "default")
    heading, row = listed.splitlines()
    assert heading.split() == ["Task", "State", "Caller", "Scope", "Created"]
    assert row.split()[:4] == [task, "running", "ann", "default"]
    _, lines, _ = await run(gateway, "scripts", "list", "--json")
    [found] = [json.loads(line) for line in lines.splitlines()]
    assert (found["id"], found["principal"], found["scope"]) == (task, "ann", "default")
    for others in (("--principal", "bob"), ("--scope", "night"), ("--principal", "ann", "--scope", "night")):
        assert (await run(gateway, "scripts", "list", *others, "--json"))[1] == ""
        code, out, err = await run(gateway, "scripts", "stop", *others)
        assert (code, out, "No matching script is running." in err) == (0, "", True)

    code, out, err = await run(gateway, "scripts", "stop", "--principal", "ann", "--reason", "sends \u202e too much")
    assert (code, out) == (0, f"Stopped {task} of ann: executed, or sent: demo__list_files (1).\n"), err
    assert (await running)[0] != 0
    _, shown, _ = await run(gateway, "tasks", "show", task)
    assert "cancelled" in shown
    assert "by operator: sends" in shown
    assert "\u202e" not in shown


async def test_stopped_scripts_are_printed_as_json(gateway: Gateway, tmp_path: Path) -> None:
    pytest.importorskip("pydantic_monty")
    task, running = await begun(gateway, tmp_path, "await demo.list_files()\nawait sleep(3_600)")
    code, out, err = await run(gateway, "scripts", "stop", "--all", "--json")
    assert (code, err) == (0, "")
    [stopped] = json.loads(out)["stopped"]
    assert (stopped["id"], stopped["state"], stopped["principal"]) == (task, "cancelled", "ann")
    assert stopped["ran"] == "executed, or sent: demo__list_files (1)"
    assert (await running)[0] != 0
    assert await run(gateway, "scripts", "stop", "--all", "--json") == (0, '{"stopped": []}\n', "")


@pytest.mark.parametrize("which", [(), ("--all", "--principal", "ann")])
async def test_stopping_scripts_needs_to_say_which(gateway: Gateway, which: tuple[str, ...]) -> None:
    for form in ((), ("--json",)):
        code, out, err = await run(gateway, "scripts", "stop", *which, *form)
        assert code != 0
        assert "Give a principal, a scope or both" in out + err


async def test_report_is_printed_of_failed_scripts_only() -> None:
    calls = [{"tool": "t", "line": 1, "task_id": "tg_1", "state": "completed"}] * (LISTED + 5)
    report: dict[str, Any] = {
        "error": {"error_type": "x"},
        "calls": {"executed": calls, "not_executed": [], "unknown": [7]},
    }
    lines = report_lines(report)
    assert len(lines) == 1 + LISTED + 1 + 1 + 1
    assert "5" in lines[LISTED + 1]
    refused = {"tool": "t", "line": 2, "task_id": None, "state": "refused", "error_type": "policy_denied"}
    report["calls"]["not_executed"].append(refused)
    [line] = [line for line in report_lines(report) if "refused" in line]
    assert line.split() == ["line", "2", "t", "refused", "policy_denied"]
    others: tuple[Any, ...] = (None, [], {}, {"error": "x"}, {"calls": {}, "error": {}}, {"calls": 3, "error": {}})
    for other in others:
        assert report_lines(other) == []


def a_call(script: str, state: str = "completed", waits_until: str | None = None) -> CallOfScript:
    return CallOfScript(
        number=0,
        script=script,
        line=3,
        tool="t",
        task_id="tg_3",
        state=state,
        executed=None,
        received=False,
        message="",
        created_at=None,
        finished_at=None,
        waits_until=waits_until,
    )


def a_page(*calls: CallOfScript, following: int | None = None) -> CallTree:
    return CallTree(steps=1, calls_made=len(calls), calls=calls, next=following)


async def test_calls_of_a_script_end_with_how_to_see_more() -> None:
    waiting = a_call("tg_1", "waiting", "2027-01-15T08:00:00Z")
    [line, more] = call_lines(a_page(waiting, following=7), "tg_1")
    assert "waiting until" in line
    assert "tg_1 --calls-after 7" in more
    assert len(call_lines(a_page(), "tg_1")) == 1


async def test_calls_of_earlier_scripts_name_their_script() -> None:
    own, earlier = call_lines(a_page(a_call("tg_1"), a_call("tg_0")), "tg_1")
    assert "tg_0" not in own
    assert earlier.endswith("called by tg_0")
    row = {"line": 3, "tool": "t", "state": "completed", "task_id": "tg_3"}
    report = {
        "error": {"error_type": "x"},
        "calls": {"executed": [{**row, "script": "tg_0"}], "not_executed": [], "unknown": []},
    }
    assert report_lines(report)[1].endswith("called by tg_0")
