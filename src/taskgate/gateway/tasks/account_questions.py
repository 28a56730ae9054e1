"""Ask a person to connect their account at a server, and continue the call afterwards.

The question is a URL of the gateway. A task asks it, so that it reaches the person in any way that the caller supports: as a
request on its stream, in `tasks/get`, or in the inbox. Stateless callers that can open URLs but do not know tasks get it as a
result and repeat the call. Consent to open the page is not enough: the account must be connected.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Final

import msgspec

from taskgate.core import wire
from taskgate.core.questions.capabilities import can_answer
from taskgate.core.questions.question import ELICIT, Answer, Question, accepted
from taskgate.core.tasks.task import Task
from taskgate.gateway.questions.url_elicitations import UrlElicitations
from taskgate.gateway.requests.request import Request
from taskgate.gateway.requests.request_state import RequestStateSigner
from taskgate.gateway.tasks.deadlines import TaskDeadlines
from taskgate.gateway.tasks.questions import TaskQuestions
from taskgate.ports.account_connector import AccountConnector
from taskgate.ports.upstream_credentials import AccountNeeded

MAX_QUESTIONS_PER_RUN: Final = 2
"""How often one run asks its person. If a server refuses the connected account, asking again does not help."""
STATE_KIND: Final = "again"
_LONGEST_WAIT_S: Final = 86_400.0
_ACCEPTED: Final = Answer(result=b'{"action":"accept"}')


class AccountQuestions(msgspec.Struct, eq=False, kw_only=True):
    accounts: AccountConnector
    urls: UrlElicitations
    questions: TaskQuestions
    deadlines: TaskDeadlines
    state_signer: RequestStateSigner
    login_of: Callable[[str], str | None]
    """The login name of a principal's person, which the page for connecting an account requires."""

    async def settled(self, task: Task, needed: AccountNeeded) -> bool:
        """Ask the person of the task and wait. Return whether the account is connected."""
        if self.login_of(needed.principal) is None:
            return False
        key = f"account-{secrets.token_hex(4)}"
        question = await self._question(needed, key)
        asking = asyncio.ensure_future(self.questions.ask(task.id, question))
        waiting = asyncio.ensure_future(
            self.accounts.wait(needed.server, needed.principal, needed.scope, self._max_wait_s(task))
        )
        try:
            await asyncio.wait((asking, waiting), return_when=asyncio.FIRST_COMPLETED)
            if asking.done() and not accepted(asking.result()):
                return False
            connected = await waiting
            self.questions.resolve(task.id, key, _ACCEPTED)
            await asking
            return connected
        finally:
            asking.cancel()
            waiting.cancel()
            await asyncio.gather(asking, waiting, return_exceptions=True)

    def _max_wait_s(self, task: Task) -> float:
        left = self.deadlines.retry_time_left_s(task)
        return _LONGEST_WAIT_S if left is None else max(0.0, min(left, _LONGEST_WAIT_S))

    async def as_result(self, request: Request, needed: AccountNeeded, method: str, name: str) -> bytes | None:
        """The question as a result, for a stateless caller that can open URLs and was not asked yet; else None."""
        envelope = request.envelope
        if envelope is None or envelope.accepts_tasks or "requestState" in request.params:
            return None
        if self.login_of(needed.principal) is None:
            return None
        question = await self._question(needed, None)
        if not can_answer(envelope.capabilities, ELICIT, question.decoded()):
            return None
        self.urls.note_own(request.caller.principal, needed.server)
        state = self.state_signer.sign(STATE_KIND, request.caller.principal, method, name, needed.server, body="")
        params = {key: value for key, value in question.decoded().items() if key != "elicitationId"}
        return wire.encode(
            {
                "resultType": "input_required",
                "inputRequests": {"account": {"method": ELICIT, "params": params}},
                "requestState": state,
            }
        )

    async def _question(self, needed: AccountNeeded, key: str | None) -> Question:
        params = {
            "mode": "url",
            "elicitationId": secrets.token_urlsafe(12),
            "url": await self.accounts.page(needed.server, needed.principal, needed.scope),
            "message": f"Connect your account at {needed.server}: {needed.reason}. The page asks you to log in to the gateway as "
            f"{self.login_of(needed.principal)}. The call continues afterwards.",
        }
        return Question(ELICIT, wire.raw(params), needed.server, key=key, own=True)
