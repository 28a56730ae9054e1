"""Questions of a task in a reply to its caller, for stateless callers that can answer them.

The reply is an `input_required` result with a signed state. The caller repeats its request with that state and its answers, and
the request continues. A held call is answered in this way, and so are the tools that follow tasks, because the request that made
a promoted call has its reply already. The questions are stored with the task, so the operator sees them as well, and the first
answer is taken.

A question is carried to the conversation that made the call and to no other, and by one of several requests that wait. If that
reply does not arrive, or its caller does not return in `RETURN_S`, another one carries it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from taskgate import clock
from taskgate.core import wire
from taskgate.core.errors import CallerError
from taskgate.core.identity.addressees import may_be_asked
from taskgate.core.questions.capabilities import can_answer
from taskgate.core.questions.question import Answer, bare_params
from taskgate.core.tasks.task import Task
from taskgate.core.wire import Raw
from taskgate.gateway.requests.request import Request
from taskgate.gateway.requests.request_state import RequestState, RequestStateSigner, text_of
from taskgate.gateway.requests.strict_arguments import arguments_digest, read_ahead
from taskgate.gateway.tasks.open_questions import open_questions, question_named, shown_key
from taskgate.gateway.tasks.questions import TaskQuestions
from taskgate.gateway.tasks.task_records import TaskRecords
from taskgate.ports.store_answers import TaskQuestion

STATE_KIND: Final = "task-questions"
GATHER_S: Final = 0.02
"""Questions that are asked at the same time are returned in one reply."""
RETURN_S: Final = 120.0
"""How long one reply carries a question alone."""
_BETWEEN: Final = " "


class _Carried(msgspec.Struct, frozen=True):
    reply: str
    until: float


class QuestionsInReply:
    def __init__(self, records: TaskRecords, questions: TaskQuestions, state_signer: RequestStateSigner) -> None:
        self._records = records
        self._questions = questions
        self._state_signer = state_signer
        self._carried: dict[tuple[str, str], _Carried] = {}
        """Questions that a reply carries to their caller, by the task that asks and their key."""

    async def of_held_call(self, request: Request, task: Task) -> bytes | None:
        """The open questions of a held tool call as a result; None if there are none that this request carries."""
        if request.message.method != "tools/call":
            return None
        return await self.reply(request, (task,), task.tool)

    async def reply(self, request: Request, tasks: Iterable[Task], name: str) -> bytes | None:
        """The open questions of these tasks as the result of a call of the tool `name`; None if this request carries none."""
        mine = [task for task in tasks if may_be_asked(task.conversation_key, request.conversation_key)]
        if request.envelope is None or not await self._left(request, mine):
            return None
        await clock.sleep(GATHER_S)
        found = await self._left(request, mine)
        if not found:
            return None
        carrying = secrets.token_hex(8)
        self._carry(request, carrying, [key for questions in found.values() for key in questions])
        requests = {
            f"{task.id}{_BETWEEN}{shown_key(task, *key)}": Raw(question.request)
            for task in mine
            for key, question in found.get(task.id, {}).items()
        }
        state = self._state_signer.sign(
            STATE_KIND,
            request.caller.principal,
            "tools/call",
            name,
            "",
            body=_BETWEEN.join((carrying, *found)),
        )
        return wire.encode({"resultType": "input_required", "inputRequests": requests, "requestState": state})

    async def _left(self, request: Request, tasks: list[Task]) -> dict[str, dict[tuple[str, str], TaskQuestion]]:
        """The questions that the caller can answer and that no other reply carries, by the task that the caller knows."""
        now, left = clock.monotonic(), {}
        for task in tasks:
            asked = await open_questions(self._records.store, task)
            left[task.id] = {
                key: question
                for key, question in asked.items()
                if (key not in self._carried or self._carried[key].until <= now) and _answerable(request, question)
            }
        return {task_id: questions for task_id, questions in left.items() if questions}

    def _carry(self, request: Request, carrying: str, keys: list[tuple[str, str]]) -> None:
        now = clock.monotonic()
        self._carried = {key: carried for key, carried in self._carried.items() if carried.until > now}
        self._carried.update(dict.fromkeys(keys, _Carried(carrying, now + RETURN_S)))

        def delivered(arrived: bool) -> None:
            if not arrived:
                self._release(carrying)

        request.delivery.when_delivered(delivered)

    def _release(self, reply: str) -> None:
        self._carried = {key: carried for key, carried in self._carried.items() if carried.reply != reply}

    async def resumed(self, request: Request, name: str) -> Task | None:
        """The task of a held call that returns the signed state, after its answers are stored; None without such a state."""
        state = self._state(request, name)
        if state is None:
            return None
        task = await self._records.find(request, state.body.split(_BETWEEN)[1], proved=True)
        arguments = bytes(request.members().get("arguments", Raw(b"{}")))
        await read_ahead(arguments)
        if arguments_digest(arguments) != task.digest:
            raise CallerError("invalid_params", "The arguments are not those of the call that waits for the answers.")
        await self._accept(request, state)
        return await self._records.find(request, task.id, proved=True)

    async def accept(self, request: Request, name: str) -> None:
        """Store the answers that a call of the tool `name` returns to questions that it was given."""
        state = self._state(request, name)
        if state is not None:
            await self._accept(request, state)

    def _state(self, request: Request, name: str) -> RequestState | None:
        if request.envelope is None or "requestState" not in request.params:
            return None
        text = text_of(request.members()["requestState"])
        state = self._state_signer.verify(text, request.caller.principal, "tools/call", name)
        return state if state.kind == STATE_KIND else None

    async def _accept(self, request: Request, state: RequestState) -> None:
        """Store the answers. Unknown and answered keys are ignored; a question without an answer may be carried again."""
        carrying, *task_ids = state.body.split(_BETWEEN)
        tasks = {task_id: await self._records.find(request, task_id, proved=True) for task_id in task_ids}
        given = request.params.get("inputResponses")
        for named, value in _answers(request).items() if type(given) is dict else ():
            task_id, _, key = named.partition(_BETWEEN)
            if task_id in tasks:
                asked = await question_named(self._records.store, tasks[task_id], key)
                await self._questions.accept_answer(*asked, Answer(result=bytes(bare_params(value))))
        self._release(carrying)


def _answers(request: Request) -> Mapping[str, Raw]:
    return wire.members_of(request.members()["inputResponses"])


def _answerable(request: Request, question: TaskQuestion) -> bool:
    params = wire.parse_strictly(question.request).get("params") or {}
    return can_answer(request.capabilities, question.method, params)
