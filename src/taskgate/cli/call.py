"""`taskgate call`: call a tool of a gateway or of any MCP server."""

from __future__ import annotations

import asyncio
import difflib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from taskgate.cli import printing
from taskgate.cli.command_line import Argument, BadParameter, Commands, Exit, Option
from taskgate.cli.display import Display
from taskgate.cli.exit_codes import ExitCode
from taskgate.cli.follow import answerer, follow_task, interrupts, show_approval
from taskgate.cli.operator_tasks import is_operator, questions_api
from taskgate.cli.server_questions import Answer, ServerQuestions
from taskgate.cli.target import TakesCommand, Target, Timeout, with_target_options

if TYPE_CHECKING:
    from taskgate.client import Progress, Question, ServerError, Session


Name = Annotated[str, Argument(metavar="TOOL", help="Tool name as in `taskgate tools`.")]
Arguments = Annotated[
    str | None, Argument(metavar="[JSON]", help="Arguments: a JSON object, `@file.json`, or `-` for stdin.")
]
AsTask = Annotated[bool, Option("--task", help="Start the call as a task and print the task id.")]
Watch = Annotated[bool, Option("--watch", help="With --task: follow the task until it ends, and print its result.")]
Ttl = Annotated[int | None, Option("--ttl", min=1, help="Time in milliseconds that the server should keep the task.")]
AnswerOption = Annotated[
    str | None, Option("--answer", metavar="JSON", help="Answer every form of the server with this.")
]


class CallOptions(msgspec.Struct, frozen=True):
    """The arguments and options of one call."""

    name: str
    arguments: dict[str, Any]
    as_task: bool
    watch: bool
    ttl: int | None
    timeout: float | None
    as_json: bool
    attended: bool
    """A person or `--answer` can answer the server's questions."""
    as_operator: bool = False
    """The call uses the operator's token."""


def register(app: Commands) -> None:
    """Add the commands to the application."""
    app.command("call", kind=TakesCommand)(with_target_options(call))


def call(
    target: Target,
    *,
    as_json: bool,
    name: Name,
    arguments: Arguments = None,
    as_task: AsTask = False,
    watch: Watch = False,
    ttl: Ttl = None,
    timeout: Timeout = None,
    answer: AnswerOption = None,
) -> None:
    """Call a tool of a gateway (default), of any MCP server (--url), or of a program (-- COMMAND)."""
    given = read_arguments(arguments)
    display = Display(name, as_json=as_json)
    # A task may outlive this command, and some servers cancel tasks when their session ends.
    answering = elicitation(answer, display, as_json=as_json)
    settings = {"elicitation": answering, "keep_session": as_task}
    attended = answering is not None
    options = CallOptions(
        name,
        given,
        as_task=as_task,
        watch=watch,
        ttl=ttl,
        timeout=timeout,
        as_json=as_json,
        attended=attended,
        as_operator=is_operator(target),
    )
    beside = ServerQuestions(questions_api(target), name, as_json=as_json, answer=answering)
    raise Exit(asyncio.run(call_tool(target, options, display, beside, settings)))


def read_arguments(given: str | None, what: str = "the arguments", example: str = '{"text": "hi"}') -> dict[str, Any]:
    """Read an object from the command line, a file or stdin. Raises BadParameter."""
    if given is None:
        return {}
    try:
        text = sys.stdin.read() if given == "-" else Path(given[1:]).read_text() if given.startswith("@") else given
        value = json.loads(text)
    except (OSError, ValueError) as error:
        raise BadParameter(f"{what} must be valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadParameter(f"{what} must be a JSON object, for example {example}")
    return value


def elicitation(answer: str | None, display: Display, *, as_json: bool) -> Answer | None:
    """Return the callback for questions: the given answer, a prompt at the terminal, or None."""
    if answer is None:
        return answerer(display) if sys.stdin.isatty() and not as_json else None
    content = read_arguments(answer, "--answer", '{"answer": "yes"}')

    async def given(question: Question) -> dict[str, Any]:
        return {"action": "decline"} if question.is_url else {"action": "accept", "content": content}

    return given


async def call_tool(
    target: Target, options: CallOptions, display: Display, beside: ServerQuestions, settings: dict[str, Any]
) -> ExitCode:
    from taskgate.client import ClientError, ServerError, connect

    try:
        async with connect(target.address, **target.settings(), **settings) as session:
            # A stateless server decides whether a call becomes a task, so it may return a result or a task.
            may_become_task = session.generation == "stateless" and session.supports_tasks
            try:
                if options.as_task or may_become_task:
                    return await _task_call(session, options, display, beside)
                return await _plain_call(session, options, display, beside)
            except ServerError as error:
                if not options.as_json and is_unknown_tool(error):
                    await _suggest(session, options.name)
                raise
    except ClientError as error:
        return printing.failure(error, as_json=options.as_json, executed=error.executed, gateway=target.is_gateway)


def is_unknown_tool(error: ServerError) -> bool:
    return isinstance(error.data, dict) and error.data.get("error_type") == "unknown_tool"


async def _suggest(session: Session, name: str) -> None:
    """Suggest similar names of tools that the caller can list."""
    from taskgate.client import ClientError

    try:
        known = [tool.name for tool in await session.list_tools()]
    except ClientError:
        return
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5) or [
        one for one in known if one.endswith(f"__{name}")
    ]
    if near:
        printing.note(f"Did you mean {' or '.join(printing.one_line(one) for one in near[:3])}?")


async def _task_call(session: Session, options: CallOptions, display: Display, beside: ServerQuestions) -> ExitCode:
    handle = await session.call_tool_as_task(options.name, options.arguments, ttl=options.ttl, timeout=options.timeout)
    if handle.task_id is None:
        return printing.result(await handle.result(), as_json=options.as_json)
    show_approval(handle.task_id, handle.approval, as_operator=options.as_operator, as_json=options.as_json)
    if options.as_task and not options.watch:
        return _started(handle.task_id, as_json=options.as_json)
    if handle.immediate_response and handle.approval is None and not options.as_json:
        printing.note(printing.clean(handle.immediate_response))
    return await follow_task(
        handle, display, beside, as_json=options.as_json, timeout=options.timeout, attended=options.attended
    )


async def _plain_call(session: Session, options: CallOptions, display: Display, beside: ServerQuestions) -> ExitCode:
    shown = False

    def progress(report: Progress) -> None:
        nonlocal shown
        if shown or report.approval is None:
            display.progress(report)
            return
        shown = True
        with display.paused():
            show_approval(report.task_id, report.approval, as_operator=options.as_operator, as_json=options.as_json)

    calling = session.call_tool(options.name, options.arguments, timeout=options.timeout, on_progress=progress)
    work = asyncio.create_task(calling)
    with interrupts() as interrupted, display.shown():
        stopping, watching = asyncio.create_task(interrupted.wait()), asyncio.create_task(beside.watch())
        await asyncio.wait({work, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopped = not work.done()
        for task in (work, stopping, watching) if stopped else (stopping, watching):
            task.cancel()
        await asyncio.gather(work, stopping, watching, return_exceptions=True)
    if stopped:
        printing.note("Interrupted. The call was cancelled, but the tool may have run.")
        return ExitCode.INTERRUPTED
    return printing.result(work.result(), as_json=options.as_json)


def _started(task_id: str, *, as_json: bool) -> ExitCode:
    if as_json:
        printing.event("created", taskId=task_id)
    else:
        print(task_id, flush=True)
    return ExitCode.OK
