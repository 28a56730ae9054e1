"""What a configured server is, as far as connecting to it needs to know.

Under which key the link of a caller is kept: what `instances` of the configuration means for each transport and generation.

Which clients' places are alike to one server: it is started in the same way for all of them, so they can share its processes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from taskgate.core.errors import UpstreamError
from taskgate.core.generations.generation import Generation
from taskgate.ports.credentials import FIXED_HEADERS, ServerCredentials
from taskgate.ports.upstream import LISTENER, LinkKey
from taskgate.upstreams.flight import unreachable


class Transport(Enum):
    STDIO = "stdio"
    HTTP = "http"
    OLD_SSE = "sse"


class Instances(Enum):
    """How many conversations a server is given: one, one per principal, or one per session."""

    AUTO = "auto"
    SHARED = "shared"
    PER_SESSION = "per_session"
    PER_PRINCIPAL = "per_principal"


@dataclass(frozen=True, slots=True)
class ServerSpec:
    id: str
    transport: Transport
    hide: Callable[[str], str] = field(kw_only=True, compare=False)
    """Gives a text without the secrets that the operator wrote into this entry by reference."""
    sent_secrets: frozenset[str] = field(kw_only=True, compare=False, repr=False)
    """What of the values below is secret: the server may quote it, and callers must not see it."""
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    instances: Instances = Instances.AUTO
    generation: Generation | None = None
    """Pinned by the operator; None follows each caller where the server speaks both."""
    connect_timeout_s: float = 10.0
    start_timeout_s: float = 60.0
    """For the older greeting of a program: it may install itself first (`npx`, `uvx`), and killing it would begin that again."""
    probe_timeout_s: float = 8.0
    public_only: bool = False
    """Brought along by a caller: it must not lead into this machine or a private network."""
    keeps_questions: bool = True
    """Questions that a caller cannot answer natively may wait in its inbox; otherwise they are refused."""
    asks_models: bool = False
    """A model may answer this server's sampling where its caller cannot."""
    restart_limit: int = 5
    restart_within_s: float = 60.0
    own_links: int = 16
    """How many conversations may have a process of their own where a shared one does not do."""
    owner: str = "anonymous"
    """On whose behalf a process is started that is only to list what the server offers."""
    credentials: ServerCredentials = FIXED_HEADERS
    """What proves to it who we are, where that changes over time."""
    inherits: Mapping[str, str] | None = None
    """The environment whose harmless part a child process gets; None: our own."""

    def with_settings_of(self, other: ServerSpec) -> ServerSpec:
        """This server with the settings of another that are looked up at each use, and need no new conversation."""
        return replace(
            self,
            hide=other.hide,
            sent_secrets=other.sent_secrets,
            connect_timeout_s=other.connect_timeout_s,
            start_timeout_s=other.start_timeout_s,
            probe_timeout_s=other.probe_timeout_s,
            keeps_questions=other.keeps_questions,
            asks_models=other.asks_models,
            restart_limit=other.restart_limit,
            restart_within_s=other.restart_within_s,
            own_links=other.own_links,
        )

    def leads_to_the_same(self, other: ServerSpec) -> bool:
        """Whether both name one and the same server, whatever the settings of our side are."""
        return self.with_settings_of(other) == other

    @property
    def link_per_caller(self) -> bool:
        """Whether each stateful caller has a link of its own, under its own key."""
        return self.instances is Instances.AUTO and self.transport is not Transport.STDIO

    @property
    def shares_links(self) -> bool:
        """Whether sessions of a stateful server meet on one link."""
        return instances_of(self) is not Instances.PER_SESSION

    @property
    def fingerprint(self) -> str:
        """Of where the server is found. Values of headers and variables may be secrets, so only their names count."""
        where = [
            self.transport.value,
            self.url,
            sorted(self.headers),
            self.command,
            list(self.args),
            sorted(self.env),
            self.cwd,
        ]
        return hashlib.sha256(json.dumps(where).encode()).hexdigest()


COMMON: Final = LinkKey(Generation.STATELESS)
"""The one link to a stateless server over HTTP: every request on it says for itself whose it is."""


def instances_of(spec: ServerSpec) -> Instances:
    if spec.instances is not Instances.AUTO:
        return spec.instances
    return Instances.PER_PRINCIPAL if spec.transport is Transport.STDIO else Instances.PER_SESSION


def listening_caller(spec: ServerSpec, alive: Collection[LinkKey], announcer: LinkKey | None) -> LinkKey:
    """Lists are fetched over a link of their own, but no process is started just for listening if one runs.

    Over HTTP the stateless generation is tried first: its one link is shared with the calls, and hears of changes without a
    session. A process that nobody has called yet is spoken to in the older one, as most callers do.
    """
    if spec.transport is not Transport.STDIO:
        return LinkKey(Generation.STATELESS, session=LISTENER)
    if announcer is not None and announcer in alive:
        return announcer
    principal = "" if instances_of(spec) is Instances.SHARED else spec.owner
    return next(iter(alive), LinkKey(Generation.STATEFUL, principal))


def key_in(spec: ServerSpec, caller: LinkKey, generation: Generation) -> LinkKey:
    """The key of the link that serves this caller in this generation."""
    by_stdio = spec.transport is Transport.STDIO
    if generation is Generation.STATELESS and not by_stdio:
        # Where each principal has an account of its own, no request may travel under another's.
        return COMMON if not spec.credentials.per_principal else LinkKey(generation, caller.principal)
    if generation is Generation.STATELESS or generation is not caller.generation:
        # Stateless callers are told apart by what they declare. A session's key is kept as it is: it is looked up with each call.
        caller = caller._replace(generation=generation, conversation="")
    if caller.resumes or (caller.session == LISTENER and not by_stdio):
        return caller
    if spec.link_per_caller:
        return caller
    match instances_of(spec):
        case Instances.SHARED:
            return LinkKey(generation, caller.principal if spec.credentials.per_principal else "")
        case Instances.PER_PRINCIPAL:
            return caller._replace(session="", conversation="")
        case _:
            return caller


SpecAt = Callable[[str, str], ServerSpec]
"""How a server (first argument) is started for clients at a place (second). Raises UpstreamError where it cannot be."""
_MOST_REMEMBERED: Final = 2000


def nowhere_else(server: str, place: str) -> ServerSpec:
    """For gateways without clients who stand elsewhere."""
    raise unreachable(server, f"is not served at {place}")


class Standing:
    """Maps a place to the first place that is like it; to the empty one if it is like the gateway's own."""

    def __init__(self, spec: ServerSpec, spec_at: SpecAt) -> None:
        self._spec = spec
        self._spec_at = spec_at
        self._firsts: dict[str, ServerSpec] = {"": spec}
        self._known: dict[str, str] = {"": ""}

    def adopt(self, spec: ServerSpec) -> None:
        """A reload changed settings of our side; what runs where stays as it is."""
        self._spec = spec
        self._firsts = {first: there.with_settings_of(spec) for first, there in self._firsts.items()}

    def first_like(self, place: str) -> str:
        """The place whose processes serve this one, too. A place where the server cannot be started is like no other."""
        known = self._known.get(place)
        if known is not None:
            return known
        try:
            spec = self._spec_at(self._spec.id, place)
        except UpstreamError:
            return place
        found = next((first for first, there in self._firsts.items() if there == spec), place)
        if len(self._known) < _MOST_REMEMBERED:
            self._firsts.setdefault(found, spec)
            self._known[place] = found
        return found

    def kept_as(self, caller: LinkKey) -> LinkKey:
        """The caller's key, at the place whose processes serve it."""
        return caller._replace(place=self.first_like(caller.place))

    def check(self, place: str) -> None:
        """Raises UpstreamError where the server cannot be started: that is the place's fault, not the server's."""
        self.spec(self.first_like(place))

    def spec(self, place: str) -> ServerSpec:
        """Raises UpstreamError."""
        return self._firsts[place] if place in self._firsts else self._spec_at(self._spec.id, place)

    def keep(self, present: Collection[str]) -> frozenset[str]:
        """Forget everything about other places; those whose processes are still wanted."""
        wanted = frozenset({"", *(self.first_like(place) for place in present)})
        self._firsts = {first: spec for first, spec in self._firsts.items() if first in wanted}
        self._known = {place: first for place, first in self._known.items() if first in wanted}
        return wanted
