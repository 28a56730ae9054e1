"""A server on `fastmcp-tasks`: the tasks extension of 2026-07-28 as its own authors run it.

fastmcp_tasks_server.py --http PORT
"""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta

from fastmcp import Context, FastMCP
from fastmcp.utilities.tasks import TaskConfig
from fastmcp_tasks import TasksExtension
from mcp_types import InputRequiredResult

mcp = FastMCP("fastmcp-tasks-peer")
# Its worker looks for tasks twenty times a second by itself, and is idle in most tests.
mcp.add_extension(TasksExtension(minimum_check_interval=timedelta(milliseconds=200)))
QUICK = TaskConfig(mode="required", poll_interval=timedelta(milliseconds=300))


@mcp.tool
async def echo(text: str) -> str:
    return text


@mcp.tool(task=QUICK)
async def work(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "worked"


@mcp.tool(task=QUICK)
async def fail() -> str:
    raise ValueError("it failed on purpose")


@mcp.tool(task=QUICK)
async def work_asking(context: Context) -> str | InputRequiredResult:
    answers = context.input_responses
    if not answers:
        form = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
        ask = {"method": "elicitation/create", "params": {"message": "What is your name?", "requestedSchema": form}}
        return InputRequiredResult.model_validate({"resultType": "input_required", "inputRequests": {"name": ask}})
    answer = next(iter(answers.values()))
    return f"{answer.action}:{answer.content}"


if __name__ == "__main__":
    mcp.run(transport="http", host="127.0.0.1", port=int(sys.argv[2]), show_banner=False)
