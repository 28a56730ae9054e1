"""A stdio MCP server that records every call, and reads the definitions of its tools from a file at each list request.

Run as a program: `recording_server.py NOTES TOOLS`. The test reads NOTES to prove what went upstream, and rewrites TOOLS to
change a definition behind the gateway's back. A file CAPABILITIES beside TOOLS, if there is one, is added to the
capabilities of the server; with `tasks` in it, calls may be tasks, which end at once. Its process id is in the file PID.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

NOTES, TOOLS = Path(sys.argv[1]), Path(sys.argv[2])
CAPABILITIES, PID = TOOLS.with_name("CAPABILITIES"), TOOLS.with_name("PID")
TASKS: dict[str, dict[str, Any]] = {}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        capabilities: dict[str, Any] = {"tools": {"listChanged": True}, "resources": {}, "prompts": {}}
        if CAPABILITIES.exists():
            capabilities |= json.loads(CAPABILITIES.read_text())
        return {
            "protocolVersion": "2025-11-25",
            "capabilities": capabilities,
            "serverInfo": {"name": "noting", "version": "1"},
        }
    if method == "tools/list":
        return {"tools": json.loads(TOOLS.read_text())}
    if method == "resources/list":
        return {"resources": [{"uri": "note://secret", "name": "secret"}, {"uri": "note://open", "name": "open"}]}
    if method == "resources/templates/list":
        return {"resourceTemplates": []}
    if method == "prompts/list":
        return {"prompts": [{"name": "draft_mail"}]}
    if method in ("tools/call", "resources/read", "prompts/get"):
        with NOTES.open("a") as notes:
            notes.write(json.dumps({"method": method, "params": params}) + "\n")
    if method == "tools/call" and "task" in params:
        return new_task(params)
    if method.startswith("tasks/"):
        return about_task(method, TASKS[params["taskId"]] if "taskId" in params else {})
    if method == "tools/call":
        return {"content": [{"type": "text", "text": f"did {params['name']} {json.dumps(params.get('arguments'))}"}]}
    if method == "resources/read":
        return {"contents": [{"uri": params["uri"], "text": "the text"}]}
    if method == "prompts/get":
        return {"messages": []}
    return {}


def new_task(params: dict[str, Any]) -> dict[str, Any]:
    task_id = f"up-{os.getpid()}-{len(TASKS)}"
    when = "2026-01-01T00:00:00Z"
    shown = {"taskId": task_id, "status": "working", "createdAt": when, "lastUpdatedAt": when, "ttl": 60000}
    TASKS[task_id] = {"shown": {**shown, "status": "completed", "pollInterval": 50}, "name": params["name"]}
    return {"task": {**shown, "pollInterval": 50}}


def about_task(method: str, task: dict[str, Any]) -> dict[str, Any]:
    if method == "tasks/list":
        return {"tasks": [known["shown"] for known in TASKS.values()]}
    if method == "tasks/result":
        return {"content": [{"type": "text", "text": f"did {task['name']} as a task"}]}
    return dict(task["shown"])


async def main() -> None:
    PID.write_text(str(os.getpid()))
    reader = asyncio.StreamReader(limit=1 << 24)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        message = json.loads(line)
        if "id" in message and "method" in message:
            result = answer(message["method"], message.get("params") or {})
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main())
