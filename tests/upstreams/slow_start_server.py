"""A stdio server (2025-11-25) that needs as many seconds to start as its first argument says. Run as a program.

Tool: `run` works for `seconds`, and asks first if `asks` is true. It returns how many calls this process has received.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from typing import Any

FORM = {"message": "Which colour?", "requestedSchema": {"type": "object", "properties": {"value": {"type": "string"}}}}
SCHEMA = {"type": "object", "properties": {"seconds": {"type": "number"}, "asks": {"type": "boolean"}}}
answers: dict[str, asyncio.Future[None]] = {}
numbers = itertools.count(1)


def send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


async def run(request_id: Any, number: int, arguments: dict[str, Any]) -> None:
    if arguments.get("asks"):
        answers[f"question-{number}"] = asyncio.get_running_loop().create_future()
        send({"id": f"question-{number}", "method": "elicitation/create", "params": FORM})
        await answers[f"question-{number}"]
    await asyncio.sleep(arguments.get("seconds", 0))
    send({"id": request_id, "result": {"content": [{"type": "text", "text": f"call {number}"}]}})


def result_of(method: str) -> dict[str, Any]:
    if method == "initialize":
        info = {"name": "slow", "version": "1"}
        return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
    return {"tools": [{"name": "run", "inputSchema": SCHEMA}]} if method == "tools/list" else {}


async def main() -> None:
    await asyncio.sleep(float(sys.argv[1]))
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    running = []
    while line := await reader.readline():
        message = json.loads(line)
        if "method" not in message:
            answers[message["id"]].set_result(None)
        elif message["method"] == "server/discover":
            send({"id": message["id"], "error": {"code": -32601, "message": "Method not found"}})
        elif message["method"] == "tools/call":
            arguments = message["params"].get("arguments") or {}
            running.append(asyncio.create_task(run(message["id"], next(numbers), arguments)))
        elif "id" in message:
            send({"id": message["id"], "result": result_of(message["method"])})


if __name__ == "__main__":
    asyncio.run(main())
