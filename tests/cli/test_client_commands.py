"""`taskgate tools`, `call` and `tasks` as a person or a script runs them: real processes, also on a pseudo-terminal."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.harness.terminal import TIMEOUT, Terminal

from taskgate.cli.exit_codes import ExitCode

pytestmark = pytest.mark.timeout(60)
ROOT = Path(__file__).resolve().parents[2]
FAULTY_SERVER = [sys.executable, str(ROOT / "tests" / "client" / "servers" / "faulty_server.py")]
ASKER = [sys.executable, str(ROOT / "tests" / "client" / "servers" / "asking_server.py")]
COMMAND = [sys.executable, "-m", "taskgate"]
ENVIRONMENT = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "TASKGATE_STATE_DIR": "/nonexistent"}


def run(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    given = {"input": stdin} if stdin is not None else {"stdin": subprocess.DEVNULL}
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=TIMEOUT, env=ENVIRONMENT, check=False, **given
    )


@pytest.fixture(scope="module")
def faulty_url() -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([*FAULTY_SERVER, "--http", str(port)])
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.02)
    yield f"http://127.0.0.1:{port}/mcp"
    process.kill()
    process.wait()


def on_terminal(*arguments: str) -> Terminal:
    return Terminal([*COMMAND, *arguments], ENVIRONMENT)


def test_tools_are_listed_for_people_for_scripts_and_for_models(faulty_url: str) -> None:
    assert "changing_interval" in run("tools", "--url", faulty_url).stdout
    lines = [json.loads(line) for line in run("tools", "--url", faulty_url, "--json").stdout.splitlines()]
    assert "honest" in {tool["name"] for tool in lines}
    definitions = json.loads(run("tools", "--format", "openai", "--", *FAULTY_SERVER, "--stdio").stdout)
    assert definitions[0]["function"]["name"] == "honest"


def test_a_call_prints_the_result_on_standard_output_only(faulty_url: str) -> None:
    done = run("call", "echo", '{"text": "hello"}', "--url", faulty_url)
    assert (done.returncode, done.stdout) == (ExitCode.OK, "hello\n")
    done = run("call", "echo", "-", "--gateway", faulty_url, stdin='{"text": "from stdin"}')
    assert done.stdout == "from stdin\n"


def test_a_watched_task_shows_its_progress_and_result(faulty_url: str) -> None:
    done = run("call", "progressing", "--task", "--watch", "--url", faulty_url)
    assert (done.returncode, done.stdout) == (ExitCode.OK, "true result\n")
    assert [word in done.stderr for word in ("working", "half", "completed")] == [True] * 3


def test_json_output_has_one_object_per_line(faulty_url: str) -> None:
    done = run("call", "progressing", "--task", "--watch", "--json", "--url", faulty_url, "--generation", "stateful")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["event"] for event in events] == ["status", "status", "status", "result"]
    assert events[1]["message"] == "half"
    assert events[-1]["result"]["content"][0]["text"] == "true result"


def test_a_started_task_is_followed_by_other_commands(faulty_url: str) -> None:
    started = run("call", "forever", "--task", "--url", faulty_url)
    task_id = started.stdout.strip()
    assert task_id.startswith("task-")
    assert task_id in run("tasks", "list", "--url", faulty_url).stdout
    assert json.loads(run("tasks", "show", task_id, "--url", faulty_url, "--json").stdout)["status"] == "working"
    waited = run("tasks", "result", task_id, "--timeout", "0.3", "--url", faulty_url)
    assert waited.returncode == ExitCode.TIMED_OUT
    left = run("tasks", "watch", task_id, "--timeout", "0.3", "--url", faulty_url)
    assert left.returncode == ExitCode.TIMED_OUT
    assert f"taskgate tasks watch {task_id}" in left.stderr
    assert "cancelled" in run("tasks", "cancel", task_id, "--url", faulty_url).stdout
    assert run("tasks", "result", task_id, "--url", faulty_url).returncode == ExitCode.CANCELLED


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["call", "x", "--url", "http://127.0.0.1:1/mcp"], ExitCode.CANNOT_CONNECT),
        (["call", "x", "--", "/no/such/program"], ExitCode.CANNOT_CONNECT),
        (["call", "x", "[1]", "--url", "LIAR"], ExitCode.USAGE),
        (["call", "x", "{", "--url", "LIAR"], ExitCode.USAGE),
        (["call", "x", "--url", "LIAR", "--", "also", "this"], ExitCode.USAGE),
        (["call", "x", "--generation", "newest", "--url", "LIAR"], ExitCode.USAGE),
        (["tasks", "show", "nobody", "--url", "LIAR"], ExitCode.NOT_FOUND),
        (["call", "late", '{"seconds": 5}', "--timeout", "0.3", "--url", "LIAR"], ExitCode.TIMED_OUT),
        (["call", "cancelled", "--task", "--watch", "--url", "LIAR"], ExitCode.CANCELLED),
        (["call", "empty_success", "--task", "--watch", "--generation", "stateful", "--url", "LIAR"], ExitCode.FAILED),
        (["call", "vanish", "--task", "--watch", "--url", "LIAR"], ExitCode.NOT_FOUND),
        (["call", "unknown_status", "--task", "--watch", "--url", "LIAR"], ExitCode.OUTCOME_UNKNOWN),
        (["call", "ask_related", "--task", "--generation", "stateful", "--", *ASKER], ExitCode.USAGE),
    ],
)
def test_each_failure_has_its_exit_code(faulty_url: str, arguments: list[str], code: ExitCode) -> None:
    done = run(*(faulty_url if argument == "LIAR" else argument for argument in arguments))
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_errors_are_json_with_json_output() -> None:
    done = run("call", "x", "--json", "--url", "http://127.0.0.1:1/mcp")
    event = json.loads(done.stdout)
    assert (event["event"], event["error"], event["executed"], event["exit_code"]) == (
        "error",
        "CannotConnect",
        "no",
        3,
    )


def test_text_of_a_server_cannot_control_the_terminal(faulty_url: str) -> None:
    terminal = on_terminal("call", "echo", '{"text": "a\\u001b[31mred\\u202eb"}', "--url", faulty_url)
    assert terminal.end() == 0
    assert "\x1b[31mred" not in terminal.seen
    assert "\u202e" not in terminal.seen


def test_a_live_line_shows_status_and_message(faulty_url: str) -> None:
    terminal = on_terminal("call", "progressing", "--task", "--watch", "--url", faulty_url)
    terminal.wait_for("working")
    terminal.wait_for("half")
    assert terminal.end() == 0
    assert "true result" in terminal.seen


def test_questions_are_shown_as_a_form() -> None:
    terminal = on_terminal("call", "ask_related", "--json", "--", *ASKER)
    assert terminal.end() == 0  # with --json nothing is asked
    terminal = on_terminal("call", "ask_related", "--", *ASKER)
    assert "Who?" in terminal.wait_for("Answer?")
    terminal.type("y\n")
    terminal.wait_for("name [optional]")
    terminal.type("Ann\n")
    terminal.wait_for("age [default 42]")
    terminal.type("old\n")
    terminal.wait_for("Type an integer.")
    terminal.type("\n")
    assert terminal.end() == 0
    assert '"name": "Ann"' in terminal.seen
    assert '"age": 42' in terminal.seen


def test_a_url_is_shown_in_full_and_opened_only_with_consent() -> None:
    terminal = on_terminal("call", "ask_url_first", "--", *ASKER)
    assert "https://example.test/in" in terminal.wait_for("Open it in the browser?")
    terminal.type("n\n")
    assert terminal.end() == ExitCode.FAILED


@pytest.mark.parametrize(("typed", "code"), [("y\n", ExitCode.CANCELLED), ("n\n", ExitCode.INTERRUPTED)])
def test_ctrl_c_prompts_before_it_cancels(faulty_url: str, typed: str, code: ExitCode) -> None:
    terminal = on_terminal("call", "forever", "--task", "--watch", "--url", faulty_url)
    terminal.wait_for("working")
    terminal.type("\x03")
    terminal.wait_for("Cancel the task on the server?")
    terminal.type(typed)
    assert terminal.end() == code
    assert ("taskgate tasks watch" in terminal.seen) is (code is ExitCode.INTERRUPTED)
