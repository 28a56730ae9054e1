"""The `servers` section: one upstream MCP server."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

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
    Section,
    ServerId,
    Words,
)

Transport = Literal["auto", "stdio", "http", "sse"]
Instances = Literal["auto", "shared", "per_session", "per_principal"]
ProtocolGeneration = Literal["auto", "2025-11-25", "2026-07-28"]
ToolClass = Literal["once", "read", "repeatable", "keyed"]
Strictness = Literal["forward", "approve", "deny"]


def _none_for_zero(value: Any) -> Any:
    return None if value in (0, "0") else value


class Budgets(Section):
    """What one server may spend; 0 means the gateway's default."""

    tool_timeout_ms: Annotated[Milliseconds | None, BeforeValidator(_none_for_zero)] = Field(
        default=None,
        description="Longest run of one call, in milliseconds, from when it is sent; what it waits in line for its server "
        "(`max_concurrency`) is not counted. Default: 10 minutes.",
    )
    max_concurrency: Annotated[Count | None, BeforeValidator(_none_for_zero)] = Field(
        default=None,
        description="Calls and readings in flight at once; more wait in a fair queue. Default: no limit of its own.",
    )
    max_tool_output_bytes: Annotated[Bytes | None, BeforeValidator(_none_for_zero)] = Field(
        default=None, description="A longer result is cut, with a marker. Default: limits.result_bytes."
    )


class ToolTraits(Section):
    """What the operator knows about one tool."""

    tool_class: ToolClass | None = Field(
        default=None,
        alias="class",
        description="What may happen after a lost connection: once (never sent again), read, repeatable, "
        "or keyed (repeats carry an idempotency key).",
    )
    key_argument: str | None = Field(
        default=None,
        description="For class keyed: the argument that carries the idempotency key.",
    )

    @model_validator(mode="after")
    def _key_belongs_to_keyed(self) -> ToolTraits:
        if (self.tool_class == "keyed") != (self.key_argument is not None):
            raise ValueError("class keyed and key_argument go together; give both or neither")
        return self


class Expose(Section):
    """Which tools of a server are visible at all."""

    mode: Literal["all", "allowlist", "blocklist"] = Field(
        default="all",
        description="Show all, only `tools`, or all but `tools`.",
    )
    tools: Patterns = Field(default=(), description="Globs on the server's own tool names.")


class RecordApproval(Section):
    """What a server's record asks of its calls; it can only tighten what the rules say."""

    default: Strictness = Field(default="forward", description="The least strict treatment of this server's tools.")
    approval: Name | None = Field(
        default=None,
        description="The workflow to ask when `approve` applies and no rule names one.",
    )
    tools: dict[Pattern, Strictness] = Field(default_factory=dict, description="Globs with a treatment of their own.")


class Restart(Section):
    """When a child process that keeps dying is left alone for a while."""

    limit: Count = Field(default=5, description="So many crashes ...")
    within: Duration = Field(
        default=timedelta(minutes=1),
        description="... within this time stop the restarts for a minute.",
    )


class ServerAuth(Section):
    """How we prove to an HTTP server who we are, or who is calling. Tokens are fetched and renewed; callers' own never go on."""

    type: Literal["client_credentials", "authorization_code", "token_exchange", "forward_identity"] = Field(
        description="client_credentials (an account of this gateway), authorization_code (somebody's login), token_exchange "
        "(tokens in each caller's name, for a statement of ours; RFC 8693), or forward_identity (the statement itself)."
    )
    per_user: bool = Field(
        default=False,
        description="With authorization_code: each caller connects an account of their own. Otherwise all share the login "
        "made with `taskgate servers login NAME`.",
    )
    header: str = Field(
        default="Authorization",
        pattern=r"^[A-Za-z0-9-]{1,64}$",
        description="With forward_identity: the header that carries our statement.",
    )
    client_id: str | None = Field(default=None, description="Who we are to the issuer. Default: we register ourselves.")
    client_secret: str | None = Field(default=None, repr=False, description="Our secret there, such as ${env:SECRET}.")
    issuer: HttpUrl | None = Field(default=None, description="Who issues the tokens. Default: the server says.")
    token_url: HttpUrl | None = Field(default=None, description="Its token endpoint. Default: its metadata tell.")
    scope: str | None = Field(default=None, description="OAuth scopes to ask for, with spaces between.")

    @model_validator(mode="after")
    def _complete(self) -> ServerAuth:
        if self.type in ("client_credentials", "token_exchange") and None in (self.client_id, self.client_secret):
            raise ValueError(f"{self.type} needs client_id and client_secret")
        if self.per_user and self.type != "authorization_code":
            raise ValueError("per_user is for authorization_code; token_exchange and forward_identity are it anyway")
        return self


class Server(Section):
    """One MCP server."""

    command: str | None = Field(default=None, description="Program to start for a stdio server; never run by a shell.")
    args: Words = Field(default=(), description="Arguments of the program.")
    env: dict[str, str] = Field(
        default_factory=dict,
        repr=False,
        description="Variables for the program, on top of a small safe set.",
    )
    cwd: str | None = Field(default=None, description="Working directory of the program; relative to this file.")
    url: HttpUrl | None = Field(default=None, description="Address of an HTTP server.")
    headers: HeaderMap = Field(default_factory=dict, repr=False, description="Headers sent with every request.")
    auth: ServerAuth | None = Field(default=None, description="OAuth, for servers that want it.")
    transport: Transport = Field(
        default="auto",
        description="auto, stdio, http, or sse (the old HTTP+SSE of 2024-11-05).",
    )
    enabled: bool = Field(default=True, description="A disabled server is left out.")
    display_name: str | None = Field(default=None, description="A name for people.")
    tags: Words = Field(default=(), description="Words by which scopes and profiles pick servers.")
    namespace: ServerId | None = Field(
        default=None,
        description="Prefix of the tool names instead of the id (also: prefix).",
    )
    instances: Instances = Field(
        default="auto",
        description="Who shares a connection: auto (HTTP per session, stdio per principal, and per conversation once a "
        "question of the server could not be told apart), shared, per_session, per_principal.",
    )
    generation: ProtocolGeneration = Field(
        default="auto",
        description="Protocol spoken to this server: auto (the caller's, where the server speaks both), 2025-11-25 "
        "(older revisions included), or 2026-07-28.",
    )
    budgets: Budgets = Field(default_factory=Budgets, description="What this server may spend.")
    trust_annotations: bool = Field(default=False, description="Believe readOnlyHint and idempotentHint of its tools.")
    tools: dict[str, ToolTraits] = Field(
        default_factory=dict,
        description="What you know about single tools, by their own name.",
    )
    expose: Expose = Field(default_factory=Expose, description="Which tools are visible.")
    allowed_tools: Patterns = Field(default=("*",), description="Globs of the tools that may be used; [] means none.")
    approval_policy: RecordApproval = Field(
        default_factory=RecordApproval, description="May only tighten what the rules say; also a word: approve or deny."
    )
    sampling: Literal["relay", "provider", "refuse"] = Field(
        default="relay",
        description="Who answers this server's sampling: relay (the caller or the inbox), provider (a configured "
        "model may too), refuse.",
    )
    questions: Literal["inbox", "refuse"] = Field(
        default="inbox",
        description="A question that the caller cannot answer itself waits in the inbox, or is refused.",
    )
    restart: Restart = Field(default_factory=Restart, description="Limits for a program that keeps dying.")
    origin: str = Field(default="", exclude=True, description="")

    @model_validator(mode="after")
    def _one_way_in(self) -> Server:
        if (self.command is None) == (self.url is None):
            raise ValueError("needs either command (a program to start) or url (an address); give exactly one")
        if self.auth is not None and self.url is None:
            raise ValueError("auth is for servers with a url; a program gets its secrets by env")
        if self.transport == "stdio" and self.command is None:
            raise ValueError("transport stdio needs command, not url; write transport: http or leave it out")
        if self.transport in ("http", "sse") and self.url is None:
            raise ValueError(f"transport {self.transport} needs url, not command; leave transport out")
        if self.transport == "sse" and self.generation == "2026-07-28":
            raise ValueError("transport sse is older than generation 2026-07-28; leave one of them out")
        return self
