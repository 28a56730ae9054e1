"""Open a link to a server: choose the wire and the generation, and perform the handshake.

The generation is the caller's if the server supports it, otherwise the other one (see `SupportedGenerations`). A child
process uses one generation for as long as it runs, so callers of both generations get separate processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from taskgate import clock
from taskgate.core.errors import Executed, UpstreamError
from taskgate.core.evidence import Moment
from taskgate.core.generations.generation import NEWEST_STATELESS, Generation
from taskgate.mcp.http.client import HttpClient
from taskgate.mcp.http.target import Target
from taskgate.mcp.stdio.process import ChildSpec
from taskgate.mcp.stdio.reaper import Reaper
from taskgate.ports.call_failure import CallFailed
from taskgate.ports.client_profile import ClientProfile
from taskgate.ports.link import LinkKey, Listener
from taskgate.ports.upstream_credentials import AccountNeeded, LoginNeeded
from taskgate.upstreams.failures import HandshakeRefused, HttpRefusal
from taskgate.upstreams.flight import Wire
from taskgate.upstreams.http_wire import HttpWire
from taskgate.upstreams.intake import Intake
from taskgate.upstreams.old_sse_wire import OldSseWire
from taskgate.upstreams.places import PlaceMap
from taskgate.upstreams.probe import UNAUTHORIZED, discovered
from taskgate.upstreams.secret_filter import SecretFilter, ServerSecrets
from taskgate.upstreams.spec import ServerSpec, Transport
from taskgate.upstreams.stateful_link import StatefulLink
from taskgate.upstreams.stateless_link import StatelessLink
from taskgate.upstreams.stdio_wire import StdioWire
from taskgate.upstreams.supported_generations import SupportedGenerations

AnyLink = StatefulLink | StatelessLink
_SLOW_STARTS: Final = 4.0
_OLD_SSE_STATUSES: Final = (400, 404, 405)


class Links(Listener, Protocol):
    """The server whose links are opened, and their listener."""

    def link_in(self, caller: LinkKey, generation: Generation) -> tuple[LinkKey, AnyLink | None]:
        """Return the key of this caller's link in that generation, and the open link if there is one."""
        ...


class Opener:
    def __init__(self, spec: ServerSpec, http: HttpClient, reaper: Reaper, intake: Intake, places: PlaceMap) -> None:
        self.generations = SupportedGenerations(spec.generation)
        self._spec = spec
        self._places_of_clients = places
        self._http = http
        self._reaper = reaper
        self._intake = intake
        self._old_sse = spec.transport is Transport.OLD_SSE
        by_http = spec.transport is not Transport.STDIO
        self._target = Target.parse(spec.url, spec.headers, public_only=spec.public_only) if by_http else None
        self._secrets = ServerSecrets(spec.sent_secrets)
        self._children: dict[AnyLink, StdioWire] = {}
        self.login_needed: LoginNeeded | None = None
        """The login that is needed; callers receive it as the error, because retrying does not help."""
        self.last_stderr: tuple[str, ...] = ()
        self.printed = ""
        """The first line that the last process wrote to stdout and that is not a message."""
        self._start_s = 0.0
        """The longest time that a process took to respond after its start, so that a slow one is not considered unresponsive."""

    def adopt(self, spec: ServerSpec) -> None:
        self._spec = spec

    async def open(self, caller: LinkKey, profile: ClientProfile, links: Links) -> AnyLink:
        """Open a link for this caller, in its generation or, if the server does not support that, in the other one."""
        if self._spec.transport is Transport.STDIO:
            return await self._open_child(caller, profile, links)
        try:
            open_http = self._open_old_sse if self._old_sse else self._open_http
            link = await open_http(caller, profile, links)
        except AccountNeeded:
            # A missing account of one principal is not a failure of the server.
            raise
        except LoginNeeded as needed:
            self.login_needed = needed
            raise
        if not (self._spec.credentials.per_principal and caller.principal):
            self.login_needed = None
        return link

    @property
    def distinguishes_callers(self) -> bool:
        return self._spec.transport is Transport.STDIO or self._spec.credentials.per_principal

    def only_lists_need_login(self, key: LinkKey) -> bool:
        """Return whether only the account for fetching lists is missing. Raises LoginNeeded if this key needs it."""
        if self.login_needed is None:
            return False
        if not (key.principal and self._spec.credentials.per_principal):
            raise self.login_needed
        return True

    async def _open_http(self, caller: LinkKey, profile: ClientProfile, links: Links) -> AnyLink:
        refusals: dict[Generation, UpstreamError] = {}
        await self._spec.credentials.of(caller.principal).ready()
        for generation in self.generations.order(caller.generation):
            key, link = links.link_in(caller, generation)
            try:
                link = link or await self._handshake_http(key, profile, links)
            except UpstreamError as problem:
                if not _is_other_generation(problem) and not _may_allow_handshake(generation, problem):
                    raise
                refusals[generation] = problem
            else:
                self._learn(generation, refusals)
                return link
        refusal = refusals.get(Generation.STATEFUL)
        if isinstance(refusal, HttpRefusal) and refusal.status in _OLD_SSE_STATUSES and refusal.error is None:
            return await self._open_old_sse(caller, profile, links)
        raise next(iter(refusals.values()))

    async def _handshake_http(self, key: LinkKey, profile: ClientProfile, links: Links) -> AnyLink:
        """Perform the handshake, and repeat it with a new token if the server rejects the current one."""
        wire = self._http_wire(key)
        try:
            return await self._handshake(key, wire, profile, links)
        except HttpRefusal as refusal:
            if refusal.evidence.status != UNAUTHORIZED or not await wire.renew_credentials(refusal):
                raise
        return await self._handshake(key, self._http_wire(key), profile, links)

    async def _handshake(
        self, key: LinkKey, wire: Wire, profile: ClientProfile, listener: Listener, *, only: bool = False
    ) -> AnyLink:
        """Perform the handshake. `only`: there is no other generation to try, so no response means that it is still starting."""
        spec = self._spec
        by_stdio = spec.transport is Transport.STDIO
        if key.generation is Generation.STATEFUL:
            stateful = StatefulLink(spec.id, key, wire, profile, listener)
            await stateful.open(spec.start_timeout_s if by_stdio else spec.connect_timeout_s)
            return stateful
        stateless = StatelessLink(spec.id, key, wire, listener, spec.keeps_questions, uses_models=spec.uses_models)
        min_s = spec.start_timeout_s if only else spec.probe_timeout_s
        probe_s = max(min_s, _SLOW_STARTS * self._start_s) if by_stdio else spec.connect_timeout_s
        described = await discovered(stateless, probe_s)
        if described is None:
            raise HandshakeRefused(spec.id, f"does not support {NEWEST_STATELESS}")
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
        wire = OldSseWire(
            spec.id, self._http, spec.url, headers, self._intake, secret_filter=SecretFilter(self._secrets)
        )
        link = StatefulLink(self._spec.id, key, wire, profile, links)
        await wire.start(self._spec.connect_timeout_s)
        await link.open(self._spec.connect_timeout_s)
        self._old_sse = True
        self.generations.learn(Generation.STATEFUL, (Generation.STATELESS,))
        return link

    async def _open_child(self, caller: LinkKey, profile: ClientProfile, links: Links) -> AnyLink:
        refusals: dict[Generation, UpstreamError] = {}
        wire: StdioWire | None = None
        try:
            order = self.generations.order(caller.generation)
            for generation in order:
                key, known = links.link_in(caller, generation)
                if known is not None:
                    self._learn(generation, refusals)
                    return known
                # Some programs exit at the first unknown request. They are started again, once.
                wire = wire if wire is not None and wire.running else await self._started(key.place)
                began = clock.monotonic()
                try:
                    link = await self._handshake(key, wire, profile, links, only=len(order) == 1)
                except UpstreamError as problem:
                    refusals[generation] = problem
                else:
                    self._start_s = max(self._start_s, clock.monotonic() - began)
                    self._learn(generation, refusals)
                    self._children[link], wire = wire, None
                    self.printed = self._children[link].first_invalid()
                    return link
        finally:
            if wire is not None:
                wire.detach()
                await wire.close()
                self.last_stderr = tuple(wire.stderr_tail())
                self.printed = wire.first_invalid() or self.printed
        raise next(iter(refusals.values()))

    def _learn(self, opened: Generation, refusals: Mapping[Generation, UpstreamError]) -> None:
        older = refusals.get(Generation.STATEFUL)
        self.generations.learn(opened, tuple(refusals), timed_out=older is not None and _timed_out(older))

    async def _started(self, place: str) -> StdioWire:
        spec = self._places_of_clients.spec(place)
        wire = StdioWire(spec.id, self._intake, SecretFilter(ServerSecrets(spec.sent_secrets)), spec.hide)
        await wire.start(
            ChildSpec(command=spec.command, args=spec.args, env=spec.env, cwd=spec.cwd, inherits=spec.inherits),
            self._reaper,
        )
        return wire

    def release(self, link: AnyLink) -> None:
        """Forget the process of a lost link, but keep its last stderr lines."""
        wire = self._children.pop(link, None)
        if wire is not None:
            self.last_stderr = tuple(wire.stderr_tail()) or self.last_stderr

    def stderr_of(self, link: AnyLink) -> list[str]:
        wire = self._children.get(link)
        return wire.stderr_tail() if wire is not None else []


def _timed_out(problem: UpstreamError) -> bool:
    """Return whether the failure is a timeout."""
    return isinstance(problem, CallFailed) and problem.evidence.moment is Moment.TIMED_OUT


def _may_allow_handshake(generation: Generation, problem: UpstreamError) -> bool:
    """Return whether the stateful handshake may work although this one needs a login, as with some servers."""
    unauthorized = isinstance(problem, HttpRefusal) and problem.status == UNAUTHORIZED
    return unauthorized and generation is Generation.STATELESS


def _is_other_generation(problem: UpstreamError) -> bool:
    """Return whether the handshake was rejected or not understood, as opposed to an unreachable server."""
    if isinstance(problem, HandshakeRefused):
        return True
    if isinstance(problem, HttpRefusal):
        return problem.status in (*_OLD_SSE_STATUSES, 406, 415)
    return problem.executed is not Executed.NO
