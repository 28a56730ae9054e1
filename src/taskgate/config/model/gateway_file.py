"""The root of a configuration file: every top-level key, in the order of the reference.

Attribute names are the keys, except `schema` (`schema_version`) and `validate` (`validate_arguments`), which pydantic
reserves. Values are validated one by one here; how they refer to each other is checked in `cross_references`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from taskgate.config.model.approval import Workflow
from taskgate.config.model.features import Apps, Compat, Completion, Errors, Facade
from taskgate.config.model.governance import Cedar, Governance
from taskgate.config.model.identity import Auth, Token
from taskgate.config.model.limits import Limits
from taskgate.config.model.listen import Listen, Local
from taskgate.config.model.providers import Provider
from taskgate.config.model.scopes import Scope, ScopeProfile
from taskgate.config.model.servers import Server
from taskgate.config.model.store import Audit, Secrets, Store
from taskgate.config.model.tasks import Tasks
from taskgate.config.model.telemetry import Telemetry
from taskgate.config.model.values import HttpUrl, Name, ScopeName, Section, ServerId, Words


def _first_schema(value: Any) -> Any:
    if value not in (1, "1"):
        raise ValueError("is a version this Taskgate does not know; write schema: 1")
    return 1


def _off_word(value: Any) -> Any:
    return "off" if value in ("false", "no", False) else value


def _auth_word(value: Any) -> Any:
    """`auth: none` is a word of its own, so that nobody opens a gateway to the network by a forgotten key."""
    return {"none": True} if value == "none" else value


class GatewayFile(Section):
    """A whole configuration."""

    schema_version: Annotated[Literal[1], BeforeValidator(_first_schema)] = Field(
        default=1, alias="schema", description="Version of this file's format."
    )
    profile: Literal["production", "development"] = Field(
        default="production",
        description="production enforces; development only logs what it would have denied or held, and forwards.",
    )
    environment: str | None = Field(
        default=None, description="Which of `environments` applies; $TASKGATE_ENV wins over it."
    )
    servers: dict[ServerId, Server] = Field(
        default_factory=dict,
        description="The servers by id. A pasted mcpServers block, VS Code's servers and `sources` are read too.",
    )
    registry_dir: str | None = Field(
        default=None, description="Folder of server records (*.yaml, *.json, *.toml), relative to this file."
    )
    governance: Governance = Field(default_factory=Governance, description="Rules.")
    approval: dict[Name, Workflow] = Field(default_factory=dict, description="Approval workflows by name.")
    cedar: Cedar = Field(default_factory=Cedar, description="Cedar policies.")
    profiles: dict[Name, ScopeProfile] = Field(default_factory=dict, description="Bundles of servers for scopes.")
    scopes: dict[ScopeName, Scope] = Field(
        default_factory=dict,
        description="What is served at /mcp/NAME; `default` is /mcp. Without any: one scope with all servers.",
    )
    tokens: tuple[Token, ...] = Field(
        default=(),
        description="Who may call and who may approve. As soon as there is one, a request without a token is refused.",
    )
    auth: Annotated[Auth, BeforeValidator(_auth_word)] = Field(
        default_factory=Auth, description="Issuers whose tokens are accepted, and who may come without one."
    )
    people: dict[Name, Annotated[Words, Field(min_length=1)]] = Field(
        default_factory=dict,
        description="People with several identities: each with token ids, `ISSUER#SUBJECT` and `slack:USER`. "
        "They count once, and decide on no call that they asked for under another name.",
    )
    secrets: Secrets = Field(default_factory=Secrets, description="How references to secrets may be resolved.")
    tasks: Tasks = Field(default_factory=Tasks, description="Tasks.")
    facade: Facade = Field(default_factory=Facade, description="The facade tools.")
    apps: Apps = Field(default_factory=Apps, description="MCP Apps.")
    providers: dict[Name, Provider] = Field(default_factory=dict, description="Models that may answer sampling.")
    completion: Completion = Field(default_factory=Completion, description="Argument completion.")
    limits: Limits = Field(default_factory=Limits, description="Limits.")
    pins: Annotated[Literal["off", "warn", "enforce", "strict"], BeforeValidator(_off_word)] = Field(
        default="warn",
        description="A tool whose definition changed: off, warn, enforce (quarantined), strict (new tools too).",
    )
    validate_arguments: Annotated[Literal["off", "warn", "enforce"], BeforeValidator(_off_word)] = Field(
        default="warn", alias="validate", description="Arguments and structured results against the tools' schemas."
    )
    errors: Errors = Field(default_factory=Errors, description="Numbers of errors.")
    store: Store | None = Field(
        default=None, description="Where state is kept; default: SQLite in the state directory ($TASKGATE_STATE_DIR)."
    )
    audit: Audit = Field(default_factory=Audit, description="The audit log.")
    listen: Listen = Field(default_factory=Listen, description="Where to listen.")
    local: Local = Field(default_factory=Local, description="The gateway that `taskgate stdio` starts.")
    public_url: HttpUrl | None = Field(
        default=None, description="The address people and callers reach this gateway by."
    )
    allowed_hosts: Words = Field(
        default=(), description="Host headers to accept besides loopback names and public_url."
    )
    allowed_origins: Words = Field(default=(), description="Origins to accept besides loopback and public_url.")
    telemetry: Telemetry = Field(default_factory=Telemetry, description="Logs, metrics, traces.")
    compat: Compat = Field(default_factory=Compat, description="Behaviour for particular peers.")

    @property
    def requires_identity(self) -> bool:
        """Whether callers must say who they are, apart from the one scope that may be anonymous."""
        return bool(self.tokens or self.auth.jwt or self.auth.introspection or self.auth.certificates)
