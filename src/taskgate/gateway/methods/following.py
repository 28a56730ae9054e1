"""`resources/subscribe`, `resources/unsubscribe` and `subscriptions/listen`."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from taskgate.core import wire
from taskgate.core.catalog.addresses import own_address
from taskgate.core.errors import CallerError, GatewayFault
from taskgate.core.generations.generation import Generation
from taskgate.core.generations.stateless import SUBSCRIPTION, TASKS_EXTENSION, missing_capability
from taskgate.core.patterns import PatternKind
from taskgate.core.tasks.task import Task
from taskgate.core.wire import Raw
from taskgate.gateway.calls.readings import Readings
from taskgate.gateway.calls.sending import Sending
from taskgate.gateway.methods.subscriptions import LIST_CHANGED, Listen, Subscriptions
from taskgate.gateway.requests.request import Request
from taskgate.gateway.requests.session import Session
from taskgate.gateway.tasks.engine import TaskEngine
from taskgate.store.operations.task_queries import FindTask

MAX_URIS: Final = 1000


class Following(msgspec.Struct, frozen=True):
    """Start and end subscriptions."""

    subscriptions: Subscriptions
    readings: Readings
    sending: Sending
    tasks: TaskEngine

    async def subscribe(self, request: Request) -> bytes:
        session, uri = _session_and_uri(request)
        server, own = await self.readings.address_of(request, uri)
        await self.readings.require_permission(request, PatternKind.RESOURCE, server, own, shown=uri)
        if (
            uri not in session.subscriptions
            and len(session.subscriptions.keys() | session.subscribing.keys()) >= MAX_URIS
        ):
            raise GatewayFault("overloaded", f"A session may follow at most {MAX_URIS} resources.")
        session.subscribing[uri] = None
        try:
            result = await self._subscribe_upstream(request, server, uri)
            self.subscriptions.follow(session, uri, server)
        finally:
            session.subscribing.pop(uri, None)
        return result

    async def unsubscribe(self, request: Request) -> bytes:
        session, uri = _session_and_uri(request)
        server = self.subscriptions.unfollow(session, uri)
        if server is None or server not in self.sending.upstreams.value:
            return b"{}"
        return await self._subscribe_upstream(request, server, uri)

    async def _subscribe_upstream(self, request: Request, server: str, uri: str) -> bytes:
        upstream, own = self.sending.upstreams.value[server], own_address(server, uri)
        link = await upstream.link(request.link_key, request.delivery.profile)
        if link.generation is Generation.STATEFUL:
            params = {**request.members(), "uri": wire.raw(own)}
            call = self.sending.prepared(request, server, request.message.method, params, own)
            return (await self.sending.relay.carry(request, upstream, call)).raw
        assert request.session is not None
        if request.message.method == "resources/subscribe":
            if uri not in request.session.watched:
                await upstream.watch(own, request.link_key)
                request.session.watched[uri] = None
        elif uri in request.session.watched:
            request.session.watched.pop(uri, None)
            await upstream.unwatch(own, request.link_key)
        return b"{}"

    async def listen(self, request: Request) -> bytes:
        """Keep the request open and send the requested notifications, until the caller or the gateway ends it."""
        with self.subscriptions.place():
            return await self._listen(request)

    async def _listen(self, request: Request) -> bytes:
        requested = request.params.get("notifications")
        if type(requested) is not dict:
            raise CallerError("invalid_params", 'subscriptions/listen needs "notifications", an object.')
        await self.readings.lookup.view(request)
        listen = Listen(request, frozenset(name for name, _ in LIST_CHANGED.values() if requested.get(name) is True))
        try:
            await self._watch(listen, requested.get("resourceSubscriptions"))
            found = await self._watch_tasks(listen, requested.get("taskIds"))
            self.subscriptions.open(listen)
            acknowledged: dict[str, Any] = dict.fromkeys(sorted(listen.lists), True)
            if listen.uris:
                acknowledged["resourceSubscriptions"] = list(listen.uris)
            if listen.tasks:
                acknowledged["taskIds"] = sorted(listen.tasks)
            listen.notify("notifications/subscriptions/acknowledged", wire.encode({"notifications": acknowledged}))
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
            await self.readings.require_permission(listen.request, PatternKind.RESOURCE, server, own, shown=uri)
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
        if envelope is None or not envelope.accepts_tasks:
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
            self.tasks.methods.start_if_approved(task)
        listen.follow_tasks(found)
        return found

    async def _catch_up(self, listen: Listen, found: list[Task]) -> None:
        """Send changes that happened before the stream was open or while it was being opened."""
        records = self.tasks.records
        for before in found:
            now = await records.store.ask(FindTask(before.id))
            if now is not None and (now.state.is_terminal or now.revision != before.revision):
                detailed = await records.detailed(now)
                detailed.pop("resultType", None)
                listen.notify("notifications/tasks", wire.encode(detailed))


def _session_and_uri(request: Request) -> tuple[Session, str]:
    uri = request.params.get("uri")
    if type(uri) is not str:
        raise CallerError("invalid_params", f'{request.message.method} needs "uri", a string.')
    assert request.session is not None
    return request.session, uri
