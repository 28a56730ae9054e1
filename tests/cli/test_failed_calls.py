"""What `taskgate call`, `taskgate tasks` and `taskgate tools` print about `executed` when a request fails, and their exit codes."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from click.testing import CliRunner
from tests.client.scripted import Request, call_script, http, scripted

from taskgate import client
from taskgate.cli.exit_codes import ExitCode
from taskgate.cli.gateway_api import GatewayApi, Reply
from taskgate.cli.printing import exit_code_for
from taskgate.cli.root import build_app


def server_error(**data: Any) -> client.ServerError:
    return client.ServerError(-32000, "no", data or None)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (server_error(error_type="upstream_unreachable", executed="maybe"), ExitCode.OUTCOME_UNKNOWN),
        (server_error(error_type="upstream_unreachable", executed="no"), ExitCode.FAILED),
        (server_error(error_type="outcome_unknown", executed="maybe"), ExitCode.OUTCOME_UNKNOWN),
        (server_error(error_type="upstream_timeout", executed="maybe"), ExitCode.TIMED_OUT),
        (server_error(error_type="policy_denied", executed="no"), ExitCode.REFUSED),
        (server_error(error_type="policy_drift", executed="maybe"), ExitCode.OUTCOME_UNKNOWN),
        (server_error(error_type="overloaded", executed="no"), ExitCode.CANNOT_CONNECT),
        (server_error(error_type="rate_limited", executed="no"), ExitCode.CANNOT_CONNECT),
        (server_error(error_type="overloaded", executed="maybe"), ExitCode.OUTCOME_UNKNOWN),
        (server_error(error_type="task_required", executed="no"), ExitCode.USAGE),
        (server_error(error_type="task_forbidden", executed="no"), ExitCode.USAGE),
        (server_error(), ExitCode.FAILED),
        (client.HttpRefusal(429, "no"), ExitCode.CANNOT_CONNECT),
        (client.HttpRefusal(503, "no", stated="no"), ExitCode.CANNOT_CONNECT),
        (client.Unauthorized(403, "no"), ExitCode.REFUSED),
        (client.HttpRefusal(503, "no"), ExitCode.OUTCOME_UNKNOWN),
        (client.HttpRefusal(500, "no"), ExitCode.OUTCOME_UNKNOWN),
        (client.ConnectionLost("no", "no"), ExitCode.CANNOT_CONNECT),
        (client.ConnectionLost("no"), ExitCode.OUTCOME_UNKNOWN),
        (client.SessionClosed("no"), ExitCode.OUTCOME_UNKNOWN),
    ],
)
def test_exit_code_of_error(error: client.ClientError, code: ExitCode) -> None:
    assert exit_code_for(error) is code


@pytest.mark.parametrize(
    ("words", "status", "code"),
    [
        (["reload"], 409, ExitCode.USAGE),
        (["reload"], 403, ExitCode.REFUSED),
        (["reload"], 503, ExitCode.CANNOT_CONNECT),
        (["grants", "list"], 503, ExitCode.CANNOT_CONNECT),
        (["grants", "list"], 429, ExitCode.CANNOT_CONNECT),
        (["grants", "list"], 409, ExitCode.REFUSED),
        (["grants", "list"], 500, ExitCode.FAILED),
    ],
)
def test_exit_code_of_an_http_status_of_the_api(
    words: list[str], status: int, code: ExitCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answered(api: GatewayApi, method: str, path: str, body: bytes | None) -> Reply:
        return api._read(b'{"error": "no"}', status, None)

    monkeypatch.setattr(GatewayApi, "_ask", answered)
    done = CliRunner().invoke(build_app(), [*words, "--gateway", "http://127.0.0.1:1", "--json"])
    assert (done.exit_code, json.loads(done.stdout)["exit_code"]) == (code, code)


Answer = Callable[[Request], bytes | None]


@contextmanager
def served(answer: Answer) -> Iterator[str]:
    """The address of a server on a thread of its own: commands handle Ctrl-C, so they need the main thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    serving = scripted(call_script(answer))
    try:
        yield asyncio.run_coroutine_threadsafe(serving.__aenter__(), loop).result().url
    finally:
        asyncio.run_coroutine_threadsafe(serving.__aexit__(None, None, None), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def run(answer: Answer, *words: str) -> tuple[int, dict[str, Any], str]:
    """The exit code, the JSON line and standard error of a command whose request is answered in this way."""
    with served(answer) as url:
        done = CliRunner().invoke(build_app(), [*words, "--url", url, "--generation", "stateful"])
    return done.exit_code, json.loads(done.stdout) if "--json" in words else {}, done.stderr


def hangs_up(request: Request) -> None:
    return None


def refuses(status: int) -> Answer:
    return lambda request: http(b"no", status)


def rpc_error(**data: Any) -> Answer:
    error = {"code": -32000, "message": "no"} | ({"data": data} if data else {})
    return lambda request: http(json.dumps({"jsonrpc": "2.0", "id": request.message["id"], "error": error}).encode())


@pytest.mark.parametrize(
    ("answer", "executed", "code"),
    [
        (rpc_error(executed="no", error_type="policy_denied"), "no", ExitCode.REFUSED),
        (rpc_error(executed="maybe", error_type="upstream_unreachable"), "maybe", ExitCode.OUTCOME_UNKNOWN),
        (rpc_error(), "maybe", ExitCode.FAILED),
        (hangs_up, "maybe", ExitCode.OUTCOME_UNKNOWN),
    ],
)
def test_failed_call_states_executed(answer: Answer, executed: str, code: ExitCode) -> None:
    exit_code, event, _ = run(answer, "call", "x", "--json")
    assert (exit_code, event["executed"], event["exit_code"]) == (code, executed, code)


def test_person_is_warned_of_call_that_may_have_run() -> None:
    _, _, words = run(rpc_error(), "call", "x")
    assert "may have run" in words


@pytest.mark.parametrize("command", ["show", "result", "cancel"])
@pytest.mark.parametrize("answer", [hangs_up, refuses(401), refuses(503), rpc_error()])
def test_failed_task_request_does_not_state_executed(command: str, answer: Answer) -> None:
    _, event, _ = run(answer, "tasks", command, "t1", "--json")
    assert "executed" not in event


@pytest.mark.parametrize("command", ["show", "result", "cancel"])
def test_executed_of_task_comes_from_its_server(command: str) -> None:
    _, event, _ = run(rpc_error(executed="yes", error_type="shutting_down"), "tasks", command, "t1", "--json")
    assert event["executed"] == "yes"


def test_failed_listing_of_tools_does_not_state_executed() -> None:
    _, event, _ = run(refuses(500), "tools", "--json")
    assert "executed" not in event
