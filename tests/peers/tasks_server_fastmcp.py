"""A real server with the tasks extension of 2026-07-28: FastMCP with `fastmcp-tasks`, over HTTP.

It offers the two task tools of the behaviour servers. Its tasks run in a worker inside this process, so it needs no broker.

    python tasks_server_fastmcp.py --http 9100
"""

import asyncio
import sys
from datetime import timedelta

from fastmcp import Context, FastMCP
from fastmcp.utilities.tasks import TaskConfig
from fastmcp_tasks import TasksExtension
from mcp_types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult

server = FastMCP("tasks-fastmcp")
# Its worker looks for tasks twenty times a second by itself, and is idle in most tests.
server.add_extension(TasksExtension(url="memory://", minimum_check_interval=timedelta(milliseconds=200)))
# The poll interval; the library's default is five seconds.
OFTEN = TaskConfig(mode="optional", poll_interval=timedelta(milliseconds=200))


@server.tool(task=OFTEN)
async def work(seconds: float) -> str:
    """Work for a while."""
    await asyncio.sleep(seconds)
    return "worked"


@server.tool(task=OFTEN)
async def work_asking(context: Context) -> str | InputRequiredResult:
    """Ask the caller for a name: the tool ends with the question and runs again with the answer."""
    answer = (context.input_responses or {}).get("name")
    if answer is None:
        schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
        question = ElicitRequestFormParams(message="What is your name?", requested_schema=schema)
        return InputRequiredResult(input_requests={"name": ElicitRequest(params=question)})
    return f"{answer.action}:{answer.content['name']}"


if __name__ == "__main__":
    server.run(
        transport="http", host="127.0.0.1", port=int(sys.argv[2]), path="/mcp", log_level="error", show_banner=False
    )
