"""Send the call of one task, with retries, until the task has ended or may not be retried.

The intent is stored before the first byte is sent, a server's task id before anything else happens, and the result before anyone
is notified. What a failure proves decides what may be retried; what cannot be known is reported as unknown. `runs` makes sure that
each task is run once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from taskgate import clock
from taskgate.core.errors import CallerError, Executed, UpstreamError
from taskgate.core.questions.question import NO_STATE, Answer
from taskgate.core.tasks import endings
from taskgate.core.tasks.task import Task
from taskgate.core.tasks.transition import Noted, UpstreamTaskKnown, may_send
from taskgate.core.wire import Raw
from taskgate.gateway.plan import Live
from taskgate.gateway.relay.rounds import next_params
from taskgate.gateway.requests.budgets import Budgets
from taskgate.gateway.requests.caller_keys import fair_key_of
from taskgate.gateway.tasks.account_questions import MAX_QUESTIONS_PER_RUN, AccountQuestions
from taskgate.gateway.tasks.conversation import Conversation
from taskgate.gateway.tasks.deadlines import TaskDeadlines
from taskgate.gateway.tasks.questions import TaskQuestions
from taskgate.gateway.tasks.run_queue import RunQueue, RunSlot
from taskgate.gateway.tasks.sends import NotSent, Recheck, TaskSends
from taskgate.gateway.tasks.task_call import TaskCall
from taskgate.gateway.tasks.task_records import TaskRecords, sent_params
from taskgate.gateway.tasks.task_results import TaskResults
from taskgate.gateway.tasks.upstream_tasks import UpstreamTasks
from taskgate.ports.call_failure import CallFailed, never_sent
from taskgate.ports.link import Link
from taskgate.ports.upstream import Upstream
from taskgate.ports.upstream_credentials import AccountNeeded
from taskgate.ports.upstream_replies import Result
from taskgate.store.operations.tasks import NoteProgress

FIRST_PAUSE_S: Final = 0.5
MAX_PAUSE_S: Final = 30.0
_NO_SLOT: Final = "The server {} had no free slot in time. The call was not executed."


class _UpstreamTaskCreated(msgspec.Struct, frozen=True):
    """The server returned a task of its own."""

    task: Task
    link: Link


class Attempts:
    def __init__(
        self,
        records: TaskRecords,
        questions: TaskQuestions,
        results: TaskResults,
        following: UpstreamTasks,
        queue: RunQueue,
        *,
        call: TaskCall,
        accounts: AccountQuestions,
        recheck: Recheck,
        deadlines: TaskDeadlines,
        upstreams: Live[Mapping[str, Upstream]],
        budgets: Budgets,
    ) -> None:
        self.following = following
        self.queue = queue
        self._records = records
        self._questions = questions
        self._results = results
        self._call = call
        self._accounts = accounts
        self._recheck = recheck
        self._deadlines = deadlines
        self._upstreams = upstreams
        self._budgets = budgets
        self._stopped = False

    def stop_sending(self) -> None:
        """At shutdown: leave calls that were not sent to the next start."""
        self._stopped = True

    async def execute(self, task: Task, conversation: Conversation) -> None:
        """Send the call, starting with its first round or with the one that the last owner had reached."""
        try:
            await self._execute(task, conversation)
        finally:
            self._deadlines.run_ended(task.id)

    async def _execute(self, task: Task, conversation: Conversation) -> None:
        sends = await self._begin(task)
        if sends is None:
            return
        asked = 0
        for pause_s in _pauses():
            problem = await self._attempt_in_turn(sends, conversation)
            if problem is None or self._stopped:
                return
            if isinstance(problem, AccountNeeded):
                asked += 1
                if asked <= MAX_QUESTIONS_PER_RUN and await self._accounts.settled(sends.task, problem):
                    continue
                await sends.give_up(problem)
                return
            if not self._may_retry_after(sends.task, pause_s):
                await sends.give_up(problem)
                return
            self._records.store.defer(NoteProgress(sends.task.id, Noted(_retry_text(sends.task, problem))))
            await clock.sleep(pause_s)

    async def _begin(self, task: Task) -> TaskSends | None:
        """What to send; None if the task has ended meanwhile. A call with open questions continues with their answers."""
        if task.request_state is None:
            return TaskSends(self._records, self._recheck, task, None)
        answers = await self._questions.resume(task)
        current = await self._records.current(task.id)
        if current is None or current.state.is_terminal:
            return None
        if not answers and not task.tool_class.may_repeat:
            # They were refused or withdrawn, which is not stored. A server that keeps no state takes a round without answers for
            # a new call.
            text = "The answers to the questions of the server were not stored."
            lost = UpstreamError("outcome_unknown", text, executed=Executed.MAYBE)
            await self._records.conclude(task.id, endings.lost(current, lost))
            return None
        state = Raw(task.request_state) if task.request_state != NO_STATE else None
        given = {key: _result_of(answer) for key, answer in answers.items()}
        return TaskSends(self._records, self._recheck, current, next_params(sent_params(task), given, state))

    def _may_retry_after(self, task: Task, pause_s: float) -> bool:
        left_s = self._deadlines.retry_time_left_s(task)
        return left_s is None or pause_s < left_s

    async def _attempt_in_turn(self, sends: TaskSends, conversation: Conversation) -> UpstreamError | None:
        """One attempt, with a slot of the server if it has `max_concurrency`."""
        task = sends.task
        queue = self._budgets.queues.get(task.server)
        if queue is None:
            return await self._attempt(sends, conversation)
        try:
            await queue.enter(fair_key_of(task), task.ttl_ms / 1000, limited=False)
        except CallerError as problem:
            await self._records.conclude(task.id, endings.by_error(task, problem))
            return None
        try:
            return await self._attempt(sends, conversation)
        finally:
            queue.leave(fair_key_of(task))

    async def _attempt(self, sends: TaskSends, conversation: Conversation) -> UpstreamError | None:
        """One attempt. Return the failure if the call may be retried; None if the task has ended or moved on."""
        slot = self.queue.slot(sends.task)
        try:
            outcome = await self._connect_and_send(sends, conversation, slot)
        finally:
            slot.give_back()
        if isinstance(outcome, _UpstreamTaskCreated):
            await self.follow(outcome.task, conversation, outcome.link)
            return None
        return outcome

    async def _connect_and_send(
        self, sends: TaskSends, conversation: Conversation, slot: RunSlot
    ) -> UpstreamError | _UpstreamTaskCreated | None:
        task = sends.task
        if not await slot.take(self._deadlines.max_wait_s(task)):
            await sends.give_up(UpstreamError("overloaded", _NO_SLOT.format(task.server)))
            return None
        upstream = self._upstreams.value.get(task.server)
        if upstream is None:
            return UpstreamError("upstream_unreachable", f"The server {task.server} is not configured any more.")
        try:
            await self._recheck.prepare(task)
            link = await upstream.link(conversation.key, conversation.profile)
        except UpstreamError as problem:
            return never_sent(task.server, problem)
        if self._stopped:
            return None
        sends.prepare(self.following.with_task_param(task, link, sends.params))
        try:
            await sends.sends_again()
            return await self._send(sends, link, conversation, slot)
        except NotSent:
            return None
        except UpstreamError as problem:
            return problem if await sends.after_failure(problem) else None

    async def _send(
        self, sends: TaskSends, link: Link, conversation: Conversation, slot: RunSlot
    ) -> _UpstreamTaskCreated | None:
        task = sends.task
        reply = await self._call.send(sends, link, self.following.profile_for(link, conversation.profile), slot)
        handle = await self.following.handle_in(link, reply)
        if handle is not None:
            # The id of the server's task is stored before anything else.
            known = await self._records.conclude(task.id, UpstreamTaskKnown(handle))
            return _UpstreamTaskCreated(known, link) if known is not None else None
        if isinstance(reply, Result):
            reply = Result(await self._results.truncate(task.server, reply.raw))
        await self._results.record(task.id, reply, task=task)
        return None

    async def follow(self, task: Task, conversation: Conversation, link: Link | None = None) -> None:
        """Follow the server's own task to its end. If the server has lost it, send again or fail, by the class of the tool."""
        upstream = self._upstreams.value.get(task.server)
        if upstream is None:
            await self._fail_lost(task, "The server is not configured any more.")
            return
        if await self.following.follow(task, upstream, conversation, link):
            return
        forgotten = await self._records.conclude(task.id, UpstreamTaskKnown(None))
        if forgotten is None:
            return
        if may_send(forgotten):
            await self.execute(forgotten, conversation)
        else:
            await self._fail_lost(forgotten, "The server no longer has its task.")

    async def _fail_lost(self, task: Task, why: str) -> None:
        problem = UpstreamError("upstream_unreachable", why, executed=Executed.MAYBE)
        current = await self._records.current(task.id)
        if current is not None and not current.state.is_terminal:
            await self._records.conclude(task.id, endings.lost(current, problem))


def _retry_text(task: Task, problem: UpstreamError) -> str:
    why = (
        f"The server {problem.server} {problem.why}" if isinstance(problem, CallFailed) else problem.message.rstrip(".")
    )
    before = "may have been executed before, is safe to repeat" if task.may_have_been_sent else "has not been executed"
    return f"{why}. The call {before} and will be retried."[:500]


def _pauses() -> Iterator[float]:
    pause_s = FIRST_PAUSE_S
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, MAX_PAUSE_S)


def _result_of(answer: Answer) -> Raw:
    return Raw(answer.result) if answer.result is not None else Raw(b'{"action":"cancel"}')
