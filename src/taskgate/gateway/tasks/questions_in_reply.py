"""Questions of a held call in its reply, for stateless callers without tasks that can answer them.

The reply is an `input_required` result with a signed state. The caller repeats its request with that state and its answers, and the
call is held again: for the next question, or for the result. The questions are stored with the task and stay in the inbox of the
caller, so a caller that does not return can answer there, and the first answer is taken.
"""

from __future__ import annotations

from typing import Final

from taskgate import clock
from taskgate.core import wire
from taskgate.core.errors import CallerError
from taskgate.core.questions.capabilities import can_answer
from taskgate.core.questions.question import Answer, bare_params
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import Task
from taskgate.core.wire import Raw
from taskgate.gateway.requests.request import Request
from taskgate.gateway.requests.request_state import RequestStateSigner, text_of
from taskgate.gateway.requests.strict_arguments import arguments_digest, read_ahead
from taskgate.gateway.tasks.questions import TaskQuestions
from taskgate.gateway.tasks.task_records import TaskRecords
from taskgate.lazy_dataclass import dataclass

STATE_KIND: Final = "task-questions"
GATHER_S: Final = 0.02
"""Questions that are asked at the same time are returned in one reply."""


@dataclass(slots=True, eq=False)
class QuestionsInReply:
    _records: TaskRecords
    _questions: TaskQuestions
    _state_signer: RequestStateSigner

    async def reply(self, request: Request, task: Task) -> bytes | None:
        """The open questions of the task as a result; None if there are none, or none that the caller can answer in this way."""
        envelope = request.envelope
        if envelope is None or envelope.accepts_tasks or task.state is not TaskState.INPUT_REQUIRED:
            return None
        await clock.sleep(GATHER_S)
        asked = {stored.key: stored for stored in await self._records.store.questions(task.id)}
        requests = {
            key: Raw(stored.request)
            for key, stored in asked.items()
            if can_answer(envelope.capabilities, stored.method, wire.parse_strictly(stored.request).get("params") or {})
        }
        if not requests:
            return None
        state = self._state_signer.sign(
            STATE_KIND, request.caller.principal, "tools/call", task.wire_name, task.server, body=task.id
        )
        return wire.encode({"resultType": "input_required", "inputRequests": requests, "requestState": state})

    async def resumed(self, request: Request, name: str) -> Task | None:
        """The task of a request that returns the signed state, after its answers are stored; None without a state."""
        if request.envelope is None or "requestState" not in request.params:
            return None
        members = request.members()
        state = self._state_signer.verify(
            text_of(members["requestState"]), request.caller.principal, "tools/call", name
        )
        if state.kind != STATE_KIND:
            raise CallerError("invalid_params", "The requestState is not one of this tool.")
        task = await self._records.find(request, state.body)
        arguments = bytes(members.get("arguments", Raw(b"{}")))
        await read_ahead(arguments)
        if arguments_digest(arguments) != task.digest:
            raise CallerError("invalid_params", "The arguments are not those of the call that waits for the answers.")
        if type(request.params.get("inputResponses")) is dict:
            for key, value in wire.members_of(members["inputResponses"]).items():
                await self._questions.accept_answer(task.id, key, Answer(result=bytes(bare_params(value))))
        return await self._records.find(request, task.id)
