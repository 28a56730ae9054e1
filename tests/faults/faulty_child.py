"""A stdio server whose faults are chosen by the arguments of each call. It records executions in a ledger file.

`python faulty_child.py GENERATION LEDGER`. Each line of the ledger is a word and the number of a case; it is on the disk before
anything is answered, and a child that was started again reads it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

GENERATION, LEDGER = sys.argv[1], sys.argv[2]
Wire = dict[str, Any]
QUESTION = {
    "method": "elicitation/create",
    "params": {"message": "Which?", "requestedSchema": {"type": "object", "properties": {"value": {"type": "string"}}}},
}


def note(word: str, number: int) -> None:
    with open(LEDGER, "a") as file:
        file.write(f"{word} {number}\n")


def noted(word: str, number: int) -> int:
    with open(LEDGER) as file:
        return file.read().splitlines().count(f"{word} {number}")


def send(message: Wire) -> None:
    sys.stdout.write(json.dumps(message, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def leave(code: int) -> None:
    sys.stdout.flush()
    os._exit(code)


def described(message: Wire) -> Wire | None:
    tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ("once", "read")]
    if message["method"] == "tools/list":
        return {"tools": tools, **({"ttlMs": 60_000, "cacheScope": "public"} if GENERATION == "2026" else {})}
    if message["method"] == "initialize" and GENERATION == "2025":
        info = {"name": "child", "version": "1"}
        return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
    if message["method"] == "server/discover" and GENERATION == "2026":
        return {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
    return {} if message["method"] == "ping" else None


def answer_of(message: Wire, text: str) -> Wire:
    result: Wire = {"content": [{"type": "text", "text": text}]}
    if GENERATION == "2026":
        result["resultType"] = "complete"
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}


async def call(message: Wire) -> None:
    params = message["params"]
    case = params["arguments"]
    number = case["case"]
    if case["round"] == 2 and not params.get("inputResponses"):
        note("asked", number)
        asked = {"resultType": "input_required", "inputRequests": {"colour": QUESTION}, "requestState": "s"}
        send({"jsonrpc": "2.0", "id": message["id"], "result": asked})
        return
    note("sent", number)
    await asyncio.sleep(case["delay"])
    faulty = noted("sent", number) <= case["sends"]
    if not faulty or case["runs"]:
        note("ran", number)
    if faulty:
        await misbehave(message, case["how"])
    else:
        send(answer_of(message, f"ran {number}"))


LINE = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}}


async def misbehave(message: Wire, how: str) -> None:
    """`silence` writes nothing at all."""
    answer = answer_of(message, "answered")
    text = json.dumps(answer)
    words: dict[str, str] = {
        "half a line, then exit": text[: len(text) // 2],
        "whole answer without a newline, then exit": text,
        "answer, then exit": text + "\n",
        "answer behind many lines, then exit": (json.dumps(LINE) + "\n") * 300 + text + "\n",
        "garbage, then the answer": "Traceback: this is no JSON {\n\x00\xff\n[1,2\n" + text + "\n",
        "an error": json.dumps({**LINE_OF_ERROR, "id": message["id"]}) + "\n",
        "an answer that cannot be read": f'{{"jsonrpc":"2.0","id":{message["id"]},"result":{{"a":1,"a":2}}}}\n',
        "an answer that is too large": json.dumps(answer_of(message, "x" * 300_000)) + "\n",
        "another id": json.dumps({**answer, "id": 999_999_999}) + "\n",
    }
    sys.stdout.write(words.get(how, ""))
    sys.stdout.flush()
    if how == "closed output":
        sys.stdout.close()
        await asyncio.sleep(1_000)
    elif how.endswith("exit"):
        leave(3)


LINE_OF_ERROR = {"jsonrpc": "2.0", "error": {"code": -32603, "message": "answered"}}


async def main() -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    running = set()
    while line := await reader.readline():
        message = json.loads(line)
        if "id" not in message or "method" not in message:
            continue
        if message["method"] == "tools/call":
            task = asyncio.ensure_future(call(message))
            running.add(task)
            task.add_done_callback(running.discard)
            continue
        result = described(message)
        error = {"code": -32601, "message": "no such method"}
        body = {"result": result} if result is not None else {"error": error}
        send({"jsonrpc": "2.0", "id": message["id"], **body})


asyncio.run(main())
