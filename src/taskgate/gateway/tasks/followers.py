"""Who hears about a task while it lives: the session that made it, streams that wait for its result, open subscriptions.

Stateful sessions get status and progress notifications and the task's questions as requests; stateless callers get
`notifications/tasks` on a `subscriptions/listen` that names the task. What nobody hears is not lost: it is in the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from taskgate.core import wire
from taskgate.core.caller import ANONYMOUS
from taskgate.core.generations import PROGRESS_TOKEN, RELATED_TASK
from taskgate.core.generations.stateful_2025 import speaks_tasks
from taskgate.core.meta import with_meta
from taskgate.core.questions import Answer, Question, can_answer
from taskgate.core.tasks import stateful_face
from taskgate.core.tasks.happening import Noted
from taskgate.core.tasks.task import Task
from taskgate.core.wire import Raw
from taskgate.gateway.asking import ask_session
from taskgate.gateway.progress import PacedProgress
from taskgate.gateway.request import Request
from taskgate.gateway.sessions import Session
from taskgate.gateway.tasks.desk import TaskDesk
from taskgate.gateway.tasks.methods import TaskMethods
from taskgate.ports.outlet import Outlet


class Followers:
    def __init__(self, desk: TaskDesk, methods: TaskMethods) -> None:
        self._desk = desk
        self._methods = methods
        self._progress: dict[str, tuple[Raw, PacedProgress]] = {}
        self._origins: dict[str, Session] = {}
        self._waiting: dict[str, list[Request]] = {}
        self._telling: set[asyncio.Task[None]] = set()
        self.sessions: Callable[[], Iterable[Session]] = lambda: ()
        self.session: Callable[[str], Session | None] = lambda _session_id: None
        self.on_stream: Callable[[str], None] = lambda _task_id: None
        """Told that a stream was opened on which a task's questions can be asked."""
        self.listeners: Callable[[str], list[Any]] = lambda _task_id: []
        self.given: Callable[[Session, Question], None] = lambda _session, _question: None
        """Told which session a question was put to."""

    def joined(self, task: Task, request: Request, *, held: bool) -> None:
        """Remember the caller's progress token: for a task's whole life, or for as long as its plain call is held."""
        session, token = request.session, request.progress_token
        if session is not None:
            self._origins[task.id] = session
        if token is None:
            return
        if held:
            self._progress[task.id] = (token, request.pace)
        elif session is not None:
            pace = PacedProgress(lambda params: session.notify("notifications/progress", params))
            self._progress[task.id] = (token, pace)

    def left(self, task_id: str, request: Request) -> None:
        """A held call gets its reply now: its token is used up."""
        known = self._progress.get(task_id)
        if request.progress_token is not None and known is not None and known[1] is request.pace:
            del self._progress[task_id]

    def waiting(self, task_id: str, request: Request, begin: bool) -> None:
        """A `tasks/result` is open: its stream can carry the task's questions."""
        requests = self._waiting.setdefault(task_id, [])
        if begin:
            requests.append(request)
            self.on_stream(task_id)
        else:
            requests.remove(request)
            if not requests:
                del self._waiting[task_id]

    def _sessions_of(self, task: Task) -> list[Session]:
        if task.principal != ANONYMOUS:
            return [session for session in self.sessions() if session.caller.principal == task.principal]
        own = self.session(task.caller.removeprefix("session:"))
        return [own] if own is not None else []

    def push(self, task: Task, question: Question) -> tuple[asyncio.Task[Answer], Callable[[], bool]] | None:
        """Ask the first of the caller's sessions that can answer, on a stream that waits for this task if there is one."""
        for request in self._waiting.get(task.id, ()):
            if request.session is not None and _able(request.session, question):
                self.given(request.session, question)
                return _asking(request.session, question, request), _heard
        for session in self._sessions_of(task):
            outlet = session.outlet
            if _able(session, question) and outlet is not None:
                self.given(session, question)
                # A stream that nobody follows keeps the question; another stream may come first.
                return _asking(session, question), partial(_unread, outlet)
        return None

    def progressed(self, task_id: str, noted: Noted) -> None:
        known = self._progress.get(task_id)
        if known is None or noted.progress is None:
            return
        token, pace = known
        params: dict[str, Any] = {PROGRESS_TOKEN: token, "progress": noted.progress}
        if noted.total is not None:
            params["total"] = noted.total
        if noted.message is not None:
            params["message"] = noted.message
        params["_meta"] = {RELATED_TASK: {"taskId": task_id}}
        pace.offer(noted.progress, wire.encode(params))

    def logged(self, task_id: str, params: Raw) -> None:
        """A log line of a run belongs to the session that asked for the task."""
        session = self._origins.get(task_id)
        members = wire.members_of(params)
        level = wire.parse_strictly(bytes(members.get("level", Raw(b'"info"'))))
        if session is not None and session.wants_log(level if type(level) is str else "info"):
            related = with_meta(members, {RELATED_TASK: wire.raw({"taskId": task_id})})
            session.notify("notifications/message", wire.join(related))

    def origin(self, task_id: str) -> Session | None:
        """The session that asked for the task, while both live."""
        return self._origins.get(task_id)

    def changed(self, task: Task) -> None:
        if task.state.is_terminal:
            self._origins.pop(task.id, None)
        ended = self._progress.pop(task.id, None) if task.state.is_terminal else None
        if ended is not None:
            ended[1].end()
        params = None
        for session in self._sessions_of(task):
            if speaks_tasks(session.version) and session.task_aware:
                params = params or wire.encode(stateful_face.task_object(task, self._desk.poll_ms(task)))
                session.notify("notifications/tasks/status", params)
        if self.listeners(task.id):
            telling = asyncio.get_running_loop().create_task(self._tell(task))
            self._telling.add(telling)
            telling.add_done_callback(self._telling.discard)

    async def _tell(self, task: Task) -> None:
        detailed = await self._methods.detailed(task, self._desk.poll_ms(task))
        detailed.pop("resultType", None)
        params = wire.encode(detailed)
        for listen in self.listeners(task.id):
            listen.tell("notifications/tasks", params)


def _asking(session: Session, question: Question, request: Request | None = None) -> asyncio.Task[Answer]:
    return asyncio.get_running_loop().create_task(ask_session(session, question, request))


def _unread(outlet: Outlet) -> bool:
    return not getattr(outlet, "followed", True)


def _heard() -> bool:
    return False


def _able(session: Session, question: Question) -> bool:
    return not session.closed and can_answer(session.capabilities, question.method, question.decoded())
