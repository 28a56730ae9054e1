"""Follow a task at the terminal until it ends, then print its result.

Ctrl-C asks whether to cancel the task; otherwise it continues at the server. Used by `call` and `tasks watch`.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from taskgate.cli import printing
from taskgate.cli.display import Display
from taskgate.cli.exit_codes import ExitCode
from taskgate.cli.question_prompt import answer_question, read_line
from taskgate.cli.server_questions import Answer, ServerQuestions

if TYPE_CHECKING:
    from taskgate.client import PendingApproval, Question, TaskHandle, TaskUpdate


def answerer(display: Display) -> Answer:
    """Return a callback that answers elicitations at the terminal, one at a time."""
    lock = asyncio.Lock()

    async def answer(question: Question) -> dict[str, Any]:
        async with lock:
            with display.paused():
                return await asyncio.to_thread(answer_question, question)

    return answer


def show_approval(task_id: str | None, held: PendingApproval | None, *, as_operator: bool, as_json: bool) -> None:
    """Print that a call waits for approval, and how an approver can decide."""
    if held is None:
        return
    # The operator's token must not approve its own call; the operator's browser login may.
    command = "taskgate approvals login" if as_operator else f"taskgate approvals approve {held.id}"
    if as_json:
        printing.event("approval_needed", taskId=task_id, approval=held.id, url=held.url, command=command)
        return
    printing.note(f"Waiting for approval as task {task_id}. The tool has not run.")
    printing.note(f"An approver can decide at: {printing.clean(held.url)}")
    if as_operator:
        printing.note(f"To log in, open the link that this command prints: {command}")
    else:
        printing.note(f"or with: {printing.clean(command)}")


async def follow_task(
    handle: TaskHandle,
    display: Display,
    beside: ServerQuestions,
    *,
    as_json: bool,
    timeout: float | None,
    attended: bool,
) -> ExitCode:
    """Show the task until it ends, then print its result. If not `attended`, stop at the first question."""
    with interrupts() as interrupted, display.shown():
        watching = asyncio.create_task(_watch(handle, display, attended=attended))
        stopping = asyncio.create_task(interrupted.wait())
        looking = asyncio.create_task(beside.watch())
        try:
            async with asyncio.timeout(timeout):
                while not watching.done():
                    await asyncio.wait({watching, stopping}, return_when=asyncio.FIRST_COMPLETED)
                    if stopping.done() and not watching.done():
                        return await _interrupted(handle, display, as_json=as_json)
        except TimeoutError:
            _print_task_continues(handle, as_json=as_json)
            return ExitCode.TIMED_OUT
        finally:
            for task in (watching, stopping, looking):
                task.cancel()
            await asyncio.gather(watching, stopping, looking, return_exceptions=True)
    asking = watching.result()
    if asking is not None:
        return _unanswered(handle, asking, as_json=as_json)
    return printing.result(await handle.result(), as_json=as_json)


@contextmanager
def interrupts() -> Iterator[asyncio.Event]:
    """Provide an event that Ctrl-C sets instead of interrupting the program."""
    event, loop = asyncio.Event(), asyncio.get_running_loop()
    try:
        loop.add_signal_handler(signal.SIGINT, event.set)
        yield event
    finally:
        loop.remove_signal_handler(signal.SIGINT)


async def _watch(handle: TaskHandle, display: Display, *, attended: bool) -> TaskUpdate | None:
    """Show updates until the task ends (return None), or until it has a question that cannot be answered here."""
    async for update in handle.updates():
        display.update(update)
        if not attended and _waits_for_caller(update):
            return update
    return None


def _waits_for_caller(update: TaskUpdate) -> bool:
    """Whether the task waits for its caller. A stateful gateway also reports `input_required` while it waits for approval."""
    from taskgate.core.tasks.task import AWAITING_APPROVAL

    needs_input = str(update.status) == "input_required" and update.message != AWAITING_APPROVAL
    return bool(update.questions) or needs_input


def _unanswered(handle: TaskHandle, update: TaskUpdate, *, as_json: bool) -> ExitCode:
    """Print the question and how to answer it. Only a stateless server includes the question in the task."""
    question = next(iter(update.questions.values()), None)
    if as_json:
        question_fields = {"method": question.method, "params": dict(question.params)} if question is not None else {}
        printing.event("input_needed", taskId=handle.task_id, **question_fields)
    else:
        text = question.message or question.method if question is not None else update.message or "input required"
        printing.note(f"The task waits for an answer: {printing.one_line(text)}")
        printing.note(
            f"Answer it on a terminal with: taskgate tasks watch {handle.task_id}, or call again with --answer JSON"
        )
    return ExitCode.REFUSED


async def _interrupted(handle: TaskHandle, display: Display, *, as_json: bool) -> ExitCode:
    cancel = False
    if sys.stdin.isatty() and not as_json:
        with display.paused():
            try:
                typed = await asyncio.to_thread(read_line, "\nCancel the task on the server? [y/N] ")
                cancel = typed.lower().startswith("y")
            except EOFError:
                cancel = False
    if cancel:
        task = await handle.cancel()
        printing.note(f"Task status: {task.status if task else 'ended'}.")
        return ExitCode.CANCELLED
    _print_task_continues(handle, as_json=as_json)
    return ExitCode.INTERRUPTED


def _print_task_continues(handle: TaskHandle, *, as_json: bool) -> None:
    if as_json:
        printing.event("left", taskId=handle.task_id, status=str(handle.status))
    else:
        printing.note(f"The task continues. Follow it with: taskgate tasks watch {handle.task_id}")
