"""Who answers a server's question: the caller itself if it said that it can, else whoever looks into its inbox."""

from __future__ import annotations

from taskgate.core.questions import SAMPLE, Answer, Question, can_answer, not_supported
from taskgate.gateway.activity.activity import Activity
from taskgate.gateway.activity.inbox import ANSWERABLE
from taskgate.gateway.ask_models import Models
from taskgate.gateway.asking import ask_session
from taskgate.gateway.live import Live
from taskgate.gateway.plan import Plan
from taskgate.gateway.request import Request
from taskgate.gateway.sessions import Session
from taskgate.gateway.tasks.desk import caller_key
from taskgate.gateway.url_elicitations import UrlElicitations


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
            return refused or await ask_session(session, question, request, self.patience(question))
        return await self.otherwise(request, question)

    async def otherwise(self, request: Request, question: Question) -> Answer:
        """The caller cannot be asked natively."""
        caller, waits = caller_key(request), request.inbox and self.may_wait(question)
        if self._models.answer_for(question) and not (waits and self.attended(caller)):
            return await self._models.answer(question, request.caller.principal)
        if not waits:
            return not_supported(question.method)
        refused = self._urls.refusal(request.caller.principal, question)
        return refused or await self._inbox.ask(caller, question, request)

    async def ask_sessions(self, sessions: list[Session], question: Question) -> Answer:
        """A question that belongs to no call: natively to the first that can answer, else into the first inbox."""
        if self.refuses(question):
            return not_supported(question.method)
        for session in sessions:
            able = can_answer(session.capabilities, question.method, question.decoded())
            refused = self._url_refusal(session, question) if able else None
            if refused is not None:
                return refused
            answer = await ask_session(session, question, None, self.patience(question))
            if answer.result is not None:
                return answer
        for session in sessions:
            if session.face.inbox and self.may_wait(question):
                refused = self._urls.refusal(session.caller.principal, question)
                return refused or await self._inbox.ask(session_key(session), question)
        return not_supported(question.method)

    def _url_refusal(self, session: Session, question: Question) -> Answer | None:
        return self._urls.refusal(session.caller.principal, question, session)

    def attended(self, caller: str) -> bool:
        """Whether somebody looks into this inbox: a caller that never asked for news does not."""
        return self._activity.find(caller) is not None

    def patience(self, question: Question) -> float:
        """An address is good for a shorter time than a form."""
        plan = self._plan.value
        whole = plan.limits.question_timeout_s
        return min(whole, plan.features.url_expiry_s) if question.is_url else whole

    def refuses(self, question: Question) -> bool:
        return question.method == SAMPLE and question.server in self._plan.value.refuse_sampling

    def may_wait(self, question: Question) -> bool:
        plan = self._plan.value
        if question.method not in ANSWERABLE or question.server in plan.refuse_questions:
            return False
        return not self.refuses(question)


def session_key(session: Session) -> str:
    return f"session:{session.id}" if session.caller.anonymous else session.caller.principal
