"""Opening a link to a server: choose the wire and the generation, shake hands where there are hands to shake.

The generation is the caller's where the server speaks it, else the other one (see `SpokenGenerations`). One process on standard
streams speaks one generation for as long as it runs, so callers of both generations get a process each.

Which generation does a server speak? Ask the stateless question first, fall back to the stateful handshake.

A stateless server answers `server/discover`; anything else, or nothing in time, means a handshake (basic/versioning: an unknown
error to a stateless request is how an older server shows itself). The verdict is kept by the server's owner until it reconnects.

Which generations of the protocol a server speaks, as far as the links opened so far have shown.

Nothing is asked only to find out: a link is tried in its caller's generation, and in the other one if the server does not speak
that. What was learned saves later links the futile try. Kept by the opener of links, and forgotten when the server was lost,
because it may come back as another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from taskgate import clock
from taskgate.core import wire
from taskgate.core.errors import Executed, UpstreamError
from taskgate.core.evidence import Moment
from taskgate.core.generations.generation import NEWEST_STATELESS, Generation
from taskgate.core.wire import Message
from taskgate.mcp.http.client import HttpClient
from taskgate.mcp.http.target import Target
from taskgate.mcp.stdio.process import ChildSpec
from taskgate.mcp.stdio.reaper import Reaper
from taskgate.ports.credentials import AccountNeeded, LoginNeeded
from taskgate.ports.upstream import CallFailed, ClientProfile, LinkKey, Listener
from taskgate.upstreams.flight import HandshakeRefused, HttpRefusal, Intake, Wire
from taskgate.upstreams.http_wire import HttpWire
from taskgate.upstreams.secret_filter import SecretFilter, ServerSecrets
from taskgate.upstreams.spec import ServerSpec, Standing, Transport
from taskgate.upstreams.stateful_link import StatefulLink
from taskgate.upstreams.stateless_link import StatelessLink, description_in
from taskgate.upstreams.stream_wire import OldSseWire, StdioWire


async def discovered(link: StatelessLink, timeout_s: float) -> Mapping[str, Any] | None:
    """The server's self-description if it is stateless, None if it must be greeted the older way. Raises HttpRefusal where it does
    not take our proof of who we are, which says nothing about how it must be greeted.
    """
    try:
        message = await link.discover(timeout_s)
        error = bytes(message.raw_error) if message.raw_error is not None else None
    except HttpRefusal as refusal:
        if refusal.status == _UNAUTHORIZED:
            raise
        message, error = None, refusal.error
    except UpstreamError as problem:
        if problem.executed is Executed.NO:
            raise
        return None
    if error is not None and _names_our_revision(error):
        message = await _once_more(link, timeout_s)
    return description_in(message) if message is not None else None


async def _once_more(link: StatelessLink, timeout_s: float) -> Message | None:
    try:
        return await link.discover(timeout_s)
    except UpstreamError:
        return None


def _names_our_revision(error: bytes) -> bool:
    """A refusal of our revision that names it as supported is worth one more try (basic/versioning: -32022)."""
    value = wire.parse_strictly(error)
    data = value.get("data")
    supported = data.get("supported") if type(data) is dict else None
    return value.get("code") == -32022 and type(supported) is list and NEWEST_STATELESS in supported


class SpokenGenerations:
    def __init__(self, pinned: Generation | None) -> None:
        self._pinned = pinned
        self._known: dict[Generation, bool] = {}
        self._was_silent = False
        self.towards: dict[Generation, Generation] = {}
        """The generation in which a caller of the wished one is served, as far as is known."""
        self._choose()

    def _choose(self) -> None:
        self.towards = {wished: self._towards(wished) for wished in Generation}

    def _towards(self, wished: Generation) -> Generation:
        if self._pinned is not None:
            return self._pinned
        return wished.other if self._known.get(wished) is False else wished

    def settled(self, wished: Generation) -> bool:
        """Whether a link for such a caller has been opened before, so that the next one needs no second try."""
        return self._known.get(self.towards[wished]) is True

    def order(self, wished: Generation) -> tuple[Generation, ...]:
        """In which generations to try a new link."""
        first = self.towards[wished]
        if self._pinned is not None or self._known.get(first.other) is False:
            return (first,)
        return (first, first.other)

    def learn(self, spoken: Generation, refused: tuple[Generation, ...] = (), *, silently: bool = False) -> None:
        """A link was opened in one generation after the server had refused others.

        `silently`: it did not answer the older greeting in time. A server that is only slow, because its machine is busy, must not
        be taken for one that does not speak it; one that is silent twice is believed. Silence towards the newer one is how many
        older servers say no.
        """
        believed, self._was_silent = self._was_silent or not silently, self._was_silent or silently
        if spoken is Generation.STATEFUL:
            self._was_silent = False
        self._known[spoken] = True
        self._known.update({one: False for one in refused if believed or one is Generation.STATELESS})
        self._choose()

    def forget(self) -> None:
        self._was_silent = False
        self._known.clear()
        self._choose()

    def known(self) -> tuple[Generation, ...]:
        """Those in which a link was opened, oldest generation first."""
        return tuple(generation for generation in Generation if self._known.get(generation))


AnyLink = StatefulLink | StatelessLink
_SLOW_STARTS: Final = 4.0
_OLD_SSE_STATUSES: Final = (400, 404, 405)
_UNAUTHORIZED: Final = 401


class Links(Listener, Protocol):
    """The server whose links are opened: it hears them, and knows which there are."""

    def link_in(self, caller: LinkKey, generation: Generation) -> tuple[LinkKey, AnyLink | None]:
        """Where a link for this caller belongs in that generation, and the one that is there already."""
        ...


class Opener:
    def __init__(self, spec: ServerSpec, http: HttpClient, reaper: Reaper, intake: Intake, standing: Standing) -> None:
        self.spoken = SpokenGenerations(spec.generation)
        self._spec = spec
        self._standing = standing
        self._http = http
        self._reaper = reaper
        self._intake = intake
        self._old_sse = spec.transport is Transport.OLD_SSE
        by_http = spec.transport is not Transport.STDIO
        self._target = Target.parse(spec.url, spec.headers, public_only=spec.public_only) if by_http else None
        self._secrets = ServerSecrets(spec.sent_secrets)
        self._children: dict[AnyLink, StdioWire] = {}
        self.login_needed: LoginNeeded | None = None
        """Waiting does not help against it, so callers are told what does."""
        self.last_words: tuple[str, ...] = ()
        self.printed = ""
        """The first thing that the last process wrote to stdout and that is no message."""
        """What the last program wrote that ended, or that could not be talked to."""
        self._start_s = 0.0
        """How long the slowest start of a program took until it answered: one that is only slow must not seem to be silent."""

    def adopt(self, spec: ServerSpec) -> None:
        self._spec = spec

    async def open(self, caller: LinkKey, profile: ClientProfile, links: Links) -> AnyLink:
        """A link for this caller, in its generation or, where the server does not speak that, in the other one."""
        if self._spec.transport is Transport.STDIO:
            return await self._open_child(caller, profile, links)
        try:
            open_http = self._open_old_sse if self._old_sse else self._open_http
            link = await open_http(caller, profile, links)
        except AccountNeeded:
            # One person's account says nothing about the server.
            raise
        except LoginNeeded as needed:
            self.login_needed = needed
            raise
        if not (self._spec.credentials.per_principal and caller.principal):
            self.login_needed = None
        return link

    @property
    def tells_callers_apart(self) -> bool:
        return self._spec.transport is Transport.STDIO or self._spec.credentials.per_principal

    def only_lists_need_login(self, key: LinkKey) -> bool:
        """Whether nothing is missing but the account that lists are fetched with. Raises LoginNeeded if that concerns this key."""
        if self.login_needed is None:
            return False
        if not (key.principal and self._spec.credentials.per_principal):
            raise self.login_needed
        return True

    async def _open_http(self, caller: LinkKey, profile: ClientProfile, links: Links) -> AnyLink:
        refusals: dict[Generation, UpstreamError] = {}
        await self._spec.credentials.of(caller.principal).ready()
        for generation in self.spoken.order(caller.generation):
            key, link = links.link_in(caller, generation)
            try:
                link = link or await self._greet_by_http(key, profile, links)
            except UpstreamError as problem:
                if not _means_another_generation(problem) and not _lets_others_in(generation, problem):
                    raise
                refusals[generation] = problem
            else:
                self._learn(generation, refusals)
                return link
        refusal = refusals.get(Generation.STATEFUL)
        if isinstance(refusal, HttpRefusal) and refusal.status in _OLD_SSE_STATUSES and refusal.error is None:
            return await self._open_old_sse(caller, profile, links)
        raise next(iter(refusals.values()))

    async def _greet_by_http(self, key: LinkKey, profile: ClientProfile, links: Links) -> AnyLink:
        """A server that does not take our token any more is greeted once more with a new one."""
        wire = self._http_wire(key)
        try:
            return await self._greet(key, wire, profile, links)
        except HttpRefusal as refusal:
            if refusal.evidence.status != _UNAUTHORIZED or not await wire.renew_credentials(refusal):
                raise
        return await self._greet(key, self._http_wire(key), profile, links)

    async def _greet(
        self, key: LinkKey, line: Wire, profile: ClientProfile, listener: Listener, *, only: bool = False
    ) -> AnyLink:
        """`only`: there is no other generation to try, so silence can only mean that a program still starts."""
        spec = self._spec
        by_stdio = spec.transport is Transport.STDIO
        if key.generation is Generation.STATEFUL:
            stateful = StatefulLink(spec.id, key, line, profile, listener)
            await stateful.open(spec.start_timeout_s if by_stdio else spec.connect_timeout_s)
            return stateful
        stateless = StatelessLink(spec.id, key, line, listener, spec.keeps_questions, asks_models=spec.asks_models)
        least_s = spec.start_timeout_s if only else spec.probe_timeout_s
        probe_s = max(least_s, _SLOW_STARTS * self._start_s) if by_stdio else spec.connect_timeout_s
        described = await discovered(stateless, probe_s)
        if described is None:
            raise HandshakeRefused(spec.id, f"does not speak {NEWEST_STATELESS}")
        stateless.adopt(described)
        return stateless

    def _http_wire(self, key: LinkKey) -> HttpWire:
        assert self._target is not None
        credentials = self._spec.credentials.of(key.principal)
        return HttpWire(
            self._spec.id,
            self._http,
            self._target,
            self._intake,
            credentials,
            secret_filter=SecretFilter(self._secrets),
        )

    async def _open_old_sse(self, caller: LinkKey, profile: ClientProfile, links: Links) -> AnyLink:
        key, known = links.link_in(caller, Generation.STATEFUL)
        if known is not None:
            return known
        spec, headers = self._spec, dict(self._spec.headers)
        line = OldSseWire(
            spec.id, self._http, spec.url, headers, self._intake, secret_filter=SecretFilter(self._secrets)
        )
        link = StatefulLink(self._spec.id, key, line, profile, links)
        await line.start(self._spec.connect_timeout_s)
        await link.open(self._spec.connect_timeout_s)
        self._old_sse = True
        self.spoken.learn(Generation.STATEFUL, (Generation.STATELESS,))
        return link

    async def _open_child(self, caller: LinkKey, profile: ClientProfile, links: Links) -> AnyLink:
        refusals: dict[Generation, UpstreamError] = {}
        line: StdioWire | None = None
        try:
            order = self.spoken.order(caller.generation)
            for generation in order:
                key, known = links.link_in(caller, generation)
                if known is not None:
                    self._learn(generation, refusals)
                    return known
                # Some programs end at the first request they do not know: such a one is started again, once.
                line = line if line is not None and line.running else await self._started(key.place)
                began = clock.monotonic()
                try:
                    link = await self._greet(key, line, profile, links, only=len(order) == 1)
                except UpstreamError as problem:
                    refusals[generation] = problem
                else:
                    self._start_s = max(self._start_s, clock.monotonic() - began)
                    self._learn(generation, refusals)
                    self._children[link], line = line, None
                    self.printed = self._children[link].first_junk()
                    return link
        finally:
            if line is not None:
                line.detach()
                await line.close()
                self.last_words = tuple(line.stderr_tail())
                self.printed = line.first_junk() or self.printed
        raise next(iter(refusals.values()))

    def _learn(self, spoken: Generation, refusals: Mapping[Generation, UpstreamError]) -> None:
        older = refusals.get(Generation.STATEFUL)
        self.spoken.learn(spoken, tuple(refusals), silently=older is not None and _silent(older))

    async def _started(self, place: str) -> StdioWire:
        spec = self._standing.spec(place)
        line = StdioWire(spec.id, self._intake, SecretFilter(ServerSecrets(spec.sent_secrets)), spec.hide)
        await line.start(ChildSpec(spec.command, spec.args, spec.env, spec.cwd, spec.inherits), self._reaper)
        return line

    def let_go(self, link: AnyLink) -> None:
        """The link is lost: forget its process, but not what it said last."""
        line = self._children.pop(link, None)
        if line is not None:
            self.last_words = tuple(line.stderr_tail()) or self.last_words

    def stderr_of(self, link: AnyLink) -> list[str]:
        line = self._children.get(link)
        return line.stderr_tail() if line is not None else []


def _silent(problem: UpstreamError) -> bool:
    """It did not answer in time: slow, or not able to."""
    return isinstance(problem, CallFailed) and problem.evidence.moment is Moment.TIMED_OUT


def _lets_others_in(generation: Generation, problem: UpstreamError) -> bool:
    """Some servers want a login for everything but the older greeting, also those that need none for it."""
    unauthorized = isinstance(problem, HttpRefusal) and problem.status == _UNAUTHORIZED
    return unauthorized and generation is Generation.STATELESS


def _means_another_generation(problem: UpstreamError) -> bool:
    """A greeting that was refused, or was not understood; a server that cannot be reached is neither."""
    if isinstance(problem, HandshakeRefused):
        return True
    if isinstance(problem, HttpRefusal):
        return problem.status in (*_OLD_SSE_STATUSES, 406, 415)
    return problem.executed is not Executed.NO
