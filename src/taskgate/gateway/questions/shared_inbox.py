"""Questions that wait at one gateway and can be seen and answered at every other on the same store.

The home of a question is the gateway that runs its call. The home stores it as a row and deletes the row when the question ends.
Every other gateway shows the rows among its own questions. An answer at one of them is written into the row, which wakes the home;
the home delivers it and stores the outcome, and only then is the answer acknowledged. The first answer wins. A row whose home is
dead is not shown: its call is over, unless it is a task's question, which the gateway that takes over the task stores again with
the answer that it may have.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Iterable
from typing import Any, Final

import msgspec

from taskgate import clock
from taskgate.core import wire
from taskgate.core.errors import CallerError, Executed, GatewayFault, TaskgateError
from taskgate.gateway.events import EventHub, QuestionsChanged
from taskgate.gateway.questions.elicitation_page import ElicitationPage
from taskgate.gateway.questions.elicitation_pages import ElicitationPages
from taskgate.gateway.questions.inbox import Inbox
from taskgate.gateway.questions.waiting import (
    Waiting,
    answer_bytes,
    kept_question,
    over,
    read_answer,
    waiting_elsewhere,
)
from taskgate.ports.store import SharedStore
from taskgate.ports.topics import POLL_S, QUESTIONS, Wakeups
from taskgate.store.operations.shared_questions import (
    GONE,
    TAKEN,
    AnswerQuestion,
    EndQuestions,
    FindQuestion,
    ForgetQuestions,
    KeptQuestion,
    PutQuestions,
    QuestionsAnswered,
    UnansweredElsewhere,
)
from taskgate.telemetry.damaged_rows import left_out, readable
from taskgate.telemetry.logs import log

TAKEN_WITHIN_S: Final = 10.0
"""Timeout for the gateway at which a question waits to confirm an answer."""
_PAUSE_S: Final = 0.5
_POLL_S: Final = 0.02
_FORGET_MS: Final = 3_600_000
_TABLE: Final = "open_questions"
_PAGE: Final = "page "
"""Prefix of the row ids of pages. No question id starts with it."""


class SharedInbox:
    def __init__(
        self, rows: SharedStore, wakeups: Wakeups, inbox: Inbox, pages: ElicitationPages, events: EventHub
    ) -> None:
        self._rows = rows
        self._wakeups = wakeups
        self._inbox = inbox
        self._pages = pages
        self._written: dict[str, bytes] = {}
        self._taking: set[str] = set()
        """Questions answered at another gateway whose answer is being delivered here."""
        self._given: set[str] = set()
        """Questions of other gateways answered here: they are no longer shown, even while their rows exist."""
        self._changed = asyncio.Event()
        self._jobs: list[asyncio.Task[None]] = []
        events.subscribe(QuestionsChanged, lambda _event: self._changed.set())

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._jobs = [loop.create_task(self._again(self._write)), loop.create_task(self._again(self._poll))]

    async def close(self) -> None:
        """Delete this gateway's rows first, so that no other gateway accepts an answer that cannot be delivered."""
        for job in self._jobs:
            job.cancel()
        await asyncio.gather(*self._jobs, return_exceptions=True)
        try:
            await self._end(self._written, GONE)
        except TaskgateError as problem:
            log.info("rows of open questions could not be deleted", why=problem.message)

    async def _again(self, act: Any) -> None:
        while True:
            try:
                await act()
            except Exception as fault:  # one round of a background loop: the next round retries
                log.warning("questions could not be shared with other gateways", why=str(fault))
                await clock.sleep(_PAUSE_S)

    async def _write(self) -> None:
        """Synchronize the rows with the questions that wait here: on each change, and periodically."""
        self._changed.clear()
        here = {kept.id: kept for kept in (*map(kept_question, self._inbox.own()), *map(_kept_page, self._pages.own()))}
        # The machine's clock may be wrong; all gateways share the store's clock.
        behind_ms = self._rows.now_ms() - clock.wall_ms()
        new = [
            msgspec.structs.replace(kept, expires_ms=kept.expires_ms + behind_ms)
            for kept in here.values()
            if self._written.get(kept.id) != kept.body
        ]
        if new:
            await self._rows.do(PutQuestions(new))
            self._written.update({kept.id: kept.body for kept in new})
        await self._end(self._written.keys() - here.keys() - self._taking, GONE)
        try:
            async with asyncio.timeout(POLL_S):
                await self._changed.wait()
        except TimeoutError:
            return

    async def _end(self, ids: Iterable[str], outcome: str) -> None:
        gone = list(ids)
        if gone:
            await self._rows.do(EndQuestions(gone, outcome))
            for question_id in gone:
                self._written.pop(question_id, None)

    async def maintain(self, now_ms: int) -> None:
        """Delete rows of dead gateways. Called periodically."""
        await self._rows.do(ForgetQuestions(now_ms - _FORGET_MS))

    async def _poll(self) -> None:
        await self.load_changes()
        await self._wakeups.wait(QUESTIONS, POLL_S)

    async def load_changes(self) -> None:
        """Load the questions of other gateways, and accept the answers given there."""
        for kept in await self._rows.ask(QuestionsAnswered()):
            with left_out(_TABLE, kept.id):
                await self._accept_answer(kept)
        rows = [kept for kept in await self._rows.ask(UnansweredElsewhere()) if self._rows.is_alive(kept.home)]
        self._given.intersection_update({kept.id for kept in rows})
        rows = [kept for kept in rows if kept.id not in self._given]
        pages = [kept for kept in rows if kept.id.startswith(_PAGE)]
        questions = [kept for kept in rows if not kept.id.startswith(_PAGE)]
        self._inbox.show_elsewhere(
            readable(_TABLE, questions, lambda kept: waiting_elsewhere(kept, self._send_answer), _id_of)
        )
        self._pages.show_elsewhere(readable(_TABLE, pages, self._page, _id_of))

    async def _accept_answer(self, kept: KeptQuestion) -> None:
        assert kept.answer is not None
        self._taking.add(kept.id)
        try:
            outcome = TAKEN if await self._deliver(kept.id, kept.answer) else GONE
            await self._end([kept.id], outcome)
        finally:
            self._taking.discard(kept.id)

    async def _deliver(self, question_id: str, given: bytes) -> bool:
        try:
            if question_id.startswith(_PAGE):
                self._pages.settle(question_id.removeprefix(_PAGE), given)
                return True
            waiting = self._inbox.settle_given(question_id, *read_answer(given))
            if waiting is not None:
                await waiting.kept()
        except CallerError:
            return False
        return waiting is not None

    async def _send_answer(self, waiting: Waiting) -> None:
        """Send an answer to the gateway at which the question waits. Raises CallerError if it is too late."""
        assert waiting.given is not None
        await self._send(waiting.id, waiting.home, answer_bytes(waiting.given, waiting.ending), waiting.task_id)

    async def _send(self, question_id: str, home: str, answer: bytes, task_id: str | None = None) -> None:
        self._given.add(question_id)
        if not await self._rows.do(AnswerQuestion(question_id, answer)):
            raise over(question_id.removeprefix(_PAGE))
        until = clock.monotonic() + TAKEN_WITHIN_S
        while clock.monotonic() < until:
            found = await self._rows.ask(FindQuestion(question_id))
            if found is not None and found.outcome == TAKEN:
                return
            if found is None or found.outcome == GONE or (task_id is None and not self._rows.is_alive(home)):
                raise over(question_id.removeprefix(_PAGE))
            await clock.sleep(_POLL_S)
        raise GatewayFault(
            "store_unavailable",
            "The answer is stored, but the gateway at which the question waits has not confirmed it yet. Check again soon.",
            executed=Executed.MAYBE,
        )

    def _page(self, kept: KeptQuestion) -> ElicitationPage:
        body = wire.parse_strictly(kept.body)
        left_s = (kept.expires_ms - self._rows.now_ms()) / 1000
        receiver = _RemoteReceiver(lambda params: self._send(kept.id, kept.home, params))
        return ElicitationPage(
            id=kept.id.removeprefix(_PAGE),
            principal=kept.caller,
            requester=body["asks"],
            name=body["name"],
            description=body["description"],
            receiver=receiver,
            expires=clock.monotonic() + left_s,
            is_elsewhere=True,
        )


class _RemoteReceiver:
    """Receives an answer for a requester that is connected to another gateway."""

    gone = False

    def __init__(self, send: Any) -> None:
        self._send = send
        self._sending: Coroutine[Any, Any, None] | None = None

    def send(self, method: str, params: bytes) -> None:
        self._sending = self._send(params)

    async def delivered(self) -> None:
        if self._sending is not None:
            sending, self._sending = self._sending, None
            await sending


def _id_of(kept: KeptQuestion) -> str:
    return kept.id


def _kept_page(page: ElicitationPage) -> KeptQuestion:
    expires_ms = clock.wall_ms() + page.seconds_left * 1000
    text = json.dumps({"asks": page.requester, "name": page.name, "description": page.description}, ensure_ascii=False)
    return KeptQuestion(id=_PAGE + page.id, caller=page.principal, home="", expires_ms=expires_ms, body=text.encode())
