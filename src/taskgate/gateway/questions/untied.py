"""Requests that a server sends without a reference to a call: which client receives them, and how.

With one conversation on the link, the question belongs to that conversation: it is sent on the stream of its oldest open call that
can carry it, else on the session's own stream, else with a call that keeps it until the caller returns. It is not presented as
caused by that call. With several conversations it waits in the inbox of their principal, or of the operator, and every open call
reports that.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from taskgate.core.identity.addressees import addressee, has_conversation
from taskgate.core.identity.conversation import SESSION, ConversationKey, conversation_of
from taskgate.core.questions.question import Answer, Question, not_supported
from taskgate.gateway.questions.asker import Asker
from taskgate.gateway.questions.separated import SeparatedServers
from taskgate.gateway.requests.session import Session
from taskgate.gateway.requests.session_table import SessionTable
from taskgate.ports.link import Link
from taskgate.ports.upstream_call import UpstreamCall


class UntiedQuestions(msgspec.Struct, eq=False):
    _sessions: SessionTable
    _asker: Asker
    _separated: SeparatedServers

    async def ask(self, link: Link, question: Question, calls: Sequence[UpstreamCall]) -> Answer:
        """Answer the request. `calls`: the calls open on the link when it arrived, oldest first."""
        refusal = self._asker.refusal(question)
        if refusal is not None:
            return refusal
        asking = {conversation_of(call.conversation) for call in calls}
        asking = asking or {session.conversation for session in self.sessions_on(link)}
        if not asking:
            return not_supported(question.method)
        conversation = addressee(asking)
        if conversation not in asking or not has_conversation(conversation.stream):
            # If the same client had another call open, a call without a conversation could not be identified.
            self._separated.learn(link.server)
        if conversation in asking:
            return await self._ask_conversation(conversation, question, calls)
        sides = [call.side for call in calls if call.side is not None]
        return await self._asker.ask_inbox(conversation, conversation.caller, question, sides)

    async def _ask_conversation(
        self, conversation: ConversationKey, question: Question, calls: Sequence[UpstreamCall]
    ) -> Answer:
        if len(calls) == 1:
            return await calls[0].on_question(question)
        shared, session = replace(question, shared=True), self._session_of(conversation)
        sides = [(call, call.side) for call in calls if call.side is not None]
        carrier = next((call for call, side in sides if side.can_carry(shared)), None)
        if carrier is not None:
            return await carrier.on_question(shared)
        if not calls or (session is not None and self._asker.reads_own_stream(session, shared)):
            return await self._asker.ask_conversation(conversation, session, shared)
        keeper = next((call for call, side in sides if side.can_keep()), calls[0])
        others = [side for call, side in sides if call is not keeper]
        for side in others:
            side.server_waits(f"{question.server} waits for an answer to a question that names no call.")
        try:
            return await keeper.on_question(shared)
        finally:
            for side in others:
                side.server_waits(None)

    def _session_of(self, conversation: ConversationKey) -> Session | None:
        """Return the stateful session of this conversation, if it has one."""
        session_id = conversation.session_id or conversation.caller.removeprefix(SESSION)
        found = self._sessions.get(session_id)
        return found if found is not None and found.conversation == conversation else None

    def sessions_on(self, link: Link) -> list[Session]:
        """Return the sessions that the link serves: one, or those of its principal that have an open request."""
        own = self._sessions.get(link.key.session) if link.key.session else None
        if own is not None:
            return [own]
        if link.key.session:
            return []
        principal = link.key.principal
        there = self._sessions.of_principal(principal) if principal else self._sessions
        return [session for session in there if session.in_flight]
