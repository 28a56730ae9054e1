"""`executed` of every error that the client raises: `no` only where it is proven that the tool did not run.

In an error about a task it is about the task's call, which an earlier request carried.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
from tests.client.scripted import Request, Scripted, call_script, http, scripted, stateful

from taskgate.client import (
    CannotConnect,
    ClientError,
    ConnectionLost,
    HttpRefusal,
    InputNeeded,
    ServerError,
    Session,
    SessionClosed,
    TaskNotFound,
    Unauthorized,
    connect,
    errors,
    openai_tools,
)

pytestmark = pytest.mark.timeout(120)
PROVES_NO_CALL = {"CannotConnect", "VersionUnsupported", "LoginFailed", "TasksNotSupported"}
TASK = {
    "taskId": "t1",
    "status": "working",
    "createdAt": "2026-01-01T00:00:00Z",
    "lastUpdatedAt": "2026-01-01T00:00:00Z",
    "ttl": 60000,
    "pollInterval": 5000,
}


def answer_error(request: Request, code: int = -32000, **data: Any) -> bytes:
    error = {"code": code, "message": "no"} | ({"data": data} if data else {})
    return http(json.dumps({"jsonrpc": "2.0", "id": request.message["id"], "error": error}).encode())


def test_only_errors_that_prove_it_are_not_executed_by_default() -> None:
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, ClientError)]
    assert {kind.__name__ for kind in kinds if kind.executed == "no"} == PROVES_NO_CALL


ABOUT_TASKS: dict[str, Callable[[Session], Any]] = {
    "get": lambda session: session.get_task("t1"),
    "result": lambda session: session.get_task_result("t1"),
    "cancel": lambda session: session.cancel_task("t1"),
    "resume": lambda session: session.resume_task("t1"),
    "any method": lambda session: session.request("tasks/update", {"taskId": "t1", "inputResponses": {}}),
}


@pytest.mark.parametrize("ask", ABOUT_TASKS.values(), ids=ABOUT_TASKS)
@pytest.mark.parametrize("status", [401, 404, 429])
async def test_refused_task_request_states_nothing_about_its_call(ask: Callable[[Session], Any], status: int) -> None:
    async with scripted(call_script(lambda request: http(b"no", status))) as server:
        async with stateful(server.url) as session:
            with pytest.raises(HttpRefusal) as caught:
                await ask(session)
    assert caught.value.executed == "maybe"


@pytest.mark.parametrize("ask", ABOUT_TASKS.values(), ids=ABOUT_TASKS)
async def test_unreachable_server_states_nothing_about_the_call_of_a_task(ask: Callable[[Session], Any]) -> None:
    script = Scripted(call_script(lambda request: None), handshake=True)
    listening = await asyncio.start_server(script.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/mcp"
    async with stateful(url, keep_session=True) as session:
        listening.close()
        with pytest.raises((CannotConnect, ConnectionLost)) as caught:
            await ask(session)
    assert caught.value.executed == "maybe"


@pytest.mark.parametrize("executed", ["no", "maybe", "yes"])
async def test_error_about_task_has_executed_of_its_record(executed: str) -> None:
    def answer(request: Request) -> bytes:
        return answer_error(request, -32603, error_type="shutting_down", executed=executed)

    async with scripted(call_script(answer)) as server, stateful(server.url) as session:
        with pytest.raises(ServerError) as caught:
            await session.get_task("t1")
    assert (caught.value.executed, caught.value.error_type) == (executed, "shutting_down")


async def test_unknown_task_may_have_been_executed() -> None:
    async with scripted(call_script(lambda request: answer_error(request, -32602))) as server:
        async with stateful(server.url) as session:
            with pytest.raises(TaskNotFound) as caught:
                await session.get_task("t1")
    assert caught.value.executed == "maybe"


async def test_closing_session_leaves_followed_task_undecided() -> None:
    def answer(request: Request) -> bytes:
        return http(request.reply(TASK))

    async with scripted(call_script(answer)) as server:
        async with stateful(server.url) as session:
            handle = await session.resume_task("t1")
        with pytest.raises(SessionClosed) as caught:
            await handle.result()
    assert caught.value.executed == "maybe"


def rounds(second: Callable[[Request], bytes | None]) -> Callable[[Request], bytes | None]:
    """A stateless server whose first reply to a call requests input."""

    def answer(request: Request) -> bytes | None:
        if request.method == "server/discover":
            capabilities: dict[str, Any] = {"tools": {}}
            found = {"supportedVersions": ["2026-07-28"], "capabilities": capabilities, "serverInfo": {"name": "s"}}
            return http(request.reply({**found, "resultType": "complete", "ttlMs": 0, "cacheScope": "private"}))
        if request.method == "tools/call" and "requestState" not in request.message["params"]:
            asked = {"q": {"method": "elicitation/create", "params": {"message": "Who?", "requestedSchema": {}}}}
            return http(request.reply({"resultType": "input_required", "inputRequests": asked, "requestState": "s1"}))
        return second(request)

    return call_script(answer)


@pytest.mark.parametrize(
    ("second", "kind", "executed"),
    [
        (lambda request: http(b"no", 401), Unauthorized, "maybe"),
        (lambda request: http(b"no", 429), HttpRefusal, "maybe"),
        (lambda request: answer_error(request), ServerError, "maybe"),
        # In the first round the gateway requested an approval from its caller: the gateway has the record.
        (lambda request: answer_error(request, error_type="approval_rejected", executed="no"), ServerError, "no"),
    ],
)
async def test_second_round_is_never_proof_that_call_did_not_run(
    second: Callable[[Request], bytes], kind: type[ClientError], executed: str
) -> None:
    async with scripted(rounds(second), handshake=False) as server:
        async with connect(server.url, elicitation=lambda question: {"action": "accept", "content": {}}) as session:
            with pytest.raises(kind) as caught:
                await session.call_tool("x")
    assert caught.value.executed == executed


async def test_unanswered_question_leaves_call_undecided() -> None:
    async with scripted(rounds(lambda request: None), handshake=False) as server:
        async with connect(server.url) as session:
            with pytest.raises(InputNeeded) as caught:
                await session.call_tool("x")
    assert caught.value.executed == "maybe"


@pytest.mark.parametrize("status", [400, 500, 503])
async def test_failed_handshake_executes_nothing(status: int) -> None:
    async with scripted(call_script(lambda request: http(b"oops", status)), handshake=False) as server:
        with pytest.raises(ClientError) as caught:
            async with connect(server.url):
                pass
    assert caught.value.executed == "no"


async def test_failed_listing_before_call_executes_nothing() -> None:
    """The tool is first looked up at a stateful server with tasks: whether it must run as a task."""

    def answer(request: Request) -> bytes | None:
        if request.method == "initialize":
            result = {"protocolVersion": "2025-11-25", "capabilities": {"tasks": {"requests": {"tools": {"call": {}}}}}}
            return http(request.reply({**result, "serverInfo": {"name": "s", "version": "1"}}))
        return http(b"", 202) if "id" not in request.message else http(b"oops", 500)

    async with scripted(call_script(answer), handshake=False) as server, stateful(server.url) as session:
        with pytest.raises(HttpRefusal) as caught:
            await session.call_tool("x")
    assert caught.value.executed == "no"
    assert "tools/call" not in [request.method for request in server.seen]


async def test_call_after_end_of_server_program_was_not_sent() -> None:
    """The program answers the handshake, takes one call and ends: that call may have run, the next one was never written."""
    program = (
        "import json,sys\n"
        "for line in sys.stdin:\n"
        "    said = json.loads(line)\n"
        "    if said.get('method') == 'tools/call': sys.exit(1)\n"
        "    if said.get('method') == 'initialize':\n"
        "        result = {'protocolVersion': '2025-11-25', 'capabilities': {'tools': {}}, 'serverInfo': {'name': 's'}}\n"
        "        print(json.dumps({'jsonrpc': '2.0', 'id': said['id'], 'result': result}), flush=True)\n"
    )
    async with connect([sys.executable, "-c", program], generation="stateful") as session:
        with pytest.raises(ConnectionLost) as first:
            await session.call_tool("x")
        with pytest.raises(ConnectionLost) as second:
            await session.call_tool("x")
        with pytest.raises(ConnectionLost) as about_task:
            await session.get_task("t1")
    assert [caught.value.executed for caught in (first, second, about_task)] == ["maybe", "no", "maybe"]


@pytest.mark.parametrize(("executed", "words"), [("no", "was not run"), ("maybe", "may have run"), ("yes", "was run")])
async def test_result_for_a_model_states_whether_the_failed_call_ran(executed: str, words: str) -> None:
    answer = call_script(lambda request: answer_error(request, executed=executed))
    async with scripted(answer) as server, stateful(server.url) as session:
        call = {"id": "c1", "function": {"name": "x", "arguments": "{}"}}
        (message,) = await openai_tools.dispatch(session, [call], [])
    assert words in message["content"]
