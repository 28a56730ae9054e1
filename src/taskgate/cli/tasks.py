"""`taskgate tasks`: list, show, watch, collect and cancel tasks by their ids."""

from __future__ import annotations

import asyncio
import json
import math
import shutil
import sys
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote, urlencode, urlsplit

import typer

from taskgate import clock
from taskgate.cli import say
from taskgate.cli.follow import Display, ServerQuestions, answerer, follow_task
from taskgate.cli.gateways import ApiProblem, GatewayApi, ask_gateway, operator_token, whole_id
from taskgate.cli.say import ExitCode
from taskgate.cli.target import Target, Timeout, aimed

if TYPE_CHECKING:
    from taskgate.client import Session, Task

# `taskgate tasks` for the operator of a gateway: everybody's tasks, through the gateway's API.

PAGE = 200
WAIT_S = 20
"""How long one request waits for a task to end."""
_COLUMNS = ("Task", "State", "Tool", "Whose", "Created", "What it says")


def is_operator(target: Target) -> bool:
    """Whether the command talks to a gateway with the operator's own token: then every task can be seen."""
    if not target.is_gateway or not isinstance(target.address, str):
        return False
    own = operator_token(urlsplit(target.address).hostname)
    return own is not None and target.token == own


def questions_api(target: Target) -> GatewayApi | None:
    """Where questions are looked for: the operator sees everybody's, a caller with a token its own."""
    known = target.is_gateway and isinstance(target.address, str) and target.token is not None
    return GatewayApi(_base(target), target.token) if known else None


def list_all(target: Target, *, as_json: bool, state: str, wanted: Mapping[str, str]) -> None:
    def work(api: GatewayApi) -> None:
        rows = _all(api, state, wanted)
        if as_json:
            for row in rows:
                say.event("task", **row)
        elif not rows:
            say.note(
                "There are no such tasks."
                if wanted or state != "open"
                else "There are no open tasks. --all shows those that ended."
            )
        else:
            _print(rows)

    ask_gateway(work, _base(target), target.token, as_json)


def show_one(target: Target, task_id: str, *, as_json: bool) -> None:
    def work(api: GatewayApi) -> None:
        _print_row(api.get(f"/api/v1/tasks/{quote(_whole(api, task_id))}").value, as_json)

    ask_gateway(work, _base(target), target.token, as_json)


def cancel_one(target: Target, task_id: str, reason: str | None, *, as_json: bool) -> None:
    def work(api: GatewayApi) -> None:
        body = {"reason": reason} if reason else {}
        _print_row(api.post(f"/api/v1/tasks/{quote(_whole(api, task_id))}/cancel", body).value, as_json)

    ask_gateway(work, _base(target), target.token, as_json)


def result_of_one(target: Target, task_id: str, timeout: float | None, *, as_json: bool) -> ExitCode:
    """Wait for the end of any caller's task, and print its result."""
    ends: list[ExitCode] = []

    def work(api: GatewayApi) -> None:
        whole, end = _whole(api, task_id), None if timeout is None else clock.monotonic() + timeout
        while True:
            left = WAIT_S if end is None else max(0, min(WAIT_S, math.ceil(end - clock.monotonic())))
            row = api.get(f"/api/v1/tasks/{quote(whole)}/result?wait={left}").value
            if row["ended"]:
                ends.append(_print_outcome(row, as_json))
                return
            if end is not None and clock.monotonic() >= end:
                raise ApiProblem(ExitCode.TIMED_OUT, f"{whole} has not ended; it is {row['state']}.")

    ask_gateway(work, _base(target), target.token, as_json)
    return ends[0]


def _print_outcome(row: dict[str, Any], as_json: bool) -> ExitCode:
    from taskgate.client import ServerError, ToolResult

    if "result" in row:
        return say.result(ToolResult(row["result"]), as_json=as_json)
    failed = row["error"]
    error = ServerError(failed.get("code", 0), failed.get("message", ""), failed.get("data"))
    return say.failure(error, as_json=as_json, executed=row["executed"] or error.stated)


def _base(target: Target) -> str:
    parts = urlsplit(str(target.address))
    return f"{parts.scheme}://{parts.netloc}"


def _all(api: GatewayApi, state: str, wanted: Mapping[str, str] = MappingProxyType({})) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    after: str | None = None
    while True:
        query = {**wanted, "limit": str(PAGE), "state": state, **({"after": after} if after else {})}
        page = api.get(f"/api/v1/tasks?{urlencode(query)}").value
        rows += page["tasks"]
        after = page["next"]
        if after is None:
            return rows


def _whole(api: GatewayApi, given: str) -> str:
    """A whole id as it is; its beginning or end is looked for among all tasks."""
    if len(given) == len("tg_") + 26:
        return given
    return whole_id([row["id"] for row in _all(api, "all")], given, "tasks")


def _print(rows: list[dict[str, Any]]) -> None:
    table = [_COLUMNS]
    for row in rows:
        whose = f"{row['principal']} ({row['scope']})"
        cells = (row["id"], row["state"], row["tool"], whose, say.local_time(row["created_at"]), row["message"] or "")
        table.append(tuple(say.one_line(cell) for cell in cells))  # type: ignore[arg-type]
    widths = [max(len(row[column]) for row in table) for column in range(len(_COLUMNS) - 1)]
    # Ids are there to be copied, so only the last column gives way, and only where there is an edge.
    edge = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for cells in table:
        fixed = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=False))
        print(fixed + ("  " + cells[-1])[: max(0, edge - len(fixed)) if edge else None].rstrip())


def _print_row(row: dict[str, Any], as_json: bool) -> None:
    if as_json:
        say.event("task", **row)
        return
    facts = {
        "task": row["id"],
        "state": row["state"],
        "tool": row["tool"],
        "server": row["server"],
        "whose": f"{row['principal']}, {row['caller']}, scope {row['scope']}",
        "says": row["message"],
        "arguments": json.dumps(row["arguments"], ensure_ascii=False) if "arguments" in row else None,
        "created": say.local_time(row["created_at"]),
        "changed": say.local_time(row["updated_at"]),
        "ended": say.local_time(row["finished_at"]) if row["finished_at"] else None,
        "executed": row["executed"],
        "asks": ", ".join(
            str(question["request"].get("message", question["key"])) for question in row.get("questions", ())
        ),
    }
    for name, value in facts.items():
        if value:
            print(f"{name:10}{say.one_line(value)}")


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
    *,
    as_json: bool,
    everything: Annotated[bool, typer.Option("--all", help="Also tasks that have ended.")] = False,
    state: Annotated[str | None, typer.Option(help="Only in this state: open, all, or one of them.")] = None,
    server: Annotated[str | None, typer.Option(help="Only of this server.")] = None,
    tool: Annotated[str | None, typer.Option(help="Only with this in the tool's name.")] = None,
    caller: Annotated[str | None, typer.Option(help="Only of this principal.")] = None,
    in_scope: Annotated[str | None, typer.Option(help="Only made in this scope.")] = None,
    since: Annotated[str | None, typer.Option(help="Only made since: 30m, 24h, 7d or a date.")] = None,
    until: Annotated[str | None, typer.Option(help="Only made before.")] = None,
    text: Annotated[str | None, typer.Option(help="Only with this in its record.")] = None,
) -> None:
    """List tasks: everybody's for who may see them, your own otherwise."""
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
    finding = bool(given) or state is not None or everything
    if is_operator(target) or (finding and questions_api(target) is not None):
        # The gateway itself decides whose tasks that shows: everybody's, or those of the token.
        list_all(target, as_json=as_json, state=state or ("all" if everything else "open"), wanted=given)
        return
    if given or state is not None:
        say.note("Tasks are looked for by these at a gateway, with a token; your own are listed without.")
        raise typer.Exit(ExitCode.USAGE)

    async def work(session: Session) -> ExitCode:
        _print_list(await session.list_tasks(), as_json=as_json)
        return ExitCode.OK

    _run(target, work, as_json=as_json)


def show(target: Target, as_json: bool, task_id: TaskId) -> None:
    """Show the state of one task."""
    if is_operator(target):
        show_one(target, task_id, as_json=as_json)
        return

    async def work(session: Session) -> ExitCode:
        _print_one(await session.get_task(task_id), as_json=as_json)
        return ExitCode.OK

    _run(target, work, as_json=as_json)


def watch(target: Target, as_json: bool, task_id: TaskId, timeout: Timeout = None) -> None:
    """Show what happens to a task until it ends, answer its questions, and print its result."""
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
    """Wait for the end of a task and print its result: any caller's for the operator of a gateway, your own otherwise."""
    if is_operator(target):
        raise typer.Exit(result_of_one(target, task_id, timeout, as_json=as_json))

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
    if is_operator(target):
        cancel_one(target, task_id, reason, as_json=as_json)
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
            # About the call of a task only its server can say something, from the task's record.
            return say.failure(error, as_json=as_json, executed=error.stated, gateway=target.is_gateway)

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
