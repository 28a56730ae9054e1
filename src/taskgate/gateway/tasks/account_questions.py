"""A call of somebody whose account at the server is not connected: the person is asked to connect it, then the call goes on.

The question is an address of ours to open. It is asked inside a task, so that it reaches the person in whatever way the caller
can be reached: as a request on its stream, in `tasks/get`, or in the inbox. Stateless callers that can open addresses but know no
tasks get it as a result, and come back. That somebody agreed to open the page is not enough: the account must have been
connected.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Final

from taskgate.core import wire
from taskgate.core.questions.capabilities import can_answer
from taskgate.core.questions.question import ELICIT, Answer, Question, accepted
from taskgate.core.tasks.task import Task
from taskgate.gateway.questions.elicitations import UrlElicitations
from taskgate.gateway.requests.request import Request
from taskgate.gateway.requests.request_state import RequestStateSigner
from taskgate.gateway.tasks.deadlines import TaskDeadlines
from taskgate.gateway.tasks.questions import TaskQuestions
from taskgate.ports.credentials import AccountConnector, AccountNeeded

ASK_AT_MOST: Final = 2
"""How often one run asks its person. A server that still refuses what was connected cannot be helped by asking again."""
STATE_KIND: Final = "again"
_LONGEST_WAIT_S: Final = 86_400.0
_ACCEPTED: Final = Answer(result=b'{"action":"accept"}')


class AccountQuestions:
    def __init__(
        self,
        accounts: AccountConnector,
        urls: UrlElicitations,
        questions: TaskQuestions,
        deadlines: TaskDeadlines,
        state_signer: RequestStateSigner,
        *,
        login_of: Callable[[str], str | None],
    ) -> None:
        """`login_of`: as whom a principal's person logs in. The page for connecting an account needs that login."""
        self._login_of = login_of
        self._accounts = accounts
        self._urls = urls
        self._questions = questions
        self._deadlines = deadlines
        self._state_signer = state_signer

    async def settled(self, task: Task, needed: AccountNeeded) -> bool:
        """Ask the task's person, and wait. Whether the account is connected now."""
        if self._login_of(needed.principal) is None:
            return False
        key = f"account-{secrets.token_hex(4)}"
        question = await self._question(needed, key)
        asking = asyncio.ensure_future(self._questions.ask(task.id, question))
        waiting = asyncio.ensure_future(
            self._accounts.wait(needed.server, needed.principal, needed.scope, self._patience_s(task))
        )
        try:
            await asyncio.wait((asking, waiting), return_when=asyncio.FIRST_COMPLETED)
            if asking.done() and not accepted(asking.result()):
                return False
            connected = await waiting
            self._questions.answered(task.id, key, _ACCEPTED)
            await asking
            return connected
        finally:
            asking.cancel()
            waiting.cancel()
            await asyncio.gather(asking, waiting, return_exceptions=True)

    def _patience_s(self, task: Task) -> float:
        left = self._deadlines.try_left_s(task)
        return _LONGEST_WAIT_S if left is None else max(0.0, min(left, _LONGEST_WAIT_S))

    async def as_result(self, request: Request, needed: AccountNeeded, method: str, name: str) -> bytes | None:
        """The question as a result, for a stateless caller that has not been asked yet and can open addresses; else None."""
        envelope = request.envelope
        if envelope is None or envelope.wants_tasks or "requestState" in request.params:
            return None
        if self._login_of(needed.principal) is None:
            return None
        question = await self._question(needed, None)
        if not can_answer(envelope.capabilities, ELICIT, question.decoded()):
            return None
        self._urls.note_own(request.caller.principal, needed.server)
        state = self._state_signer.sign(STATE_KIND, request.caller.principal, method, name, needed.server, body="")
        params = {key: value for key, value in question.decoded().items() if key != "elicitationId"}
        return wire.encode(
            {
                "resultType": "input_required",
                "inputRequests": {"account": {"method": ELICIT, "params": params}},
                "requestState": state,
            }
        )

    async def _question(self, needed: AccountNeeded, key: str | None) -> Question:
        asked = {
            "mode": "url",
            "elicitationId": secrets.token_urlsafe(12),
            "url": await self._accounts.page(needed.server, needed.principal, needed.scope),
            "message": f"Connect your account at {needed.server}: {needed.reason}. The page asks you to log in to the gateway as "
            f"{self._login_of(needed.principal)}. The call goes on afterwards.",
        }
        return Question(ELICIT, wire.raw(asked), needed.server, key=key, own=True)
