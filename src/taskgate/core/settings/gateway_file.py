"""The root of a configuration file: every top-level key, in the order of the reference.

Attribute names are the keys, except `schema` (`schema_version`) and `validate` (`validate_arguments`).
Values are validated one by one here; how they refer to each other is checked in `cross_references`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from taskgate.core.settings.approval import Workflow
from taskgate.core.settings.features import Apps, Compat, Completion, Errors, Facade
from taskgate.core.settings.governance import Cedar, Governance
from taskgate.core.settings.history import History
from taskgate.core.settings.identity import Auth, Token
from taskgate.core.settings.limits import Limits
from taskgate.core.settings.listen import Listen, Local
from taskgate.core.settings.providers import Provider
from taskgate.core.settings.scopes import Scope, ScopeProfile
from taskgate.core.settings.section import Section, read_by
from taskgate.core.settings.servers import Server
from taskgate.core.settings.store import Audit, Secrets, Store
from taskgate.core.settings.tasks import Tasks
from taskgate.core.settings.telemetry import Telemetry
from taskgate.core.settings.values import HttpUrl, Name, ScopeName, ServerId, Strings


def _first_schema(text: str) -> int:
    if text != "1":
        raise ValueError("is not a supported version; write schema: 1")
    return 1


def _off_word(word: str) -> str:
    return "off" if word in ("false", "no") else word


class GatewayFile(Section):
    """The top level of a configuration file."""

    schema_version: Annotated[Literal[1], read_by(_first_schema), Meta(description="Version of the file format.")] = (
        field(name="schema", default=1)
    )
    profile: Annotated[
        Literal["production", "development"],
        Meta(
            description="`production` enforces the rules; `development` forwards every call and only logs what it would have "
            "denied or held."
        ),
    ] = "production"
    environment: Annotated[
        str | None, Meta(description="Which entry of `environments` applies. `$TASKGATE_ENV` overrides it.")
    ] = None
    servers: Annotated[
        dict[ServerId, Server],
        Meta(
            description="Upstream servers by id. A pasted `mcpServers` block, VS Code's `servers` and `sources` are accepted "
            "too."
        ),
    ] = field(default_factory=dict)
    registry_dir: Annotated[
        str | None, Meta(description="Folder of server records (`*.yaml`, `*.json`, `*.toml`), relative to this file.")
    ] = None
    governance: Annotated[Governance, Meta(description="Rules that forward, hold or deny calls.")] = Governance()
    approval: Annotated[dict[Name, Workflow], Meta(description="Approval workflows by name.")] = field(
        default_factory=dict
    )
    cedar: Annotated[Cedar, Meta(description="Cedar policies.")] = Cedar()
    profiles: Annotated[dict[Name, ScopeProfile], Meta(description="Named sets of servers and tools for scopes.")] = (
        field(default_factory=dict)
    )
    scopes: Annotated[
        dict[ScopeName, Scope],
        Meta(
            description="Sets of tools that are served at `/mcp/NAME`; `default` is `/mcp`. Without any: one scope with all "
            "servers."
        ),
    ] = field(default_factory=dict)
    tokens: Annotated[
        tuple[Token, ...],
        Meta(
            description="Bearer tokens of callers and approvers. With at least one, requests without a token are refused."
        ),
    ] = ()
    auth: Annotated[
        Auth,
        Meta(description="Token issuers, certificates, and exceptions from authentication."),
    ] = Auth()
    people: Annotated[
        dict[Name, Annotated[Strings, Meta(min_length=1)]],
        Meta(
            description="People with several identities: a list of token ids, `ISSUER#SUBJECT` and `slack:USER` for each. A "
            "person counts as one approver and cannot approve a call made under another of their identities. One "
            "identity with a tenant limits the person to that tenant under all of them."
        ),
    ] = field(default_factory=dict)
    secrets: Annotated[Secrets, Meta(description="How references to secrets are resolved.")] = Secrets()
    tasks: Annotated[Tasks, Meta(description="Tasks.")] = Tasks()
    facade: Annotated[Facade, Meta(description="Facade tools.")] = Facade()
    apps: Annotated[Apps, Meta(description="MCP Apps.")] = Apps()
    providers: Annotated[
        dict[Name, Provider], Meta(description="Language models that may answer sampling requests.")
    ] = field(default_factory=dict)
    completion: Annotated[Completion, Meta(description="Argument completion.")] = Completion()
    limits: Annotated[Limits, Meta(description="Limits on requests, sessions, tasks and buffers.")] = Limits()
    pins: Annotated[
        Literal["off", "warn", "enforce", "strict"],
        read_by(_off_word),
        Meta(
            description="What happens when the definition of a tool changes. `warn`: log it; `enforce`: hide the tool until "
            "the change is accepted; `strict`: also hide new tools; `off`: nothing."
        ),
    ] = "warn"
    validate_arguments: Annotated[
        Literal["off", "warn", "enforce"],
        read_by(_off_word),
        Meta(
            description="Validate arguments and structured results against the tools' schemas: `off`, `warn` (log only), or "
            "`enforce` (refuse)."
        ),
    ] = field(name="validate", default="warn")
    errors: Annotated[Errors, Meta(description="JSON-RPC error codes.")] = Errors()
    store: Annotated[
        Store | None,
        Meta(description="Where state is stored. Default: SQLite in the state directory (`$TASKGATE_STATE_DIR`)."),
    ] = None
    history: Annotated[History, Meta(description="History of finished calls.")] = History()
    audit: Annotated[Audit, Meta(description="Audit log.")] = Audit()
    listen: Annotated[Listen, Meta(description="Listen address.")] = Listen()
    local: Annotated[Local, Meta(description="The local gateway that `taskgate stdio` starts.")] = Local()
    public_url: Annotated[
        HttpUrl | None,
        Meta(
            description="Public URL of this gateway, for example `https://gateway.example`. Used in links and as the OAuth "
            "resource."
        ),
    ] = None
    allowed_hosts: Annotated[
        Strings, Meta(description="Accepted `Host` headers, in addition to loopback names and `public_url`.")
    ] = ()
    allowed_origins: Annotated[
        Strings, Meta(description="Accepted `Origin` headers, in addition to loopback and `public_url`.")
    ] = ()
    telemetry: Annotated[Telemetry, Meta(description="Logs, metrics and traces.")] = Telemetry()
    compat: Annotated[Compat, Meta(description="Compatibility with particular clients and servers.")] = Compat()

    @property
    def requires_identity(self) -> bool:
        """Whether callers must authenticate, except in the anonymous scope."""
        return bool(self.tokens or self.auth.jwt or self.auth.introspection or self.auth.certificates)
