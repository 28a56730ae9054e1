"""One question in one caller's inbox: how it is shown and answered, and how other gateways on the same store are told of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from taskgate.core import wire
from taskgate.core.errors import CallerError
from taskgate.core.identity.addressees import OPERATORS_INBOX
from taskgate.core.identity.conversation import ConversationKey, conversation_of
from taskgate.core.questions.answers import secret_fields
from taskgate.core.questions.endings import Ending
from taskgate.core.questions.question import ELICIT, ROOTS, SAMPLE, Answer
from taskgate.core.questions.roots_form import roots_form
from taskgate.core.timestamps import iso
from taskgate.gateway.requests.request import Request
from taskgate.ports.replicas import KeptQuestion

KeepAnswer = Callable[[Answer], Awaitable[None]]
_SHARED: Final = ("server", "method", "params", "asked_ms", "of_call", "task_id", "key", "page", "told_durably")


@dataclass(eq=False, slots=True)
class Waiting:
    """One question in one caller's inbox."""

    id: str
    whose: ConversationKey
    server: str
    method: str
    params: Mapping[str, Any]
    asked_ms: int
    expires_ms: int
    answered: Callable[[Answer], bool]
    request: Request | None = None
    of_call: bool = False
    """Its server said which of its calls it is about."""
    task_id: str | None = None
    timer: asyncio.TimerHandle | None = None
    over: asyncio.Event = field(default_factory=asyncio.Event)
    key: str | None = None
    """The name under which a stateless server asked it."""
    helpers: bool = True
    """Whether a text for its caller may name the tools that answer it."""
    page: str | None = None
    """Where a person can see what an address is about before opening it."""
    shared: bool = False
    """Several calls were open when it came: it names none, wherever it is kept."""
    told_durably: bool = False
    """Its event is in the store, where the caller's other conversations find it."""
    keep_answer: KeepAnswer | None = None
    """Stores the answer with the task that asks."""
    home: str = ""
    """The gateway on the same store at which it waits, if that is another one."""
    given: Answer | None = None
    ending: Ending = Ending.COMPLETED
    """What became of it, with the answer that was given."""

    def shown(self) -> dict[str, Any]:
        """As `get_elicitations` and `get_sampling_requests` show it; the server that asks is always named."""
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
        secret = secret_fields(self.params) if self.method == ELICIT else []
        if secret:
            shown["secret_fields"] = secret
            shown["warning"] = (
                f"{self.server} asks for what looks like a secret in a plain form. Think before answering."
            )
        return shown

    def sentence(self) -> str | None:
        """For a caller that gets its reply before the question is answered."""
        if self.over.is_set():
            return None
        see, respond = ("get_elicitations", "respond_to_elicitation")
        if self.method == SAMPLE:
            see, respond = ("get_sampling_requests", "respond_to_sampling")
        if self.whose == OPERATORS_INBOX:
            return (
                f"{self.server} waits for an answer to a question that names no call. Calls of several clients are open there, "
                "so the operator of this gateway was asked."
            )
        asks = f" ({self.message[:200]})" if self.message else ""
        page = f" Its page for people is {self.page}." if self.page is not None else ""
        if not self.helpers:
            return f"{self.server} waits for an answer{asks}. `taskgate questions answer {self.id}` answers it.{page}"
        # A client that opens a session for each call has nothing in the inbox of its next one; the task's id finds it.
        where = (
            f"{see} shows the question"
            if self.shown_task is None
            else f"get_task shows the question of {self.shown_task}"
        )
        return f"{self.server} waits for an answer from you{asks}: {where}, {respond} answers it.{page}"

    @property
    def caller(self) -> str:
        return self.whose.caller

    @property
    def is_undecided(self) -> bool:
        """Nothing ties it to a call."""
        return self.shared or (not self.of_call and self.task_id is None)

    @property
    def shown_task(self) -> str | None:
        """The task that it is about, as far as that is known."""
        return None if self.shared else self.task_id

    def now_of_task(self, task_id: str, keep_answer: KeepAnswer) -> None:
        """The call that asks has become a task."""
        self.task_id, self.keep_answer = task_id, keep_answer

    def ends_by(self, timer: asyncio.TimerHandle) -> None:
        self.timer = timer

    def is_told(self) -> None:
        """Its event is published; that of a task's question is in the store."""
        self.told_durably = self.shown_task is not None

    def give(self, answer: Answer, ending: Ending) -> bool:
        self.given, self.ending = answer, ending
        return self.answered(answer)

    async def kept(self) -> None:
        """Before an answer is acknowledged: what concerns a task, or a call that is just becoming one, is in the store, and
        what waits at another gateway was taken there. Raises CallerError if it was not.
        """
        if self.request is not None:
            await self.request.delivery.wait_promoted()
        if self.keep_answer is not None and self.given is not None:
            await self.keep_answer(self.given)

    @property
    def form(self) -> Mapping[str, Any]:
        """What is asked, as whoever answers sees it."""
        return roots_form(self.server) if self.method == ROOTS else self.params

    @property
    def message(self) -> str:
        said = self.form.get("message")
        return said if type(said) is str else ""


def told_of(waiting: Waiting) -> dict[str, Any]:
    """What an event says of a question; the form itself is for `get_elicitations`."""
    told: dict[str, Any] = {"request_id": waiting.id}
    if waiting.message:
        told["message"] = waiting.message[:500]
    if waiting.page is not None:
        told["page"] = waiting.page
    if waiting.shown_task is not None:
        told["task_id"] = waiting.shown_task
    return told


def kept_question(waiting: Waiting) -> KeptQuestion:
    """What other gateways must know of it."""
    body = {**{name: getattr(waiting, name) for name in _SHARED}, "task_id": waiting.shown_task}
    text = json.dumps({**body, "whose": waiting.whose.stream}, ensure_ascii=False).encode()
    return KeptQuestion(waiting.id, waiting.caller, "", waiting.expires_ms, text)


def waiting_elsewhere(kept: KeptQuestion, give: Callable[[Waiting], Awaitable[None]]) -> Waiting:
    """A question that waits at another gateway, to be shown and answered here. `give` brings the answer to its home."""
    body = wire.parse_strictly(kept.body)
    whose, params = conversation_of(body.pop("whose")), body.pop("params")

    async def keep_answer(_answer: Answer) -> None:
        await give(waiting)

    waiting = Waiting(
        id=kept.id,
        whose=whose,
        params=params,
        expires_ms=kept.expires_ms,
        answered=lambda _answer: True,
        keep_answer=keep_answer,
        home=kept.home,
        **body,
    )
    return waiting


def answer_bytes(answer: Answer, ending: Ending) -> bytes:
    """An answer on its way to the gateway at which its question waits."""
    kind, said = (b"result", answer.result) if answer.result is not None else (b"error", answer.error)
    return b"%b %b\n%b" % (kind, ending.value.encode(), said or b"")


def read_answer(given: bytes) -> tuple[Answer, Ending]:
    head, _, said = given.partition(b"\n")
    kind, _, ending = head.partition(b" ")
    return (Answer(result=said) if kind == b"result" else Answer(error=said)), Ending(ending.decode())


def over(question_id: str) -> CallerError:
    return CallerError("unknown_question", f"The question {question_id!r} does not wait any more.")
