"""A server that breaks the rules on purpose, one way per tool name; both generations, HTTP and stdio, no SDK.

faulty_server.py --http PORT | --stdio

`tools/call` of a tool makes a task (stateful: only when asked, except `unasked_task`) whose `tasks/get` replies
follow that tool's script, one reply per poll, the last one for ever. The tool `polls` returns when each task was polled.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from typing import Any

ENVELOPE = "io.modelcontextprotocol/protocolVersion"
GONE = {"gone": True}
OK: dict[str, Any] = {"content": [{"type": "text", "text": "true result"}]}

# tool -> (ttl of the task, replies to tasks/get)
SCRIPTS: dict[str, tuple[int | None, list[dict[str, Any]]]] = {
    "honest": (60_000, [{"status": "working"}, {"status": "completed"}]),
    "unasked_task": (60_000, [{"status": "completed"}]),
    "unknown_status": (60_000, [{"status": "exploded"}]),
    "no_status": (60_000, [{"status": None}]),
    "back_from_terminal": (60_000, [{"status": "completed"}, {"status": "working"}]),
    "vanish": (60_000, [{"status": "working"}, GONE]),
    "expire": (300, [{"status": "working"}, GONE]),
    "other_task": (60_000, [{"status": "working", "taskId": "somebody-elses"}]),
    "empty_success": (60_000, [{"status": "failed", "statusMessage": "the worker crashed"}]),
    "no_result": (60_000, [{"status": "completed"}]),
    "result_hangs": (60_000, [{"status": "completed"}]),
    "result_gone": (60_000, [{"status": "completed"}]),
    "cancelled": (60_000, [{"status": "cancelled", "statusMessage": "by an operator"}]),
    "forever": (None, [{"status": "working"}]),
    "short_lived": (60_000, [{"status": "working"}]),
    "changing_interval": (
        60_000,
        [
            {"status": "working", "interval": 250},
            {"status": "working", "interval": 700},
            {"status": "working", "interval": -5},
            {"status": "working", "interval": 250},
            {"status": "completed"},
        ],
    ),
    "pushed": (60_000, [{"status": "working", "interval": 60_000}]),
    "busy": (60_000, [{"http": 429}, {"http": 503}, {"status": "completed"}]),
    "progressing": (
        60_000,
        [{"status": "working"}, {"status": "working", "statusMessage": "half"}, {"status": "completed"}],
    ),
    "early_result": (60_000, [{"status": "input_required"}]),
    "rubbish_then_fine": (60_000, [{"rubbish": True}, {"rubbish": True}, {"status": "completed"}]),
}
numbers = itertools.count(1)
tasks: dict[str, dict[str, Any]] = {}


def describe(task: dict[str, Any], entry: dict[str, Any], stateless: bool) -> dict[str, Any]:
    described = {
        "taskId": entry.get("taskId", task["id"]),
        "status": entry.get("status"),
        "createdAt": "2026-01-01T00:00:00Z",
        "lastUpdatedAt": "2026-01-01T00:00:00Z",
        "ttlMs" if stateless else "ttl": task["ttl"],
        "pollIntervalMs" if stateless else "pollInterval": entry.get("interval", 250),
    }
    if "statusMessage" in entry:
        described["statusMessage"] = entry["statusMessage"]
    if stateless and entry.get("status") == "completed" and task["tool"] != "no_result":
        described["result"] = OK
    return described


def make_task(tool: str, stateless: bool) -> dict[str, Any]:
    ttl, script = SCRIPTS[tool]
    task = {"id": f"task-{next(numbers)}", "tool": tool, "ttl": ttl, "script": list(script), "polls": []}
    tasks[task["id"]] = task
    described = describe(task, {"status": "working", **({"interval": 60_000} if tool == "pushed" else {})}, stateless)
    meta = {"io.modelcontextprotocol/model-immediate-response": "I started it."}
    return {"resultType": "task", **described} if stateless else {"task": described, "_meta": meta}


class Refuse(Exception):
    """Answer with this JSON-RPC error or HTTP status."""

    def __init__(self, code: int, http: int = 200) -> None:
        super().__init__(str(code))
        self.code, self.http = code, http


def poll(task: dict[str, Any], stateless: bool) -> dict[str, Any]:
    task["polls"].append(time.monotonic())
    entry = task["script"].pop(0) if len(task["script"]) > 1 else task["script"][0]
    if "http" in entry:
        raise Refuse(0, entry["http"])
    if entry is GONE:
        raise Refuse(-32602)
    if "rubbish" in entry:
        return {"resultType": "complete", "tasks": "what tasks?"}
    return {"resultType": "complete", **describe(task, entry, stateless)} if stateless else describe(task, entry, False)


async def result_of(task: dict[str, Any]) -> dict[str, Any]:
    if task["tool"] == "result_hangs":
        await asyncio.sleep(3600)
    if task["tool"] == "result_gone":
        raise Refuse(-32602)
    return {} if task["tool"] in ("empty_success", "no_result") else OK


async def call(params: dict[str, Any], stateless: bool) -> dict[str, Any]:
    name = params["name"]
    if name == "polls":
        task = tasks[params["arguments"]["taskId"]]
        gaps = [round(b - a, 3) for a, b in itertools.pairwise(task["polls"])]
        return {"content": [{"type": "text", "text": json.dumps(gaps)}]}
    if name == "late":
        await asyncio.sleep(float(params["arguments"]["seconds"]))
        return OK
    if name == "big_integer":
        return {"content": [], "structuredContent": {"n": 2**100 + 1, "f": 1.5}}
    if name not in SCRIPTS:
        return {"content": [{"type": "text", "text": params.get("arguments", {}).get("text", name)}]}
    if stateless or "task" in params or name == "unasked_task":
        return make_task(name, stateless)
    return OK


async def answer(method: str, params: dict[str, Any], stateless: bool) -> dict[str, Any]:
    if method == "initialize":
        capabilities = {"tools": {}, "tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}}
        info = {"name": "liar", "version": "1"}
        return {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info}
    if method == "server/discover":
        capabilities = {"tools": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}}
        return {"supportedVersions": ["2026-07-28"], "capabilities": capabilities, "ttlMs": 0, "cacheScope": "private"}
    if method == "tools/list":
        names = [*SCRIPTS, "polls", "late", "twice"]
        execution = {} if stateless else {"execution": {"taskSupport": "optional"}}
        listed = [{"name": name, "inputSchema": {"type": "object"}, **execution} for name in names]
        return {"tools": listed}
    if method == "tools/call":
        return await call(params, stateless)
    if method == "tasks/list":
        page = int(params.get("cursor", "0"))
        chosen = list(tasks.values())[page * 2 : page * 2 + 2]
        more = {"nextCursor": str(page + 1)} if len(tasks) > page * 2 + 2 else {}
        return {"tasks": [describe(task, {"status": "working"}, False) for task in chosen], **more}
    task = tasks.get(params.get("taskId", ""))
    if task is None and method.startswith("tasks/"):
        raise Refuse(-32602)
    if method == "tasks/get":
        return poll(task, stateless)
    if method == "tasks/result" and not stateless:
        return await result_of(task)
    if method == "tasks/cancel":
        task["script"] = [{"status": "cancelled"}]
        return {"resultType": "complete"} if stateless else describe(task, {"status": "cancelled"}, False)
    raise Refuse(-32601)


async def reply_to(message: dict[str, Any]) -> tuple[int, dict[str, Any] | None]:
    if "id" not in message:
        return 202, None
    params = message.get("params") or {}
    stateless = ENVELOPE in (params.get("_meta") or {})
    envelope = {"jsonrpc": "2.0", "id": message["id"]}
    try:
        result = await answer(message["method"], params, stateless)
    except Refuse as refusal:
        return refusal.http, envelope | {"error": {"code": refusal.code, "message": "refused"}}
    if stateless:
        result.setdefault("resultType", "complete")
    return 200, envelope | {"result": result}


async def serve_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            lines = head.decode("latin-1").split("\r\n")
            headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:])}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            if not lines[0].startswith("POST"):
                writer.write(b"HTTP/1.1 405 No\r\ncontent-length: 0\r\n\r\n")
                continue
            message = json.loads(body)
            status, reply = await reply_to(message)
            out = json.dumps(reply).encode() if reply else b""
            retry = b"retry-after: 1\r\n" if status == 429 else b""
            kind = b"application/json"
            if (message.get("params") or {}).get("name") == "twice":
                out = b"".join(b"data: " + out + b"\n\n" for _ in range(3))
                kind = b"text/event-stream"
            writer.write(
                b"HTTP/1.1 %d X\r\n%bcontent-type: %b\r\ncontent-length: %d\r\n\r\n" % (status, retry, kind, len(out))
                + out
            )
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


def push_by_subscription(message: dict[str, Any]) -> None:
    """Acknowledge, then notify that every subscribed task is completed."""
    wanted, meta = message["params"]["notifications"], {"io.modelcontextprotocol/subscriptionId": message["id"]}
    named = [tasks[task_id] for task_id in wanted.get("taskIds", [])]
    frames = [("notifications/subscriptions/acknowledged", {"notifications": wanted})]
    frames += [("notifications/tasks", describe(task, {"status": "completed"}, True)) for task in named]
    for method, params in frames:
        print(json.dumps({"jsonrpc": "2.0", "method": method, "params": {**params, "_meta": meta}}), flush=True)


async def serve_stdio() -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    running: set[asyncio.Task[None]] = set()

    async def respond(message: dict[str, Any]) -> None:
        _, reply = await reply_to(message)
        name = (message.get("params") or {}).get("name")
        if name == "die":
            print("I am tired", file=sys.stderr, flush=True)
            sys.exit(3)
        if message["method"] == "subscriptions/listen":
            push_by_subscription(message)
            return
        for _ in range(3 if name == "twice" else 1):
            if reply:
                print(json.dumps(reply), flush=True)
        if name == "pushed" and "task" in (reply or {}).get("result", {}):
            done = {**reply["result"]["task"], "status": "completed"}
            print(json.dumps({"jsonrpc": "2.0", "method": "notifications/tasks/status", "params": done}), flush=True)

    print("this line is no JSON", flush=True)
    while line := await reader.readline():
        task = asyncio.create_task(respond(json.loads(line)))
        running.add(task)
        task.add_done_callback(running.discard)


async def main() -> None:
    if sys.argv[1] == "--stdio":
        await serve_stdio()
        return
    server = await asyncio.start_server(serve_connection, "127.0.0.1", int(sys.argv[2]), backlog=1000)
    await server.serve_forever()


asyncio.run(main())
