"""Following resources and lists: `resources/subscribe` of stateful sessions, `subscriptions/listen` of stateless callers.

News from upstreams comes in once, over the listening link, and fans out to whoever follows. A session with a conversation of its
own with a stateful server subscribes over that one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from taskgate.core import wire
from taskgate.core.catalog.addresses import can_be_named, named_address, own_address
from taskgate.core.catalog.entry import EntryKind
from taskgate.core.errors import CallerError, GatewayFault
from taskgate.core.generations import SUBSCRIPTION, TASKS_EXTENSION, Generation, missing_capability
from taskgate.core.patterns import PatternKind
from taskgate.core.tasks.task import Task
from taskgate.core.wire import Raw, with_meta
from taskgate.gateway.calls.read_things import Readings
from taskgate.gateway.calls.routing import Sending
from taskgate.gateway.requests.request import Request
from taskgate.gateway.requests.sessions import Session
from taskgate.gateway.tasks.engine import TaskEngine
from taskgate.ports.upstream import LISTENER, Link, Upstream

MAX_LISTENS: Final = 10_000
MAX_URIS: Final = 1000
LIST_CHANGED: Final = {
    EntryKind.TOOL: ("toolsListChanged", "notifications/tools/list_changed"),
    EntryKind.PROMPT: ("promptsListChanged", "notifications/prompts/list_changed"),
    EntryKind.RESOURCE: ("resourcesListChanged", "notifications/resources/list_changed"),
    EntryKind.TEMPLATE: ("resourcesListChanged", "notifications/resources/list_changed"),
    # Skills have no notification of their own; their files are resources.
    EntryKind.SKILL: ("resourcesListChanged", "notifications/resources/list_changed"),
}


def kinds_in(method: str) -> frozenset[EntryKind]:
    """The kinds of entries that a `list_changed` notification is about."""
    return frozenset(kind for kind, (_, name) in LIST_CHANGED.items() if name == method)


UPDATED: Final = "notifications/resources/updated"


@dataclass(eq=False, slots=True)
class Listen:
    """One open `subscriptions/listen`."""

    request: Request
    lists: frozenset[str]
    uris: dict[str, str] = field(default_factory=dict)
    tasks: frozenset[str] = frozenset()
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self, method: str, params: bytes | None) -> None:
        members = wire.members_of(params) if params is not None else {}
        stamped = with_meta(members, {SUBSCRIPTION: Raw(self.request.message.id or b"null")})
        self.request.delivery.notify(method, wire.join(stamped))


class Subscriptions:
    """Who follows what."""

    def __init__(self) -> None:
        self._listens: set[Listen] = set()
        self._places = 0
        self._of_task: dict[str, list[Listen]] = {}
        self._listens_of_uri: dict[str, list[Listen]] = {}
        self._of_uri: dict[str, dict[str, Session]] = {}
        """Sessions that follow a resource, by its URI and their id."""

    def __len__(self) -> int:
        return len(self._listens)

    @contextmanager
    def place(self) -> Iterator[None]:
        """A place for one `subscriptions/listen`, taken before anything is awaited for it. Raises GatewayFault."""
        if self._places >= MAX_LISTENS:
            raise GatewayFault("overloaded", "Too many subscriptions are open; try again later.", retry_after_s=30)
        self._places += 1
        try:
            yield
        finally:
            self._places -= 1

    def open(self, listen: Listen) -> None:
        self._listens.add(listen)
        for task_id in listen.tasks:
            self._of_task.setdefault(task_id, []).append(listen)
        for uri in listen.uris:
            self._listens_of_uri.setdefault(uri, []).append(listen)

    def close(self, listen: Listen) -> None:
        if listen not in self._listens:
            return
        self._listens.remove(listen)
        for index, names in ((self._of_task, listen.tasks), (self._listens_of_uri, listen.uris)):
            for name in names:
                following = index[name]
                following.remove(listen)
                if not following:
                    del index[name]

    def follow(self, session: Session, uri: str, server: str) -> None:
        """The session follows this resource of that server from now on."""
        session.subscriptions[uri] = server
        if not session.closed:
            self._of_uri.setdefault(uri, {})[session.id] = session

    def unfollow(self, session: Session, uri: str) -> str | None:
        """The server whose resource it was, if the session followed it."""
        self._forget(session, uri)
        return session.subscriptions.pop(uri, None)

    def _forget(self, session: Session, uri: str) -> None:
        following = self._of_uri.get(uri, {})
        if following.pop(session.id, None) is not None and not following:
            del self._of_uri[uri]

    async def release(self, upstreams: Mapping[str, Upstream], session: Session) -> None:
        """A session ended: nothing is told to it, and what was followed only for it over a shared link is let go."""
        followed = list(session.subscriptions.items())
        for uri, _ in followed:
            self._forget(session, uri)
        for uri, server in followed:
            upstream = upstreams.get(server)
            if upstream is not None and uri in session.watched:
                await upstream.unwatch(own_address(server, uri), session.link_key)

    def following(self, task_id: str) -> list[Listen]:
        return list(self._of_task.get(task_id, ()))

    def updated(self, own: Session | None, link: Link, params: Raw | None) -> None:
        """A resource changed: tell the sessions that follow it over the link that said so. `own`: the one that it belongs to."""
        watched = link.generation is Generation.STATELESS or link.key.session == LISTENER
        for uri in _followed_as(link.server, params):
            sessions = (own,) if own is not None else tuple(self._of_uri.get(uri, {}).values())
            for session in sessions:
                if session.subscriptions.get(uri) == link.server and (uri in session.watched) is watched:
                    session.notify(UPDATED, _news_of(uri, params))

    def updated_for_listens(self, link: Link, params: Raw | None) -> None:
        for uri in _followed_as(link.server, params):
            for listen in list(self._listens_of_uri.get(uri, ())):
                concerned = link.key.principal in ("", listen.request.caller.principal)
                if concerned and listen.uris.get(uri) == link.server:
                    listen.tell(UPDATED, _news_of(uri, params))

    def lists_changed(self, sessions: Iterable[Session], kinds: Iterable[EntryKind], concerns: Any) -> None:
        """Lists changed: tell those whose scope the change concerns, each kind once."""
        changes = {LIST_CHANGED[kind] for kind in kinds}
        for session in sessions:
            if concerns(session.caller, session.narrowing):
                for _, method in changes:
                    session.notify(method, None)
        for listen in list(self._listens):
            if concerns(listen.request.caller, listen.request.narrowing):
                for name, method in changes:
                    if name in listen.lists:
                        listen.tell(method, None)

    def end_scope(self, scope: str) -> None:
        for listen in self._listens:
            if listen.request.caller.scope == scope:
                listen.ended.set()

    def end_all(self) -> None:
        for listen in self._listens:
            listen.ended.set()


@dataclass(frozen=True, slots=True)
class Following:
    """`resources/subscribe`, `resources/unsubscribe` and `subscriptions/listen`: callers who begin and end to follow."""

    subscriptions: Subscriptions
    readings: Readings
    sending: Sending
    tasks: TaskEngine

    async def subscribe(self, request: Request) -> bytes:
        session, uri = _session_and_uri(request)
        server, own = await self.readings.address_of(request, uri)
        await self.readings.agreed(request, PatternKind.RESOURCE, server, own, shown=uri)
        if uri not in session.subscriptions and len(session.subscriptions.keys() | session.subscribing) >= MAX_URIS:
            raise GatewayFault("overloaded", f"A session may follow at most {MAX_URIS} resources.")
        session.subscribing.add(uri)
        try:
            result = await self._tell_upstream(request, server, uri)
            self.subscriptions.follow(session, uri, server)
        finally:
            session.subscribing.discard(uri)
        return result

    async def unsubscribe(self, request: Request) -> bytes:
        session, uri = _session_and_uri(request)
        server = self.subscriptions.unfollow(session, uri)
        if server is None or server not in self.sending.upstreams.value:
            return b"{}"
        return await self._tell_upstream(request, server, uri)

    async def _tell_upstream(self, request: Request, server: str, uri: str) -> bytes:
        upstream, own = self.sending.upstreams.value[server], own_address(server, uri)
        link = await upstream.link(request.link_key, request.delivery.profile)
        if link.generation is Generation.STATEFUL:
            params = {**request.members(), "uri": wire.raw(own)}
            call = self.sending.prepared(request, server, request.message.method, params, own)
            return await self.sending.relay.carry(request, upstream, call)
        assert request.session is not None
        if request.message.method == "resources/subscribe":
            if uri not in request.session.watched:
                await upstream.watch(own, request.link_key)
                request.session.watched.add(uri)
        elif uri in request.session.watched:
            request.session.watched.discard(uri)
            await upstream.unwatch(own, request.link_key)
        return b"{}"

    async def listen(self, request: Request) -> bytes:
        """Keep the request open and notify of what was asked for, until the caller or the gateway ends it."""
        with self.subscriptions.place():
            return await self._listen(request)

    async def _listen(self, request: Request) -> bytes:
        wanted = request.params.get("notifications")
        if type(wanted) is not dict:
            raise CallerError("invalid_params", 'subscriptions/listen needs "notifications", an object.')
        await self.readings.lookup.view(request)
        listen = Listen(request, frozenset(name for name, _ in LIST_CHANGED.values() if wanted.get(name) is True))
        try:
            await self._watch(listen, wanted.get("resourceSubscriptions"))
            found = await self._watch_tasks(listen, wanted.get("taskIds"))
            self.subscriptions.open(listen)
            honoured: dict[str, Any] = dict.fromkeys(sorted(listen.lists), True)
            if listen.uris:
                honoured["resourceSubscriptions"] = list(listen.uris)
            if listen.tasks:
                honoured["taskIds"] = sorted(listen.tasks)
            listen.tell("notifications/subscriptions/acknowledged", wire.encode({"notifications": honoured}))
            await self._catch_up(listen, found)
            await listen.ended.wait()
        finally:
            self.subscriptions.close(listen)
            await self._unwatch(listen)
        meta = {SUBSCRIPTION: Raw(request.message.id or b"null")}
        return wire.encode({"resultType": "complete", "_meta": meta})

    async def _watch(self, listen: Listen, uris: Any) -> None:
        if type(uris) is not list:
            return
        for uri in uris[:MAX_URIS]:
            if type(uri) is not str or uri in listen.uris:
                continue
            server, own = await self.readings.address_of(listen.request, uri)
            await self.readings.agreed(listen.request, PatternKind.RESOURCE, server, own, shown=uri)
            await self.sending.upstreams.value[server].watch(own, listen.request.link_key)
            listen.uris[uri] = server

    async def _unwatch(self, listen: Listen) -> None:
        for uri, server in listen.uris.items():
            upstream = self.sending.upstreams.value.get(server)
            if upstream is not None:
                await upstream.unwatch(own_address(server, uri), listen.request.link_key)

    async def _watch_tasks(self, listen: Listen, task_ids: Any) -> list[Task]:
        if type(task_ids) is not list:
            return []
        envelope = listen.request.envelope
        if envelope is None or not envelope.wants_tasks:
            raise missing_capability(
                {"extensions": {TASKS_EXTENSION: {}}}, "Declare the tasks extension to follow tasks."
            )
        found: list[Task] = []
        for task_id in task_ids[:MAX_URIS]:
            try:
                task = await self.tasks.records.find(listen.request, task_id)
            except CallerError:
                continue
            found.append(task)
            self.tasks.methods.wanted(task)
        listen.tasks = frozenset(task.id for task in found)
        return found

    async def _catch_up(self, listen: Listen, found: list[Task]) -> None:
        """Nobody will tell of an end that came before this stream was open, nor of a change while it was being opened."""
        records = self.tasks.records
        for before in found:
            now = await records.store.get(before.id)
            if now is not None and (now.state.is_terminal or now.revision != before.revision):
                detailed = await records.detailed(now)
                detailed.pop("resultType", None)
                listen.tell("notifications/tasks", wire.encode(detailed))


def _uri_in(params: Raw | None) -> str:
    value = wire.parse_strictly(bytes(params)) if params is not None else None
    uri = value.get("uri") if type(value) is dict else None
    return uri if type(uri) is str else ""


def _followed_as(server: str, params: Raw | None) -> tuple[str, ...]:
    """The addresses under which callers may follow what the server calls by its own."""
    uri = _uri_in(params)
    return (uri, named_address(server, uri)) if can_be_named(uri) else (uri,)


def _news_of(uri: str, params: Raw | None) -> bytes:
    news = bytes(params or b"{}")
    return news if _uri_in(params) == uri else wire.join({**wire.members_of(news), "uri": wire.raw(uri)})


def _session_and_uri(request: Request) -> tuple[Session, str]:
    uri = request.params.get("uri")
    if type(uri) is not str:
        raise CallerError("invalid_params", f'{request.message.method} needs "uri", a string.')
    assert request.session is not None
    return request.session, uri
