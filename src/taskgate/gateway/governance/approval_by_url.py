"""Hold a call for a stateless client that does not support tasks but can open a page.

The reply contains a link, and the client's next request waits for the decision. The call is durable before the link is sent.
The client returns the signed state that it was given. If the workflow allows self-approval, the client gets a form instead of a
link.
"""

from __future__ import annotations

from typing import Any, Final

from taskgate.core import wire
from taskgate.core.errors import CallerError
from taskgate.core.generations.generation import Generation
from taskgate.core.governance.approval import Verdict
from taskgate.core.governance.held_call import ApprovalRequest
from taskgate.core.identity.addressees import has_conversation
from taskgate.core.questions.capabilities import can_answer
from taskgate.core.questions.question import ELICIT
from taskgate.core.tasks.task import Task
from taskgate.core.wire import Raw
from taskgate.gateway.catalog.views import ToolRef
from taskgate.gateway.governance.approvals import Approvals
from taskgate.gateway.governance.own_call_form import form_of, may_answer_itself, own_vote, url_of
from taskgate.gateway.plan import Live, Plan
from taskgate.gateway.requests.request import Request
from taskgate.gateway.requests.request_state import RequestStateSigner, text_of
from taskgate.gateway.requests.strict_arguments import arguments_digest, read_ahead
from taskgate.gateway.tasks.engine import TaskEngine
from taskgate.gateway.tasks.task_records import NewCall
from taskgate.store.operations.approvals import FindHeld

STATE_KIND: Final = "approval"
MAX_REMEMBERED: Final = 10_000
KEY: Final = "approval"


class ApprovalByUrl:
    def __init__(
        self, state_signer: RequestStateSigner, approvals: Approvals, tasks: TaskEngine, plan: Live[Plan]
    ) -> None:
        self._state_signer = state_signer
        self._approvals = approvals
        self._tasks = tasks
        self._plan = plan
        self._unopened: dict[str, None] = {}
        """Conversations whose client received a link and did not return for the call."""

    def question_for(self, request: Request, approval: ApprovalRequest) -> dict[str, Any] | None:
        """Return the elicitation to send in the result, or None if the call must be held like any other.

        A client that cannot show a link discards the reply, and with it the only reference to the call. So a link is sent only to
        callers that can find their call again: those with a conversation, as long as they returned for earlier links. A form is
        sent wherever the operator configured one, because its reply is the vote.
        """
        envelope = request.envelope
        if envelope is None or envelope.accepts_tasks or request.conversation_name in self._unopened:
            return None
        if may_answer_itself(self._plan.value, approval) and can_answer(envelope.capabilities, ELICIT, {}):
            return form_of(approval)
        if not has_conversation(request.conversation_name):
            return None
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
        task = await self._tasks.accept(request, call, approval, key, held=False)
        if request.delivery.joined is None:
            return self._asked(request, tool, task, question)
        # The same call without the state it was given: its client did not open the link, so this call waits instead.
        self._unopened[request.conversation_name] = None
        if len(self._unopened) > MAX_REMEMBERED:
            del self._unopened[next(iter(self._unopened))]
        return await self._tasks.hold_reply(request, task, waiting_for_people=True)

    def _asked(self, request: Request, tool: ToolRef, task: Task, question: dict[str, Any]) -> bytes:
        state = self._state_signer.sign(
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
        """Continue a call whose client returns the signed state: wait for the decision, then for the result.

        None if the state is not that of an approval.
        """
        if request.generation is not Generation.STATELESS or "requestState" not in request.params:
            return None
        members = request.members()
        state = self._state_signer.verify(
            text_of(members["requestState"]), request.caller.principal, "tools/call", tool.name
        )
        if state.kind != STATE_KIND:
            return None
        task = await self._tasks.records.find(request, state.body)
        arguments = bytes(members.get("arguments", Raw(b"{}")))
        await read_ahead(arguments)
        if arguments_digest(arguments) != task.digest:
            raise CallerError("invalid_params", "The arguments are not those of the call that waits for approval.")
        self._unopened.pop(request.conversation_name, None)
        await self._process_reply(request, task)
        return await self._tasks.hold_reply(request, task, waiting_for_people=True)

    async def _process_reply(self, request: Request, task: Task) -> None:
        responses = request.params.get("inputResponses")
        answer = responses.get(KEY) if type(responses) is dict else None
        if type(answer) is not dict or task.approval_id is None or task.state.is_terminal:
            return
        if answer.get("action") in ("decline", "cancel"):
            await self._tasks.methods.cancel_task(task, "the caller declined the approval request")
            return
        held = await self._tasks.store.ask(FindHeld(task.approval_id))
        vote = own_vote(self._plan.value, held, answer) if held is not None else None
        if vote is not None:
            await self._approvals.decide(
                vote.approver, task.approval_id, vote.verdict, reason=vote.reason, channel="elicitation"
            )
        elif answer.get("content") == {"decision": Verdict.DENY.value}:
            await self._tasks.methods.cancel_task(task, "the caller withdrew it")
