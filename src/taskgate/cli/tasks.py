"""`taskgate tasks`: list, show, watch, collect and cancel tasks by their ids."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taskgate.cli import operator_tasks, say
from taskgate.cli.follow import Display, ServerQuestions, answerer, follow_task
from taskgate.cli.say import ExitCode
from taskgate.cli.target import Target, Timeout, aimed

if TYPE_CHECKING:
    from taskgate.client import Session, Task

TaskId = Annotated[str, typer.Argument(metavar="TASK", help="The task's id.")]
Work = Callable[["Session"], Awaitable[ExitCode]]


def register(app: typer.Typer) -> None:
    """Put the group of commands on the application."""
    group = typer.Typer(help="Follow and manage tasks.", no_args_is_help=True)
    # Only the stateful generation has a list of tasks.
    group.command("list")(aimed(list_, generation="stateful"))
    for command in (show, watch, result, cancel):
        group.command(command.__name__)(aimed(command))
    app.add_typer(group, name="tasks")


def list_(
    target: Target,
    as_json: bool,
    everything: Annotated[bool, typer.Option("--all", help="Also tasks that have ended (operators).")] = False,
    state: Annotated[
        str | None, typer.Option(help="Only in this state: open, all, or one of them (operators).")
    ] = None,
    server: Annotated[str | None, typer.Option(help="Only of this server (operators).")] = None,
    tool: Annotated[str | None, typer.Option(help="Only with this in the tool's name (operators).")] = None,
    caller: Annotated[str | None, typer.Option(help="Only of this principal (operators).")] = None,
    in_scope: Annotated[str | None, typer.Option(help="Only made in this scope (operators).")] = None,
    since: Annotated[str | None, typer.Option(help="Only made since: 30m, 24h, 7d or a date (operators).")] = None,
    until: Annotated[str | None, typer.Option(help="Only made before (operators).")] = None,
    text: Annotated[str | None, typer.Option(help="Only with this in its record (operators).")] = None,
) -> None:
    """List tasks: everybody's for the operator of a gateway, your own otherwise."""
    wanted = {
        "server": server,
        "tool": tool,
        "caller": caller,
        "scope": in_scope,
        "since": since,
        "until": until,
        "text": text,
    }
    given = {name: value for name, value in wanted.items() if value is not None}
    if operator_tasks.is_operator(target):
        shown = state or ("all" if everything else "open")
        operator_tasks.list_all(target, as_json=as_json, state=shown, wanted=given)
        return
    if given or state is not None:
        say.note("Only the operator of a gateway can look for tasks by these; your own are listed without.")
        raise typer.Exit(ExitCode.USAGE)

    async def work(session: Session) -> ExitCode:
        _print_list(await session.list_tasks(), as_json=as_json)
        return ExitCode.OK

    _run(target, work, as_json=as_json)


def show(target: Target, as_json: bool, task_id: TaskId) -> None:
    """Show the state of one task."""
    if operator_tasks.is_operator(target):
        operator_tasks.show_one(target, task_id, as_json=as_json)
        return

    async def work(session: Session) -> ExitCode:
        _print_one(await session.get_task(task_id), as_json=as_json)
        return ExitCode.OK

    _run(target, work, as_json=as_json)


def watch(target: Target, as_json: bool, task_id: TaskId, timeout: Timeout = None) -> None:
    """Show what happens to a task until it ends, answer its questions, and print its result."""
    display = Display(task_id, as_json=as_json)
    interactive = sys.stdin.isatty() and not as_json

    async def work(session: Session) -> ExitCode:
        handle = await session.resume_task(task_id)
        tool = str(handle.task.raw.get("toolName") or "") if handle.task is not None else ""
        beside = ServerQuestions(operator_tasks.questions_api(target), tool, as_json=as_json)
        return await follow_task(handle, display, beside, as_json=as_json, timeout=timeout, attended=interactive)

    settings = {"elicitation": answerer(display)} if interactive else {}
    _run(target, work, as_json=as_json, **settings)


def result(target: Target, as_json: bool, task_id: TaskId, timeout: Timeout = None) -> None:
    """Wait for the end of a task and print its result."""

    async def work(session: Session) -> ExitCode:
        return say.result(await session.get_task_result(task_id, timeout), as_json=as_json)

    _run(target, work, as_json=as_json)


def cancel(
    target: Target,
    as_json: bool,
    task_id: TaskId,
    reason: Annotated[str | None, typer.Option("--reason", help="Why, for whoever asked for it.")] = None,
) -> None:
    """Cancel a task: anybody's for the operator of a gateway, your own otherwise."""
    if operator_tasks.is_operator(target):
        operator_tasks.cancel_one(target, task_id, reason, as_json=as_json)
        return

    async def work(session: Session) -> ExitCode:
        _print_one(await session.cancel_task(task_id), as_json=as_json)
        return ExitCode.OK

    _run(target, work, as_json=as_json)


def _run(target: Target, work: Work, *, as_json: bool, **settings: Any) -> None:
    async def run() -> ExitCode:
        from taskgate.client import ClientError, connect

        try:
            async with connect(target.address, **target.settings(), **settings) as session:
                return await work(session)
        except ClientError as error:
            return say.failure(error, as_json=as_json, gateway=target.is_gateway)

    try:
        code = asyncio.run(run())
    except KeyboardInterrupt:
        code = ExitCode.INTERRUPTED
    raise typer.Exit(code)


def _print_list(tasks: list[Task], *, as_json: bool) -> None:
    if as_json:
        for task in tasks:
            say.event("task", **task.raw)
        return
    if not tasks:
        say.note("There are no tasks.")
        return
    rows: list[tuple[str, ...]] = [("Task", "Status", "Tool", "Created", "What it says")]
    for task in tasks:
        created = say.local_time(task.created_at or "")
        cells = (task.task_id, task.status, task.raw.get("toolName") or "", created, task.message or "")
        rows.append(tuple(say.one_line(cell) for cell in cells))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    # Ids are there to be copied, so only the last column gives way, and only where there is an edge.
    edge = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for row in rows:
        fixed = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False))
        print(f"{fixed}  {row[4]}".rstrip()[:edge])


def _print_one(task: Task, *, as_json: bool) -> None:
    if as_json:
        say.event("task", **task.raw)
        return
    facts = {
        "task": task.task_id,
        "status": task.status,
        "tool": task.raw.get("toolName"),
        "says": task.message,
        "created": say.local_time(task.created_at or ""),
        "changed": say.local_time(task.updated_at or ""),
        "kept for": "ever" if task.ttl is None else f"{task.ttl / 1000:g} s from its creation",
        "asks": ", ".join(question.message or question.method for question in task.questions.values()),
    }
    for name, value in facts.items():
        if value:
            print(f"{name:10}{say.one_line(value)}")
