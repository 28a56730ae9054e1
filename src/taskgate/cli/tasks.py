"""`taskgate tasks`: list, show, watch, collect and cancel tasks by id."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from taskgate.cli import printing
from taskgate.cli.command_line import Argument, Commands, Exit, Failed, Option
from taskgate.cli.exit_codes import ExitCode
from taskgate.cli.operator_tasks import (
    cancel_one,
    is_operator,
    list_all,
    print_calls,
    questions_api,
    rerun_one,
    result_of_one,
    script_calls_of,
    show_one,
)
from taskgate.cli.target import Gateway, JsonLines, Target, Timeout, Token, with_target_options

if TYPE_CHECKING:
    from taskgate.client import Session, Task


TaskId = Annotated[str, Argument(metavar="TASK", help="Task id.")]
Work = Callable[["Session"], Awaitable[ExitCode]]


def register(app: Commands) -> None:
    """Add the commands to the application."""
    group = Commands("List, follow and cancel tasks.")
    # Only the stateful generation has tasks/list.
    group.command("list")(with_target_options(list_, generation="stateful"))
    for command in (show, watch, result, cancel):
        group.command(command.__name__)(with_target_options(command))
    group.command("rerun")(rerun)
    app.add(group, "tasks")


def list_(
    target: Target,
    *,
    as_json: bool,
    everything: Annotated[bool, Option("--all", help="Include finished tasks.")] = False,
    state: Annotated[str | None, Option(help="State: open, all, or a single state.")] = None,
    server: Annotated[str | None, Option(help="Server id.")] = None,
    tool: Annotated[str | None, Option(help="Part of the tool name.")] = None,
    caller: Annotated[str | None, Option(help="Principal of the caller.")] = None,
    in_scope: Annotated[str | None, Option(help="Scope of the call.")] = None,
    since: Annotated[str | None, Option(help="Created since: 30m, 24h, 7d or a date.")] = None,
    until: Annotated[str | None, Option(help="Created before: 30m, 24h, 7d or a date.")] = None,
    text: Annotated[
        str | None, Option(help="Parts of the id or of the names of caller, scope, server and tool.")
    ] = None,
) -> None:
    """List tasks: of all callers for operators, otherwise your own."""
    filters = {
        "server": server,
        "tool": tool,
        "caller": caller,
        "scope": in_scope,
        "since": since,
        "until": until,
        "text": text,
    }
    given = {name: value for name, value in filters.items() if value is not None}
    finding = bool(given) or state is not None or everything
    if is_operator(target) or (finding and questions_api(target) is not None):
        # The gateway decides whether this lists all tasks or only those of the token.
        list_all(target, as_json=as_json, state=state or ("all" if everything else "open"), filters=given)
        return
    if given or state is not None:
        raise Failed(
            "Filters need a gateway and a token: use --token or $TASKGATE_TOKEN, or remove the filters.", ExitCode.USAGE
        )

    async def work(session: Session) -> ExitCode:
        _print_list(await session.list_tasks(), as_json=as_json)
        return ExitCode.OK

    _run(target, work, as_json=as_json)


def show(
    target: Target,
    as_json: bool,
    task_id: TaskId,
    calls_after: Annotated[
        str | None, Option("--calls-after", metavar="CALL", help="Of a script: list the calls after this one.")
    ] = None,
) -> None:
    """Show one task; of a script, with the calls that it made."""
    if is_operator(target):
        show_one(target, task_id, as_json=as_json, calls_after=calls_after)
        return

    async def work(session: Session) -> ExitCode:
        task = await session.get_task(task_id)
        _print_one(task, script_calls_of(target, task.task_id, calls_after), as_json=as_json)
        return ExitCode.OK

    _run(target, work, as_json=as_json)


def watch(target: Target, as_json: bool, task_id: TaskId, timeout: Timeout = None) -> None:
    """Follow a task until it ends, answer its questions, and print its result."""
    from taskgate.cli.display import Display
    from taskgate.cli.follow import answerer, follow_task
    from taskgate.cli.server_questions import ServerQuestions

    display = Display(task_id, as_json=as_json)
    answering = answerer(display) if sys.stdin.isatty() and not as_json else None

    async def work(session: Session) -> ExitCode:
        handle = await session.resume_task(task_id)
        tool = str(handle.task.raw.get("toolName") or "") if handle.task is not None else ""
        beside = ServerQuestions(questions_api(target), tool, as_json=as_json, answer=answering)
        attended = answering is not None
        return await follow_task(handle, display, beside, as_json=as_json, timeout=timeout, attended=attended)

    _run(target, work, as_json=as_json, elicitation=answering)


def result(target: Target, as_json: bool, task_id: TaskId, timeout: Timeout = None) -> None:
    """Wait until a task ends and print its result: of any caller for operators, otherwise your own."""
    if is_operator(target):
        raise Exit(result_of_one(target, task_id, timeout, as_json=as_json))

    async def work(session: Session) -> ExitCode:
        return printing.result(await session.get_task_result(task_id, timeout), as_json=as_json)

    _run(target, work, as_json=as_json)


def cancel(
    target: Target,
    as_json: bool,
    task_id: TaskId,
    reason: Annotated[str | None, Option("--reason", help="Reason, shown to the caller.")] = None,
) -> None:
    """Cancel a task: of any caller for operators, otherwise your own."""
    if is_operator(target):
        cancel_one(target, task_id, reason, as_json=as_json)
        return

    async def work(session: Session) -> ExitCode:
        _print_one(await session.cancel_task(task_id), as_json=as_json)
        return ExitCode.OK

    _run(target, work, as_json=as_json)


def rerun(
    task_id: TaskId,
    *,
    scope: Annotated[str | None, Option("--scope", help="Scope of the new call. Default: that of your token.")] = None,
    gateway: Gateway = None,
    token: Token = None,
    as_json: JsonLines = False,
) -> None:
    """Call the tool of a finished task again with the same arguments, as yourself and under the same rules."""
    rerun_one(task_id, scope, gateway, token, as_json=as_json)


def _run(target: Target, work: Work, *, as_json: bool, **settings: Any) -> None:
    import asyncio

    async def run() -> ExitCode:
        from taskgate.client import ClientError, connect

        try:
            async with connect(target.address, **target.settings(), **settings) as session:
                return await work(session)
        except ClientError as error:
            # Only the server can state whether the call of a task was executed, from the task's record.
            return printing.failure(error, as_json=as_json, executed=error.stated, gateway=target.is_gateway)

    try:
        code = asyncio.run(run())
    except KeyboardInterrupt:
        code = ExitCode.INTERRUPTED
    raise Exit(code)


def _print_list(tasks: list[Task], *, as_json: bool) -> None:
    if as_json:
        for task in tasks:
            printing.event("task", **task.raw)
        return
    if not tasks:
        printing.note("No tasks.")
        return
    rows: list[tuple[str, ...]] = [("Task", "Status", "Tool", "Created", "Message")]
    for task in tasks:
        created = printing.local_time(task.created_at or "")
        cells = (task.task_id, task.status, task.raw.get("toolName") or "", created, task.message or "")
        rows.append(tuple(printing.one_line(cell) for cell in cells))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    # Only the last column is truncated, and only on a terminal, so that ids can be copied.
    edge = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for row in rows:
        fixed = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False))
        print(f"{fixed}  {row[4]}".rstrip()[:edge])


def _print_one(task: Task, calls: Mapping[str, Any] | None = None, *, as_json: bool) -> None:
    """Print one task. `calls` are the calls of a script."""
    if as_json:
        printing.event("task", **task.raw, **({"script_calls": calls} if calls is not None else {}))
        return
    facts = {
        "task": task.task_id,
        "status": task.status,
        "tool": task.raw.get("toolName"),
        "message": task.message,
        "created": printing.local_time(task.created_at or ""),
        "changed": printing.local_time(task.updated_at or ""),
        "ttl": "none" if task.ttl is None else f"{task.ttl / 1000:g} s after creation",
        "questions": ", ".join(question.message or question.method for question in task.questions.values()),
    }
    for name, value in facts.items():
        if value:
            print(f"{name:10}{printing.one_line(value)}")
    if calls is not None:
        print_calls(calls, task.task_id)
