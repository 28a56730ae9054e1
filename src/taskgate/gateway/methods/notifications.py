"""Notifications from stateful callers: a cancel is ours to act on, everything else is for the servers it talks to.

What upstreams say outside any request, and who is to hear it: changed lists and resources, logs, questions, comings, goings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from taskgate.core import wire
from taskgate.core.catalog.entry import EntryKind
from taskgate.core.errors import TaskgateError
from taskgate.core.events import EventKind
from taskgate.core.generations import Generation
from taskgate.core.identity import Caller
from taskgate.core.questions import Answer, Question
from taskgate.core.scoping.registry import SessionRequest
from taskgate.core.wire import Message, Raw
from taskgate.gateway.calls.routing import Lookup
from taskgate.gateway.catalog.catalogs import Catalogs
from taskgate.gateway.catalog.views import Views
from taskgate.gateway.events import ElicitationCompleted, EventHub, ListsChanged, ScopesChanged
from taskgate.gateway.methods.subscriptions import LIST_CHANGED, UPDATED, Subscriptions, kinds_in
from taskgate.gateway.plan import Live, Plan
from taskgate.gateway.questions.activity import Activity
from taskgate.gateway.questions.elicitations import COMPLETE, ServerElicitations, UrlElicitations
from taskgate.gateway.questions.untied import UntiedQuestions
from taskgate.gateway.requests.sessions import Session, SessionTable
from taskgate.ports.outlet import CancelNote
from taskgate.ports.upstream import LISTENER, Link, LinkKey, Upstream, UpstreamCall, for_operators
from taskgate.telemetry.logs import log


async def notified(lookup: Lookup, upstreams: Mapping[str, Upstream], session: Session, message: Message) -> None:
    if message.method == "notifications/cancelled":
        session.cancel(wire.encode((message.params or {}).get("requestId")), CancelNote.read(message.params))
    elif message.method != "notifications/initialized":
        links = _links_of(lookup, upstreams, session) or await _only_link(lookup, upstreams, session)
        await _tell_upstreams(links, message)


async def _tell_upstreams(links: list[Link], message: Message) -> None:
    """Roots that changed, progress on a question, vendor news: for every conversation this session has open."""
    raw = bytes(message.raw_params) if message.raw_params is not None else None
    for link in links:
        try:
            await link.notify(message.method, raw)
        except TaskgateError as problem:
            log.info("notification not delivered", server=link.server, method=message.method, why=problem.message)


async def pass_log_level_on(lookup: Lookup, upstreams: Mapping[str, Upstream], session: Session, level: str) -> None:
    """A server that cannot be told hears of it with the session's next call: every call takes the level along."""
    for link in _links_of(lookup, upstreams, session):
        try:
            await link.set_log_level(level)
        except TaskgateError as problem:
            log.info("log level not delivered", server=link.server, level=level, why=problem.message)


def _servers_of(lookup: Lookup, session: Session) -> Sequence[str]:
    return tuple(lookup.views.subset(lookup.plan.value, session.caller.scope, session.narrowing).servers)


def _links_of(lookup: Lookup, upstreams: Mapping[str, Upstream], session: Session) -> list[Link]:
    """The open conversations that a session has with stateful upstreams of its scope; others may be shared with it, too."""
    found = (upstreams[name].open_link(session.link_key) for name in _servers_of(lookup, session) if name in upstreams)
    return [link for link in found if link is not None and link.generation is Generation.STATEFUL]


async def _only_link(lookup: Lookup, upstreams: Mapping[str, Upstream], session: Session) -> list[Link]:
    """Open the conversation with the only server of a scope, so that it receives a notification sent before the first call, as over
    a direct connection. With several servers it is not known which of them the client means.
    """
    servers = _servers_of(lookup, session)
    if len(servers) != 1 or servers[0] not in upstreams:
        return []
    try:
        link = await upstreams[servers[0]].link(session.link_key, session.profile)
    except TaskgateError as problem:
        log.info("notification not delivered", server=servers[0], why=problem.message)
        return []
    return [link] if link.generation is Generation.STATEFUL else []


MAY_BE_ANOTHER: Final = frozenset(
    {
        EventKind.SERVER_CONNECTED,
        EventKind.SERVER_RECONNECTED,
        EventKind.SERVER_HEALTH_DEGRADED,
        EventKind.SERVER_HEALTH_RESTORED,
    }
)
"""After these a server may offer something else than before: it was restarted, or lost our session."""


class UpstreamNotifications:
    """Hears every link of every upstream."""

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
        events.subscribe(ElicitationCompleted, self._elicitation_completed)
        events.subscribe(ListsChanged, self._lists_changed)
        events.subscribe(ScopesChanged, self._scopes_changed)

    def on_notification(self, link: Link, method: str, params: Raw | None) -> None:
        if method.endswith("/list_changed"):
            self._catalogs.changed(link.server, kinds_in(method))
        elif method == COMPLETE:
            own = self._sessions.get(link.key.session) if link.key.session else None
            self._tell_completed(ElicitationCompleted(link.server, params), own)
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
                    self._activity.heard(feed, link.server, method, raw)
                if level is None or session.wants_log(level):
                    session.notify(method, raw)

    def _resource_updated(self, link: Link, params: Raw | None) -> None:
        """A session's own link concerns that session alone; a shared one all who follow over it, and who follow no other way."""
        own = self._sessions.get(link.key.session) if link.key.session else None
        if own is not None:
            self._subscriptions.updated(own, link, params)
            return
        self._subscriptions.updated(None, link, params)
        self._subscriptions.updated_for_listens(link, params)
        self._activity.resource_updated(link.server, params)

    def _elicitation_completed(self, event: ElicitationCompleted) -> None:
        self._tell_completed(event, event.request.session if event.request is not None else None)

    def _tell_completed(self, event: ElicitationCompleted, own: Session | None) -> None:
        """An address has done its work: only the caller that was given it hears of that."""
        request, raw = event.request, bytes(event.params) if event.params is not None else None
        session = self._urls.over(event.server, event.params, own)
        if session is None:
            return
        if request is not None and request.session is session and not request.delivery.answered:
            request.delivery.notify(COMPLETE, raw)
        else:
            session.notify(COMPLETE, raw)

    async def on_question(self, link: Link, question: Question, calls: Sequence[UpstreamCall]) -> Answer:
        """One in the vendor's list form always comes here, because the gateway answers it, or refuses it."""
        return self._pages.answer(link, question) if question.is_list else await self._untied.ask(link, question, calls)

    def on_closed(self, link: Link, reason: TaskgateError | None) -> None:
        if reason is not None:
            log.warning("server lost", server=link.server, why=for_operators(reason))

    def on_server(self, server: str, kind: EventKind, data: Mapping[str, Any], key: LinkKey | None = None) -> None:
        """A server came, went or is not well: tell those in whose scope it is, or the one whose conversation it was."""
        if kind is EventKind.SERVER_RECONNECTED:
            log.info("server reconnected", server=server)
        if kind in MAY_BE_ANOTHER:
            self._catalogs.changed(server)
        told = dict(data)
        own = self._sessions.get(key.session) if key is not None and key.session else None
        if own is not None:
            feed = self._activity.of_session(own)
            if feed is not None:
                feed.tell(kind, server, told)
        elif key is None or key.session in ("", LISTENER):
            self._activity.tell_all(kind, server, told, lambda scope: self._in_scope(server, scope))

    def _in_scope(self, server: str, scope: str) -> bool:
        plan = self._plan.value
        return scope in plan.scopes and server in self._views.subset(plan, scope, SessionRequest()).servers

    def _scopes_changed(self, _event: ScopesChanged) -> None:
        """Anybody may be shown something else now."""
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
                    self._activity.heard(feed, server, method, None)


def _level(params: Raw | None) -> str:
    value = wire.parse_strictly(bytes(params)) if params is not None else {}
    level = value.get("level") if type(value) is dict else None
    return level if type(level) is str else "info"
