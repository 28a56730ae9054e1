"""One configured server: its links, its generation, and its way back after a failure.

There is at most one attempt to connect in flight. After a failure everyone is told at once, without a new attempt, until the
back-off has passed; a loop of our own keeps trying meanwhile, for ever. Links are opened when first needed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

from taskgate import clock
from taskgate.core.activity.events import EventKind
from taskgate.core.errors import TaskgateError, UpstreamError
from taskgate.core.generations import Generation
from taskgate.core.questions import Answer, Question
from taskgate.core.wire import Raw
from taskgate.ports.upstream import CallerFace, Link, LinkKey, Listener, ServerState, ServerStatus
from taskgate.upstreams.backoff import Backoff
from taskgate.upstreams.crash_loop import LEFT_ALONE_S, CrashLoop
from taskgate.upstreams.flight import unreachable
from taskgate.upstreams.health import HealthWatch
from taskgate.upstreams.http.client import HttpClient
from taskgate.upstreams.intake import Intake
from taskgate.upstreams.listening import Listening, SharedSubscriptions
from taskgate.upstreams.open_link import AnyLink, Opener
from taskgate.upstreams.spec import Instances, ServerSpec, Transport
from taskgate.upstreams.stateful_link import StatefulLink
from taskgate.upstreams.stateless_link import StatelessLink
from taskgate.upstreams.stdio.reaper import Reaper

_LISTENER = LinkKey(session="listener")
_SHARED = LinkKey()
_NOBODY = CallerFace({})
_WAIT_FOR_TURN_S = 15.0


class Server:
    """Implements the `Upstream` port."""

    def __init__(
        self, spec: ServerSpec, listener: Listener, http: HttpClient, reaper: Reaper, intake: Intake | None = None
    ) -> None:
        self.id = spec.id
        self.transport = spec.transport.value
        self.spec = spec
        self._by_stdio = spec.transport is Transport.STDIO
        self.listener = listener
        self._opener = Opener(spec, http, reaper, intake or Intake())
        self._links: dict[LinkKey, AnyLink] = {}
        self._turn = asyncio.Lock()
        self._backoff = Backoff()
        self._last_error: str | None = None
        self._listening: Listening | None = None
        self._subscriptions = SharedSubscriptions()
        self._returning: asyncio.Task[None] | None = None
        self._closed = False
        self._announcer: LinkKey | None = None
        self._health = HealthWatch(self._any_link, self._health_changed)
        self._crashes: dict[LinkKey, CrashLoop] = {}
        self._last_words: tuple[str, ...] = ()

    async def link(self, caller: LinkKey, face: CallerFace) -> Link:
        key = self._key_for(caller)
        link = self._links.get(key)
        if link is not None and link.alive:
            return link
        return await self._opened(key, face.towards(self.spec.keeps_questions, self.spec.asks_models))

    def common_link(self) -> Link | None:
        link = self._links.get(_SHARED)
        return link if isinstance(link, StatelessLink) and link.alive and not self._by_stdio else None

    def open_link(self, caller: LinkKey) -> Link | None:
        link = self._links.get(self._key_for(caller))
        return link if link is not None and link.alive else None

    async def listening_link(self) -> Link:
        key = self._listening_key()
        link = self._links.get(key)
        if link is not None and link.alive:
            return link
        return await self._opened(key, _NOBODY if self.spec.transport is not Transport.STDIO else _EVERYTHING)

    def _key_for(self, caller: LinkKey) -> LinkKey:
        if self._opener.generation is Generation.STATELESS and self.spec.transport is not Transport.STDIO:
            return _SHARED
        if caller.resumes:
            return caller
        match self._instances():
            case Instances.SHARED:
                return _SHARED
            case Instances.PER_PRINCIPAL:
                return caller._replace(session="")
            case _:
                return caller

    def _instances(self) -> Instances:
        if self.spec.instances is not Instances.AUTO:
            return self.spec.instances
        return Instances.PER_PRINCIPAL if self.spec.transport is Transport.STDIO else Instances.PER_SESSION

    def _listening_key(self) -> LinkKey:
        """Lists are fetched over a link of their own, but no process is started just for listening if one runs."""
        if self._opener.generation is Generation.STATELESS and self.spec.transport is not Transport.STDIO:
            return _SHARED
        if self.spec.transport is not Transport.STDIO:
            return _LISTENER
        told = self._links.get(self._announcer) if self._announcer is not None else None
        if self._announcer is not None and told is not None and told.alive:
            return self._announcer
        running = next((key for key, link in self._links.items() if link.alive), None)
        if running is not None:
            return running
        return _SHARED if self._instances() is Instances.SHARED else LinkKey(principal="anonymous")

    async def _opened(self, key: LinkKey, face: CallerFace) -> AnyLink:
        if self._closed:
            raise unreachable(self.id, "is being shut down")
        try:
            async with asyncio.timeout(_WAIT_FOR_TURN_S), self._turn:
                return await self._open_in_turn(key, face)
        except TimeoutError:
            raise unreachable(self.id, "is still being connected to") from None

    async def _open_in_turn(self, key: LinkKey, face: CallerFace) -> AnyLink:
        now = clock.monotonic()
        link = self._links.get(key)
        if link is not None and link.alive:
            return link
        alone = self._crashes[key].left_alone_s(now) if key in self._crashes else 0.0
        wait = max(self._backoff.wait_s(now), alone)
        if wait > 0:
            raise unreachable(self.id, f"cannot be reached; the next attempt is in {wait:.1f} s")
        try:
            link = await self._opener.open(key, face, self)
        except UpstreamError as problem:
            self._failed(problem)
            raise
        if key.resumes:
            await link.resume_session(key.resumes)
        self._arrived(link)
        return link

    def _arrived(self, link: AnyLink) -> None:
        self._backoff.succeeded()
        self._last_error = None
        key = _SHARED if isinstance(link, StatelessLink) and self.spec.transport is not Transport.STDIO else link.key
        first = not any(known.alive for known in self._links.values())
        self._links[key] = link
        self._health.start()
        if first and self._returning is None:
            self.listener.on_server(self.id, EventKind.SERVER_CONNECTED, {})
        if isinstance(link, StatelessLink):
            link.keeps_questions = self.spec.keeps_questions
            link.asks_models = self.spec.asks_models
            self._listening = Listening(link, self.listener)
            self._listening.start()

    def _any_link(self) -> AnyLink | None:
        known = self._links.get(self._listening_key())
        if known is not None and known.alive:
            return known
        return next((link for link in self._links.values() if link.alive), None)

    def _health_changed(self, answers: bool, why: str) -> None:
        kind = EventKind.SERVER_HEALTH_RESTORED if answers else EventKind.SERVER_HEALTH_DEGRADED
        self.listener.on_server(self.id, kind, {} if answers else {"reason": why})

    def _failed(self, problem: UpstreamError) -> None:
        self._backoff.failed(clock.monotonic())
        self._last_error = problem.message
        self._keep_trying()

    def _crashed(self, key: LinkKey, why: str) -> None:
        """A child process died. One that keeps dying is left alone for a while; one session's alone disturbs no other."""
        now = clock.monotonic()
        self.listener.on_server(self.id, EventKind.SERVER_PROCESS_CRASHED, {"reason": why}, key)
        loop = self._crashes.setdefault(key, CrashLoop(self.spec.restart_limit, self.spec.restart_within_s))
        if loop.crashed(now):
            if not key.session:
                self._backoff.leave_alone(now + LEFT_ALONE_S)
            data = {"crashes": loop.limit, "next_retry_ms": int(LEFT_ALONE_S * 1000)}
            self.listener.on_server(self.id, EventKind.SERVER_RESTART_FAILED, data, key)

    def _keep_trying(self) -> None:
        if not self._closed and (self._returning is None or self._returning.done()):
            self._returning = asyncio.get_running_loop().create_task(self._come_back())
            wait_ms = int(self._backoff.wait_s(clock.monotonic()) * 1000)
            data = {"attempt": max(1, self._backoff.attempt), "next_retry_ms": wait_ms}
            self.listener.on_server(self.id, EventKind.SERVER_RECONNECTING, data)

    async def _come_back(self) -> None:
        while not self._closed:
            await clock.sleep(self._backoff.wait_s(clock.monotonic()))
            with contextlib.suppress(UpstreamError):
                await self.listening_link()
                self.listener.on_server(self.id, EventKind.SERVER_RECONNECTED, {})
                self._returning = None
                return

    # The server is the first listener of its links, so that it notices when one is lost.

    def on_notification(self, link: Link, method: str, params: Raw | None) -> None:
        if method.endswith("/list_changed"):
            # Where every principal has a process of its own, the one that says so is the one that knows.
            self._announcer = link.key
        self.listener.on_notification(link, method, params)

    async def on_question(self, link: Link, question: Question) -> Answer:
        return await self.listener.on_question(link, question)

    def on_closed(self, link: Link, reason: TaskgateError | None) -> None:
        if self._closed:
            return
        if reason is not None:
            for key in [key for key, known in self._links.items() if known is link]:
                del self._links[key]
            if isinstance(link, StatefulLink | StatelessLink):
                self._last_words = tuple(self._opener.let_go(link)) or self._last_words
            self._opener.forget()
            self.listener.on_server(self.id, EventKind.SERVER_DISCONNECTED, {"reason": reason.message}, link.key)
            if self.spec.transport is Transport.STDIO:
                self._crashed(link.key, reason.message)
            self._last_error = reason.message
            if not self._links or link.key == _LISTENER:
                self._keep_trying()
        self.listener.on_closed(link, reason)

    def on_server(self, server: str, kind: EventKind, data: Mapping[str, Any], key: LinkKey | None = None) -> None:
        self.listener.on_server(server, kind, data, key)

    async def watch(self, uri: str) -> None:
        link = await self.listening_link()
        if self._listening is not None and isinstance(link, StatelessLink):
            await self._listening.watch(uri)
        else:
            await self._subscriptions.watch(link, uri, self.spec.connect_timeout_s)

    async def unwatch(self, uri: str) -> None:
        link = await self.listening_link()
        if self._listening is not None and isinstance(link, StatelessLink):
            await self._listening.unwatch(uri)
        else:
            await self._subscriptions.unwatch(link, uri, self.spec.connect_timeout_s)

    async def release(self, session: str) -> None:
        for key in [key for key in self._crashes if key.session == session and session]:
            del self._crashes[key]
        for key in [key for key in self._links if key.session == session and session]:
            await self._links.pop(key).close()

    async def reconnect(self) -> None:
        link = self._any_link()
        if link is not None:
            await link.round_trip(self.spec.connect_timeout_s)
            return
        self._backoff.succeeded()
        self._crashes.clear()
        await self.listening_link()

    def status(self) -> ServerStatus:
        alive = [link for link in self._links.values() if link.alive]
        generation = self._opener.generation
        if self._closed:
            return ServerStatus(ServerState.STOPPED, generation)
        if alive:
            state = ServerState.DEGRADED if self._health.degraded else ServerState.CONNECTED
            return ServerStatus(state, generation, stderr=self._stderr(alive))
        if self._backoff.attempt or self._last_error is not None:
            wait = int(self._backoff.wait_s(clock.monotonic()) * 1000)
            return ServerStatus(
                ServerState.RECONNECTING, generation, self._backoff.attempt, wait, self._last_error, self._last_words
            )
        return ServerStatus(ServerState.CONNECTING if self._turn.locked() else ServerState.IDLE, generation)

    def stderr(self, caller: LinkKey) -> tuple[str, ...]:
        link = self._links.get(self._key_for(caller))
        return tuple(self._opener.stderr_of(link)) if link is not None else ()

    def _stderr(self, links: list[AnyLink]) -> tuple[str, ...]:
        return tuple(line for link in links for line in self._opener.stderr_of(link))

    async def close(self) -> None:
        self._closed = True
        await self._health.close()
        if self._returning is not None:
            self._returning.cancel()
            await asyncio.gather(self._returning, return_exceptions=True)
        if self._listening is not None:
            await self._listening.close()
        links, self._links = list(self._links.values()), {}
        await asyncio.gather(*(link.close(for_good=False) for link in links), return_exceptions=True)


_EVERYTHING = CallerFace(
    {"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}, "context": {}}, "roots": {"listChanged": True}}
)
"""What we declare on a link that several callers share: the gateway finds out for each question who can answer it."""
