# ruff: noqa: T201
"""A slow tool as a task: start it, watch its progress, collect the result; then a tool that asks a question.

python examples/follow_a_task.py http://127.0.0.1:7467/mcp

Works with the demo server that `taskgate serve` serves when it has no configuration.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from taskgate.client import Question, accept, connect


async def answer(question: Question) -> dict[str, Any]:
    """Answer a question of the server. A real client would show the form to its user."""
    print(f"asked: {question.message}")
    fields = question.params.get("requestedSchema", {}).get("properties", {})
    return accept(dict.fromkeys(fields, "Ann"))


async def main() -> None:
    async with connect(sys.argv[1], elicitation=answer) as session:
        names = [tool.name for tool in await session.list_tools()]
        report = next(name for name in names if name.endswith("slow_report"))
        handle = await session.call_tool_as_task(report, {"seconds": 2})
        print(f"task: {handle.task_id}")
        async for update in handle.updates():
            done = "" if update.progress is None else f" {update.progress:g} of {update.total or 0:g}"
            print(f"{update.status}{done}")
        print(f"result: {(await handle.result()).text}")
        greeting = next(name for name in names if name.endswith("greet"))
        print(f"result: {(await session.call_tool(greeting)).text}")


if __name__ == "__main__":
    asyncio.run(main())
