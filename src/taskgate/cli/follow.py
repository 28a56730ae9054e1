"""Follows a task at the terminal: a live line, plain lines, or JSON, until the task has ended.

Ctrl-C asks whether to cancel the task; a task that is left alone goes on at the server. Used by `call` and `tasks
watch`.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from taskgate import clock
from taskgate.cli import say
from taskgate.cli.gateways import ApiProblem, GatewayApi
from taskgate.cli.questions import answer_question, read_line
from taskgate.cli.say import ExitCode

if TYPE_CHECKING:
    from taskgate.client import Progress, Question, TaskHandle, TaskUpdate

LOOK_SECONDS = 2.0
OPERATORS_INBOX = "(operator)"
"""The caller that the gateway names for questions which no caller may see."""
_COLOURS = {
    "working": "cyan",
    "input_required": "yellow",
    "completed": "green",
    "failed": "red",
    "cancelled": "magenta",
}


class Display:
    """Shows what happens to one call, in the way the output allows."""

    def __init__(self, name: str, *, as_json: bool) -> None:
        self._name, self._as_json = say.one_line(name), as_json
        self._begun = clock.monotonic()
        self._status, self._message = "working", ""
        self._progress: float | None = None
        self._total: float | None = None
        self._expires: float | None = None
        self._live: Any = None
        self._last = ""

    @contextmanager
    def shown(self) -> Iterator[Display]:
        if self._as_json or not sys.stderr.isatty():
            yield self
            return
        from rich.console import Console
        from rich.live import Live

        console = Console(stderr=True)
        with Live(console=console, get_renderable=self._line, refresh_per_second=10, transient=True) as self._live:
            yield self
        self._live = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the terminal to a question for a while."""
        live = self._live
        if live is not None:
            live.stop()
        try:
            yield
        finally:
            if live is not None:
                live.start()

    def progress(self, progress: Progress) -> None:
        self._progress, self._total = progress.progress, progress.total
        self._message = say.one_line(progress.message or self._message)
        self._tell("progress", progress=progress.progress, total=progress.total, message=progress.message)

    def update(self, update: TaskUpdate) -> None:
        # What a server says with its progress comes a moment earlier than the progress: the two are one line.
        before = (self._status, self._progress)
        progress_follows = update.progress is not None and (str(update.status), update.progress) == before
        self._status, self._message = str(update.status), say.one_line(update.message or "")
        self._progress, self._total, self._expires = update.progress, update.total, _moment(update.expires_in)
        if update.status.is_terminal:
            # How far it had come when it last said so is not where it ended.
            self._progress = self._total = None
        if self._as_json or not progress_follows:
            self._tell(
                "status",
                taskId=update.task_id,
                status=str(update.status),
                message=update.message,
                progress=update.progress,
                total=update.total,
                expires_in=update.expires_in,
                questions=[
                    {"key": q.key, "method": q.method, "params": dict(q.params)} for q in update.questions.values()
                ],
            )
        if update.warning and not self._as_json:
            say.note(f"Warning: {say.clean(update.warning)}")

    def _tell(self, kind: str, **fields: Any) -> None:
        if self._as_json:
            say.event(kind, **{name: value for name, value in fields.items() if value not in (None, [])})
        elif self._live is None:
            line = "  ".join(part for part in (self._status, self._share(), self._message) if part)
            if line != self._last:
                say.note(f"{clock.monotonic() - self._begun:6.1f} s  {line}")
                self._last = line

    def _share(self) -> str:
        if self._progress is None:
            return ""
        return f"{self._progress / self._total:.0%}" if self._total else f"{self._progress:g}"

    def _line(self) -> Any:
        from rich.progress_bar import ProgressBar
        from rich.spinner import Spinner
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 1))
        cells: list[Any] = [
            Spinner("dots"),
            Text(self._name, "bold"),
            Text(self._status, _COLOURS.get(self._status, "")),
        ]
        if self._progress is not None and self._total:
            cells += [ProgressBar(self._total, self._progress, width=24), Text(self._share())]
        cells += [
            Text(self._message, overflow="ellipsis", no_wrap=True),
            Text(f"{clock.monotonic() - self._begun:.0f} s", "dim"),
        ]
        if self._expires is not None:
            cells.append(Text(f"kept {max(0, self._expires - clock.monotonic()):.0f} s more", "dim"))
        grid.add_row(*cells)
        return grid


Answer = Callable[["Question"], Awaitable[dict[str, Any]]]
"""Asks the person at the terminal."""


def answerer(display: Display) -> Answer:
    """A callback that answers elicitations at the terminal, one at a time."""
    lock = asyncio.Lock()

    async def answer(question: Question) -> dict[str, Any]:
        async with lock:
            with display.paused():
                return await asyncio.to_thread(answer_question, question)

    return answer


class ServerQuestions:
    """Questions of the called tool's server that name no call, while the call is open.

    The session asks the person at the terminal what is in the caller's own inbox. What is in the operator's is asked here, if the
    operator calls. Where no person is at the terminal, both are printed with the command that answers them. `api` is None where the
    gateway does not know who calls.
    """

    def __init__(self, api: GatewayApi | None, tool: str, *, as_json: bool, answer: Answer | None = None) -> None:
        self._api, self._as_json, self._answer = api, as_json, answer
        self._server = tool.partition("__")[0] if "__" in tool else None
        self._shown: set[str] = set()

    async def watch(self) -> None:
        while self._api is not None:
            try:
                rows = (await asyncio.to_thread(self._api.get, "/api/questions")).value
            except ApiProblem:
                # The task itself is followed in another way, which says what is wrong.
                return
            for row in rows if isinstance(rows, list) else ():
                if row.get("undecided") and row["request_id"] not in self._shown and self._concerns(row):
                    self._shown.add(row["request_id"])
                    await self._put(self._api, row)
            await clock.sleep(LOOK_SECONDS)

    def _concerns(self, row: dict[str, Any]) -> bool:
        return self._server in (None, row["server"])

    async def _put(self, api: GatewayApi, row: dict[str, Any]) -> None:
        if self._answer is None or row["kind"] == "sampling":
            self._show(row)
        elif row["caller"] == OPERATORS_INBOX:
            from taskgate.client import Question

            answer = await self._answer(Question(row["request_id"], "elicitation/create", row["params"]))
            try:
                await asyncio.to_thread(api.post, f"/api/questions/{quote(row['request_id'])}", answer)
            except ApiProblem as problem:
                say.note(f"The answer was not taken: {problem}")

    def _show(self, row: dict[str, Any]) -> None:
        question_id, server = row["request_id"], row["server"]
        if self._as_json:
            say.event("server_question", server=server, request_id=question_id, params=row["params"])
            return
        message = say.one_line(row["params"].get("message") or row["kind"])
        say.note(f"{say.one_line(server)} sent a question that names no call: {message}")
        say.note(f"Answer it with: taskgate questions answer {question_id} JSON")


def show_approval(handle: TaskHandle, *, as_operator: bool, as_json: bool) -> None:
    """Print what a call waits for that is held, and how an approver decides on it."""
    held = handle.approval
    if held is None:
        return
    # The operator's token may not decide on a call that was made with it; the operator's login in the browser may.
    command = "taskgate approvals login" if as_operator else f"taskgate approvals approve {held.id}"
    if as_json:
        say.event("approval_needed", taskId=handle.task_id, approval=held.id, url=held.url, command=command)
        return
    say.note(f"Waiting for approval as task {handle.task_id}. It was not run yet.")
    say.note(f"An approver can decide at: {say.clean(held.url)}")
    if as_operator:
        say.note(f"Log in there with the link that this prints: {command}")
    else:
        say.note(f"or with: {say.clean(command)}")


async def follow_task(
    handle: TaskHandle,
    display: Display,
    beside: ServerQuestions,
    *,
    as_json: bool,
    timeout: float | None,
    attended: bool,
) -> ExitCode:
    """Show the task until it ends, then print its result. Where nobody is there to answer (`attended`), a question ends it, too."""
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
            _tell_left_alone(handle, as_json=as_json)
            return ExitCode.TIMED_OUT
        finally:
            for task in (watching, stopping, looking):
                task.cancel()
            await asyncio.gather(watching, stopping, looking, return_exceptions=True)
    asking = watching.result()
    if asking is not None:
        return _unanswered(handle, asking, as_json=as_json)
    return say.result(await handle.result(), as_json=as_json)


@contextmanager
def interrupts() -> Iterator[asyncio.Event]:
    """An event that Ctrl-C sets instead of ending the program."""
    event, loop = asyncio.Event(), asyncio.get_running_loop()
    try:
        loop.add_signal_handler(signal.SIGINT, event.set)
        yield event
    finally:
        loop.remove_signal_handler(signal.SIGINT)


async def _watch(handle: TaskHandle, display: Display, *, attended: bool) -> TaskUpdate | None:
    """Until the task has ended, or until it asks something that nobody here can answer."""
    async for update in handle.updates():
        display.update(update)
        if not attended and _asks(update):
            return update
    return None


def _asks(update: TaskUpdate) -> bool:
    """Whether it asks its caller. A stateful gateway shows a task that waits for an approver as `input_required`, too."""
    from taskgate.core.tasks.task import AWAITING_APPROVAL

    needs_input = str(update.status) == "input_required" and update.message != AWAITING_APPROVAL
    return bool(update.questions) or needs_input


def _unanswered(handle: TaskHandle, update: TaskUpdate, *, as_json: bool) -> ExitCode:
    """A stateless server shows its questions with the task; of a stateful one's the task tells only that there are some."""
    question = next(iter(update.questions.values()), None)
    if as_json:
        asked = {"method": question.method, "params": dict(question.params)} if question is not None else {}
        say.event("input_needed", taskId=handle.task_id, **asked)
    else:
        text = question.message or question.method if question is not None else update.message or "it wants input"
        say.note(f"The task asks, and nobody is here to answer: {say.one_line(text)}")
        say.note(
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
        say.note(f"The task is {task.status if task else 'over'}.")
        return ExitCode.CANCELLED
    _tell_left_alone(handle, as_json=as_json)
    return ExitCode.INTERRUPTED


def _tell_left_alone(handle: TaskHandle, *, as_json: bool) -> None:
    if as_json:
        say.event("left", taskId=handle.task_id, status=str(handle.status))
    else:
        say.note(f"The task goes on. Come back to it with: taskgate tasks watch {handle.task_id}")


def _moment(seconds: float | None) -> float | None:
    return None if seconds is None else clock.monotonic() + seconds
