"""Who answers a server's question: the caller itself if it said that it can, else whoever looks into its inbox.

Roots are asked natively only: they are a fact about the caller's machine, which nobody else can answer.
"""

from __future__ import annotations

from collections.abc import Callable

from taskgate.core.questions import SAMPLE, Answer, Question, can_answer, not_supported
from taskgate.gateway.activity.inbox import ANSWERABLE, Inbox
from taskgate.gateway.asking import ask_session
from taskgate.gateway.plan import Plan
from taskgate.gateway.request import Request
from taskgate.gateway.sessions import Session
from taskgate.gateway.tasks.desk import caller_key


class Asker:
    def __init__(self, inbox: Inbox, plan: Callable[[], Plan]) -> None:
        self._inbox = inbox
        self._plan = plan

    async def ask_caller(self, request: Request, question: Question) -> Answer:
        session = request.session
        if self.refuses(question):
            return not_supported(question.method)
        if session is not None and can_answer(session.capabilities, question.method, question.decoded()):
            return await ask_session(session, question, request)
        return await self.otherwise(request, question)

    async def otherwise(self, request: Request, question: Question) -> Answer:
        """The caller cannot be asked natively."""
        if not request.inbox or not self.may_wait(question):
            return not_supported(question.method)
        return await self._inbox.ask(caller_key(request), question, request)

    async def ask_sessions(self, sessions: list[Session], question: Question) -> Answer:
        """A question that belongs to no call: natively to the first that can answer, else into the first inbox."""
        if self.refuses(question):
            return not_supported(question.method)
        for session in sessions:
            answer = await ask_session(session, question)
            if answer.result is not None:
                return answer
        for session in sessions:
            if session.face.inbox and self.may_wait(question):
                return await self._inbox.ask(session_key(session), question)
        return not_supported(question.method)

    def refuses(self, question: Question) -> bool:
        return question.method == SAMPLE and question.server in self._plan().refuse_sampling

    def may_wait(self, question: Question) -> bool:
        plan = self._plan()
        if question.method not in ANSWERABLE or question.server in plan.refuse_questions:
            return False
        return not self.refuses(question)


def session_key(session: Session) -> str:
    return f"session:{session.id}" if session.caller.anonymous else session.caller.principal
