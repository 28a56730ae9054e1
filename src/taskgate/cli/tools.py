"""`taskgate tools`: list the tools of a gateway or of any MCP server."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Annotated

from taskgate.cli import printing
from taskgate.cli.command_line import BadParameter, Commands, Exit, Option
from taskgate.cli.exit_codes import ExitCode
from taskgate.cli.target import TakesCommand, Target, with_target_options

if TYPE_CHECKING:
    from taskgate.client import Tool


Format = Annotated[str, Option("--format", help="`table`, or `openai` for OpenAI-style tool definitions.")]
OnlyServers = Annotated[bool, Option("--only-servers", help="Omit the gateway's own tools.")]


def register(app: Commands) -> None:
    """Add the commands to the application."""
    app.command("tools", kind=TakesCommand)(with_target_options(tools))


def tools(target: Target, as_json: bool, output: Format = "table", only_servers: OnlyServers = False) -> None:
    """List the tools of a gateway (default), of any MCP server (--url), or of a program (-- COMMAND)."""
    if output not in ("table", "openai"):
        raise BadParameter("--format must be `table` or `openai`")
    raise Exit(asyncio.run(_list(target, output, as_json=as_json, only_servers=only_servers)))


async def _list(target: Target, output: str, *, as_json: bool, only_servers: bool) -> ExitCode:
    from taskgate.client import ClientError, connect, openai_tools

    try:
        async with connect(target.address, **target.settings()) as session:
            listed = await session.list_tools()
    except ClientError as error:
        return printing.failure(error, as_json=as_json, executed=None, gateway=target.is_gateway)
    if target.is_gateway and only_servers:
        listed = without_helpers(listed)
    if output == "openai":
        print(json.dumps(openai_tools.definitions(listed), indent=2, ensure_ascii=False))
    elif as_json:
        for tool in listed:
            print(json.dumps(tool.raw, ensure_ascii=False))
    else:
        _print_table(listed, target)
    return ExitCode.OK


def without_helpers(listed: list[Tool]) -> list[Tool]:
    """Return the servers' tools, or all tools if there are none (as in a facade scope)."""
    from taskgate.gateway.own_tools.table import TOOLS

    kept = [tool for tool in listed if tool.name not in TOOLS]
    return kept or listed


def _print_table(listed: list[Tool], target: Target) -> None:
    if not listed:
        printing.note(f"{target.name} has no tools.")
        return
    rows = []
    for tool in sorted(listed, key=lambda tool: tool.name):
        words = printing.one_line(tool.description)
        shown = words if len(words) <= 100 else words[:99] + "…"
        rows.append((tool.name, "" if tool.task_support == "forbidden" else tool.task_support, shown))
    if any(task_support for _, task_support, _ in rows):
        printing.table(("Tool", "Task support", "Description"), rows)
    else:
        # Only stateful servers declare task support.
        printing.table(("Tool", "Description"), [(name, words) for name, _, words in rows])
