"""One question in a caller's inbox: how it is shown and answered, and how it is stored for other gateways."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec

from taskgate.core import wire
from taskgate.core.errors import CallerError
from taskgate.core.identity.addressees import OPERATORS_INBOX, may_be_asked
from taskgate.core.identity.conversation import ConversationKey, conversation_of
from taskgate.core.questions.capabilities import can_answer
from taskgate.core.questions.endings import Ending
from taskgate.core.questions.question import ELICIT, ROOTS, SAMPLE, Answer
from taskgate.core.questions.roots_form import roots_form
from taskgate.core.questions.secret_requests import secret_fields
from taskgate.core.timestamps import iso
from taskgate.gateway.requests.request import Request
from taskgate.store.operations.shared_questions import KeptQuestion

KeepAnswer = Callable[[Answer], Awaitable[None]]
_SHARED: Final = ("server", "method", "params", "asked_ms", "of_call", "task_id", "key", "page")
_EVENT_IS_STORED: Final = "told_durably"
"""The member of a row with `Waiting.event_is_stored`. Gateways of earlier versions read and write the same rows."""


class Waiting(msgspec.Struct, eq=False):
    id: str
    conversation: ConversationKey
    server: str
    method: str
    params: Mapping[str, Any]
    asked_ms: int
    expires_ms: int
    answered: Callable[[Answer], bool]
    request: Request | None = None
    of_call: bool = False
    """Whether the server named the call it belongs to."""
    task_id: str | None = None
    timer: asyncio.TimerHandle | None = None
    over: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    key: str | None = None
    """The key of the request in a stateless server's `inputRequests`."""
    helpers: bool = True
    """Whether texts for the caller may name the own tools that answer it."""
    page: str | None = None
    """A page that explains the URL before it is opened."""
    shared: bool = False
    """Several calls were open when it arrived, so it is assigned to none of them."""
    event_is_stored: bool = False
    """Whether its event is stored, so that the caller's other conversations receive it."""
    keep_answer: KeepAnswer | None = None
    """Stores the answer with the task."""
    home: str = ""
    """The other gateway at which it waits; empty if it waits here."""
    given: Answer | None = None
    ending: Ending = Ending.COMPLETED
    """The outcome, with the answer."""
    asks_client: bool = False
    """Whether replies to its conversation carry it, because the client of the call declared that it can answer it."""
    asks_secrets: list[str] | None = None
    """The fields that seem to ask for a secret, once they were searched."""

    def shown(self) -> dict[str, Any]:
        """Return it as `get_elicitations` and `get_sampling_requests` show it, always with the server's name."""
        shown: dict[str, Any] = {
            "request_id": self.id,
            "server": self.server,
            "timestamp": iso(self.asked_ms),
            "expires_at": iso(self.expires_ms),
            "params": self.form,
        }
        if self.shown_task is not None:
            shown["task_id"] = self.shown_task
        if self.is_undecided:
            shown["undecided"] = True
        if self.page is not None:
            shown["page"] = self.page
        if self.asks_secrets is None:
            self.asks_secrets = secret_fields(self.params) if self.method == ELICIT else []
        if self.asks_secrets:
            shown["secret_fields"] = self.asks_secrets
            shown["warning"] = (
                f"{self.server} asks for what looks like a secret in a plain form. Think before answering."
            )
        return shown

    def sentence(self) -> str | None:
        """Return the text for a caller whose reply is sent before the question is answered."""
        if self.over.is_set():
            return None
        see, respond = ("get_elicitations", "respond_to_elicitation")
        if self.method == SAMPLE:
            see, respond = ("get_sampling_requests", "respond_to_sampling")
        if self.conversation == OPERATORS_INBOX:
            return (
                f"{self.server} waits for an answer to a question that names no call. Calls of several clients are open there, "
                "so the operator of this gateway was asked."
            )
        asks = f" ({self.message[:200]})" if self.message else ""
        page = f" Its page for people is {self.page}." if self.page is not None else ""
        if not self.helpers:
            return f"{self.server} waits for an answer{asks}. `taskgate questions answer {self.id}` answers it.{page}"
        # A client with one session per call has an empty inbox in the next one; the task id finds the question.
        where = (
            f"{see} shows the question"
            if self.shown_task is None
            else f"get_task shows the question of {self.shown_task}"
        )
        return f"{self.server} waits for an answer from you{asks}: {where}, {respond} answers it.{page}"

    @property
    def caller(self) -> str:
        return self.conversation.caller

    def is_carried_to(self, request: Request) -> bool:
        """Whether the caller gets the question as `input_required`. Its tools do not show it, because its model would answer it."""
        return (
            request.envelope is not None
            and self.task_id is not None
            and may_be_asked(self.conversation, request.conversation_key)
            and can_answer(request.capabilities, self.method, self.params)
        )

    @property
    def is_undecided(self) -> bool:
        """Return whether it cannot be assigned to a call."""
        return self.shared or (not self.of_call and self.task_id is None)

    @property
    def shown_task(self) -> str | None:
        """Return the task it belongs to, if known."""
        return None if self.shared else self.task_id

    def now_of_task(self, task_id: str, keep_answer: KeepAnswer, *, asks_client: bool) -> None:
        """Assign it to the task that its call has become."""
        self.task_id, self.keep_answer, self.asks_client = task_id, keep_answer, asks_client

    def ends_by(self, timer: asyncio.TimerHandle) -> None:
        self.timer = timer

    def mark_announced(self) -> None:
        """Note that its event was published; that of a task's question is stored."""
        self.event_is_stored = self.shown_task is not None

    def give(self, answer: Answer, ending: Ending) -> bool:
        self.given, self.ending = answer, ending
        return self.answered(answer)

    async def kept(self) -> None:
        """Wait until the answer may be acknowledged: it is stored if the question is that of a task or of a call that is being
        promoted, and delivered if the question waits at another gateway. Raises CallerError if that fails.
        """
        if self.request is not None:
            await self.request.delivery.wait_promoted()
        if self.keep_answer is not None and self.given is not None:
            await self.keep_answer(self.given)

    @property
    def form(self) -> Mapping[str, Any]:
        """Return the question as the answering person sees it."""
        return roots_form(self.server) if self.method == ROOTS else self.params

    @property
    def message(self) -> str:
        text = self.form.get("message")
        return text if type(text) is str else ""


def inbox_event(waiting: Waiting) -> dict[str, Any]:
    """Return the event of a question. The form itself is returned by `get_elicitations`."""
    event: dict[str, Any] = {"request_id": waiting.id}
    if waiting.message:
        event["message"] = waiting.message[:500]
    if waiting.page is not None:
        event["page"] = waiting.page
    if waiting.shown_task is not None:
        event["task_id"] = waiting.shown_task
    return event


def kept_question(waiting: Waiting) -> KeptQuestion:
    """Return the row that other gateways read."""
    body = {**{name: getattr(waiting, name) for name in _SHARED}, "task_id": waiting.shown_task}
    body |= {"whose": waiting.conversation.stream, _EVENT_IS_STORED: waiting.event_is_stored}
    text = json.dumps(body, ensure_ascii=False).encode()
    return KeptQuestion(id=waiting.id, caller=waiting.caller, home="", expires_ms=waiting.expires_ms, body=text)


def waiting_elsewhere(kept: KeptQuestion, give: Callable[[Waiting], Awaitable[None]]) -> Waiting:
    """Return a question of another gateway, to be shown and answered here. `give` sends the answer to that gateway."""
    body = wire.parse_strictly(kept.body)
    conversation, params = conversation_of(body.pop("whose")), body.pop("params")

    async def keep_answer(_answer: Answer) -> None:
        await give(waiting)

    waiting = Waiting(
        id=kept.id,
        conversation=conversation,
        params=params,
        expires_ms=kept.expires_ms,
        answered=lambda _answer: True,
        keep_answer=keep_answer,
        home=kept.home,
        event_is_stored=body.pop(_EVENT_IS_STORED),
        **body,
    )
    return waiting


def answer_bytes(answer: Answer, ending: Ending) -> bytes:
    """Encode an answer for the gateway at which its question waits."""
    kind, reply = (b"result", answer.result) if answer.result is not None else (b"error", answer.error)
    return b"%b %b\n%b" % (kind, ending.value.encode(), reply or b"")


def read_answer(given: bytes) -> tuple[Answer, Ending]:
    head, _, text = given.partition(b"\n")
    kind, _, ending = head.partition(b" ")
    return (Answer(result=text) if kind == b"result" else Answer(error=text)), Ending(ending.decode())


def over(question_id: str) -> CallerError:
    return CallerError("unknown_question", f"The question {question_id!r} is no longer open.")
