"""The event feeds and the inbox of one gateway, and which feed receives which event.

Use cases and upstream notifications are published here; callers receive events with the replies of own tools. A caller without a
feed gets no events and costs nothing: its durable events stay in the store until it requests them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Final

from taskgate import clock
from taskgate.core import wire
from taskgate.core.errors import GatewayFault, TaskgateError
from taskgate.core.event_log import EventLog
from taskgate.core.events import EventKind
from taskgate.core.identity.addressees import has_conversation
from taskgate.core.identity.conversation import ALL_CONVERSATIONS, ConversationKey, conversation_of
from taskgate.core.settings.limits import Limits
from taskgate.core.timestamps import iso
from taskgate.core.wire import Raw
from taskgate.gateway.events import EventHub, SessionEnded, TaskChanged, TaskExpired
from taskgate.gateway.plan import Live, Plan
from taskgate.gateway.public_address import PublicAddress
from taskgate.gateway.questions.feed import Feed
from taskgate.gateway.questions.inbox import Inbox
from taskgate.gateway.requests.open_conversations import IDLE_S, OpenConversations
from taskgate.gateway.requests.request import Request
from taskgate.gateway.requests.session import Session
from taskgate.ports.link import LinkKey
from taskgate.ports.store import Store
from taskgate.ports.upstream import Upstream
from taskgate.store.operations.events import AppendEvent, StreamsOf
from taskgate.telemetry.logs import log

MAX_FEEDS: Final = 10_000
LOG: Final = "notifications/message"
PROGRESS: Final = "notifications/progress"
MADE_JUST_NOW_MS: Final = 10_000
"""The creator of a task younger than this counts as present, even if another gateway created it: the task may have changed before
it is read here.
"""


class Activity:
    def __init__(
        self,
        store: Store,
        plan: Live[Plan],
        upstreams: Live[Mapping[str, Upstream]],
        address: PublicAddress,
        conversations: OpenConversations,
        *,
        events: EventHub,
    ) -> None:
        self.inbox = Inbox(self.publish, plan, address, conversations, events)
        self.conversations = conversations
        self._store = store
        self._upstreams = upstreams
        self._closing = False
        self._feeds: dict[ConversationKey, Feed] = {}
        self._of_caller: dict[str, dict[ConversationKey, Feed]] = {}
        self._loading: dict[ConversationKey, asyncio.Task[None]] = {}
        self._background: set[asyncio.Task[None]] = set()
        self.adopt(plan.value.limits)
        events.subscribe(TaskChanged, self._task_changed)
        events.subscribe(TaskExpired, self._task_expired)
        events.subscribe(SessionEnded, lambda event: self._forget_session(event.session))

    def adopt(self, limits: Limits) -> None:
        """Apply the limits on the number and age of events, here and in the store."""
        self._limits = limits
        kept, kept_ms = limits.events_per_caller, int(limits.events_age * 1000)
        self._store.state.keep_events(kept, kept_ms)
        for feed in self._feeds.values():
            feed.log.adopt(kept, kept_ms)

    def __len__(self) -> int:
        return len(self._feeds)

    async def feed(self, request: Request) -> Feed:
        """Return the feed of the caller's conversation, including its stored events."""
        self._client_present(request.conversation_key)
        return await self.feed_of(request.conversation_key, request.caller.scope)

    async def feed_of(self, key: ConversationKey, scope: str) -> Feed:
        """Return the feed of a conversation that the caller follows without being part of it."""
        feed = self.open(key, scope)
        loading = self._loading.get(key)
        if loading is not None:
            await asyncio.shield(loading)
        feed.touch(clock.monotonic())
        return feed

    def _client_present(self, key: ConversationKey) -> None:
        """A stateless client is present: its events belong to its own conversation again."""
        if self.conversations.seen(key):
            for feed in self._of_caller.get(key.caller, {}).values():
                feed.unfollow(key.stream)

    def open(self, key: ConversationKey, scope: str) -> Feed:
        """Open a feed for a conversation. Its stored events are loaded in the background."""
        feed = self._feeds.get(key)
        if feed is None:
            if len(self._feeds) >= MAX_FEEDS:
                self._make_room()
            events = EventLog(self._limits.events_per_caller, int(self._limits.events_age * 1000))
            feed = self._feeds[key] = Feed(key, scope, self._store, events)
            self._of_caller.setdefault(key.caller, {})[key] = feed
            feed.touch(clock.monotonic())
            loading = self._loading[key] = asyncio.get_running_loop().create_task(self._load(feed))
            loading.add_done_callback(lambda _: self._loading.pop(key, None))
        return feed

    async def _load(self, feed: Feed) -> None:
        """Return the conversation's own stream, and those of the caller's ended conversations."""
        streams = await self._store.ask(StreamsOf(feed.key.caller))
        await feed.load(
            stream for stream in streams if self.conversations.is_notified(feed.key, conversation_of(stream))
        )

    def _make_room(self) -> None:
        """Remove the least recently used feed: stateless callers can invent any number of names."""
        idle = [feed for feed in self._feeds.values() if not feed.has_waiters]
        if not idle:
            raise GatewayFault("overloaded", "Too many callers wait for events; try again later.", retry_after_s=30)
        self._drop(min(idle, key=lambda feed: feed.last_used).key)

    def receiving_feeds(self, key: ConversationKey) -> list[Feed]:
        """Return the open feeds that receive the events of this conversation."""
        feeds = self._of_caller.get(key.caller)
        if not feeds:
            return []
        return [feed for feed in feeds.values() if self.conversations.is_notified(feed.key, key)]

    def is_awaited_by(self, key: ConversationKey) -> bool:
        """Return whether an open request waits for events of this conversation."""
        return any(feed.has_waiters for feed in self.receiving_feeds(key))

    def of_session(self, session: Session) -> Feed | None:
        return self._feeds.get(session.conversation)

    def publish(self, key: ConversationKey, kind: EventKind, server: str, data: dict[str, Any]) -> None:
        """Store events of tasks, which survive a restart; add all others to the open feeds."""
        if "task_id" in data and key.name != ALL_CONVERSATIONS:
            self.spawn(self._publish_durably(key, kind, server, data))
            return
        for feed in self.receiving_feeds(key):
            feed.add_event(kind, server, data)

    async def _publish_durably(self, key: ConversationKey, kind: EventKind, server: str, data: dict[str, Any]) -> None:
        await self._store.do(AppendEvent(key.stream, kind.value, server, data))
        self._sync(key)

    def _sync(self, key: ConversationKey) -> None:
        for feed in self.receiving_feeds(key):
            feed.follow(key.stream)
            feed.sync_soon(key.stream)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a background job. It is awaited when the gateway closes."""
        task = asyncio.get_running_loop().create_task(_guarded(work))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def publish_to_scopes(
        self, kind: EventKind, server: str, data: dict[str, Any], concerns: Callable[[str], bool]
    ) -> None:
        """Notify every conversation whose scope has this server. A request without a conversation has a feed for its task only:
        a caller that follows several tasks would get the same event from each.
        """
        for feed in self._feeds.values():
            if has_conversation(feed.key.stream) and concerns(feed.scope):
                feed.add_event(kind, server, data)

    def add_server_message(self, feed: Feed, server: str, method: str, params: bytes | None) -> None:
        """Add a server's message to the caller's feed: logs to the log buffer, everything else as an event."""
        message = wire.parse_strictly(params) if params is not None else {}
        now = iso(clock.wall_ms())
        if method == LOG:
            level = message.get("level") if type(message) is dict else None
            line = {"server": server, "source": "protocol", "level": level or "info", "timestamp": now}
            feed.logs.append({**line, **{key: message[key] for key in ("logger", "data") if key in message}})
            return
        if method == PROGRESS:
            return
        feed.notifications.append({"server": server, "method": method, "params": message, "timestamp": now})
        feed.add_event(EventKind.NOTIFICATION, server, {"method": method, "params": message})

    def resource_updated(self, server: str, params: Raw | None) -> None:
        """Notify the feeds that follow the resource with own tools."""
        message = wire.parse_strictly(bytes(params)) if params is not None else {}
        uri = message.get("uri") if type(message) is dict else None
        for feed in self._feeds.values():
            if type(uri) is str and feed.watched.get(uri) == server:
                self.add_server_message(feed, server, "notifications/resources/updated", bytes(params or b"{}"))

    def _task_expired(self, event: TaskExpired) -> None:
        self._sync(event.task.conversation_key)

    def _task_changed(self, event: TaskChanged) -> None:
        if event.task.parent:
            # A call of a script: its caller gets events of the script only.
            return
        key, age_ms = event.task.conversation_key, self._store.now_ms() - event.task.created_ms
        if age_ms < MADE_JUST_NOW_MS:
            self._client_present(key)
        for feed in self.receiving_feeds(key):
            feed.follow(key.stream)
            feed.task_changed(event.task)

    def feeds(self) -> Iterable[Feed]:
        return list(self._feeds.values())

    def _forget_session(self, session: Session) -> None:
        """Drop what belongs to the session alone; what a principal's session leaves moves to its other sessions."""
        key = session.conversation
        self._drop(key)
        if session.caller.anonymous:
            self.inbox.forget_caller(key.caller)
        elif not self._closing:
            self._ended(key)

    def _ended(self, key: ConversationKey) -> None:
        for feed in self.receiving_feeds(key):
            feed.follow(key.stream)
        self.inbox.announce_again(key)

    def _drop(self, key: ConversationKey) -> None:
        feed = self._feeds.pop(key, None)
        if feed is not None:
            del self._of_caller[key.caller][key]
            if not self._of_caller[key.caller]:
                del self._of_caller[key.caller]
            feed.close()
            for uri, server in feed.watched.items() if not self._closing else ():
                self.spawn(self._unwatch(server, uri, feed.watched_over[uri]))

    async def _unwatch(self, server: str, uri: str, key: LinkKey) -> None:
        upstream = self._upstreams.value.get(server)
        if upstream is not None:
            await upstream.unwatch(uri, key)

    def reap(self, now: float) -> None:
        """Remove feeds that have been idle for long. Their durable events stay in the store."""
        for key, feed in list(self._feeds.items()):
            if now - feed.last_used > IDLE_S and not feed.has_waiters and not feed.timers:
                self._drop(key)
        for key in self.conversations.idle(now):
            self._ended(key)

    async def close(self) -> None:
        self._closing = True
        self.inbox.close()
        in_progress = [*self._loading.values(), *self._background]
        await asyncio.gather(*in_progress, return_exceptions=True)
        for key in list(self._feeds):
            self._drop(key)


async def _guarded(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except TaskgateError as problem:
        log.warning("activity not recorded", why=problem.message)
