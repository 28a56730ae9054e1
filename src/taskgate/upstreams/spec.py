"""The description of a configured server that is needed to connect to it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from enum import Enum

import msgspec
from msgspec.structs import replace

from taskgate.core.generations.generation import Generation
from taskgate.ports.upstream_credentials import FIXED_HEADERS, ServerCredentials
from taskgate.shown_fields import repr_without


class Transport(Enum):
    STDIO = "stdio"
    HTTP = "http"
    OLD_SSE = "sse"


class Instances(Enum):
    """How many sessions or processes of a server there are: one, one per principal, or one per session."""

    AUTO = "auto"
    SHARED = "shared"
    PER_SESSION = "per_session"
    PER_PRINCIPAL = "per_principal"


class ServerSpec(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    transport: Transport
    hide: Callable[[str], str]
    """Removes the secrets that this entry references from a text."""
    sent_secrets: frozenset[str]
    """The secret values among those below. The server may echo them, and callers must not see them."""
    url: str = ""
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = msgspec.field(default_factory=dict)
    cwd: str | None = None
    instances: Instances = Instances.AUTO
    generation: Generation | None = None
    """Pinned in the configuration; None: that of each caller, if the server supports both."""
    connect_timeout_s: float = 10.0
    start_timeout_s: float = 60.0
    """Timeout of the stateful handshake of a process, which may install itself first (`npx`, `uvx`)."""
    probe_timeout_s: float = 8.0
    public_only: bool = False
    """Added by a caller: it must not be on this machine or in a private network."""
    keeps_questions: bool = True
    """Whether requests that a caller cannot answer natively wait in its inbox instead of being rejected."""
    uses_models: bool = False
    """Whether a model may answer this server's sampling requests if the caller cannot."""
    restart_limit: int = 5
    restart_within_s: float = 60.0
    own_links: int = 16
    """The maximum number of separate processes for conversations that cannot share one."""
    owner: str = "anonymous"
    """The principal of a process that is started only to fetch lists."""
    credentials: ServerCredentials = FIXED_HEADERS
    """Credentials that change over time."""
    inherits: Mapping[str, str] | None = None
    """The environment whose safe part a child process receives; None: that of the gateway."""

    __repr__ = repr_without("sent_secrets")

    def __eq__(self, other: object) -> bool:
        """`hide` and `sent_secrets` belong to one reading of the configuration; what they come from is in the other fields."""
        return isinstance(other, ServerSpec) and _compared(self) == _compared(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def with_settings_of(self, other: ServerSpec) -> ServerSpec:
        """Return this server with those settings of another that need no new connection."""
        return replace(
            self,
            hide=other.hide,
            sent_secrets=other.sent_secrets,
            connect_timeout_s=other.connect_timeout_s,
            start_timeout_s=other.start_timeout_s,
            probe_timeout_s=other.probe_timeout_s,
            keeps_questions=other.keeps_questions,
            uses_models=other.uses_models,
            restart_limit=other.restart_limit,
            restart_within_s=other.restart_within_s,
            own_links=other.own_links,
        )

    def is_same_server(self, other: ServerSpec) -> bool:
        """Return whether both describe the same server, apart from settings that need no new connection."""
        return self.with_settings_of(other) == other

    def equals(self, other: ServerSpec) -> bool:
        """Return whether both are the same, apart from how secrets are removed from texts."""
        return replace(self, hide=other.hide, sent_secrets=other.sent_secrets) == other

    @property
    def link_per_caller(self) -> bool:
        """Whether each stateful caller has its own link under its own key."""
        return self.instances is Instances.AUTO and self.transport is not Transport.STDIO

    @property
    def shares_links(self) -> bool:
        """Whether several sessions share a link to a stateful server."""
        return instances_of(self) is not Instances.PER_SESSION

    @property
    def fingerprint(self) -> str:
        """A digest of the server's location. Only the names of headers and variables count, because values may be secret."""
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


def instances_of(spec: ServerSpec) -> Instances:
    if spec.instances is not Instances.AUTO:
        return spec.instances
    return Instances.PER_PRINCIPAL if spec.transport is Transport.STDIO else Instances.PER_SESSION


def _compared(spec: ServerSpec) -> list[object]:
    return [getattr(spec, name) for name in spec.__struct_fields__ if name not in ("hide", "sent_secrets")]
