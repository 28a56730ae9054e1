"""Holding a call for a stateless caller that knows no tasks but can open a page: ask with a link, and wait on the next round.

The call is durable before the link goes out. The caller comes back with the signed state it was given, and that request waits until
people have decided. Where the workflow lets the caller answer its own question, the question is a form instead of a link.
"""

from __future__ import annotations

from typing import Any, Final

from taskgate.core import wire
from taskgate.core.errors import CallerError
from taskgate.core.generations import Generation
from taskgate.core.governance.approval import Verdict
from taskgate.core.questions import ELICIT, can_answer
from taskgate.core.tasks.task import Task
from taskgate.core.wire import Raw
from taskgate.gateway.catalog.views import ToolRef
from taskgate.gateway.governance.approvals import Approvals
from taskgate.gateway.governance.ask_caller import form_of, may_answer_itself, own_answer, url_of
from taskgate.gateway.plan.plan import Live, Plan
from taskgate.gateway.requests.caller_keys import arguments_digest
from taskgate.gateway.requests.request import Request
from taskgate.gateway.requests.request_state import RequestStateSigner, text_of
from taskgate.gateway.tasks.engine import TaskEngine
from taskgate.gateway.tasks.task_records import NewCall
from taskgate.ports.approval_store import ApprovalRequest

STATE_KIND: Final = "approval"
KEY: Final = "approval"


class ByUrl:
    def __init__(
        self, state_signer: RequestStateSigner, approvals: Approvals, tasks: TaskEngine, plan: Live[Plan]
    ) -> None:
        self._state_signer = state_signer
        self._approvals = approvals
        self._tasks = tasks
        self._plan = plan

    def question_for(self, request: Request, approval: ApprovalRequest) -> dict[str, Any] | None:
        """The question this caller can be given in a result, or None if it has to be held like any other."""
        envelope = request.envelope
        if envelope is None or envelope.wants_tasks:
            return None
        if may_answer_itself(self._plan.value, approval) and can_answer(envelope.capabilities, ELICIT, {}):
            return form_of(approval)
        question = url_of(approval, self._approvals.page_url(approval.id))
        return question if can_answer(envelope.capabilities, ELICIT, question) else None

    async def begin(
        self,
        request: Request,
        tool: ToolRef,
        call: NewCall,
        approval: ApprovalRequest,
        question: dict[str, Any],
        *,
        key: str | None,
    ) -> bytes:
        task, _handle = await self._tasks.create(request, call, approval, key)
        return self._asked(request, tool, task, question)

    def _asked(self, request: Request, tool: ToolRef, task: Task, question: dict[str, Any]) -> bytes:
        state = self._state_signer.close(
            STATE_KIND, request.caller.principal, "tools/call", tool.name, tool.server, body=task.id
        )
        return wire.encode(
            {
                "resultType": "input_required",
                "inputRequests": {KEY: {"method": ELICIT, "params": question}},
                "requestState": state,
            }
        )

    async def resumed(self, request: Request, tool: ToolRef) -> bytes | None:
        """The caller is back from the page: wait for the decision, then for the result. None if it is not about us."""
        if request.generation is not Generation.STATELESS or "requestState" not in request.params:
            return None
        members = request.members()
        state = self._state_signer.open(
            text_of(members["requestState"]), request.caller.principal, "tools/call", tool.name
        )
        if state.kind != STATE_KIND:
            return None
        task = await self._tasks.records.find(request, state.body)
        if arguments_digest(bytes(members.get("arguments", Raw(b"{}")))) != task.digest:
            raise CallerError("invalid_params", "The arguments are not those of the call that waits for approval.")
        await self._heard(request, task)
        return await self._tasks.wait_out(request, task, waiting_for_people=True)

    async def _heard(self, request: Request, task: Task) -> None:
        responses = request.params.get("inputResponses")
        answer = responses.get(KEY) if type(responses) is dict else None
        if type(answer) is not dict or task.approval_id is None or task.state.is_terminal:
            return
        if answer.get("action") in ("decline", "cancel"):
            await self._tasks.methods.cancel_task(task, "the caller declined to ask for approval")
            return
        held = await self._tasks.store.held(task.approval_id)
        word = own_answer(self._plan.value, held, answer) if held is not None else None
        if word is not None:
            await self._approvals.decide(
                word.who, task.approval_id, word.verdict, reason=word.reason, channel="elicitation"
            )
        elif answer.get("content") == {"decision": Verdict.DENY.value}:
            await self._tasks.methods.cancel_task(task, "the caller withdrew it")
