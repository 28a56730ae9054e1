"""What upstreams say outside any request, and who is to hear it: changed lists and resources, logs, questions, comings, goings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from taskgate.core import wire
from taskgate.core.activity.events import EventKind
from taskgate.core.caller import Caller
from taskgate.core.catalog.entry import EntryKind
from taskgate.core.errors import TaskgateError
from taskgate.core.questions import Answer, Question, no_list_form
from taskgate.core.scoping.request import SessionRequest
from taskgate.core.wire import Raw
from taskgate.gateway.activity.activity import Activity
from taskgate.gateway.activity.asker import Asker
from taskgate.gateway.context import Context
from taskgate.gateway.request import Request
from taskgate.gateway.sessions import Session
from taskgate.gateway.subscriptions import LIST_CHANGED, UPDATED, Subscriptions, kinds_in
from taskgate.gateway.url_elicitations import COMPLETE, UrlElicitations
from taskgate.ports.upstream import Link, LinkKey
from taskgate.telemetry.logs import log


class UpstreamNews:
    """Hears every link; the composition root hands it what they say."""

    def __init__(
        self,
        context: Callable[[], Context],
        subscriptions: Subscriptions,
        activity: Activity,
        asker: Asker,
        urls: UrlElicitations,
    ) -> None:
        self._context = context
        self._subscriptions = subscriptions
        self._activity = activity
        self._asker = asker
        self._urls = urls
        self.listed: Callable[[Link, Question], Answer] = lambda _link, _question: no_list_form()

    def on_notification(self, link: Link, method: str, params: Raw | None) -> None:
        if method.endswith("/list_changed"):
            self._context().catalogs.changed(link.server, kinds_in(method))
        elif method == COMPLETE:
            self.elicitation_over(link.server, params)
        elif method == UPDATED:
            own = self._context().sessions.get(link.key.session) if link.key.session else None
            self._subscriptions.updated([own] if own is not None else self._context().sessions, link.server, params)
            self._activity.resource_updated(link.server, params)
        elif method.startswith("taskgate/"):
            log.info("undelivered", server=link.server, detail=bytes(params or b"").decode("utf-8", "replace"))
        else:
            for session in self._sessions_on(link):
                raw = bytes(params) if params is not None else None
                feed = self._activity.of_session(session)
                if feed is not None:
                    self._activity.heard(feed, link.server, method, raw)
                if method != "notifications/message" or session.wants_log(_level(params)):
                    session.notify(method, raw)

    def elicitation_over(self, server: str, params: Raw | None, request: Request | None = None) -> None:
        """An address has done its work: only the caller that was given it hears of that."""
        raw = bytes(params) if params is not None else None
        own = request.session if request is not None and not request.answered else None
        for session in self._context().sessions:
            if self._urls.over(session, server, params):
                if own is session and request is not None:
                    request.notify(COMPLETE, raw)
                else:
                    session.notify(COMPLETE, raw)
                return

    async def on_question(self, link: Link, question: Question) -> Answer:
        """A question that belongs to no call we know of: put it to a session of the one the link is open for. One in the vendor's
        list form always comes here, because we answer it ourselves, or not at all.
        """
        if question.is_list:
            return self.listed(link, question)
        return await self._asker.ask_sessions(self._sessions_on(link), question)

    def on_closed(self, link: Link, reason: TaskgateError | None) -> None:
        if reason is not None:
            log.warning("server lost", server=link.server, why=reason.message)

    def on_server(self, server: str, kind: EventKind, data: Mapping[str, Any], key: LinkKey | None = None) -> None:
        """A server came, went or is not well: tell those in whose scope it is, or the one whose conversation it was."""
        if kind is EventKind.SERVER_RECONNECTED:
            log.info("server reconnected", server=server)
            self._context().catalogs.changed(server)
        told = dict(data)
        own = self._context().sessions.get(key.session) if key is not None and key.session else None
        if own is not None:
            feed = self._activity.of_session(own)
            if feed is not None:
                feed.tell(kind, server, told)
        elif key is None or key.session in ("", "listener"):
            self._activity.tell_all(kind, server, told, lambda scope: self._in_scope(server, scope))

    def _in_scope(self, server: str, scope: str) -> bool:
        plan = self._context().plan
        return scope in plan.scopes and server in self._context().views.subset(plan, scope, SessionRequest()).servers

    def _sessions_on(self, link: Link) -> list[Session]:
        own = self._context().sessions.get(link.key.session) if link.key.session else None
        if own is not None:
            return [own]
        if link.key.session:
            return []
        return [
            session
            for session in self._context().sessions
            if session.in_flight and (not link.key.principal or session.caller.principal == link.key.principal)
        ]

    def lists_changed(self, server: str, kinds: frozenset[EntryKind]) -> None:
        def concerns(caller: Caller, narrowing: SessionRequest) -> bool:
            if caller.scope not in self._context().plan.scopes:
                return False
            return server in self._context().views.subset(self._context().plan, caller.scope, narrowing).servers

        self._subscriptions.lists_changed(self._context().sessions, kinds, concerns)
        for method in {LIST_CHANGED[kind][1] for kind in kinds}:
            for feed in self._activity.feeds():
                if self._in_scope(server, feed.scope):
                    self._activity.heard(feed, server, method, None)


def _level(params: Raw | None) -> str:
    value = wire.parse_strictly(bytes(params)) if params is not None else {}
    level = value.get("level") if type(value) is dict else None
    return level if type(level) is str else "info"
