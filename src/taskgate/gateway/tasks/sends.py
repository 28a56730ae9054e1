"""One task's call on its way: whose turn it is, the record of every send, and what the upstream's answers mean."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from typing import Protocol

from taskgate.core import wire
from taskgate.core.errors import Cure, Executed, GatewayFault, UpstreamError, judge
from taskgate.core.fair_queue import FairQueue, QueuePlace
from taskgate.core.governance.approval import Approval
from taskgate.core.questions import Question
from taskgate.core.tasks import endings
from taskgate.core.tasks.task import Task
from taskgate.core.tasks.transition import (
    AttemptVoided,
    ErrorCame,
    InputAsked,
    InputSettled,
    MayNotRepeat,
    Noted,
    ResultCame,
    TransitionEvent,
    may_send,
)
from taskgate.core.wire import Members, Raw
from taskgate.gateway.plan import Live, Plan
from taskgate.gateway.questions.elicitations import URL_REQUIRED, UrlElicitations
from taskgate.gateway.requests.large_results import first_text, looked_at
from taskgate.gateway.requests.request import fair_key_of
from taskgate.gateway.tasks.followers import Followers
from taskgate.gateway.tasks.task_records import TaskRecords, sent_params
from taskgate.ports.store_answers import ApprovalSpent, Intended, Intending, Outdated, StoppedByRecheck
from taskgate.ports.upstream import CallFailed, ErrorReply, Reply
from taskgate.telemetry.metrics import Gauge


class Recheck(Protocol):
    """The last check before a task's call is sent: would the gates still say what they said?"""

    async def prepare(self, task: Task) -> None:
        """Bring up to date what the check will look at. Raises UpstreamError if the server cannot be asked."""
        ...

    def __call__(self, task: Task, approval: Approval | None, now_ms: int) -> TransitionEvent | None:
        """Runs inside the transaction that writes the intent. None lets the call go; otherwise what ends it."""
        ...


class NotSent(UpstreamError):
    """The call may not be sent (again); the task has been ended, or belongs to somebody else."""

    def __init__(self) -> None:
        super().__init__("upstream_unreachable", "The call was not sent again.")


class TaskSide:
    """Implements the port `CallSide` for a task: its caller has a handle, so what its server waits for is told in its status."""

    def __init__(self, records: TaskRecords, task: Task) -> None:
        self._records = records
        self._task = task

    def can_carry(self, question: Question) -> bool:
        return False

    def can_keep(self) -> bool:
        return True

    def server_waits(self, text: str | None) -> None:
        said = text or f"{self._task.server} has the answer that it waited for."
        self._records.note(self._task.id, self._task.principal, Noted(said[:500]))


class TaskSends:
    """Implements the port `SendLog` for one task."""

    def __init__(self, records: TaskRecords, recheck: Recheck, task: Task, params: Members | None) -> None:
        """`params`: what is sent first; None means what the task says, read when it is sent: thousands may stand in line."""
        self.task = task
        """The task as it was when it was last looked at."""
        self._params = params
        self._records = records
        self._recheck = recheck
        self._unsure = False
        """Whether the last intent was given up on without knowing what became of it."""

    @property
    def params(self) -> Members:
        """What is sent in the present round."""
        if self._params is None:
            self._params = sent_params(self.task)
        return self._params

    def prepare(self, params: Members) -> None:
        """What is sent next."""
        self._params = params

    async def sends_again(self) -> None:
        """Write the intent. Raises NotSent if nothing may be sent."""
        byte_hash = hashlib.sha256(wire.join(self.params)).hexdigest()
        intended = await self._records.patiently(lambda: self._intended(byte_hash))
        match intended:
            case Intended(task=sent):
                self.task = sent
                self._records.changes.changed(sent)
                return
            case StoppedByRecheck(task=stopped):
                self._records.moved(stopped)
            case MayNotRepeat() | ApprovalSpent():
                await self.give_up(NotSent())
            case _:
                pass
        raise NotSent

    async def _intended(self, byte_hash: str) -> Intending:
        """Raises GatewayFault where what the recheck looks at is out of date: it is about to be read."""
        if self._unsure:
            await self._take_back()
        task, self._unsure = self.task, True
        answer = await self._records.store.intend(
            task.id, byte_hash=byte_hash, upstream=task.server, look=self._recheck
        )
        self._unsure = False
        if isinstance(answer, Outdated):
            what = ", ".join(answer.topics)
            raise GatewayFault("store_unavailable", f"Another gateway has just changed {what}, which is being read.")
        return answer

    async def _take_back(self) -> None:
        """An intent that we gave up on may be in the store after all. Nothing went out on it, which is proof enough."""
        current, ours = await self._records.store.get(self.task.id), self._records.store.ownership
        if current is None or current.attempts <= self.task.attempts or current.owner != ours.owner:
            return
        self.task = await self._records.advance(current.id, AttemptVoided()) or self.task

    async def refused(self) -> None:
        """What was sent last is proven not to have been executed."""
        self.task = await self._records.conclude(self.task.id, AttemptVoided()) or self.task

    async def next_round(self, params: Members, state: bytes | None) -> None:
        """The server answered with questions, which have been answered: write the intent of the next round."""
        current = await self._records.current(self.task.id)
        if current is not None and not current.between_rounds and not current.state.is_terminal:
            # None of the questions could be put to anybody, so nothing says yet that the round is over.
            await self._records.conclude(current.id, InputAsked((), None, state, ends_round=True))
            await self._records.conclude(current.id, InputSettled(()))
        self._params = params
        await self.sends_again()

    async def after_failure(self, problem: UpstreamError) -> bool:
        """What the failure of a send proves is kept. True if the same may be tried again; if not, the task has ended."""
        current = await self._records.current(self.task.id)
        if current is None or current.state.is_terminal or isinstance(problem, NotSent):
            return False
        if not isinstance(problem, CallFailed):
            await self._records.conclude(current.id, endings.by_error(current, problem))
            return False
        proof = judge(problem.evidence, tool_class=current.tool_class)
        if proof.executed is Executed.NO:
            await self.refused()
        if proof.cure is Cure.RECONNECT or (proof.cure is Cure.REPEAT and may_send(current)):
            return True
        await self.give_up(problem)
        return False

    async def give_up(self, problem: UpstreamError) -> None:
        current = await self._records.current(self.task.id)
        if current is not None and not current.state.is_terminal:
            await self._records.conclude(current.id, endings.lost(current, problem))


# Whose turn it is to be sent: each server has only so many calls of tasks open at once, and the rest wait in line.
#
# A call holds its turn from just before its intent is written until its answer is there; not while a person is asked
# between two rounds, and not while the server's own task is followed, because then it holds no connection. Free turns
# go to the caller who has the fewest. How many may wait is bounded by the limits on open tasks alone: a task was accepted, so
# its run is never refused here.

Note = Callable[[str, Noted], None]


class RunQueue:
    def __init__(self, plan: Live[Plan], note: Note) -> None:
        self._plan = plan
        self._note = note
        self._lines: dict[str, FairQueue] = {}

    def turn(self, task: Task) -> Turn:
        return Turn(self, task, self._note)

    def line(self, server: str) -> FairQueue:
        """The line of this server, as long as somebody is in it. A reload shows when the next one comes or goes."""
        slots = self._plan.value.limits.runs_per_server
        line = self._lines.get(server)
        if line is None:
            line = self._lines[server] = FairQueue(slots)
        elif line.slots != slots:
            call(line.resize(slots))
        return line

    def left(self, server: str) -> None:
        line = self._lines.get(server)
        if line is not None and not line.running and not line.waiting:
            del self._lines[server]

    def gauges(self) -> list[Gauge]:
        return [
            Gauge(
                "taskgate_runs_sent",
                "Calls of tasks that a server has open.",
                ("server_id",),
                lambda: [((server,), line.running) for server, line in self._lines.items()],
            ),
            Gauge(
                "taskgate_runs_waiting",
                "Calls of tasks that wait in line for their server.",
                ("server_id",),
                lambda: [((server,), line.waiting) for server, line in self._lines.items()],
            ),
        ]


class Turn:
    """The turn of one run: taken and given back as often as it sends something."""

    __slots__ = ("_held", "_key", "_note", "_queue", "_server", "_task_id")

    def __init__(self, queue: RunQueue, task: Task, note: Note) -> None:
        self._queue = queue
        self._server = task.server
        self._task_id = task.id
        self._key = fair_key_of(task)
        self._note = note
        self._held = False

    async def take(self, patience_s: float | None) -> bool:
        """False if it did not come within this time."""
        if self._held:
            return True
        line = self._queue.line(self._server)
        ticket: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if line.enter(self._key, ticket, limited=False) is QueuePlace.WAITS:
            text = f"Waiting in line for the server {self._server}, where {line.running} calls of tasks are running."
            self._note(self._task_id, Noted(text))
            if not await self._came(line, ticket, patience_s):
                return False
            self._note(self._task_id, Noted("Its turn has come; the call is being sent."))
        self._held = True
        return True

    async def _came(self, line: FairQueue, ticket: asyncio.Future[None], patience_s: float | None) -> bool:
        came = False
        try:
            async with asyncio.timeout(patience_s):
                await ticket
            came = True
        except TimeoutError:
            return False
        finally:
            if not came and not line.abandon(self._key, ticket):
                self._held = True
                self.give_back()
            self._queue.left(self._server)
        return True

    def take_at_once(self) -> None:
        """It has been sent already, as a plain call: it counts, even beyond the limit."""
        self._queue.line(self._server).run_at_once(self._key)
        self._held = True

    def give_back(self) -> None:
        if self._held:
            self._held = False
            call(self._queue.line(self._server).leave(self._key))
            self._queue.left(self._server)


def call(tickets: list[object]) -> None:
    """Whose turn it is goes on."""
    for turn in tickets:
        assert isinstance(turn, asyncio.Future)
        if not turn.done():
            turn.set_result(None)


# What an upstream's answers mean for a task. The endings that nobody answered are in `core.tasks.endings`.


class TaskResults:
    """Keeps what an upstream answered as the end of a task. Every answer passes its checks here: none can be left out."""

    def __init__(
        self,
        records: TaskRecords,
        followers: Followers,
        urls: UrlElicitations,
        *,
        cut: Callable[[str, bytes], Awaitable[bytes]],
        check_output: Callable[[Task, bytes], Awaitable[bytes]],
    ) -> None:
        self._records = records
        self._followers = followers
        self._urls = urls
        self._cut = cut
        self._check_output = check_output

    async def cut(self, server: str, result: bytes) -> bytes:
        """What is kept of a result: no more than its server's budget."""
        return await self._cut(server, result)

    async def record(self, task_id: str, reply: Reply, *, judged: bool = False) -> None:
        """The upstream's answer ends the task: its bytes are kept as they came, unless they may not be shown."""
        if isinstance(reply, ErrorReply):
            unfit = None if judged else await self._unfit(task_id, reply)
            ending = unfit or ErrorCame(reply.raw, error_message(reply.raw), Executed.YES)
            await self._records.conclude(task_id, ending)
            return
        raw = reply.raw
        task = await self._records.current(task_id)
        if task is not None:
            raw = await self._check_output(task, raw)
        failed = is_error(await looked_at(raw))
        await self._records.conclude(task_id, ResultCame(raw, failed, await first_text(raw) if failed else None))

    async def _unfit(self, task_id: str, reply: ErrorReply) -> ErrorCame | None:
        """What to keep instead of an error that wants an address opened which nobody may be shown."""
        task = await self._records.current(task_id) if reply.code == URL_REQUIRED else None
        if task is None:
            return None
        origin = self._followers.origin(task.id)
        problem = self._urls.unfit(task.principal, task.server, reply.raw, origin)
        return endings.by_error(task, problem) if problem is not None else None


def progress_note(method: str, raw: Raw | None) -> Noted | None:
    if method != "notifications/progress" or raw is None:
        return None
    params = wire.parse_strictly(bytes(raw))
    progress, total, message = params.get("progress"), params.get("total"), params.get("message")
    number = isinstance(progress, int | float) and not isinstance(progress, bool)
    return Noted(
        message[:500] if type(message) is str else None,
        float(progress) if number else None,
        float(total) if isinstance(total, int | float) and not isinstance(total, bool) else None,
    )


def is_error(result: bytes) -> bool:
    if b'"isError"' not in result or b"true" not in result:
        return False
    return bytes(wire.members_of(result).get("isError", Raw(b"false"))) == b"true"


def error_message(raw: bytes) -> str:
    return str(wire.parse_strictly(raw).get("message", "The server answered with an error."))[:500]
