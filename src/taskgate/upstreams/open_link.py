"""Opening a link to a server: choose the wire, find out the generation, shake hands where there are hands to shake."""

from __future__ import annotations

from taskgate.core.errors import UpstreamError
from taskgate.core.generations import Generation
from taskgate.ports.upstream import CallerFace, LinkKey, Listener
from taskgate.upstreams.flight import HttpRefusal
from taskgate.upstreams.http.client import HttpClient
from taskgate.upstreams.http.target import Target
from taskgate.upstreams.http_wire import HttpWire
from taskgate.upstreams.intake import Intake
from taskgate.upstreams.old_sse_wire import OldSseWire
from taskgate.upstreams.probe import discovered
from taskgate.upstreams.spec import ServerSpec, Transport
from taskgate.upstreams.stateful_link import StatefulLink
from taskgate.upstreams.stateless_link import StatelessLink
from taskgate.upstreams.stdio.reaper import Reaper
from taskgate.upstreams.stdio.spec import ChildSpec
from taskgate.upstreams.stdio_wire import StdioWire

AnyLink = StatefulLink | StatelessLink


class Opener:
    def __init__(self, spec: ServerSpec, http: HttpClient, reaper: Reaper, intake: Intake) -> None:
        self.generation: Generation | None = None
        self._spec = spec
        self._http = http
        self._reaper = reaper
        self._intake = intake
        self._old_sse = spec.transport is Transport.OLD_SSE
        self._target = Target.parse(spec.url, spec.headers) if spec.transport is not Transport.STDIO else None
        self._children: dict[AnyLink, StdioWire] = {}

    def forget(self) -> None:
        """After a loss the server may come back as another: ask again."""
        self.generation = None

    async def open(self, key: LinkKey, face: CallerFace, listener: Listener) -> AnyLink:
        if self._spec.transport is Transport.STDIO:
            return await self._open_child(key, face, listener)
        if self._old_sse:
            return await self._open_old_sse(key, face, listener)
        return await self._open_http(key, face, listener)

    async def _open_http(self, key: LinkKey, face: CallerFace, listener: Listener) -> AnyLink:
        if self.generation is not Generation.STATEFUL:
            link = StatelessLink(self._spec.id, key, self._http_wire(), listener)
            described = await discovered(link, self._spec.connect_timeout_s)
            if described is not None:
                self.generation = Generation.STATELESS
                link.adopt(described)
                return link
        stateful = StatefulLink(self._spec.id, key, self._http_wire(), face, listener)
        try:
            await stateful.open(self._spec.connect_timeout_s)
        except HttpRefusal as refusal:
            if refusal.status not in (400, 404, 405) or refusal.error is not None:
                raise
            return await self._open_old_sse(key, face, listener)
        self.generation = Generation.STATEFUL
        return stateful

    def _http_wire(self) -> HttpWire:
        assert self._target is not None
        return HttpWire(self._spec.id, self._http, self._target, self._intake)

    async def _open_old_sse(self, key: LinkKey, face: CallerFace, listener: Listener) -> StatefulLink:
        line = OldSseWire(self._spec.id, self._http, self._spec.url, dict(self._spec.headers), self._intake)
        link = StatefulLink(self._spec.id, key, line, face, listener)
        await line.start(self._spec.connect_timeout_s)
        await link.open(self._spec.connect_timeout_s)
        self._old_sse = True
        self.generation = Generation.STATEFUL
        return link

    async def _open_child(self, key: LinkKey, face: CallerFace, listener: Listener) -> AnyLink:
        if self.generation is not Generation.STATEFUL:
            line = await self._started()
            try:
                link = await self._greet_child(line, key, face, listener)
            except UpstreamError:
                # Some servers end at the first request they do not know. Ask such a one the older way, once.
                await line.close()
                if self.generation is Generation.STATELESS:
                    raise
            else:
                self._children[link] = line
                return link
        line = await self._started()
        stateful = StatefulLink(self._spec.id, key, line, face, listener)
        try:
            await stateful.open(self._spec.connect_timeout_s)
        except UpstreamError:
            await line.close()
            raise
        self.generation = Generation.STATEFUL
        self._children[stateful] = line
        return stateful

    async def _greet_child(self, line: StdioWire, key: LinkKey, face: CallerFace, listener: Listener) -> AnyLink:
        stateless = StatelessLink(self._spec.id, key, line, listener)
        described = await discovered(stateless, self._spec.probe_timeout_s)
        if described is not None:
            self.generation = Generation.STATELESS
            stateless.adopt(described)
            return stateless
        stateful = StatefulLink(self._spec.id, key, line, face, listener)
        await stateful.open(self._spec.connect_timeout_s)
        self.generation = Generation.STATEFUL
        return stateful

    async def _started(self) -> StdioWire:
        spec = self._spec
        line = StdioWire(spec.id, self._intake)
        await line.start(ChildSpec(spec.command, spec.args, spec.env, spec.cwd), self._reaper)
        return line

    def let_go(self, link: AnyLink) -> list[str]:
        """The link is lost: forget its process, but not what it said last."""
        line = self._children.pop(link, None)
        return line.stderr_tail() if line is not None else []

    def stderr_of(self, link: AnyLink) -> list[str]:
        line = self._children.get(link)
        return line.stderr_tail() if line is not None else []
