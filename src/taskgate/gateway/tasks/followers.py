"""Notify the caller of a task: the session that created it, requests that wait for its result, and open subscriptions.

Stateful sessions get status and progress notifications and the task's questions as requests. Stateless callers get
`notifications/tasks` on a `subscriptions/listen` that names the task. A notification without a recipient is not lost: the state
of the task is in the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, Protocol

from taskgate import clock
from taskgate.core import wire
from taskgate.core.generations.generation import PROGRESS_TOKEN, RELATED_TASK
from taskgate.core.generations.stateful import supports_tasks
from taskgate.core.identity.caller import ANONYMOUS
from taskgate.core.identity.conversation import SESSION
from taskgate.core.meta import with_meta
from taskgate.core.questions.capabilities import can_answer
from taskgate.core.questions.question import Answer, Question
from taskgate.core.tasks.projections_stateful import stateful_task
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import Task
from taskgate.core.wire import Raw
from taskgate.gateway.events import EventHub, ProgressMade, ResultAwaited, TaskChanged, TaskLogged, TaskStreamOpened
from taskgate.gateway.questions.url_elicitations import UrlElicitations
from taskgate.gateway.requests.caller_questions import ask_session
from taskgate.gateway.requests.open_conversations import OpenConversations
from taskgate.gateway.requests.paced_progress import PacedProgress
from taskgate.gateway.requests.request import Request
from taskgate.gateway.requests.session import Keep, Session
from taskgate.gateway.requests.session_table import SessionTable
from taskgate.gateway.tasks.task_records import TaskRecords
from taskgate.ports.outlet import ReplyOutlet, SessionOutlet
from taskgate.store.operations.task_queries import FindTask

PROGRESS_EVERY_S: Final = 1.0


class OpenListen(Protocol):
    """An open `subscriptions/listen`."""

    def notify(self, method: str, params: bytes | None) -> None: ...


class Followers:
    def __init__(
        self,
        records: TaskRecords,
        sessions: SessionTable,
        conversations: OpenConversations,
        urls: UrlElicitations,
        listens: Callable[[str], Sequence[OpenListen]],
        *,
        events: EventHub,
        expiry_s: Callable[[Question], float],
    ) -> None:
        """`expiry_s`: how long a question waits for its answer."""
        self._expiry_s = expiry_s
        self._records = records
        self._sessions = sessions
        self._conversations = conversations
        self._urls = urls
        self._listens = listens
        self._events = events
        self._progress: dict[str, tuple[Raw, PacedProgress]] = {}
        self._creators: dict[str, Session] = {}
        self._waiting: dict[str, list[Request]] = {}
        self._notifying: set[asyncio.Task[None]] = set()
        self._progress_due: set[str] = set()
        events.subscribe(TaskChanged, self._changed)
        events.subscribe(ProgressMade, self._progressed)
        events.subscribe(TaskLogged, self._logged)

    def has_listen(self, task_id: str) -> bool:
        """Whether a `subscriptions/listen` that names the task is open."""
        return bool(self._listens(task_id))

    def is_awaited(self, task_id: str) -> bool:
        """Whether an open request waits for the task's result."""
        return any(request.delivery.outlet.is_read for request in self._waiting.get(task_id, ()))

    def has_stream(self, task: Task) -> bool:
        """Whether a session that is notified of the task reads its own stream."""
        outlets = (session.outlet for session in self._sessions_of(task))
        return any(outlet is not None and outlet.followed for outlet in outlets)

    def add_creator(self, task: Task, request: Request, *, held: bool) -> None:
        """Remember the session that created the task, and its progress token: until the task ends, or while its plain call is
        held.
        """
        session, token = request.session, request.progress_token
        if session is not None:
            self._creators[task.id] = session
        if token is None:
            return
        if held:
            self._progress[task.id] = (token, request.delivery.pace)
        elif session is not None:
            pace = PacedProgress(lambda params: session.notify("notifications/progress", params))
            self._progress[task.id] = (token, pace)

    def drop_progress(self, task_id: str, request: Request) -> None:
        """Forget the progress token of a held call that gets its reply."""
        known = self._progress.get(task_id)
        if request.progress_token is not None and known is not None and known[1] is request.delivery.pace:
            del self._progress[task_id]

    def add_result_request(self, task_id: str, request: Request) -> None:
        """Register an open `tasks/result`, whose stream can carry the task's questions."""
        self._waiting.setdefault(task_id, []).append(request)
        self._events.publish(TaskStreamOpened(task_id))
        self._events.publish(ResultAwaited(task_id, request))

    def add_held_call(self, task_id: str, request: Request) -> None:
        """Register a plain call that is held as this task, whose stream can carry the task's questions."""
        self._waiting.setdefault(task_id, []).append(request)
        self._events.publish(TaskStreamOpened(task_id))

    def remove_request(self, task_id: str, request: Request) -> None:
        requests = self._waiting[task_id]
        requests.remove(request)
        if not requests:
            del self._waiting[task_id]

    def _sessions_of(self, task: Task) -> list[Session]:
        """The session that created the task or, once it has ended, all sessions of the same principal."""
        if task.principal == ANONYMOUS:
            own = self._sessions.get(task.caller.removeprefix(SESSION))
            return [own] if own is not None else []
        return self._conversations.sessions_to_notify(task.conversation_key)

    def ask_on_stream(
        self, task: Task, question: Question, keep: Keep
    ) -> tuple[asyncio.Task[Answer], Callable[[], bool]] | None:
        """Ask the first session of the caller that can answer, preferably on a stream that waits for this task."""
        waiting = self.ask_on_waiting(task, question, keep)
        if waiting is not None:
            return waiting
        for session in self._sessions_of(task):
            own = session.outlet
            if _can_answer(session, question) and own is not None:
                self._urls.given(session, question)
                # An unread stream keeps the question; another stream may be opened before it is read.
                return self._asking(session, question, keep), partial(_unread, own)
        return None

    def ask_on_waiting(
        self, task: Task, question: Question, keep: Keep
    ) -> tuple[asyncio.Task[Answer], Callable[[], bool]] | None:
        """Ask on a stream that waits for this task, or for the script that made the call."""
        for request in (*self._waiting.get(task.id, ()), *self._waiting.get(task.parent, ())):
            outlet = request.delivery.outlet
            reached = outlet.can_send and outlet.still_there
            if request.session is not None and reached and _can_answer(request.session, question):
                self._urls.given(request.session, question)
                return self._asking(request.session, question, keep, request), partial(_broken, outlet)
        return None

    def _asking(
        self, session: Session, question: Question, keep: Keep, request: Request | None = None
    ) -> asyncio.Task[Answer]:
        asking = ask_session(session, question, request, self._expiry_s(question), keep)
        return asyncio.get_running_loop().create_task(asking)

    def _progressed(self, event: ProgressMade) -> None:
        task_id, noted = event.task_id, event.noted
        if self.has_listen(task_id):
            self._notify_progress_soon(task_id)
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

    def _logged(self, event: TaskLogged) -> None:
        """Send a log message of a run to the session that created the task."""
        session = self._creators.get(event.task_id)
        members = wire.members_of(event.params)
        level = wire.parse_strictly(bytes(members.get("level", Raw(b'"info"'))))
        if session is not None and session.accepts_log(level if type(level) is str else "info"):
            related = with_meta(members, {RELATED_TASK: wire.raw({"taskId": event.task_id})})
            session.notify("notifications/message", wire.join(related))

    def creator(self, task_id: str) -> Session | None:
        """The session that created the task, while both exist."""
        return self._creators.get(task_id)

    def _changed(self, event: TaskChanged) -> None:
        task = event.task
        if task.state.is_terminal:
            self._creators.pop(task.id, None)
        ended = self._progress.pop(task.id, None) if task.state.is_terminal else None
        if ended is not None:
            ended[1].end()
        params = None
        # A caller is notified of its script, not of each of the calls that the script makes.
        for session in () if task.parent else self._sessions_of(task):
            if supports_tasks(session.version) and (session.task_aware or session.used_tasks):
                params = params or wire.encode(stateful_task(task, self._records.poll_ms(task)))
                session.notify("notifications/tasks/status", params)
        if self.has_listen(task.id):
            self._in_background(self._notify_listens(task))
        if task.state is TaskState.INPUT_REQUIRED and task.parent and self.has_listen(task.parent):
            self._in_background(self._notify_of_call(task.parent))

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        notifying = asyncio.get_running_loop().create_task(work)
        self._notifying.add(notifying)
        notifying.add_done_callback(self._notifying.discard)

    def _notify_progress_soon(self, task_id: str) -> None:
        """Notify open `subscriptions/listen` requests of progress at most once a second."""
        if task_id not in self._progress_due:
            self._progress_due.add(task_id)
            self._in_background(self._notify_progress(task_id))

    async def _notify_progress(self, task_id: str) -> None:
        await clock.sleep(PROGRESS_EVERY_S)
        self._progress_due.discard(task_id)
        task = await self._records.store.ask(FindTask(task_id))
        if task is not None and not task.state.is_terminal:
            await self._notify_listens(task)

    async def _notify_of_call(self, script_id: str) -> None:
        """A server asks a question of a call of this script."""
        script = await self._records.store.ask(FindTask(script_id))
        if script is not None:
            await self._notify_listens(script)

    async def _notify_listens(self, task: Task) -> None:
        detailed = await self._records.detailed(task)
        detailed.pop("resultType", None)
        params = wire.encode(detailed)
        for listen in self._listens(task.id):
            listen.notify("notifications/tasks", params)


def _unread(outlet: SessionOutlet) -> bool:
    return not outlet.followed


def _broken(outlet: ReplyOutlet) -> bool:
    """Whether the stream that a question was sent on is closed: then it is unknown whether the caller has read it."""
    return not outlet.still_there


def _can_answer(session: Session, question: Question) -> bool:
    return not session.closed and can_answer(session.capabilities, question.method, question.decoded())
