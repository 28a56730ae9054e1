"""A stateful server that sends requests to the client: elicitations and samplings as tasks, which it follows. No SDK.

    asking_server.py        (standard streams)

Each tool does one thing to the client and returns, as structured content, what the client answered step by step.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from typing import Any

numbers = itertools.count(1)
waiting: dict[str, asyncio.Future[dict[str, Any]]] = {}
notifications: list[dict[str, Any]] = []
FORM = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer", "default": 42}}}
RELATED = {"_meta": {"io.modelcontextprotocol/related-task": {"taskId": "parent-1"}}}


def write(message: dict[str, Any]) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


async def ask(method: str, params: dict[str, Any] | None = None, request_id: str | None = None) -> dict[str, Any]:
    request_id = request_id or f"srv-{next(numbers)}"
    waiting[request_id] = asyncio.get_running_loop().create_future()
    write({"id": request_id, "method": method, "params": params or {}})
    reply = await asyncio.wait_for(waiting[request_id], 10)
    return reply.get("result", {}) if "error" not in reply else {"error": reply["error"]}


def elicit(**extra: Any) -> dict[str, Any]:
    return {"mode": "form", "message": "Who?", "requestedSchema": FORM, **extra}


async def ask_as_task() -> Any:
    created = await ask("elicitation/create", elicit(task={"ttl": 5000}))
    task_id = created["task"]["taskId"]
    steps = [created, await ask("tasks/get", {"taskId": task_id}), await ask("tasks/list")]
    return [*steps, await ask("tasks/result", {"taskId": task_id}), await ask("tasks/get", {"taskId": task_id})]


async def sample_as_task_and_cancel() -> Any:
    params = {"messages": [{"role": "user", "content": {"type": "text", "text": "wait"}}], "maxTokens": 5, "task": {}}
    created = await ask("sampling/createMessage", params)
    task_id = created["task"]["taskId"]
    cancelled = await ask("tasks/cancel", {"taskId": task_id})
    return [created, cancelled, await ask("tasks/cancel", {"taskId": task_id})]


async def ask_related() -> Any:
    return await ask("elicitation/create", elicit(**RELATED))


async def ask_unknown() -> Any:
    return [await ask("no/such"), await ask("tasks/get", {"taskId": "none"}), await ask("ping")]


async def ask_and_withdraw() -> Any:
    asking = asyncio.create_task(ask("sampling/createMessage", {"messages": [], "maxTokens": 1}, "withdrawn"))
    await asyncio.sleep(0)
    write({"method": "notifications/cancelled", "params": {"requestId": "withdrawn"}})
    pong = await ask("ping")
    asking.cancel()
    return pong


async def ask_url_first() -> Any:
    return "signed in"


TOOLS = {
    tool.__name__: tool
    for tool in (ask_as_task, sample_as_task_and_cancel, ask_related, ask_unknown, ask_and_withdraw, ask_url_first)
}
signed = False


async def answer(message: dict[str, Any]) -> None:
    global signed
    method, params = message["method"], message.get("params") or {}
    if method == "initialize":
        notifications.append(params["capabilities"])
        result: dict[str, Any] = {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "asker", "version": "1"},
        }
    elif method == "tools/list":
        result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]}
    elif method == "tools/call" and params["name"] == "capabilities":
        result = {"content": [], "structuredContent": {"saw": notifications[0]}}
    elif method == "tools/call" and params["name"] == "ask_url_first" and not signed:
        signed = True
        page = {"mode": "url", "message": "Sign in", "url": "https://example.test/in", "elicitationId": "e1"}
        write({"id": message["id"], "error": {"code": -32042, "message": "sign in", "data": {"elicitations": [page]}}})
        await asyncio.sleep(0.05)
        write({"method": "notifications/elicitation/complete", "params": {"elicitationId": "e1"}})
        return
    elif method == "tools/call":
        result = {"content": [], "structuredContent": {"saw": await TOOLS[params["name"]]()}}
    else:
        write({"id": message["id"], "error": {"code": -32601, "message": "no"}})
        return
    write({"id": message["id"], "result": result})


async def main() -> None:
    reader = asyncio.StreamReader(limit=2**24)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    running: set[asyncio.Task[None]] = set()
    while line := await reader.readline():
        message = json.loads(line)
        if "method" in message and "id" in message:
            task = asyncio.create_task(answer(message))
            running.add(task)
            task.add_done_callback(running.discard)
        elif "method" not in message and message.get("id") in waiting:
            waiting[message["id"]].set_result(message)


asyncio.run(main())
