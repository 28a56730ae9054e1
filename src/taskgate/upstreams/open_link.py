"""Opening a link to a server: choose the wire and the generation, shake hands where there are hands to shake.

The generation is the caller's where the server speaks it, else the other one (see `spoken`). One process on standard streams
speaks one generation for as long as it runs, so callers of both generations get a process each.
"""

from __future__ import annotations

from typing import Final, Protocol

from taskgate import clock
from taskgate.core.errors import Executed, UpstreamError
from taskgate.core.generations import NEWEST_STATELESS, Generation
from taskgate.mcp.http.client import HttpClient
from taskgate.mcp.http.target import Target
from taskgate.mcp.stdio.process import ChildSpec
from taskgate.mcp.stdio.reaper import Reaper
from taskgate.ports.upstream import ClientProfile, LinkKey, Listener
from taskgate.upstreams.flight import HandshakeRefused, HttpRefusal, Wire
from taskgate.upstreams.http_wire import HttpWire
from taskgate.upstreams.intake import Intake
from taskgate.upstreams.old_sse_wire import OldSseWire
from taskgate.upstreams.probe import discovered
from taskgate.upstreams.spec import ServerSpec, Transport
from taskgate.upstreams.spoken import SpokenGenerations
from taskgate.upstreams.standing import Standing
from taskgate.upstreams.stateful_link import StatefulLink
from taskgate.upstreams.stateless_link import StatelessLink
from taskgate.upstreams.stdio_wire import StdioWire

AnyLink = StatefulLink | StatelessLink
_SLOW_STARTS: Final = 4.0
_OLD_SSE_STATUSES: Final = (400, 404, 405)


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
        self._children: dict[AnyLink, StdioWire] = {}
        self.last_words: tuple[str, ...] = ()
        """What the last program wrote that ended, or that could not be talked to."""
        self._start_s = 0.0
        """How long the slowest start of a program took until it answered: one that is only slow must not seem to be silent."""

    def adopt(self, spec: ServerSpec) -> None:
        self._spec = spec

    async def open(self, caller: LinkKey, profile: ClientProfile, links: Links) -> AnyLink:
        """A link for this caller, in its generation or, where the server does not speak that, in the other one."""
        if self._spec.transport is Transport.STDIO:
            return await self._open_child(caller, profile, links)
        if self._old_sse:
            return await self._open_old_sse(caller, profile, links)
        return await self._open_http(caller, profile, links)

    async def _open_http(self, caller: LinkKey, profile: ClientProfile, links: Links) -> AnyLink:
        refusals: dict[Generation, UpstreamError] = {}
        for generation in self.spoken.order(caller.generation):
            key, link = links.link_in(caller, generation)
            try:
                link = link or await self._greet(key, self._http_wire(), profile, links)
            except UpstreamError as problem:
                if not _means_another_generation(problem):
                    raise
                refusals[generation] = problem
            else:
                self.spoken.learn(generation, tuple(refusals))
                return link
        refusal = refusals.get(Generation.STATEFUL)
        if isinstance(refusal, HttpRefusal) and refusal.status in _OLD_SSE_STATUSES and refusal.error is None:
            return await self._open_old_sse(caller, profile, links)
        raise next(iter(refusals.values()))

    async def _greet(self, key: LinkKey, line: Wire, profile: ClientProfile, listener: Listener) -> AnyLink:
        spec = self._spec
        if key.generation is Generation.STATEFUL:
            stateful = StatefulLink(spec.id, key, line, profile, listener)
            await stateful.open(spec.connect_timeout_s)
            return stateful
        stateless = StatelessLink(spec.id, key, line, listener, spec.keeps_questions, spec.asks_models)
        by_stdio = spec.transport is Transport.STDIO
        probe_s = max(spec.probe_timeout_s, _SLOW_STARTS * self._start_s) if by_stdio else spec.connect_timeout_s
        described = await discovered(stateless, probe_s)
        if described is None:
            raise HandshakeRefused(spec.id, f"does not speak {NEWEST_STATELESS}")
        stateless.adopt(described)
        return stateless

    def _http_wire(self) -> HttpWire:
        assert self._target is not None
        return HttpWire(self._spec.id, self._http, self._target, self._intake)

    async def _open_old_sse(self, caller: LinkKey, profile: ClientProfile, links: Links) -> AnyLink:
        key, known = links.link_in(caller, Generation.STATEFUL)
        if known is not None:
            return known
        line = OldSseWire(self._spec.id, self._http, self._spec.url, dict(self._spec.headers), self._intake)
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
            for generation in self.spoken.order(caller.generation):
                key, known = links.link_in(caller, generation)
                if known is not None:
                    self.spoken.learn(generation, tuple(refusals))
                    return known
                # Some programs end at the first request they do not know: such a one is started again, once.
                line = line if line is not None and line.running else await self._started(key.place)
                began = clock.monotonic()
                try:
                    link = await self._greet(key, line, profile, links)
                except UpstreamError as problem:
                    refusals[generation] = problem
                else:
                    self._start_s = max(self._start_s, clock.monotonic() - began)
                    self.spoken.learn(generation, tuple(refusals))
                    self._children[link], line = line, None
                    return link
        finally:
            if line is not None:
                await line.close()
                self.last_words = tuple(line.stderr_tail())
        raise next(iter(refusals.values()))

    async def _started(self, place: str) -> StdioWire:
        spec = self._standing.spec(place)
        line = StdioWire(spec.id, self._intake)
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


def _means_another_generation(problem: UpstreamError) -> bool:
    """A greeting that was refused, or was not understood; a server that cannot be reached is neither."""
    if isinstance(problem, HandshakeRefused):
        return True
    if isinstance(problem, HttpRefusal):
        return problem.status in (*_OLD_SSE_STATUSES, 406, 415)
    return problem.executed is not Executed.NO
