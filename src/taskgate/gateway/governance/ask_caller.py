"""Asking the caller itself about its call: a stateful one by elicitation, a stateless one with a page to open."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from taskgate.core import wire
from taskgate.core.errors import CallerError, TaskgateError
from taskgate.core.generations.generation import Generation
from taskgate.core.governance.approval import Verdict
from taskgate.core.governance.approver import Approver
from taskgate.core.governance.card import excerpt, show_json
from taskgate.core.identity.addressees import has_conversation
from taskgate.core.questions.capabilities import can_answer
from taskgate.core.questions.question import ELICIT, Answer, Question
from taskgate.core.redaction.fields import compile_redaction
from taskgate.core.strict_json import AmbiguousJson
from taskgate.core.tasks.task import Task
from taskgate.core.wire import Raw
from taskgate.gateway.catalog.views import ToolRef
from taskgate.gateway.events import ApprovalOpened, ApprovalOver, EventHub, ResultAwaited
from taskgate.gateway.governance.approvals import Approvals
from taskgate.gateway.governance.evaluate import as_own_approver
from taskgate.gateway.plan import Elicits, Live, Plan
from taskgate.gateway.requests.caller_questions import ask_session
from taskgate.gateway.requests.request import Request
from taskgate.gateway.requests.request_state import RequestStateSigner, text_of
from taskgate.gateway.requests.session import Session
from taskgate.gateway.requests.strict_arguments import arguments_digest, read_ahead, strict_value
from taskgate.gateway.tasks.engine import TaskEngine
from taskgate.gateway.tasks.followers import Followers
from taskgate.gateway.tasks.task_records import NewCall
from taskgate.ports.approval_store import ApprovalRequest, HeldCall
from taskgate.ports.store import Store
from taskgate.telemetry.logs import log

_SHOWN = 4_000


@dataclass(frozen=True, slots=True)
class Word:
    who: Approver
    verdict: Verdict
    reason: str


def may_answer_itself(plan: Plan, approval: ApprovalRequest) -> bool:
    workflow = approval.workflow
    fits = workflow.self_approval and plan.governing.elicits.get(workflow.name) is Elicits.FORM
    # What does not fit into the form cannot be approved there.
    return fits and len(_shown(approval)) <= _SHOWN


def form_of(approval: ApprovalRequest) -> dict[str, Any]:
    """The question as a form in the client."""
    bound = approval.binding
    message = (
        f"Approve this call of {bound.tool} on {bound.server}?\n\n{excerpt(_shown(approval), _SHOWN).text}\n\n"
        f"Asked for by the rule {approval.rule}."
    )
    return {
        "mode": "form",
        "message": message,
        "requestedSchema": {
            "type": "object",
            "properties": {
                "decision": {"type": "string", "title": "Decision", "enum": ["approve", "deny"]},
                "reason": {"type": "string", "title": "Reason", "maxLength": 500},
            },
            "required": ["decision"],
        },
    }


def url_of(approval: ApprovalRequest, url: str) -> dict[str, Any]:
    """The question as a link to the approval page."""
    return {
        "mode": "url",
        "message": f"The call of {approval.wire_name} waits for an approval. An approver can decide on this page.",
        "url": url,
    }


def own_answer(plan: Plan, held: HeldCall, answer: Mapping[str, Any]) -> Word | None:
    """What the person at the caller said in the form, if their word may count."""
    content = answer.get("content")
    if answer.get("action") != "accept" or not isinstance(content, Mapping):
        return None
    name = held.approval.workflow
    workflow = plan.gates.workflows.get(name)
    if workflow is None or not workflow.self_approval or plan.governing.elicits.get(name) is not Elicits.FORM:
        return None
    said, reason = content.get("decision"), content.get("reason")
    if said not in (Verdict.APPROVE.value, Verdict.DENY.value):
        return None
    who = as_own_approver(plan, held.approval.binding.principal)
    return Word(who, Verdict(said), reason if isinstance(reason, str) else "")


def _shown(approval: ApprovalRequest) -> str:
    try:
        value = strict_value(approval.arguments)
    except AmbiguousJson:
        return "x" * (_SHOWN + 1)
    return show_json(compile_redaction(approval.workflow.redact_fields).redact(value).value)


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
        events.subscribe(ResultAwaited, self._somebody_waits)

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
        """Over a stream that somebody follows, else with the first request that waits for the task."""
        pushed = self._followers.ask_on_stream(task, question, partial(self._decided, approval.id))
        if pushed is not None and not pushed[1]():
            self._begin(approval, pushed[0])
            return
        if pushed is not None:
            pushed[0].cancel()
        if len(self._later) < MAX_LATER:
            self._later[approval.id] = (task, approval, question)

    def _somebody_waits(self, event: ResultAwaited) -> None:
        """A request waits for a task's result: its stream can carry the question."""
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
        """The caller's word is acknowledged when it is in the store, or does not count."""
        asking = self._asking.get(approval_id)
        if asking is not None:
            await asyncio.wait({asking})

    def _begin(self, approval: ApprovalRequest, answering: Awaitable[Answer]) -> None:
        job = self._asking[approval.id] = asyncio.get_running_loop().create_task(self._ask(approval, answering))
        job.add_done_callback(lambda _: self._asking.pop(approval.id, None))

    def _over(self, event: ApprovalOver) -> None:
        """Decided elsewhere: nobody needs this answer any more."""
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
        """Around one question to a caller: whatever goes wrong, the inbox still has it."""
        try:
            answer = await answering
            if answer.result is None:
                return
            held = await self._store.held(approval.id)
            word = own_answer(self._plan.value, held, wire.parse_strictly(answer.result)) if held is not None else None
            if word is not None:
                await self._approvals.decide(
                    word.who, approval.id, word.verdict, reason=word.reason, channel="elicitation"
                )
        except TaskgateError as problem:
            log.info("the caller could not be asked", approval=approval.id, why=problem.message)
        except Exception as fault:  # one question in the background: the approval waits in the inbox all the same
            log.error("asking the caller failed", approval=approval.id, exc_info=fault)

    async def close(self) -> None:
        jobs = list(self._asking.values())
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)


# Holding a call for a stateless caller that knows no tasks but can open a page: ask with a link, and wait on the next
# round.
#
# The call is durable before the link goes out. The caller comes back with the signed state it was given, and that
# request waits until people have decided. Where the workflow lets the caller answer its own question, the question is a
# form instead of a link.

STATE_KIND: Final = "approval"
MAX_REMEMBERED: Final = 10_000
KEY: Final = "approval"


class ByUrl:
    def __init__(
        self, state_signer: RequestStateSigner, approvals: Approvals, tasks: TaskEngine, plan: Live[Plan]
    ) -> None:
        self._state_signer = state_signer
        self._approvals = approvals
        self._tasks = tasks
        self._plan = plan
        self._unopened: dict[str, None] = {}
        """Conversations whose client was given a link and did not come back for the call."""

    def question_for(self, request: Request, approval: ApprovalRequest) -> dict[str, Any] | None:
        """The question this caller can be given in a result, or None if it has to be held like any other.

        A client that fails at showing a link throws the reply away, and with it the only way back to the call. So only callers
        that would find their call again are given one: those with a conversation, as long as they came back for earlier ones.
        A form is asked wherever the operator chose one, because the answer in it is the decision.
        """
        envelope = request.envelope
        if envelope is None or envelope.wants_tasks or request.asking_stream in self._unopened:
            return None
        if may_answer_itself(self._plan.value, approval) and can_answer(envelope.capabilities, ELICIT, {}):
            return form_of(approval)
        if not has_conversation(request.asking_stream):
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
        # The same call again, without the state that it was given: its client did not open the link. This time it waits.
        self._unopened[request.asking_stream] = None
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
        """The caller is back from the page: wait for the decision, then for the result. None if it is not about us."""
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
        self._unopened.pop(request.asking_stream, None)
        await self._heard(request, task)
        return await self._tasks.hold_reply(request, task, waiting_for_people=True)

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
