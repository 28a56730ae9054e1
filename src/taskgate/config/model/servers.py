"""The `servers` section: one upstream MCP server."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Literal

from taskgate.config.model.values import (
    Bytes,
    Count,
    Duration,
    HeaderMap,
    HttpUrl,
    Milliseconds,
    Name,
    Pattern,
    Patterns,
    ServerId,
    Strings,
)
from taskgate.config.sections import BeforeValidator, Field, Section, model_validator

Transport = Literal["auto", "stdio", "http", "sse"]
Instances = Literal["auto", "shared", "per_session", "per_principal"]
ProtocolGeneration = Literal["auto", "2025-11-25", "2026-07-28"]
ToolClass = Literal["once", "read", "repeatable", "keyed"]
Strictness = Literal["forward", "approve", "deny"]


def _none_for_zero(value: Any) -> Any:
    return None if value in (0, "0") else value


class Budgets(Section):
    """Time, concurrency and output limits of one server. 0 means the default."""

    tool_timeout_ms: Annotated[Milliseconds | None, BeforeValidator(_none_for_zero)] = Field(
        default=None,
        description="Longest run of one call, from when it is sent. Waiting for `max_concurrency` does not count. Default: 10 "
        "minutes.",
    )
    max_concurrency: Annotated[Count | None, BeforeValidator(_none_for_zero)] = Field(
        default=None,
        description="Concurrent calls and reads. Further ones wait in a fair queue. Default: no limit.",
    )
    max_tool_output_bytes: Annotated[Bytes | None, BeforeValidator(_none_for_zero)] = Field(
        default=None, description="Longer results are truncated, with a marker. Default: `limits.result_bytes`."
    )


class ToolTraits(Section):
    """Properties of one tool that the server does not declare reliably."""

    tool_class: ToolClass | None = Field(
        default=None,
        alias="class",
        description="What the gateway may do after a lost connection: `once` (never resend), `read`, `repeatable`, or `keyed` "
        "(resend with an idempotency key).",
    )
    key_argument: str | None = Field(
        default=None,
        description="With `class: keyed`: the argument that carries the idempotency key.",
    )

    @model_validator
    def _check_key_argument(self) -> ToolTraits:
        if (self.tool_class == "keyed") != (self.key_argument is not None):
            raise ValueError("class: keyed and key_argument require each other; set both or neither")
        return self


class Expose(Section):
    """Which tools of a server are visible."""

    mode: Literal["all", "allowlist", "blocklist"] = Field(
        default="all",
        description="`all`; `allowlist`: only `tools`; `blocklist`: all but `tools`.",
    )
    tools: Patterns = Field(default=(), description="Globs on the server's own tool names.")


class RecordApproval(Section):
    """A minimum strictness for this server's tools. It can only tighten what the rules decide."""

    default: Strictness = Field(default="forward", description="Minimum strictness for all tools of this server.")
    approval: Name | None = Field(
        default=None,
        description="Workflow when `approve` applies and no rule names one.",
    )
    tools: dict[Pattern, Strictness] = Field(default_factory=dict, description="Minimum strictness by tool (globs).")


class Restart(Section):
    """When a crashing server process is no longer restarted for a while."""

    limit: Count = Field(
        default=5, description="Stop restarting for one minute after this many crashes within `within`."
    )
    within: Duration = Field(
        default=timedelta(minutes=1),
        description="Period in which crashes are counted.",
    )


class ServerAuth(Section):
    """How the gateway authenticates to an HTTP server.

    Tokens are obtained and renewed automatically; a caller's own token is never forwarded.
    """

    type: Literal["client_credentials", "authorization_code", "token_exchange", "forward_identity"] = Field(
        description="`client_credentials`: the gateway's own account; `authorization_code`: a user's login; `token_exchange`: "
        "a token for each caller, exchanged for an assertion of the gateway (RFC 8693); `forward_identity`: the "
        "assertion itself."
    )
    per_user: bool = Field(
        default=False,
        description="With `authorization_code`: each caller connects their own account. Otherwise all share the login made "
        "with `taskgate servers login NAME`.",
    )
    header: str = Field(
        default="Authorization",
        pattern=r"^[A-Za-z0-9-]{1,64}$",
        description="With `forward_identity`: the header that carries the assertion.",
    )
    client_id: str | None = Field(
        default=None, description="Client id of the gateway at the issuer. Default: dynamic registration."
    )
    client_secret: str | None = Field(
        default=None, repr=False, description="Client secret, by reference, for example `${env:SECRET}`."
    )
    issuer: HttpUrl | None = Field(
        default=None, description="Issuer of the tokens. Default: from the server's metadata."
    )
    token_url: HttpUrl | None = Field(default=None, description="Token endpoint. Default: from the issuer's metadata.")
    scope: str | None = Field(default=None, description="OAuth scopes to request, separated by spaces.")

    @model_validator
    def _check_type(self) -> ServerAuth:
        if self.type in ("client_credentials", "token_exchange") and None in (self.client_id, self.client_secret):
            raise ValueError(f"type {self.type} needs client_id and client_secret; add them")
        if self.per_user and self.type != "authorization_code":
            raise ValueError(
                "per_user applies only to authorization_code; remove it (token_exchange and forward_identity are per user)"
            )
        return self


class Server(Section):
    """One upstream MCP server: a program (`command`) or an address (`url`)."""

    command: str | None = Field(default=None, description="Program of a stdio server. Never run by a shell.")
    args: Strings = Field(default=(), description="Arguments of the program.")
    env: dict[str, str] = Field(
        default_factory=dict,
        repr=False,
        description="Environment variables for the program, in addition to a small safe set.",
    )
    cwd: str | None = Field(default=None, description="Working directory of the program, relative to this file.")
    url: HttpUrl | None = Field(
        default=None, description="Address of an HTTP server, for example `https://host.example/mcp`."
    )
    headers: HeaderMap = Field(
        default_factory=dict, repr=False, description="Headers that are sent with every request."
    )
    auth: ServerAuth | None = Field(default=None, description="OAuth, for servers that require it.")
    transport: Transport = Field(
        default="auto",
        description="`auto`, `stdio`, `http`, or `sse` (HTTP+SSE of 2024-11-05).",
    )
    enabled: bool = Field(default=True, description="A disabled server is skipped.")
    display_name: str | None = Field(default=None, description="Name that is shown to people.")
    tags: Strings = Field(default=(), description="Tags by which scopes and profiles select servers.")
    namespace: ServerId | None = Field(
        default=None,
        description="Prefix of the tool names instead of the id (alias: `prefix`).",
    )
    instances: Instances = Field(
        default="auto",
        description="Who shares a connection. `shared`: all callers; `per_session`; `per_principal`; `auto`: HTTP per session, "
        "stdio per principal, but not one process for two conversations whose clients can be asked, unless the server "
        "asks nothing, and one process per conversation after a question could not be assigned to a caller.",
    )
    generation: ProtocolGeneration = Field(
        default="auto",
        description="Protocol generation to use with this server. `auto`: the caller's, where the server supports both; "
        "`2025-11-25` includes older revisions.",
    )
    budgets: Budgets = Field(
        default_factory=Budgets.model_construct, description="Time, concurrency and output limits."
    )
    trust_annotations: bool = Field(
        default=False, description="Trust the `readOnlyHint` and `idempotentHint` of its tools."
    )
    tools: dict[str, ToolTraits] = Field(
        default_factory=dict,
        description="Properties of single tools, by their own names.",
    )
    expose: Expose = Field(default_factory=Expose.model_construct, description="Which tools are visible.")
    allowed_tools: Patterns = Field(default=("*",), description="Tools (globs) that may be used; `[]` allows none.")
    approval_policy: RecordApproval = Field(
        default_factory=RecordApproval.model_construct,
        description="Minimum strictness. Also accepts a single word: `approve` or `deny`.",
    )
    sampling: Literal["relay", "provider", "refuse"] = Field(
        default="relay",
        description="Who answers this server's sampling requests. `relay`: the caller or the inbox; `provider`: also a model "
        "from `providers`; `refuse`: they are refused.",
    )
    questions: Literal["inbox", "refuse"] = Field(
        default="inbox",
        description="What happens to a question that the caller cannot answer: it waits in the `inbox`, or is refused.",
    )
    restart: Restart = Field(
        default_factory=Restart.model_construct, description="When a crashing process is no longer restarted."
    )
    origin: str = Field(default="", exclude=True, description="")

    @model_validator
    def _check_transport(self) -> Server:
        if (self.command is None) == (self.url is None):
            raise ValueError("needs either command (a program to start) or url (an address); set exactly one")
        if self.auth is not None and self.url is None:
            raise ValueError("auth applies only to servers with a url; pass secrets to a program with env")
        if self.transport == "stdio" and self.command is None:
            raise ValueError("transport stdio needs command, not url; write transport: http or remove transport")
        if self.transport in ("http", "sse") and self.url is None:
            raise ValueError(f"transport {self.transport} needs url, not command; remove transport")
        if self.transport == "sse" and self.generation == "2026-07-28":
            raise ValueError("transport sse does not support generation 2026-07-28; remove one of them")
        return self
