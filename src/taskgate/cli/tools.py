"""`taskgate tools`: what tools a gateway or any MCP server offers."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Annotated

import typer

from taskgate.cli import say
from taskgate.cli.exit_codes import ExitCode
from taskgate.cli.target import TakesCommand, Target, aimed

if TYPE_CHECKING:
    from taskgate.client import Tool

Format = Annotated[str, typer.Option("--format", help="`table`, or `openai` for definitions a model can be given.")]


def register(app: typer.Typer) -> None:
    """Put the command on the application."""
    app.command("tools", cls=TakesCommand)(aimed(tools))


def tools(target: Target, as_json: bool, output: Format = "table") -> None:
    """List the tools of a gateway (default), of any server (--url), or of a program (-- COMMAND)."""
    if output not in ("table", "openai"):
        raise typer.BadParameter("--format is `table` or `openai`")
    raise typer.Exit(asyncio.run(_list(target, output, as_json=as_json)))


async def _list(target: Target, output: str, *, as_json: bool) -> ExitCode:
    from taskgate.client import ClientError, connect, openai_tools

    try:
        async with connect(target.address, **target.settings()) as session:
            listed = await session.list_tools()
    except ClientError as error:
        return say.failure(error, as_json=as_json)
    if output == "openai":
        print(json.dumps(openai_tools.definitions(listed), indent=2, ensure_ascii=False))
    elif as_json:
        for tool in listed:
            print(json.dumps(tool.raw, ensure_ascii=False))
    else:
        _print_table(listed, target)
    return ExitCode.OK


def _print_table(listed: list[Tool], target: Target) -> None:
    if not listed:
        say.note(f"{target.name} offers no tools.")
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold")
    for heading in ("Tool", "As a task", "What it does"):
        table.add_column(heading)
    for tool in sorted(listed, key=lambda tool: tool.name):
        words = say.one_line(tool.description)
        shown = words if len(words) <= 100 else words[:99] + "…"
        task = "" if tool.task_support == "forbidden" else str(tool.task_support)
        table.add_row(Text(say.one_line(tool.name)), Text(task), Text(shown))
    Console().print(table)
