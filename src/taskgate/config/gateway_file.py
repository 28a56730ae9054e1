"""The root of a configuration file: every key that may stand at the top, in the order the reference lists them.

Attribute names are the keys, except `schema` (`schema_version`) and `validate` (`validate_arguments`), whose words
pydantic keeps for itself. Values are checked one by one here; how they refer to each other is checked in
`references`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from taskgate.config.governance import Cedar, Governance, Workflow
from taskgate.config.scopes import Auth, Scope, ScopeProfile, Token
from taskgate.config.servers import Provider, Server
from taskgate.config.switches import (
    Apps,
    Audit,
    Compat,
    Completion,
    Errors,
    Facade,
    Limits,
    Listen,
    Local,
    Secrets,
    Store,
    Tasks,
    Telemetry,
)
from taskgate.config.value_sources import absolute
from taskgate.config.words import HttpUrl, Name, ScopeName, Section, ServerId, Words


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


# Paths in a configuration: relative ones start at the file's own folder, `~` is the home folder.

_SQLITE = "sqlite:///"


def resolve_paths(root: GatewayFile, base: Path) -> GatewayFile:
    """The configuration with every path made absolute."""
    cedar = root.cedar.model_copy(
        update={
            "policies": tuple(absolute(policy, base) for policy in root.cedar.policies),
            "entities": absolute(root.cedar.entities, base) if root.cedar.entities else None,
        }
    )
    store = root.store
    if store is not None and store.url.startswith(_SQLITE) and store.url != f"{_SQLITE}:memory:":
        file = absolute(store.url.removeprefix(_SQLITE), base)
        store = store.model_copy(update={"url": f"{_SQLITE}{file}"})
    return root.model_copy(
        update={
            "cedar": cedar,
            "listen": _listen(root.listen, base),
            "store": store,
            "registry_dir": absolute(root.registry_dir, base) if root.registry_dir else None,
            "servers": {name: _server(server, base) for name, server in root.servers.items()},
            "providers": {name: _provider(provider, base) for name, provider in root.providers.items()},
        }
    )


def _listen(listen: Listen, base: Path) -> Listen:
    if listen.tls is None:
        return listen
    files = {name: getattr(listen.tls, name) for name in ("cert", "key", "client_ca")}
    tls = listen.tls.model_copy(update={name: absolute(file, base) for name, file in files.items() if file is not None})
    return listen.model_copy(update={"tls": tls})


def _server(server: Server, base: Path) -> Server:
    return server.model_copy(update={"cwd": absolute(server.cwd, base)}) if server.cwd else server


def _provider(provider: Provider, base: Path) -> Provider:
    if provider.api_key_file is None:
        return provider
    return provider.model_copy(update={"api_key_file": absolute(provider.api_key_file, base)})
