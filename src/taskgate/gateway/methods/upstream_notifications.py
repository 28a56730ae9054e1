"""Handle what servers send outside a request: changed lists and resources, log messages, questions, and changes of their health."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from taskgate.core import wire
from taskgate.core.catalog.entry import EntryKind
from taskgate.core.errors import TaskgateError
from taskgate.core.events import EventKind
from taskgate.core.identity.caller import Caller
from taskgate.core.questions.question import Answer, Question
from taskgate.core.scoping.session_request import SessionRequest
from taskgate.core.wire import Raw
from taskgate.gateway.catalog.catalogs import Catalogs
from taskgate.gateway.catalog.views import Views
from taskgate.gateway.events import ElicitationCompleted, EventHub, ListsChanged, ScopesChanged, ServerSessionEnded
from taskgate.gateway.methods.subscriptions import LIST_CHANGED, UPDATED, Subscriptions, kinds_in
from taskgate.gateway.plan import Live, Plan
from taskgate.gateway.questions.activity import Activity
from taskgate.gateway.questions.listed_elicitations import ServerElicitations
from taskgate.gateway.questions.untied import UntiedQuestions
from taskgate.gateway.questions.url_elicitations import COMPLETE, UrlElicitations
from taskgate.gateway.requests.session import Session
from taskgate.gateway.requests.session_table import SessionTable
from taskgate.ports.call_failure import for_operators
from taskgate.ports.link import LISTENER, Link, LinkKey
from taskgate.ports.upstream_call import UpstreamCall
from taskgate.telemetry.logs import log

LISTS_MAY_DIFFER: Final = frozenset(
    {
        EventKind.SERVER_CONNECTED,
        EventKind.SERVER_RECONNECTED,
        EventKind.SERVER_HEALTH_DEGRADED,
        EventKind.SERVER_HEALTH_RESTORED,
    }
)
"""After these events a server may have other lists than before: it was restarted, or lost its session."""


class UpstreamNotifications:
    """Receives notifications and questions of every link of every server."""

    def __init__(
        self,
        plan: Live[Plan],
        catalogs: Catalogs,
        views: Views,
        sessions: SessionTable,
        subscriptions: Subscriptions,
        *,
        activity: Activity,
        untied: UntiedQuestions,
        urls: UrlElicitations,
        pages: ServerElicitations,
        events: EventHub,
    ) -> None:
        self._plan = plan
        self._catalogs = catalogs
        self._views = views
        self._sessions = sessions
        self._subscriptions = subscriptions
        self._activity = activity
        self._untied = untied
        self._urls = urls
        self._pages = pages
        self._events = events
        events.subscribe(ElicitationCompleted, self._elicitation_completed)
        events.subscribe(ListsChanged, self._lists_changed)
        events.subscribe(ScopesChanged, self._scopes_changed)

    def on_notification(self, link: Link, method: str, params: Raw | None) -> None:
        if method.endswith("/list_changed"):
            self._catalogs.changed(link.server, kinds_in(method))
        elif method == COMPLETE:
            own = self._sessions.get(link.key.session) if link.key.session else None
            self._notify_completed(ElicitationCompleted(link.server, params), own)
        elif method == UPDATED:
            self._resource_updated(link, params)
        elif method.startswith("taskgate/"):
            log.info("undelivered", server=link.server, detail=bytes(params or b"").decode("utf-8", "replace"))
        else:
            raw = bytes(params) if params is not None else None
            level = _level(params) if method == "notifications/message" else None
            for session in self._untied.sessions_on(link):
                feed = self._activity.of_session(session)
                if feed is not None:
                    self._activity.add_server_message(feed, link.server, method, raw)
                if level is None or session.accepts_log(level):
                    session.notify(method, raw)

    def _resource_updated(self, link: Link, params: Raw | None) -> None:
        """A session's own link concerns only that session; a shared one all followers without a link of their own."""
        own = self._sessions.get(link.key.session) if link.key.session else None
        if own is not None:
            self._subscriptions.updated(own, link, params)
            return
        self._subscriptions.updated(None, link, params)
        self._subscriptions.updated_for_listens(link, params)
        self._activity.resource_updated(link.server, params)

    def _elicitation_completed(self, event: ElicitationCompleted) -> None:
        self._notify_completed(event, event.request.session if event.request is not None else None)

    def _notify_completed(self, event: ElicitationCompleted, own: Session | None) -> None:
        """Notify only the caller that was asked to open the URL."""
        request, raw = event.request, bytes(event.params) if event.params is not None else None
        session = self._urls.over(event.server, event.params, own)
        if session is None:
            return
        if request is not None and request.session is session and not request.delivery.answered:
            request.delivery.notify(COMPLETE, raw)
        else:
            session.notify(COMPLETE, raw)

    async def on_question(self, link: Link, question: Question, calls: Sequence[UpstreamCall]) -> Answer:
        """Ask a question that is not tied to a call. The gateway itself answers or refuses the vendor's list form."""
        return self._pages.answer(link, question) if question.is_list else await self._untied.ask(link, question, calls)

    def on_closed(self, link: Link, reason: TaskgateError | None) -> None:
        if reason is not None:
            log.warning("server lost", server=link.server, why=for_operators(reason))

    def on_session_ended(self, server: str, version: str, seconds: float, error_type: str) -> None:
        self._events.publish(ServerSessionEnded(server, version, seconds, error_type))

    def on_server(self, server: str, kind: EventKind, data: Mapping[str, Any], key: LinkKey | None = None) -> None:
        """A server connected, disconnected or changed its health: publish it in the scopes that have it, or to the session that
        owns the link.
        """
        if kind is EventKind.SERVER_RECONNECTED:
            log.info("server reconnected", server=server)
        if kind in LISTS_MAY_DIFFER:
            self._catalogs.changed(server)
        details = dict(data)
        own = self._sessions.get(key.session) if key is not None and key.session else None
        if own is not None:
            feed = self._activity.of_session(own)
            if feed is not None:
                feed.add_event(kind, server, details)
        elif key is None or key.session in ("", LISTENER):
            self._activity.publish_to_scopes(kind, server, details, lambda scope: self._in_scope(server, scope))

    def _in_scope(self, server: str, scope: str) -> bool:
        plan = self._plan.value
        return scope in plan.scopes and server in self._views.subset(plan, scope, SessionRequest()).servers

    def _scopes_changed(self, _event: ScopesChanged) -> None:
        """Any caller may see other lists now."""
        self._subscriptions.lists_changed(self._sessions, tuple(EntryKind), lambda _caller, _narrowing: True)

    def _lists_changed(self, event: ListsChanged) -> None:
        server, kinds = event.server, event.kinds

        def concerns(caller: Caller, narrowing: SessionRequest) -> bool:
            plan = self._plan.value
            if caller.scope not in plan.scopes:
                return False
            return server in self._views.subset(plan, caller.scope, narrowing).servers

        self._subscriptions.lists_changed(self._sessions, kinds, concerns)
        for method in {LIST_CHANGED[kind][1] for kind in kinds}:
            for feed in self._activity.feeds():
                if self._in_scope(server, feed.scope):
                    self._activity.add_server_message(feed, server, method, None)


def _level(params: Raw | None) -> str:
    value = wire.parse_strictly(bytes(params)) if params is not None else {}
    level = value.get("level") if type(value) is dict else None
    return level if type(level) is str else "info"
