"""One configured server: its links, its generations, and reconnection after a failure.

Links are opened on demand, several at a time up to a limit, each once. The first connection is made alone, because what
it learns about the server helps the others. After a failure, calls fail immediately until the backoff has passed; a
background task keeps reconnecting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from taskgate import clock
from taskgate.core.errors import TaskgateError, UpstreamError
from taskgate.core.events import EventKind
from taskgate.core.generations.generation import STATEFUL, Generation
from taskgate.core.identity.addressees import has_conversation
from taskgate.core.questions.question import Answer, Question
from taskgate.core.wire import Raw
from taskgate.mcp.http.client import HttpClient
from taskgate.mcp.stdio.reaper import Reaper
from taskgate.ports.call_failure import never_sent
from taskgate.ports.client_profile import LISTING_PROFILE, ClientProfile
from taskgate.ports.link import LISTENER, Link, LinkKey, Listener
from taskgate.ports.upstream import ServerState, ServerStatus
from taskgate.ports.upstream_call import SendLog, UpstreamCall
from taskgate.ports.upstream_credentials import AccountNeeded
from taskgate.upstreams.failures import unreachable
from taskgate.upstreams.health_watch import HealthWatch
from taskgate.upstreams.intake import Intake
from taskgate.upstreams.link_keys import COMMON, key_in, listening_caller
from taskgate.upstreams.open_link import AnyLink, Opener
from taskgate.upstreams.own_links import OwnLinks
from taskgate.upstreams.places import PlaceMap, SpecAt, no_places
from taskgate.upstreams.reconnect import Reconnection
from taskgate.upstreams.spec import Instances, ServerSpec, Transport
from taskgate.upstreams.stateful_link import StatefulLink
from taskgate.upstreams.stateless_link import StatelessLink
from taskgate.upstreams.watched_resources import WatchedResources

_WAIT_FOR_TURN_S: Final = 30.0
HANDSHAKES_AT_ONCE: Final = 32
STARTS_AT_ONCE: Final = 4
"""Lower than for HTTP: starting a process takes CPU time, while an HTTP handshake mostly waits."""


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
        spec_at: SpecAt = no_places,
    ) -> None:
        self.id = spec.id
        self.transport = spec.transport.value
        self.fingerprint = spec.fingerprint
        self.spec = spec
        self._by_stdio = spec.transport is Transport.STDIO
        self._per_caller = spec.link_per_caller
        self.listener = listener
        self._places_of_clients = PlaceMap(spec, spec_at)
        self._opener = Opener(spec, http, reaper, intake or Intake(), self._places_of_clients)
        self._generations = self._opener.generations
        self._links: dict[LinkKey, AnyLink] = {}
        self._common: StatelessLink | None = None
        self._opening: dict[LinkKey, asyncio.Task[AnyLink]] = {}
        self._first_contact = asyncio.Lock()
        self._handshakes = asyncio.Semaphore(STARTS_AT_ONCE if self._by_stdio else HANDSHAKES_AT_ONCE)
        self._reconnection = Reconnection(self.listening_link, self._report)
        self._watched = WatchedResources(self, spec.connect_timeout_s)
        self._retiring: set[asyncio.Task[None]] = set()
        self._closed = False
        self._announcer: LinkKey | None = None
        self._own: OwnLinks | None = None
        """Separate links of conversations."""
        if self._by_stdio and spec.instances is Instances.AUTO:
            self._own = OwnLinks(self._links, self._opening, spec.own_links)
        self._health = HealthWatch(self._links_to_ping, self._health_changed, self._on_unresponsive)

    def adopt(self, spec: ServerSpec) -> None:
        """Apply changed settings after a reload. Open links continue; new ones use the new settings."""
        self.spec = spec
        self._places_of_clients.adopt(spec)
        self._opener.adopt(spec)
        self._reconnection.forget_crashes()
        if self._own is not None:
            self._own.adopt(spec.own_links)

    async def link(self, caller: LinkKey, profile: ClientProfile) -> Link:
        link = self.open_link(caller)
        if link is not None:
            return link
        own = self._own
        if own is not None and own.separated and not has_conversation(caller.conversation):
            return await self._link_of_call(own, caller, self._declared(profile))
        if own is not None:
            own.place(caller, self._shared_key(caller), can_be_asked=_can_be_asked(profile))
        return await self._opened(caller, self._declared(profile))

    def _declared(self, profile: ClientProfile) -> ClientProfile:
        return profile.towards(self.spec.keeps_questions, self.spec.uses_models, shared=self.spec.shares_links)

    async def _link_of_call(self, own: OwnLinks, caller: LinkKey, profile: ClientProfile) -> AnyLink:
        """Return a link that no other open call uses, within the limit."""
        if not self._generations.settled(caller.generation):
            await self._opened(caller, profile)
        if not self._has_link_of_call(caller):
            return await self._opened(caller, profile)
        key = own.take(self._key_in(caller, STATEFUL))
        try:
            link = await self._opened(caller._replace(session=key.session), profile)
        finally:
            own.handed_over(key)
        if isinstance(link, StatefulLink):
            link.hand_over(caller.conversation)
        return link

    def separate_conversations(self) -> bool:
        if self._own is None or self._own.separated:
            return False
        self._own.separate()
        return True

    async def end_idle(self) -> None:
        for key in self._own.idle(clock.monotonic()) if self._own is not None else ():
            if not self._watched.follows(self._place_of(key)):
                self._drop(key, self._links[key])

    def common_link(self, generation: Generation) -> Link | None:
        link = self._common
        if link is None or not link.alive or self._generations.towards[generation] is STATEFUL:
            return None
        return link

    def open_link(self, caller: LinkKey) -> Link | None:
        if self._own is not None:
            if self._own.separated and self._has_link_of_call(caller):
                return self._own.link_of_call(caller.conversation)
            if not self._own.is_placed(caller):
                return None
        link = self._links.get(self._key_for(caller))
        return link if link is not None and link.alive else None

    def _has_link_of_call(self, caller: LinkKey) -> bool:
        """Return whether each call of this caller has its own link: it has no conversation and is served statefully."""
        is_stateful = self._generations.towards[caller.generation] is STATEFUL
        return is_stateful and not has_conversation(caller.conversation)

    def mark_long_lived(self, sent_as: SendLog) -> None:
        any(link.mark_long_lived(sent_as) for link in self._links.values())

    async def listening_link(self) -> Link:
        caller = self._listening_caller()
        return self.open_link(caller) or await self._opened(caller, LISTING_PROFILE)

    def _key_for(self, caller: LinkKey) -> LinkKey:
        """Return the key of the link that serves this caller."""
        towards = self._generations.towards[caller.generation]
        if self._per_caller and towards is caller.generation is STATEFUL and not caller.place:
            return caller
        return self._key_in(caller, towards)

    def _key_in(self, caller: LinkKey, generation: Generation) -> LinkKey:
        placed = self._places_of_clients.canonical_key(caller) if caller.place else caller
        key = key_in(self.spec, placed, generation)
        return self._own.key(placed, key) if self._own is not None and generation is STATEFUL else key

    def _shared_key(self, caller: LinkKey) -> LinkKey:
        placed = self._places_of_clients.canonical_key(caller) if caller.place else caller
        return key_in(self.spec, placed, STATEFUL)

    def _listening_caller(self) -> LinkKey:
        alive = [key for key, link in self._links.items() if link.alive] if self._by_stdio else []
        return listening_caller(self.spec, alive, self._announcer)

    async def _opened(self, caller: LinkKey, profile: ClientProfile) -> AnyLink:
        if self._closed:
            raise unreachable(self.id, "is being shut down")
        self._places_of_clients.check(caller.place)
        try:
            async with asyncio.timeout(_WAIT_FOR_TURN_S):
                if not self._generations.settled(caller.generation):
                    async with self._first_contact:
                        # The previous holder of the lock may have learned the generation; then the others can connect in parallel.
                        if not self._generations.settled(caller.generation):
                            return await self._open_once(caller, profile)
                return await self._open_once(caller, profile)
        except TimeoutError:
            raise unreachable(self.id, "is still connecting") from None

    async def _open_once(self, caller: LinkKey, profile: ClientProfile) -> AnyLink:
        """Return the open link, or wait for the handshake in progress or for a new one."""
        key = self._key_for(caller)
        link = self._links.get(key)
        if link is not None and link.alive:
            return link
        opening = self._opening.get(key)
        if opening is None:
            self._check_paused(key)
            opening = self._opening[key] = asyncio.get_running_loop().create_task(self._open(caller, profile))
            opening.add_done_callback(lambda done: self._opening_ended(key, done))
        return await asyncio.shield(opening)

    def _check_paused(self, key: LinkKey) -> None:
        wait = self._reconnection.wait_s(key)
        if wait > 0 and not self._opener.only_lists_need_login(key):
            raise unreachable(self.id, self._reconnection.last_failure.until(wait))

    async def _open(self, caller: LinkKey, profile: ClientProfile) -> AnyLink:
        async with self._handshakes:
            try:
                link = await self._opener.open(caller, profile, self)
                if caller.resumes:
                    await link.resume_session(caller.resumes)
            except UpstreamError as problem:
                # A failure for one client's folder or one principal is not a failure of the server for others.
                expected = isinstance(problem, AccountNeeded) or (caller.place and self._links)
                failed = (lambda failure: failure) if expected else self._reconnection.failed
                raise failed(never_sent(self.id, problem)) from None
        if self._links.get(link.key) is not link:
            self._arrived(link)
        return link

    def _opening_ended(self, key: LinkKey, done: asyncio.Task[AnyLink]) -> None:
        self._opening.pop(key, None)
        if not done.cancelled():
            # Mark the exception as retrieved: the waiters received it, and there may be none left.
            done.exception()

    def _arrived(self, link: AnyLink) -> None:
        self._reconnection.succeeded()
        first = not any(known.alive for known in self._links.values())
        self._links[link.key] = link
        if link.key == COMMON and isinstance(link, StatelessLink) and not self._opener.distinguishes_callers:
            self._common = link
        self._health.start()
        if first and not self._reconnection.in_progress:
            self.listener.on_server(self.id, EventKind.SERVER_CONNECTED, {})
        if self._by_stdio:
            self._retire(link.key._replace(generation=link.generation.other, conversation=""))
        listens = self._by_stdio or link is self._links.get(self._key_for(self._listening_caller()))
        self._watched.arrived(link, self._place_of(link.key), follows=listens)

    def _retire(self, key: LinkKey) -> None:
        """End a process that only fetched lists, once another one serves calls."""
        link = self._links.get(key)
        if link is not None and not link.served and not link.busy:
            self._drop(key, link)

    def _drop(self, key: LinkKey, link: AnyLink) -> None:
        del self._links[key]
        self._watched.gone(link)
        self._opener.release(link)
        self._close_in_background(link)

    def _close_in_background(self, link: AnyLink) -> None:
        task = asyncio.get_running_loop().create_task(link.close())
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    def _links_to_ping(self) -> list[AnyLink]:
        """Return the links to ping: every process, because each can hang, or one HTTP link."""
        alive = [link for link in self._links.values() if link.alive]
        if self._by_stdio or len(alive) < 2:
            return alive
        known = self._links.get(self._key_for(self._listening_caller()))
        return [known if known is not None and known.alive else alive[0]]

    def _health_changed(self, answers: bool, why: str) -> None:
        kind = EventKind.SERVER_HEALTH_RESTORED if answers else EventKind.SERVER_HEALTH_DEGRADED
        self.listener.on_server(self.id, kind, {} if answers else {"reason": why})

    def _on_unresponsive(self, link: AnyLink) -> None:
        """Restart a process that does not respond to pings. One that may be busy with a call is left to that call's deadline.

        Over HTTP there is no process to end.
        """
        if self._by_stdio and link.alive and link.stuck:
            link.give_up()
            self._close_in_background(link)
            self.on_closed(link, unreachable(self.id, "did not respond to pings and is restarted"))

    # Used by the opener of links

    def link_in(self, caller: LinkKey, generation: Generation) -> tuple[LinkKey, AnyLink | None]:
        """Return the key of this caller's link in that generation, and the open link if there is one."""
        key = self._key_in(caller, generation)
        link = self._links.get(key)
        return key, link if link is not None and link.alive else None

    # Listener of the links

    def on_notification(self, link: Link, method: str, params: Raw | None) -> None:
        if method.endswith("/list_changed"):
            # With a process per principal, lists are fetched from the one that announced the change.
            self._announcer = link.key
        self.listener.on_notification(link, method, params)

    async def on_question(self, link: Link, question: Question, calls: Sequence[UpstreamCall]) -> Answer:
        if self._own is not None:
            self._own.note_question()
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
            self._opener.release(known)
        if self._common is link:
            self._common = None
        if not self._links:
            # It may come back with another version.
            self._generations.forget()
        self.listener.on_server(self.id, EventKind.SERVER_DISCONNECTED, {"reason": reason.message}, link.key)
        if self._by_stdio:
            limit, within_s = self.spec.restart_limit, self.spec.restart_within_s
            self._reconnection.crashed(link.key, reason.message, limit=limit, within_s=within_s)
        self._reconnection.lost(reason)
        if not self._links or link.key.session == LISTENER:
            self._reconnection.start()

    def _report(self, kind: EventKind, data: Mapping[str, Any], key: LinkKey | None = None) -> None:
        self.listener.on_server(self.id, kind, data, key)

    def on_session_ended(self, server: str, version: str, seconds: float, error_type: str) -> None:
        self.listener.on_session_ended(server, version, seconds, error_type)

    def on_server(self, server: str, kind: EventKind, data: Mapping[str, Any], key: LinkKey | None = None) -> None:
        self.listener.on_server(server, kind, data, key)

    def _place_of(self, key: LinkKey) -> LinkKey | None:
        """Return where a resource is followed: in the caller's process, or (None) on the listening link."""
        return key if self._by_stdio else None

    async def watch(self, uri: str, caller: LinkKey) -> None:
        # Not on a link that is reserved for single calls: following would end with the call.
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
        self._reconnection.forget_crashes(session)
        if self._own is not None:
            self._own.forget(session)
        opening = [task for key, task in self._opening.items() if key.session == session]
        for task in opening:
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)
        for key in [key for key in self._links if key.session == session]:
            await self._links.pop(key).close()
        for link in self._links.values():
            if isinstance(link, StatefulLink):
                link.forget_session(session)

    async def keep_places(self, present: Collection[str]) -> None:
        """End the processes of folders without connected clients."""
        kept = self._places_of_clients.keep(present)
        await asyncio.gather(*(self._links.pop(key).close() for key in list(self._links) if key.place not in kept))

    async def reconnect(self) -> None:
        alive = self._links_to_ping()
        if alive:
            await alive[0].round_trip(self.spec.connect_timeout_s)
            return
        self._reconnection.backoff.succeeded()
        self._reconnection.forget_crashes()
        await self.listening_link()

    def status(self) -> ServerStatus:
        alive = [link for link in self._links.values() if link.alive]
        generations = self._generations.known()
        if self._closed:
            return ServerStatus(ServerState.STOPPED, generations)
        if alive:
            state = ServerState.DEGRADED if self._health.degraded else ServerState.CONNECTED
            stderr = tuple(line for link in alive for line in self._opener.stderr_of(link))
            return ServerStatus(
                state,
                generations,
                last_error=self._reconnection.last_failure.shown,
                stderr=stderr,
                printed=self._opener.printed,
            )
        if self._reconnection.backoff.attempt or self._reconnection.last_failure.shown is not None:
            wait = int(self._reconnection.backoff.wait_s(clock.monotonic()) * 1000)
            attempt, stderr_lines = self._reconnection.backoff.attempt, self._opener.last_stderr
            return ServerStatus(
                state=ServerState.RECONNECTING,
                generations=generations,
                reconnect_attempt=attempt,
                next_retry_ms=wait,
                last_error=self._reconnection.last_failure.shown,
                stderr=stderr_lines,
                printed=self._opener.printed,
            )
        return ServerStatus(ServerState.CONNECTING if self._opening else ServerState.IDLE, generations)

    def stderr(self, caller: LinkKey) -> tuple[str, ...]:
        link = self._links.get(self._key_for(caller))
        return tuple(self._opener.stderr_of(link)) if link is not None else ()

    async def close(self) -> None:
        self._closed = True
        await self._health.close()
        await self._reconnection.close()
        opening = list(self._opening.values())
        for task in opening:
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)
        await self._watched.close()
        links, self._links = list(self._links.values()), {}
        await asyncio.gather(*self._retiring, *(link.close(for_good=False) for link in links), return_exceptions=True)


def _can_be_asked(profile: ClientProfile) -> bool:
    """Whether the client declared that it answers questions itself."""
    return any(isinstance(profile.capabilities.get(name), Mapping) for name in ("elicitation", "sampling"))
