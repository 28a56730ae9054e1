"""What a configured server is, as far as connecting to it needs to know."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from taskgate.core.generations import Generation


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
    probe_timeout_s: float = 8.0
    public_only: bool = False
    """Brought along by a caller: it must not lead into this machine or a private network."""
    keeps_questions: bool = True
    """Questions that a caller cannot answer natively may wait in its inbox; otherwise they are refused."""
    asks_models: bool = False
    """A model may answer this server's sampling where its caller cannot."""
    restart_limit: int = 5
    restart_within_s: float = 60.0
    owner: str = "anonymous"
    """On whose behalf a process is started that is only to list what the server offers."""
    inherits: Mapping[str, str] | None = None
    """The environment whose harmless part a child process gets; None: our own."""

    def with_settings_of(self, other: ServerSpec) -> ServerSpec:
        """This server with the settings of another that are looked up at each use, and need no new conversation."""
        return replace(
            self,
            connect_timeout_s=other.connect_timeout_s,
            probe_timeout_s=other.probe_timeout_s,
            keeps_questions=other.keeps_questions,
            asks_models=other.asks_models,
            restart_limit=other.restart_limit,
            restart_within_s=other.restart_within_s,
        )

    def leads_to_the_same(self, other: ServerSpec) -> bool:
        """Whether both name one and the same server, whatever the settings of our side are."""
        return self.with_settings_of(other) == other

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
