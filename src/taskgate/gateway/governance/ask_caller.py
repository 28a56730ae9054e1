"""Asking a stateful caller itself, where its workflow has the channel `elicitation`: as a form, or with a link to the page.

The question goes out over the very request that is held, or over the session's own stream if the call is a task already. It is
an extra way to an answer: the inbox has the approval too, and whoever decides first decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from taskgate.core import wire
from taskgate.core.errors import TaskgateError
from taskgate.core.questions import ELICIT, Answer, Question, can_answer
from taskgate.core.tasks.task import Task
from taskgate.core.wire import Raw
from taskgate.gateway.asking import ask_session
from taskgate.gateway.governance.approvals import Approvals
from taskgate.gateway.governance.own_answer import form_of, may_answer_itself, own_answer, url_of
from taskgate.gateway.plan import Plan
from taskgate.gateway.request import Request
from taskgate.gateway.tasks.engine import TaskEngine
from taskgate.ports.approval_store import ApprovalRequest
from taskgate.telemetry.logs import log


class AskCaller:
    def __init__(self, approvals: Approvals, tasks: TaskEngine, plan: Callable[[], Plan]) -> None:
        self._approvals = approvals
        self._tasks = tasks
        self._plan = plan
        self._asking: dict[str, asyncio.Task[None]] = {}
        approvals.when_opened = self.opened
        approvals.when_over = self.over

    def opened(self, task: Task | None, approval: ApprovalRequest, request: Request) -> None:
        if request.session is None or approval.workflow.name not in self._plan().governing.elicits:
            return
        question = self._question(approval, request)
        if question is not None:
            work = self._ask(task, approval, request, question)
            job = self._asking[approval.id] = asyncio.get_running_loop().create_task(work)
            job.add_done_callback(lambda _: self._asking.pop(approval.id, None))

    def over(self, approval_id: str) -> None:
        """Decided elsewhere: nobody needs this answer any more."""
        asking = self._asking.get(approval_id)
        if asking is not None and asking is not asyncio.current_task():
            asking.cancel()

    def _question(self, approval: ApprovalRequest, request: Request) -> Question | None:
        assert request.session is not None
        params = url_of(approval, self._approvals.page_url(approval.id))
        if may_answer_itself(self._plan(), approval):
            params = form_of(approval)
        if not can_answer(request.session.capabilities, ELICIT, params):
            return None
        return Question(ELICIT, Raw(wire.encode(params)), approval.binding.server)

    async def _ask(self, task: Task | None, approval: ApprovalRequest, request: Request, question: Question) -> None:
        """Around one question to a caller: whatever goes wrong, the inbox still has it."""
        try:
            answer = await self._answer(task, request, question)
            if answer is None or answer.result is None:
                return
            held = await self._tasks.store.held(approval.id)
            word = own_answer(self._plan(), held, wire.parse_strictly(answer.result)) if held is not None else None
            if word is not None:
                await self._approvals.decide(
                    word.who, approval.id, word.verdict, reason=word.reason, channel="elicitation"
                )
        except TaskgateError as problem:
            log.info("the caller could not be asked", approval=approval.id, why=problem.message)
        except Exception as fault:
            log.error("asking the caller failed", approval=approval.id, exc_info=fault)

    async def _answer(self, task: Task | None, request: Request, question: Question) -> Answer | None:
        assert request.session is not None
        if task is None or "task" not in request.params:
            return await ask_session(request.session, question, request)
        pushed = self._tasks.followers.push(task, question)
        return await pushed[0] if pushed is not None else None

    async def close(self) -> None:
        jobs = list(self._asking.values())
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
