"""Who answers a server's question: the caller itself if it said that it can, else whoever looks into its inbox."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from taskgate.core.identity import ConversationKey
from taskgate.core.questions import SAMPLE, Answer, Question, can_answer, not_supported
from taskgate.gateway.plan.plan import Live, Plan
from taskgate.gateway.questions.activity import Activity
from taskgate.gateway.questions.ask_models import Models
from taskgate.gateway.questions.inbox import ANSWERABLE
from taskgate.gateway.questions.url_elicitations import UrlElicitations
from taskgate.gateway.requests.asking import ask_session
from taskgate.gateway.requests.request import Request
from taskgate.gateway.requests.sessions import Session

OPERATOR: Final = ConversationKey("(operator)")
"""Whose inbox holds the questions that nobody else may answer; no principal is called so."""


class Asker:
    def __init__(self, activity: Activity, models: Models, urls: UrlElicitations, plan: Live[Plan]) -> None:
        self._activity = activity
        self._inbox = activity.inbox
        self._models = models
        self._urls = urls
        self._plan = plan

    async def ask_caller(self, request: Request, question: Question) -> Answer:
        session = request.session
        if self.refuses(question):
            return not_supported(question.method)
        if session is not None and can_answer(session.capabilities, question.method, question.decoded()):
            refused = self._url_refusal(session, question)
            keep = partial(request.delivery.keep_answer, question)
            return refused or await ask_session(session, question, request, self.timeout_s(question), keep)
        return await self.otherwise(request, question)

    async def otherwise(self, request: Request, question: Question) -> Answer:
        """The caller cannot be asked natively."""
        whose, waits = request.conversation_key, request.delivery.inbox and self.may_wait(question)
        if self._models.answer_for(question) and not (waits and self.attended(whose)):
            return await self._models.answer(question, request.caller.principal)
        if not waits:
            return not_supported(question.method)
        refused = self._urls.refusal(request.caller.principal, question)
        return refused or await self._inbox.ask(whose, question, request)

    async def ask_undecided(self, whose: ConversationKey, sessions: list[Session], question: Question) -> Answer:
        """A question that may belong to any call of one caller, or to none: put to all its sessions that can answer, of which
        the first counts, or into its inbox. It is shown as the server's, and names no call and no task.
        """
        if self.refuses(question):
            return not_supported(question.method)
        able = [session for session in sessions if _can_be_asked(session, question)]
        if able:
            return self._url_refusal(able[0], question) or await self._first_answer(able, question)
        if self.may_wait(question) and all(session.profile.inbox for session in sessions):
            principal = sessions[0].caller.principal if sessions else whose.caller
            return self._urls.refusal(principal, question) or await self._inbox.ask(whose, question)
        return await self.ask_operator(question)

    async def _first_answer(self, sessions: list[Session], question: Question) -> Answer:
        asking = {
            asyncio.ensure_future(ask_session(session, question, None, self.timeout_s(question)))
            for session in sessions
        }
        try:
            while asking:
                done, asking = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
                answer = next(iter(done)).result()
                if answer.result is not None or not asking:
                    return answer
            return not_supported(question.method)
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    async def ask_operator(self, question: Question) -> Answer:
        """Calls of several callers are open: no caller may see what may be meant for another.

        A model answers only inside a call, whose caller's budget it spends.
        """
        if self._models.answer_for(question) or not self.may_wait(question):
            return not_supported(question.method)
        return self._urls.refusal(OPERATOR.caller, question) or await self._inbox.ask(OPERATOR, question)

    def _url_refusal(self, session: Session, question: Question) -> Answer | None:
        return self._urls.refusal(session.caller.principal, question, session)

    def attended(self, whose: ConversationKey) -> bool:
        """Whether somebody looks into this inbox: a caller that never asked for news does not."""
        return bool(self._activity.hearing(whose))

    def timeout_s(self, question: Question) -> float:
        """An address of a server is good for a shorter time than a form."""
        plan = self._plan.value
        whole = plan.limits.question_timeout_s
        return min(whole, plan.features.url_expiry_s) if question.is_url and not question.own else whole

    def refuses(self, question: Question) -> bool:
        return question.method == SAMPLE and question.server in self._plan.value.refuse_sampling

    def may_wait(self, question: Question) -> bool:
        plan = self._plan.value
        if question.method not in ANSWERABLE or question.server in plan.refuse_questions:
            return False
        return not self.refuses(question)


def _can_be_asked(session: Session, question: Question) -> bool:
    followed = session.outlet is not None and session.outlet.followed
    return followed and can_answer(session.capabilities, question.method, question.decoded())
