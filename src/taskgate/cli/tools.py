"""`taskgate tools`: what tools a gateway or any MCP server offers."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Annotated

import typer

from taskgate.cli import say
from taskgate.cli.say import ExitCode
from taskgate.cli.target import TakesCommand, Target, aimed

if TYPE_CHECKING:
    from taskgate.client import Tool

Format = Annotated[str, typer.Option("--format", help="`table`, or `openai` for definitions a model can be given.")]
All = Annotated[bool, typer.Option("--all", help="Also the gateway's own tools, with which agents follow tasks.")]


def register(app: typer.Typer) -> None:
    """Put the command on the application."""
    app.command("tools", cls=TakesCommand)(aimed(tools))


def tools(target: Target, as_json: bool, output: Format = "table", everything: All = False) -> None:
    """List the tools of a gateway (default), of any server (--url), or of a program (-- COMMAND)."""
    if output not in ("table", "openai"):
        raise typer.BadParameter("--format is `table` or `openai`")
    raise typer.Exit(asyncio.run(_list(target, output, as_json=as_json, everything=everything)))


async def _list(target: Target, output: str, *, as_json: bool, everything: bool) -> ExitCode:
    from taskgate.client import ClientError, connect, openai_tools

    try:
        async with connect(target.address, **target.settings()) as session:
            listed = await session.list_tools()
    except ClientError as error:
        return say.failure(error, as_json=as_json, gateway=target.is_gateway)
    if target.is_gateway and not everything:
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
    """The servers' tools. The gateway's own are for agents, unless there is nothing else: then they are what one has."""
    from taskgate.gateway.own_tools.table import TOOLS

    kept = [tool for tool in listed if tool.name not in TOOLS]
    return kept or listed


def _print_table(listed: list[Tool], target: Target) -> None:
    if not listed:
        say.note(f"{target.name} offers no tools.")
        return
    rows = []
    for tool in sorted(listed, key=lambda tool: tool.name):
        words = say.one_line(tool.description)
        shown = words if len(words) <= 100 else words[:99] + "…"
        rows.append((tool.name, "" if tool.task_support == "forbidden" else tool.task_support, shown))
    say.table(("Tool", "As a task", "What it does"), rows)
