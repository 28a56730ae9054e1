"""Which sessions and open `subscriptions/listen` requests follow which lists, resources and tasks, and their notifications.

A notification of a server arrives once, over the listening link, and is sent to all its followers. A session with its own
connection to a stateful server subscribes over that connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from taskgate.core import wire
from taskgate.core.catalog.addresses import can_be_named, named_address, own_address
from taskgate.core.catalog.entry import EntryKind
from taskgate.core.errors import GatewayFault
from taskgate.core.generations.generation import Generation
from taskgate.core.generations.stateless import SUBSCRIPTION
from taskgate.core.meta import with_meta
from taskgate.core.tasks.task import Task
from taskgate.core.wire import Raw
from taskgate.gateway.requests.request import Request
from taskgate.gateway.requests.session import Session
from taskgate.ports.link import LISTENER, Link
from taskgate.ports.upstream import Upstream
from taskgate.turns import in_turns

MAX_LISTENS: Final = 10_000
SESSIONS_AT_ONCE: Final = 500
"""Sessions that are notified in one iteration of the event loop."""
_ALL: Final = object()
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


class Listen(msgspec.Struct, eq=False):
    """An open `subscriptions/listen`."""

    request: Request
    lists: frozenset[str]
    uris: dict[str, str] = msgspec.field(default_factory=dict)
    tasks: frozenset[str] = frozenset()
    ended: asyncio.Event = msgspec.field(default_factory=asyncio.Event)

    def follow_tasks(self, tasks: Iterable[Task]) -> None:
        self.tasks = frozenset(task.id for task in tasks)

    def notify(self, method: str, params: bytes | None) -> None:
        members = wire.members_of(params) if params is not None else {}
        stamped = with_meta(members, {SUBSCRIPTION: Raw(self.request.message.id or b"null")})
        self.request.delivery.notify(method, wire.join(stamped))


class Subscriptions:
    """All subscriptions, by list, resource and task."""

    def __init__(self) -> None:
        self._listens: set[Listen] = set()
        self._announcing: set[asyncio.Task[None]] = set()
        self._places = 0
        self._of_task: dict[str, list[Listen]] = {}
        self._listens_of_uri: dict[str, list[Listen]] = {}
        self._of_uri: dict[str, dict[str, Session]] = {}
        """Sessions that follow a resource, by its URI and their id."""

    def __len__(self) -> int:
        return len(self._listens)

    @contextmanager
    def place(self) -> Iterator[None]:
        """Reserve a place for a `subscriptions/listen` before anything is awaited for it. Raises GatewayFault."""
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
        """Subscribe the session to a resource of the server."""
        session.subscriptions[uri] = server
        if not session.closed:
            self._of_uri.setdefault(uri, {})[session.id] = session

    def unfollow(self, session: Session, uri: str) -> str | None:
        """End a subscription. Return the server of the resource, if there was one."""
        self._forget(session, uri)
        return session.subscriptions.pop(uri, None)

    def _forget(self, session: Session, uri: str) -> None:
        following = self._of_uri.get(uri, {})
        if following.pop(session.id, None) is not None and not following:
            del self._of_uri[uri]

    async def release(self, upstreams: Mapping[str, Upstream], session: Session) -> None:
        """A session ended: remove its subscriptions, and end those over shared links that no other session needs."""
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
        """Notify the sessions that follow the resource over this link. `own`: the session that the link belongs to."""
        watched = link.generation is Generation.STATELESS or link.key.session == LISTENER
        for uri in _uris_of(link.server, params):
            sessions = (own,) if own is not None else tuple(self._of_uri.get(uri, {}).values())
            for session in sessions:
                if session.subscriptions.get(uri) == link.server and (uri in session.watched) is watched:
                    session.notify(UPDATED, _updated_params(uri, params))

    def updated_for_listens(self, link: Link, params: Raw | None) -> None:
        for uri in _uris_of(link.server, params):
            for listen in list(self._listens_of_uri.get(uri, ())):
                concerned = link.key.principal in ("", listen.request.caller.principal)
                if concerned and listen.uris.get(uri) == link.server:
                    listen.notify(UPDATED, _updated_params(uri, params))

    def lists_changed(self, sessions: Iterable[Session], kinds: Iterable[EntryKind], concerns: Any) -> None:
        """Notify callers whose scope the change concerns, once for each kind."""
        changes = {LIST_CHANGED[kind] for kind in kinds}
        steps = _announce(list(sessions), [wire.notification(method, None) for _, method in changes], concerns)
        if next(steps, _ALL) is not _ALL:
            work = asyncio.get_running_loop().create_task(in_turns(steps))
            self._announcing.add(work)
            work.add_done_callback(self._announcing.discard)
        for listen in list(self._listens):
            if concerns(listen.request.caller, listen.request.narrowing):
                for name, method in changes:
                    if name in listen.lists:
                        listen.notify(method, None)

    def end_scope(self, scope: str) -> None:
        for listen in self._listens:
            if listen.request.caller.scope == scope:
                listen.ended.set()

    def end_all(self) -> None:
        for listen in self._listens:
            listen.ended.set()


def _announce(sessions: Sequence[Session], notifications: Sequence[bytes], concerns: Any) -> Iterator[None]:
    """Send these notifications to the sessions that they concern. Yields between portions, so that calls are not delayed."""
    for number, session in enumerate(sessions, 1):
        if concerns(session.caller, session.narrowing):
            for notification in notifications:
                session.announce(notification)
        if number % SESSIONS_AT_ONCE == 0 and number < len(sessions):
            yield


def _uri_in(params: Raw | None) -> str:
    value = wire.parse_strictly(bytes(params)) if params is not None else None
    uri = value.get("uri") if type(value) is dict else None
    return uri if type(uri) is str else ""


def _uris_of(server: str, params: Raw | None) -> tuple[str, ...]:
    """The URIs under which callers may follow a resource that the server names by its own URI."""
    uri = _uri_in(params)
    return (uri, named_address(server, uri)) if can_be_named(uri) else (uri,)


def _updated_params(uri: str, params: Raw | None) -> bytes:
    updated = bytes(params or b"{}")
    return updated if _uri_in(params) == uri else wire.join({**wire.members_of(updated), "uri": wire.raw(uri)})
