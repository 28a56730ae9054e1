"""A stdio server (2025-11-25) whose questions are not tied to a call. Run as a program.

Tools: `stay` returns when this process has got an answer to a question; `ask` asks once `company` calls of `stay` are open and
returns the answer as JSON; `process` returns the number of the process; `update` notifies subscribers of `memo://one`;
`die` ends it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

FORM = {"message": "Which colour?", "requestedSchema": {"type": "object", "properties": {"value": {"type": "string"}}}}
TOOLS = ("stay", "ask", "process", "update", "die")
MEMO = "memo://one"
followed: set[str] = set()
staying: list[asyncio.Event] = []
arrived = asyncio.Event()
answers: dict[str, asyncio.Future[dict[str, Any]]] = {}


def send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


async def ask(company: int) -> str:
    while len(staying) < company:
        arrived.clear()
        await arrived.wait()
    key = f"question-{len(answers)}"
    answers[key] = asyncio.get_running_loop().create_future()
    send({"id": key, "method": "elicitation/create", "params": FORM})
    answer = await answers[key]
    for one in staying:
        one.set()
    return json.dumps(answer)


async def stay() -> str:
    answered = asyncio.Event()
    staying.append(answered)
    arrived.set()
    try:
        await answered.wait()
    finally:
        staying.remove(answered)
    return "stayed"


async def call(request_id: Any, name: str, arguments: dict[str, Any]) -> None:
    if name == "stay":
        text = await stay()
    elif name == "ask":
        text = await ask(arguments.get("company", 0))
    else:
        text = str(os.getpid())
    if name == "update" and MEMO in followed:
        send({"method": "notifications/resources/updated", "params": {"uri": MEMO}})
    send({"id": request_id, "result": {"content": [{"type": "text", "text": text}]}})


def result_of(method: str) -> dict[str, Any]:
    if method == "initialize":
        info = {"name": "asking", "version": "1"}
        capabilities = {"tools": {}, "resources": {"subscribe": True}}
        return {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info}
    if method == "resources/list":
        return {"resources": [{"uri": MEMO, "name": "one"}]}
    if method == "tools/list":
        schema = {"type": "object", "properties": {"company": {"type": "integer"}}}
        return {"tools": [{"name": name, "inputSchema": schema} for name in TOOLS]}
    return {}


async def main() -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    calls: dict[Any, asyncio.Task[None]] = {}
    while line := await reader.readline():
        message = json.loads(line)
        if "method" not in message:
            answers[message["id"]].set_result(message.get("result") or message)
        elif message["method"] == "server/discover":
            send({"id": message["id"], "error": {"code": -32601, "message": "Method not found"}})
        elif message["method"] == "tools/call":
            params = message["params"]
            if params["name"] == "die":
                return
            work = call(message["id"], params["name"], params.get("arguments") or {})
            calls[message["id"]] = asyncio.create_task(work)
        elif message["method"] == "notifications/cancelled":
            calls[message["params"]["requestId"]].cancel()
        elif "id" in message:
            if message["method"] == "resources/subscribe":
                followed.add(message["params"]["uri"])
            send({"id": message["id"], "result": result_of(message["method"])})


if __name__ == "__main__":
    asyncio.run(main())
