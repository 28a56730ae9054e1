"""The inbox: requests of servers that wait because they could not be sent to the client natively.

A question belongs to one conversation of a caller, and after that has ended to the others of the same caller. It waits until it is
answered, declined, cancelled, expired, or withdrawn because its server or its call has ended. The first answer wins. The caller's
tools, the dashboard and the command line all answer through here. Questions that wait at other gateways on the same store are
shown as well (`shared_inbox` adds them), and their answers are sent to those gateways.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from taskgate import clock
from taskgate.core import wire
from taskgate.core.errors import CallerError
from taskgate.core.events import EventKind
from taskgate.core.identity.addressees import NO_CONVERSATION
from taskgate.core.identity.conversation import ConversationKey
from taskgate.core.ids import RANDOM_BYTES, creation_ms, ulid
from taskgate.core.questions.answers import elicitation_answer, sampling_answer
from taskgate.core.questions.endings import BY_ACTION, Ending
from taskgate.core.questions.question import CANCELLED, ELICIT, FORMS, ROOTS, SAMPLE, Answer, Question, bare_params
from taskgate.core.questions.roots_form import roots_answer
from taskgate.gateway.events import EventHub, QuestionsChanged
from taskgate.gateway.plan import Live, Plan
from taskgate.gateway.public_address import PublicAddress
from taskgate.gateway.questions.question_timeout import question_timeout_s
from taskgate.gateway.questions.waiting import KeepAnswer, Waiting, inbox_event, over
from taskgate.gateway.requests.open_conversations import OpenConversations
from taskgate.gateway.requests.request import Request
from taskgate.ports.upstream_call import CallSide

MAX_PER_CALLER: Final = 500
REMEMBERED: Final = 2_000
ANSWERABLE: Final = (*FORMS, SAMPLE)

Publish = Callable[[ConversationKey, EventKind, str, dict[str, Any]], None]


class Inbox:
    def __init__(
        self,
        publish: Publish,
        plan: Live[Plan],
        address: PublicAddress,
        conversations: OpenConversations,
        events: EventHub,
    ) -> None:
        self._publish = publish
        self._events = events
        self._plan = plan
        self._address = address
        self._conversations = conversations
        self._waiting: dict[str, dict[str, Waiting]] = {}
        self._settled: OrderedDict[tuple[str, str], Ending] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of questions that wait at this gateway."""
        return len(self.own())

    async def ask(
        self,
        conversation: ConversationKey,
        question: Question,
        request: Request | None = None,
        sides: Sequence[CallSide] = (),
    ) -> Answer:
        """Let a question wait for its answer. Cancelling this (a lost server, a cancelled call) withdraws it. `sides`: the open
        calls that report meanwhile what their server waits for.
        """
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def answered(answer: Answer) -> bool:
            if future.done():
                return False
            future.set_result(answer)
            if request is not None:
                request.delivery.note_answer(question, answer)
            return True

        waiting = self.put(conversation, question, answered, request=request)
        if waiting is None:
            text = f"Too many questions of {question.server} wait for an answer already."
            return Answer(error=wire.encode({"code": -32603, "message": text}))
        for side in sides:
            side.server_waits(waiting.sentence())
        try:
            return await future
        finally:
            self.withdraw(waiting)
            for side in sides:
                side.server_waits(None)

    def put(
        self,
        conversation: ConversationKey,
        question: Question,
        answered: Callable[[Answer], bool],
        *,
        request: Request | None = None,
        task_id: str | None = None,
        keep_answer: KeepAnswer | None = None,
        asks_client: bool = False,
    ) -> Waiting | None:
        """Add a question to an inbox. Return None if the server has too many open questions."""
        own = self._waiting.setdefault(conversation.caller, {})
        of_server = sum(1 for waiting in own.values() if waiting.server == question.server)
        if of_server >= self._plan.value.limits.pending_questions_per_server or len(own) >= MAX_PER_CALLER:
            if not own:
                del self._waiting[conversation.caller]
            return None
        now = clock.wall_ms()
        drop = ("elicitationId",) if question.method == ELICIT else ()
        expiry_s = question_timeout_s(self._plan.value, question)
        asked = bytes(bare_params(question.params, drop))
        question_id = question.shown_as or _new_id(now, task_id, question.key, asked)
        waiting = Waiting(
            id=question_id,
            conversation=conversation,
            server=question.server,
            method=question.method,
            params=wire.parse_strictly(asked),
            asked_ms=now,
            expires_ms=now + int(expiry_s * 1000),
            answered=answered,
            request=request,
            of_call=request is not None,
            task_id=task_id,
            key=question.key,
            shared=question.shared,
            helpers=self._plan.value.has_helpers(request.caller.scope if request is not None else None),
            page=self._address.elicitation(question_id) if question.is_url else None,
            keep_answer=keep_answer,
            asks_client=asks_client,
        )
        own[waiting.id] = waiting
        self._events.publish(QuestionsChanged(conversation.caller))
        if request is not None:
            request.delivery.set_open_question(waiting.sentence)
        waiting.ends_by(asyncio.get_running_loop().call_later(expiry_s, self._expire, waiting))
        if not question.restored:
            self._announce(waiting)
        return waiting

    def _announce(self, waiting: Waiting) -> None:
        kind = EventKind.ELICITATION_REQUEST if waiting.method in FORMS else EventKind.SAMPLING_REQUEST
        waiting.mark_announced()
        self._publish(waiting.conversation, kind, waiting.server, inbox_event(waiting))

    def announce_again(self, ended: ConversationKey) -> None:
        """Announce an ended conversation's open questions to the caller's others. Stored events reach them anyway."""
        for waiting in self._waiting.get(ended.caller, {}).values():
            if waiting.conversation == ended and not waiting.event_is_stored:
                self._announce(waiting)

    def withdraw(self, waiting: Waiting, how: Ending = Ending.REJECTED) -> None:
        """Remove a question and its timer. Does nothing if it was settled already."""
        waiting.over.set()
        if waiting.timer is not None:
            waiting.timer.cancel()
        if self._take_out(waiting):
            self._settled[waiting.caller, waiting.id] = how
            while len(self._settled) > REMEMBERED:
                self._settled.popitem(last=False)

    def _take_out(self, waiting: Waiting) -> bool:
        own = self._waiting.get(waiting.caller)
        if own is None or own.pop(waiting.id, None) is None:
            return False
        if not own:
            del self._waiting[waiting.caller]
        self._events.publish(QuestionsChanged(waiting.caller))
        return True

    def _expire(self, waiting: Waiting) -> None:
        self.withdraw(waiting, Ending.EXPIRED)
        kind = EventKind.ELICITATION_EXPIRED if waiting.method in FORMS else EventKind.SAMPLING_EXPIRED
        self._publish(waiting.conversation, kind, waiting.server, inbox_event(waiting))
        waiting.answered(_EXPIRED)

    def of(
        self, key: ConversationKey, methods: tuple[str, ...] = ANSWERABLE, server: str | None = None
    ) -> list[Waiting]:
        """Return the questions that are shown to this conversation."""
        return [
            waiting
            for waiting in self._waiting.get(key.caller, {}).values()
            if waiting.method in methods
            and (server is None or waiting.server == server)
            and self._conversations.is_notified(key, waiting.conversation)
        ]

    def own(self) -> list[Waiting]:
        """Return the questions that wait at this gateway."""
        return [waiting for own in self._waiting.values() for waiting in own.values() if not waiting.home]

    def show_elsewhere(self, elsewhere: Iterable[Waiting]) -> None:
        """Replace the questions that wait at other gateways. New ones are announced to open feeds, unless stored events do that."""
        found = {waiting.id: waiting for waiting in elsewhere}
        before = {waiting.id: waiting for waiting in self.all() if waiting.home}
        for gone in before.keys() - found.keys():
            self._take_out(before[gone])
        for question_id in found.keys() - before.keys():
            waiting = found[question_id]
            own = self._waiting.setdefault(waiting.caller, {})
            if question_id not in own:
                own[question_id] = waiting
                self._events.publish(QuestionsChanged(waiting.caller))
                if not waiting.event_is_stored:
                    self._announce(waiting)

    def settle_given(self, question_id: str, answer: Answer, how: Ending) -> Waiting | None:
        """Accept an answer that another gateway received. None if the question no longer waits."""
        waiting = next((waiting for waiting in self.own() if waiting.id == question_id), None)
        if waiting is not None:
            self._settle(waiting, answer, how)
        return waiting

    def all(self) -> list[Waiting]:
        """Return all waiting questions, oldest first, for the operator."""
        return sorted((w for own in self._waiting.values() for w in own.values()), key=lambda w: (w.asked_ms, w.id))

    def of_request(self, request: Request) -> list[Waiting]:
        return [w for w in self._waiting.get(request.caller_key, {}).values() if w.request is request]

    def of_task(self, task_id: str, methods: tuple[str, ...] = ANSWERABLE) -> list[Waiting]:
        """Return a task's open questions from any inbox, for a reader that may see the task."""
        every = (waiting for own in self._waiting.values() for waiting in own.values())
        return [waiting for waiting in every if waiting.task_id == task_id and waiting.method in methods]

    def elicitations(
        self, request: Request, server: str | None = None, task_id: str | None = None
    ) -> list[dict[str, Any]]:
        """Return the caller's questions. With the id of a visible task also its questions, whatever their conversation.

        Questions for the person at the client are left out.
        """
        found = self.of(request.conversation_key, FORMS, server)
        of_task = self.of_task(task_id, FORMS) if task_id is not None else ()
        found += [waiting for waiting in of_task if waiting not in found]
        return [waiting.shown() for waiting in found if not self.is_for_person(waiting, request)]

    def sampling_requests(self, request: Request, server: str | None = None) -> list[dict[str, Any]]:
        found = self.of(request.conversation_key, (SAMPLE,), server)
        return [waiting.shown() for waiting in found if not self.is_for_person(waiting, request)]

    def is_for_person(self, waiting: Waiting, request: Request) -> bool:
        """Whether the person at a client is asked: that of this request or, while it is open, of the conversation that asks.

        The tools neither show such a question nor accept an answer to it, because the model would answer it.
        """
        if waiting.is_carried_to(request):
            return True
        return waiting.asks_client and self._conversations.is_left_to(waiting.conversation, request.conversation_key)

    def find(self, caller: str, request_id: str, methods: tuple[str, ...]) -> Waiting:
        """Return the question if it belongs to this caller, in any conversation. Unknown and foreign ids give the same error.

        A caller without a conversation has only the unguessable id, which is proof enough for questions of such calls.
        """
        waiting = self._waiting.get(caller, {}).get(request_id)
        if waiting is None and caller.startswith(NO_CONVERSATION):
            others = (own for name, own in self._waiting.items() if name.startswith(NO_CONVERSATION))
            waiting = next((own[request_id] for own in others if request_id in own), None)
        if waiting is not None and waiting.method in methods:
            return waiting
        how = self._settled.get((caller, request_id))
        if how is not None:
            raise CallerError(
                "unknown_question", f"The question {request_id!r} is no longer open: it was {_WORDS[how]}."
            )
        tool = "get_elicitations" if methods == FORMS else "get_sampling_requests"
        raise CallerError(
            "unknown_question",
            f"There is no question {request_id[:60]!r} waiting. {tool} shows those that are. For one of a task that you "
            "started in another session, give its task_id too.",
        )

    def find_any(self, request_id: str) -> Waiting:
        """Return a question by its id, for the operator."""
        for own in self._waiting.values():
            if request_id in own:
                return own[request_id]
        raise CallerError("unknown_question", f"There is no question {request_id[:60]!r} waiting.")

    def answer_elicitation(self, waiting: Waiting, action: str, content: Any) -> None:
        if waiting.method == ROOTS:
            answer = roots_answer(action, content)
        else:
            answer = elicitation_answer(waiting.params, action, content)
        self._settle(waiting, answer, BY_ACTION[action])

    def answer_sampling(self, waiting: Waiting, role: str, content: Any, model: str, stop_reason: str | None) -> None:
        self._settle(waiting, sampling_answer(role, content, model, stop_reason), Ending.COMPLETED)

    def refuse(self, waiting: Waiting, reason: str | None) -> None:
        """Settle a question without an answer: cancel an elicitation, refuse roots and sampling (rejected by the user)."""
        answer = Answer(error=wire.encode({"code": -1, "message": reason or "The request was refused."}))
        if waiting.method in FORMS:
            answer = CANCELLED if waiting.method == ELICIT else roots_answer("cancel", None, reason)
        self._settle(waiting, answer, Ending.CANCELLED)

    def _settle(self, waiting: Waiting, answer: Answer, how: Ending) -> None:
        """Settle with the first answer; later ones are refused."""
        self.withdraw(waiting, how)
        if not waiting.give(answer, how):
            raise over(waiting.id)

    def forget_caller(self, caller: str) -> None:
        """Withdraw the questions of an ended session, except those of tasks, which can be found by task id."""
        for waiting in list(self._waiting.get(caller, {}).values()):
            if waiting.task_id is None and not waiting.home:
                self.withdraw(waiting)
                waiting.answered(_EXPIRED)

    def close(self) -> None:
        for waiting in self.all():
            self.withdraw(waiting)


_EXPIRED: Final = Answer(error=wire.encode({"code": -32603, "message": "The question was not answered in time."}))


_WORDS: Final = {
    Ending.ACCEPTED: "answered",
    Ending.COMPLETED: "answered",
    Ending.DECLINED: "declined",
    Ending.CANCELLED: "cancelled",
    Ending.EXPIRED: "not answered in time",
    Ending.REJECTED: "withdrawn, because its server or its call has ended",
}


def _new_id(now_ms: int, task_id: str | None, key: str | None, asked: bytes) -> str:
    """Return the question's id. That of a task's question is stable over a restart, because a client may have read it."""
    if task_id is None or key is None:
        return ulid(now_ms, secrets.token_bytes(RANDOM_BYTES))
    digest = hashlib.sha256(f"{task_id}/{key}/".encode() + asked).digest()
    return ulid(creation_ms(task_id) or 0, digest[:RANDOM_BYTES])
