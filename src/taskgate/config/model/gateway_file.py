"""The root of a configuration file: every top-level key, in the order of the reference.

Attribute names are the keys, except `schema` (`schema_version`) and `validate` (`validate_arguments`).
Values are validated one by one here; how they refer to each other is checked in `cross_references`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from taskgate.config.model.approval import Workflow
from taskgate.config.model.features import Apps, Compat, Completion, Errors, Facade
from taskgate.config.model.governance import Cedar, Governance
from taskgate.config.model.history import History
from taskgate.config.model.identity import Auth, Token
from taskgate.config.model.limits import Limits
from taskgate.config.model.listen import Listen, Local
from taskgate.config.model.providers import Provider
from taskgate.config.model.scopes import Scope, ScopeProfile
from taskgate.config.model.servers import Server
from taskgate.config.model.store import Audit, Secrets, Store
from taskgate.config.model.tasks import Tasks
from taskgate.config.model.telemetry import Telemetry
from taskgate.config.model.values import HttpUrl, Name, ScopeName, ServerId, Strings
from taskgate.config.sections import BeforeValidator, Field, Section


def _first_schema(value: Any) -> Any:
    if value not in (1, "1"):
        raise ValueError("is not a supported version; write schema: 1")
    return 1


def _off_word(value: Any) -> Any:
    return "off" if value in ("false", "no", False) else value


def _auth_word(value: Any) -> Any:
    """Accept `auth: none`. It is explicit, so that a missing key never opens a gateway to the network."""
    return {"none": True} if value == "none" else value


class GatewayFile(Section):
    """The top level of a configuration file."""

    schema_version: Annotated[Literal[1], BeforeValidator(_first_schema)] = Field(
        default=1, alias="schema", description="Version of the file format."
    )
    profile: Literal["production", "development"] = Field(
        default="production",
        description="`production` enforces the rules; `development` forwards every call and only logs what it would have "
        "denied or held.",
    )
    environment: str | None = Field(
        default=None, description="Which entry of `environments` applies. `$TASKGATE_ENV` overrides it."
    )
    servers: dict[ServerId, Server] = Field(
        default_factory=dict,
        description="Upstream servers by id. A pasted `mcpServers` block, VS Code's `servers` and `sources` are accepted too.",
    )
    registry_dir: str | None = Field(
        default=None, description="Folder of server records (`*.yaml`, `*.json`, `*.toml`), relative to this file."
    )
    governance: Governance = Field(
        default_factory=Governance.model_construct, description="Rules that forward, hold or deny calls."
    )
    approval: dict[Name, Workflow] = Field(default_factory=dict, description="Approval workflows by name.")
    cedar: Cedar = Field(default_factory=Cedar.model_construct, description="Cedar policies.")
    profiles: dict[Name, ScopeProfile] = Field(
        default_factory=dict, description="Named sets of servers and tools for scopes."
    )
    scopes: dict[ScopeName, Scope] = Field(
        default_factory=dict,
        description="Sets of tools that are served at `/mcp/NAME`; `default` is `/mcp`. Without any: one scope with all "
        "servers.",
    )
    tokens: tuple[Token, ...] = Field(
        default=(),
        description="Bearer tokens of callers and approvers. With at least one, requests without a token are refused.",
    )
    auth: Annotated[Auth, BeforeValidator(_auth_word)] = Field(
        default_factory=Auth.model_construct,
        description="Token issuers, certificates, and exceptions from authentication.",
    )
    people: dict[Name, Annotated[Strings, Field(min_length=1)]] = Field(
        default_factory=dict,
        description="People with several identities: a list of token ids, `ISSUER#SUBJECT` and `slack:USER` for each. A person "
        "counts as one approver and cannot approve a call made under another of their identities. One identity with a tenant "
        "limits the person to that tenant under all of them.",
    )
    secrets: Secrets = Field(
        default_factory=Secrets.model_construct, description="How references to secrets are resolved."
    )
    tasks: Tasks = Field(default_factory=Tasks.model_construct, description="Tasks.")
    facade: Facade = Field(default_factory=Facade.model_construct, description="Facade tools.")
    apps: Apps = Field(default_factory=Apps.model_construct, description="MCP Apps.")
    providers: dict[Name, Provider] = Field(
        default_factory=dict, description="Language models that may answer sampling requests."
    )
    completion: Completion = Field(default_factory=Completion.model_construct, description="Argument completion.")
    limits: Limits = Field(
        default_factory=Limits.model_construct, description="Limits on requests, sessions, tasks and buffers."
    )
    pins: Annotated[Literal["off", "warn", "enforce", "strict"], BeforeValidator(_off_word)] = Field(
        default="warn",
        description="What happens when the definition of a tool changes. `warn`: log it; `enforce`: hide the tool until the "
        "change is accepted; `strict`: also hide new tools; `off`: nothing.",
    )
    validate_arguments: Annotated[Literal["off", "warn", "enforce"], BeforeValidator(_off_word)] = Field(
        default="warn",
        alias="validate",
        description="Validate arguments and structured results against the tools' schemas: `off`, `warn` (log only), or "
        "`enforce` (refuse).",
    )
    errors: Errors = Field(default_factory=Errors.model_construct, description="JSON-RPC error codes.")
    store: Store | None = Field(
        default=None,
        description="Where state is stored. Default: SQLite in the state directory (`$TASKGATE_STATE_DIR`).",
    )
    history: History = Field(default_factory=History.model_construct, description="History of finished calls.")
    audit: Audit = Field(default_factory=Audit.model_construct, description="Audit log.")
    listen: Listen = Field(default_factory=Listen.model_construct, description="Listen address.")
    local: Local = Field(
        default_factory=Local.model_construct, description="The local gateway that `taskgate stdio` starts."
    )
    public_url: HttpUrl | None = Field(
        default=None,
        description="Public URL of this gateway, for example `https://gateway.example`. Used in links and as the OAuth "
        "resource.",
    )
    allowed_hosts: Strings = Field(
        default=(), description="Accepted `Host` headers, in addition to loopback names and `public_url`."
    )
    allowed_origins: Strings = Field(
        default=(), description="Accepted `Origin` headers, in addition to loopback and `public_url`."
    )
    telemetry: Telemetry = Field(default_factory=Telemetry.model_construct, description="Logs, metrics and traces.")
    compat: Compat = Field(
        default_factory=Compat.model_construct, description="Compatibility with particular clients and servers."
    )

    @property
    def requires_identity(self) -> bool:
        """Whether callers must authenticate, except in the anonymous scope."""
        return bool(self.tokens or self.auth.jwt or self.auth.introspection or self.auth.certificates)
