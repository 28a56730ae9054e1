"""Show a stateful caller the approval request for its own call, by elicitation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import Final

from taskgate.core import wire
from taskgate.core.errors import TaskgateError
from taskgate.core.governance.held_call import ApprovalRequest
from taskgate.core.questions.capabilities import can_answer
from taskgate.core.questions.question import ELICIT, Answer, Question
from taskgate.core.tasks.task import Task
from taskgate.core.wire import Raw
from taskgate.gateway.events import ApprovalOpened, ApprovalOver, EventHub, ResultAwaited
from taskgate.gateway.governance.approvals import Approvals
from taskgate.gateway.governance.own_call_form import form_of, may_answer_itself, own_vote, url_of
from taskgate.gateway.plan import Live, Plan
from taskgate.gateway.requests.caller_questions import ask_session
from taskgate.gateway.requests.request import Request
from taskgate.gateway.requests.session import Session
from taskgate.gateway.tasks.followers import Followers
from taskgate.ports.store import Store
from taskgate.store.operations.approvals import FindHeld
from taskgate.telemetry.logs import log

MAX_LATER: Final = 10_000


class AskCaller:
    def __init__(
        self, approvals: Approvals, followers: Followers, store: Store, plan: Live[Plan], events: EventHub
    ) -> None:
        self._approvals = approvals
        self._followers = followers
        self._store = store
        self._plan = plan
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._later: dict[str, tuple[Task, ApprovalRequest, Question]] = {}
        events.subscribe(ApprovalOpened, self._opened)
        events.subscribe(ApprovalOver, self._over)
        events.subscribe(ResultAwaited, self._result_awaited)

    def _opened(self, event: ApprovalOpened) -> None:
        task, approval, request = event.task, event.approval, event.request
        if request.session is None or approval.workflow.name not in self._plan.value.governing.elicits:
            return
        question = self._question(approval, request)
        if question is None:
            return
        if task is not None and "task" in request.params:
            self._ask_about_task(task, approval, question)
        else:
            self._begin(approval, self._asked_in(request.session, approval, question, request))

    def _ask_about_task(self, task: Task, approval: ApprovalRequest, question: Question) -> None:
        """Send the elicitation on a stream that follows the task, otherwise with the first request that waits for it."""
        pushed = self._followers.ask_on_stream(task, question, partial(self._decided, approval.id))
        if pushed is not None and not pushed[1]():
            self._begin(approval, pushed[0])
            return
        if pushed is not None:
            pushed[0].cancel()
        if len(self._later) < MAX_LATER:
            self._later[approval.id] = (task, approval, question)

    def _result_awaited(self, event: ResultAwaited) -> None:
        """A request waits for a task's result: its stream can carry the elicitation."""
        request = event.request
        if request.session is None:
            return
        for approval_id, (task, approval, question) in list(self._later.items()):
            if task.id == event.task_id:
                del self._later[approval_id]
                self._begin(approval, self._asked_in(request.session, approval, question, request))

    def _asked_in(
        self, session: Session, approval: ApprovalRequest, question: Question, request: Request
    ) -> Awaitable[Answer]:
        return ask_session(session, question, request, keep=partial(self._decided, approval.id))

    async def _decided(self, approval_id: str, _answer: Answer) -> None:
        """Acknowledge the reply only after the vote is stored, or was found not to count."""
        asking = self._asking.get(approval_id)
        if asking is not None:
            await asyncio.wait({asking})

    def _begin(self, approval: ApprovalRequest, answering: Awaitable[Answer]) -> None:
        job = self._asking[approval.id] = asyncio.get_running_loop().create_task(self._ask(approval, answering))
        job.add_done_callback(lambda _: self._asking.pop(approval.id, None))

    def _over(self, event: ApprovalOver) -> None:
        """Cancel the elicitation: the approval was decided elsewhere."""
        self._later.pop(event.approval_id, None)
        asking = self._asking.get(event.approval_id)
        if asking is not None and asking is not asyncio.current_task():
            asking.cancel()

    def _question(self, approval: ApprovalRequest, request: Request) -> Question | None:
        assert request.session is not None
        params = url_of(approval, self._approvals.page_url(approval.id))
        if may_answer_itself(self._plan.value, approval):
            params = form_of(approval)
        if not can_answer(request.session.capabilities, ELICIT, params):
            return None
        return Question(ELICIT, Raw(wire.encode(params)), approval.binding.server)

    async def _ask(self, approval: ApprovalRequest, answering: Awaitable[Answer]) -> None:
        """Process one elicitation. If it fails, the approval is still in the inbox."""
        try:
            answer = await answering
            if answer.result is None:
                return
            held = await self._store.ask(FindHeld(approval.id))
            vote = own_vote(self._plan.value, held, wire.parse_strictly(answer.result)) if held is not None else None
            if vote is not None:
                await self._approvals.decide(
                    vote.approver, approval.id, vote.verdict, reason=vote.reason, channel="elicitation"
                )
        except TaskgateError as problem:
            log.info("caller elicitation not delivered", approval=approval.id, why=problem.message)
        except Exception as fault:  # one background elicitation: the approval remains in the inbox
            log.error("caller elicitation failed", approval=approval.id, exc_info=fault)

    async def close(self) -> None:
        jobs = list(self._asking.values())
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
