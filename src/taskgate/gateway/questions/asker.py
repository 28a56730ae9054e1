"""Decide who answers a server's request: the client, a model where the operator allows it, or the inbox."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from taskgate.core.identity.addressees import OPERATORS_INBOX
from taskgate.core.identity.conversation import ConversationKey
from taskgate.core.questions.capabilities import can_answer
from taskgate.core.questions.question import SAMPLE, Answer, Question, not_supported
from taskgate.gateway.plan import Live, Plan
from taskgate.gateway.questions.activity import Activity
from taskgate.gateway.questions.inbox import ANSWERABLE
from taskgate.gateway.questions.model_sampling import Models
from taskgate.gateway.questions.question_timeout import question_timeout_s
from taskgate.gateway.questions.url_elicitations import UrlElicitations
from taskgate.gateway.requests.caller_questions import ask_session
from taskgate.gateway.requests.request import Request
from taskgate.gateway.requests.session import Session
from taskgate.ports.upstream_call import CallSide

"""Shows a person what a server requests or would get; True if it may continue."""


class Asker:
    def __init__(self, activity: Activity, models: Models, urls: UrlElicitations, plan: Live[Plan]) -> None:
        self._activity = activity
        self._inbox = activity.inbox
        self._models = models
        self._urls = urls
        self._plan = plan

    async def ask_caller(self, request: Request, question: Question) -> Answer:
        session = request.session
        request.delivery.mark_asked()
        if (refusal := self.refusal(question)) is not None:
            return refusal
        if session is not None and can_answer(session.capabilities, question.method, question.decoded()):
            if not request.delivery.outlet.can_send:
                # The server sent the request after its reply to this call: the request belongs to no call.
                return await self.ask_conversation(session.conversation, session, question)
            refused = self._url_refusal(session, question)
            keep = partial(request.delivery.keep_answer, question)
            return refused or await ask_session(session, question, request, self.timeout_s(question), keep)
        return await self.ask_fallback(request, question)

    async def ask_fallback(self, request: Request, question: Question) -> Answer:
        """Answer a request that cannot be sent to the client: by a model, or in the inbox."""
        conversation, waits = request.conversation_key, request.delivery.inbox and self.may_wait(question)
        if self._models.answer_for(question) and not (waits and self.attended(conversation)):
            return await self._models.answer(question, request.caller.principal)
        if not waits:
            return not_supported(question.method)
        refused = self._urls.refusal(request.caller.principal, question)
        if question.shared:
            return refused or await self._inbox.ask(conversation, question, sides=[request.delivery])
        return refused or await self._inbox.ask(conversation, question, request)

    def reads_own_stream(self, session: Session, question: Question) -> bool:
        """Return whether the request can be sent to a session outside any of its requests."""
        followed = session.outlet is not None and session.outlet.followed
        return followed and can_answer(session.capabilities, question.method, question.decoded())

    async def ask_conversation(
        self, conversation: ConversationKey, session: Session | None, question: Question
    ) -> Answer:
        """Send a request that belongs to no open request: on the session's own stream, or to its inbox."""
        if (refusal := self.refusal(question)) is not None:
            return refusal
        if session is not None and self.reads_own_stream(session, question):
            refused = self._url_refusal(session, question)
            return refused or await ask_session(session, question, None, self.timeout_s(question))
        if session is None or session.profile.inbox:
            principal = session.caller.principal if session is not None else conversation.caller
            return await self.ask_inbox(conversation, principal, question)
        return await self.ask_inbox(OPERATORS_INBOX, OPERATORS_INBOX.caller, question)

    async def ask_inbox(
        self, conversation: ConversationKey, principal: str, question: Question, sides: Sequence[CallSide] = ()
    ) -> Answer:
        """Put a request that no call can carry into the inbox. `sides`: the open calls, which report that their server waits.

        A model answers for a principal, whose budget it spends. A question for the operator may be any caller's.
        """
        by_model = self._models.answer_for(question)
        if not self.may_wait(question) or (by_model and conversation == OPERATORS_INBOX):
            return not_supported(question.method)
        if by_model and not self.attended(conversation):
            return await self._models.answer(question, principal)
        return self._urls.refusal(principal, question) or await self._inbox.ask(conversation, question, sides=sides)

    def _url_refusal(self, session: Session, question: Question) -> Answer | None:
        return self._urls.refusal(session.caller.principal, question, session)

    def attended(self, conversation: ConversationKey) -> bool:
        """Return whether the caller reads its inbox. A caller that never requested events does not."""
        return bool(self._activity.receiving_feeds(conversation))

    def timeout_s(self, question: Question) -> float:
        return question_timeout_s(self._plan.value, question)

    def refusal(self, question: Question) -> Answer | None:
        """Return the error for a request that nothing can answer."""
        if self.refuses(question):
            return not_supported(question.method)
        return self._models.invalid_preferences(question)

    def refuses(self, question: Question) -> bool:
        return question.method == SAMPLE and question.server in self._plan.value.refuse_sampling

    def may_wait(self, question: Question) -> bool:
        plan = self._plan.value
        if question.method not in ANSWERABLE or question.server in plan.refuse_questions:
            return False
        return not self.refuses(question)
