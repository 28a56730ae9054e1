"""One configured server: its links, the generations it speaks, and its way back after a failure.

Links are opened when first needed, several at a time up to a bound, each once. The first contact is made by one alone, so that
what it finds out serves the others. After a failure everyone is told at once, without a new attempt, until the back-off has
passed; a loop of our own keeps trying meanwhile, for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from taskgate import clock
from taskgate.core.errors import TaskgateError, UpstreamError
from taskgate.core.events import EventKind
from taskgate.core.generations.generation import Generation
from taskgate.core.identity.addressees import has_conversation
from taskgate.core.questions.question import Answer, Question
from taskgate.core.wire import Raw
from taskgate.mcp.http.client import HttpClient
from taskgate.mcp.stdio.reaper import Reaper
from taskgate.ports.credentials import AccountNeeded
from taskgate.ports.upstream import (
    LISTENER,
    LISTING_PROFILE,
    ClientProfile,
    Link,
    LinkKey,
    Listener,
    SendLog,
    ServerState,
    ServerStatus,
    UpstreamCall,
    never_sent,
)
from taskgate.upstreams.flight import Intake, unreachable
from taskgate.upstreams.health import LEFT_ALONE_S, Backoff, CrashLoop, HealthWatch, Trouble
from taskgate.upstreams.listening import WatchedResources
from taskgate.upstreams.open_link import AnyLink, Opener
from taskgate.upstreams.own_links import OwnLinks
from taskgate.upstreams.spec import (
    COMMON,
    Instances,
    ServerSpec,
    SpecAt,
    Standing,
    Transport,
    key_in,
    listening_caller,
    nowhere_else,
)
from taskgate.upstreams.stateful_link import StatefulLink
from taskgate.upstreams.stateless_link import StatelessLink

_WAIT_FOR_TURN_S: Final = 30.0
HANDSHAKES_AT_ONCE: Final = 32
STARTS_AT_ONCE: Final = 4
"""Starting a program takes a processor for a while; a handshake over HTTP mostly waits."""


class Server:
    """Implements the `Upstream` port."""

    def __init__(
        self,
        spec: ServerSpec,
        listener: Listener,
        http: HttpClient,
        reaper: Reaper,
        intake: Intake | None = None,
        *,
        spec_at: SpecAt = nowhere_else,
    ) -> None:
        self.id = spec.id
        self.transport = spec.transport.value
        self.fingerprint = spec.fingerprint
        self.spec = spec
        self._by_stdio = spec.transport is Transport.STDIO
        self._per_caller = spec.link_per_caller
        self.listener = listener
        self._standing = Standing(spec, spec_at)
        self._opener = Opener(spec, http, reaper, intake or Intake(), self._standing)
        self._spoken = self._opener.spoken
        self._links: dict[LinkKey, AnyLink] = {}
        self._common: StatelessLink | None = None
        self._opening: dict[LinkKey, asyncio.Task[AnyLink]] = {}
        self._first_contact = asyncio.Lock()
        self._handshakes = asyncio.Semaphore(STARTS_AT_ONCE if self._by_stdio else HANDSHAKES_AT_ONCE)
        self._backoff = Backoff()
        self._trouble = Trouble()
        self._watched = WatchedResources(self, spec.connect_timeout_s)
        self._returning: asyncio.Task[None] | None = None
        self._retiring: set[asyncio.Task[None]] = set()
        self._closed = False
        self._announcer: LinkKey | None = None
        self._own: OwnLinks | None = None
        """Who has a link of its own, once that is needed."""
        self._health = HealthWatch(self._links_to_ask, self._health_changed, self._silent)
        self._crashes: dict[LinkKey, CrashLoop] = {}

    def adopt(self, spec: ServerSpec) -> None:
        """A reload changed nothing but settings of our side: conversations go on, new ones begin with the new settings."""
        self.spec = spec
        self._standing.adopt(spec)
        self._opener.adopt(spec)
        self._crashes.clear()
        if self._own is not None:
            self._own.adopt(spec.own_links)

    async def link(self, caller: LinkKey, profile: ClientProfile) -> Link:
        link = self.open_link(caller)
        if link is not None:
            return link
        if self._own is not None and not has_conversation(caller.conversation):
            return await self._link_of_call(self._own, caller, self._declared(profile))
        return await self._opened(caller, self._declared(profile))

    def _declared(self, profile: ClientProfile) -> ClientProfile:
        return profile.towards(self.spec.keeps_questions, self.spec.asks_models, shared=self.spec.shares_links)

    async def _link_of_call(self, own: OwnLinks, caller: LinkKey, profile: ClientProfile) -> AnyLink:
        """A link that no other open call uses, where there is room for it."""
        if not self._spoken.settled(caller.generation):
            await self._opened(caller, profile)
        if not self._has_link_of_call(caller):
            return await self._opened(caller, profile)
        key = own.take(self._key_in(caller, Generation.STATEFUL))
        try:
            link = await self._opened(caller._replace(session=key.session), profile)
        finally:
            own.handed_over(key)
        if isinstance(link, StatefulLink):
            link.hand_over(caller.conversation)
        return link

    def separate_conversations(self) -> bool:
        if self._own is not None or not self._by_stdio or self.spec.instances is not Instances.AUTO:
            return False
        self._own = OwnLinks(self._links, self._opening, self.spec.own_links)
        return True

    async def end_idle(self) -> None:
        for key in self._own.idle(clock.monotonic()) if self._own is not None else ():
            if not self._watched.follows(self._place_of(key)):
                self._let_go(key, self._links[key])

    def common_link(self, generation: Generation) -> Link | None:
        link = self._common
        if link is None or not link.alive or self._spoken.towards[generation] is Generation.STATEFUL:
            return None
        return link

    def open_link(self, caller: LinkKey) -> Link | None:
        if self._own is not None and self._has_link_of_call(caller):
            return self._own.held_by(caller.conversation)
        link = self._links.get(self._key_for(caller))
        return link if link is not None and link.alive else None

    def _has_link_of_call(self, caller: LinkKey) -> bool:
        """Whether each call of this caller has a link for itself: it has no conversation, and is served statefully."""
        is_stateful = self._spoken.towards[caller.generation] is Generation.STATEFUL
        return is_stateful and not has_conversation(caller.conversation)

    def mark_long_lived(self, sent_as: SendLog) -> None:
        any(link.mark_long_lived(sent_as) for link in self._links.values())

    async def listening_link(self) -> Link:
        caller = self._listening_caller()
        return self.open_link(caller) or await self._opened(caller, LISTING_PROFILE)

    def _key_for(self, caller: LinkKey) -> LinkKey:
        """Under which key the link is kept that serves this caller."""
        towards = self._spoken.towards[caller.generation]
        if self._per_caller and towards is caller.generation is Generation.STATEFUL and not caller.place:
            return caller
        return self._key_in(caller, towards)

    def _key_in(self, caller: LinkKey, generation: Generation) -> LinkKey:
        placed = self._standing.kept_as(caller) if caller.place else caller
        key = key_in(self.spec, placed, generation)
        return self._own.key(placed, key) if self._own is not None and generation is Generation.STATEFUL else key

    def _listening_caller(self) -> LinkKey:
        alive = [key for key, link in self._links.items() if link.alive] if self._by_stdio else []
        return listening_caller(self.spec, alive, self._announcer)

    async def _opened(self, caller: LinkKey, profile: ClientProfile) -> AnyLink:
        if self._closed:
            raise unreachable(self.id, "is being shut down")
        self._standing.check(caller.place)
        try:
            async with asyncio.timeout(_WAIT_FOR_TURN_S):
                if not self._spoken.settled(caller.generation):
                    async with self._first_contact:
                        # Whoever had this turn before may have found out; then the others need not wait for each other.
                        if not self._spoken.settled(caller.generation):
                            return await self._open_once(caller, profile)
                return await self._open_once(caller, profile)
        except TimeoutError:
            raise unreachable(self.id, "is still being connected to") from None

    async def _open_once(self, caller: LinkKey, profile: ClientProfile) -> AnyLink:
        """The link if it is there, the handshake that is under way for it, or a new one."""
        key = self._key_for(caller)
        link = self._links.get(key)
        if link is not None and link.alive:
            return link
        opening = self._opening.get(key)
        if opening is None:
            self._unless_left_alone(key)
            opening = self._opening[key] = asyncio.get_running_loop().create_task(self._open(caller, profile))
            opening.add_done_callback(lambda done: self._opening_ended(key, done))
        return await asyncio.shield(opening)

    def _unless_left_alone(self, key: LinkKey) -> None:
        now = clock.monotonic()
        alone = self._crashes[key].left_alone_s(now) if key in self._crashes else 0.0
        wait = max(self._backoff.wait_s(now), alone)
        if wait > 0 and not self._opener.only_lists_need_login(key):
            raise unreachable(self.id, self._trouble.until(wait))

    async def _open(self, caller: LinkKey, profile: ClientProfile) -> AnyLink:
        async with self._handshakes:
            try:
                link = await self._opener.open(caller, profile, self)
                if caller.resumes:
                    await link.resume_session(caller.resumes)
            except UpstreamError as problem:
                # What a client's place lacks, or one person, says nothing about a server that others reach.
                spared = isinstance(problem, AccountNeeded) or (caller.place and self._links)
                failed = (lambda failure: failure) if spared else self._failed
                raise failed(never_sent(self.id, problem)) from None
        if self._links.get(link.key) is not link:
            self._arrived(link)
        return link

    def _opening_ended(self, key: LinkKey, done: asyncio.Task[AnyLink]) -> None:
        self._opening.pop(key, None)
        if not done.cancelled():
            # Who waited has been told; nobody may be left who did.
            done.exception()

    def _arrived(self, link: AnyLink) -> None:
        self._backoff.succeeded()
        self._trouble.over()
        first = not any(known.alive for known in self._links.values())
        self._links[link.key] = link
        if link.key == COMMON and isinstance(link, StatelessLink) and not self._opener.tells_callers_apart:
            self._common = link
        self._health.start()
        if first and self._returning is None:
            self.listener.on_server(self.id, EventKind.SERVER_CONNECTED, {})
        if self._by_stdio:
            self._retire(link.key._replace(generation=link.generation.other, conversation=""))
        listens = self._by_stdio or link is self._links.get(self._key_for(self._listening_caller()))
        self._watched.arrived(link, self._place_of(link.key), follows=listens)

    def _retire(self, key: LinkKey) -> None:
        """A process that was started to fetch lists, and then served no call, has no purpose beside one that serves calls."""
        link = self._links.get(key)
        if link is not None and not link.served and not link.busy:
            self._let_go(key, link)

    def _let_go(self, key: LinkKey, link: AnyLink) -> None:
        del self._links[key]
        self._watched.gone(link)
        self._opener.let_go(link)
        self._close_behind(link)

    def _close_behind(self, link: AnyLink) -> None:
        task = asyncio.get_running_loop().create_task(link.close())
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    def _links_to_ask(self) -> list[AnyLink]:
        """Every process may hang by itself; over HTTP one link tells about the server."""
        alive = [link for link in self._links.values() if link.alive]
        if self._by_stdio or len(alive) < 2:
            return alive
        known = self._links.get(self._key_for(self._listening_caller()))
        return [known if known is not None and known.alive else alive[0]]

    def _health_changed(self, answers: bool, why: str) -> None:
        kind = EventKind.SERVER_HEALTH_RESTORED if answers else EventKind.SERVER_HEALTH_DEGRADED
        self.listener.on_server(self.id, kind, {} if answers else {"reason": why})

    def _silent(self, link: AnyLink) -> None:
        """A program that answers no ping is ended with all it started, and started again; one that may only be busy with a
        call is left to that call's own deadline. Over HTTP there is no process of ours to end.
        """
        if self._by_stdio and link.alive and link.stuck:
            link.give_up()
            self._close_behind(link)
            self.on_closed(link, unreachable(self.id, "answered nothing for a while and is started again"))

    def _failed(self, problem: UpstreamError) -> UpstreamError:
        """Several handshakes may fail together: they count as one failure."""
        now = clock.monotonic()
        if self._backoff.wait_s(now) <= 0:
            self._backoff.failed(now)
        self._trouble.noticed(problem)
        self._keep_trying()
        return problem

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
                self._trouble.over()
                self.listener.on_server(self.id, EventKind.SERVER_RECONNECTED, {})
                self._returning = None
                return

    # What the opener of links asks of the server

    def link_in(self, caller: LinkKey, generation: Generation) -> tuple[LinkKey, AnyLink | None]:
        """Where a link for this caller belongs in that generation, and the one that is there already."""
        key = self._key_in(caller, generation)
        link = self._links.get(key)
        return key, link if link is not None and link.alive else None

    # The server is the first listener of its links, so that it notices when one is lost.

    def on_notification(self, link: Link, method: str, params: Raw | None) -> None:
        if method.endswith("/list_changed"):
            # Where every principal has a process of its own, the one that says so is the one that knows.
            self._announcer = link.key
        self.listener.on_notification(link, method, params)

    async def on_question(self, link: Link, question: Question, calls: Sequence[UpstreamCall]) -> Answer:
        return await self.listener.on_question(link, question, calls)

    def on_closed(self, link: Link, reason: TaskgateError | None) -> None:
        if self._closed:
            return
        if reason is not None:
            self._lost(link, reason)
        self.listener.on_closed(link, reason)

    def _lost(self, link: Link, reason: TaskgateError) -> None:
        for key in [key for key, known in self._links.items() if known is link]:
            known = self._links.pop(key)
            self._watched.gone(known)
            self._opener.let_go(known)
        if self._common is link:
            self._common = None
        if not self._links:
            # It may come back as another.
            self._spoken.forget()
        self.listener.on_server(self.id, EventKind.SERVER_DISCONNECTED, {"reason": reason.message}, link.key)
        if self._by_stdio:
            self._crashed(link.key, reason.message)
        self._trouble.noticed(reason)
        if not self._links or link.key.session == LISTENER:
            self._keep_trying()

    def on_server(self, server: str, kind: EventKind, data: Mapping[str, Any], key: LinkKey | None = None) -> None:
        self.listener.on_server(server, kind, data, key)

    def _place_of(self, key: LinkKey) -> LinkKey | None:
        """Where a resource is followed: in the caller's own process, or over the one link that listens."""
        return key if self._by_stdio else None

    async def watch(self, uri: str, caller: LinkKey) -> None:
        # Not over a link that is handed to single calls: what is followed there would end with the call.
        followed_over = (
            self._opened(caller, self._declared(LISTING_PROFILE)) if self._by_stdio else self.listening_link()
        )
        link = await followed_over
        await self._watched.watch(link, self._place_of(link.key), uri)

    async def unwatch(self, uri: str, caller: LinkKey) -> None:
        key = self._key_for(caller if self._by_stdio else self._listening_caller())
        link = self._links.get(key)
        open_link = link if link is not None and link.alive else None
        await self._watched.unwatch(open_link, self._place_of(key), uri)

    async def release(self, session: str) -> None:
        if not session:
            return
        for key in [key for key in self._crashes if key.session == session]:
            del self._crashes[key]
        opening = [task for key, task in self._opening.items() if key.session == session]
        for task in opening:
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)
        for key in [key for key in self._links if key.session == session]:
            await self._links.pop(key).close()
        for link in self._links.values():
            if isinstance(link, StatefulLink):
                link.left_by(session)

    async def keep_places(self, present: Collection[str]) -> None:
        """Nobody stands anywhere else any more: what was started for others may go."""
        wanted = self._standing.keep(present)
        await asyncio.gather(*(self._links.pop(key).close() for key in list(self._links) if key.place not in wanted))

    async def reconnect(self) -> None:
        alive = self._links_to_ask()
        if alive:
            await alive[0].round_trip(self.spec.connect_timeout_s)
            return
        self._backoff.succeeded()
        self._crashes.clear()
        await self.listening_link()

    def status(self) -> ServerStatus:
        alive = [link for link in self._links.values() if link.alive]
        spoken = self._spoken.known()
        if self._closed:
            return ServerStatus(ServerState.STOPPED, spoken)
        if alive:
            state = ServerState.DEGRADED if self._health.degraded else ServerState.CONNECTED
            stderr = tuple(line for link in alive for line in self._opener.stderr_of(link))
            return ServerStatus(
                state, spoken, last_error=self._trouble.shown, stderr=stderr, printed=self._opener.printed
            )
        if self._backoff.attempt or self._trouble.shown is not None:
            wait = int(self._backoff.wait_s(clock.monotonic()) * 1000)
            attempt, said = self._backoff.attempt, self._opener.last_words
            return ServerStatus(
                ServerState.RECONNECTING, spoken, attempt, wait, self._trouble.shown, said, self._opener.printed
            )
        return ServerStatus(ServerState.CONNECTING if self._opening else ServerState.IDLE, spoken)

    def stderr(self, caller: LinkKey) -> tuple[str, ...]:
        link = self._links.get(self._key_for(caller))
        return tuple(self._opener.stderr_of(link)) if link is not None else ()

    async def close(self) -> None:
        self._closed = True
        await self._health.close()
        ending = [*self._opening.values(), *([self._returning] if self._returning is not None else [])]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        await self._watched.close()
        links, self._links = list(self._links.values()), {}
        await asyncio.gather(*self._retiring, *(link.close(for_good=False) for link in links), return_exceptions=True)
