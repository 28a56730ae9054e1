"""The `servers` section: one upstream MCP server."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from taskgate.core.risk import Risk
from taskgate.core.settings.durations import duration
from taskgate.core.settings.section import SECRET, Section, read_by
from taskgate.core.settings.values import (
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
from taskgate.core.tool_class import ToolClass

Transport = Literal["auto", "stdio", "http", "sse"]
Instances = Literal["auto", "shared", "per_session", "per_principal"]
ProtocolGeneration = Literal["auto", "2025-11-25", "2026-07-28"]
Strictness = Literal["forward", "approve", "deny"]


def _none_for_zero(text: str) -> str | None:
    return None if text == "0" else text


class Budgets(Section):
    """Time, concurrency and output limits of one server. 0 means the default."""

    tool_timeout_ms: Annotated[
        Milliseconds | None,
        read_by(_none_for_zero),
        Meta(
            description="Longest run of one call, from when it is sent. Waiting for `max_concurrency` does not count. "
            "Default: 10 minutes."
        ),
    ] = None
    max_concurrency: Annotated[
        Count | None,
        read_by(_none_for_zero),
        Meta(description="Concurrent calls and reads. Further ones wait in a fair queue. Default: no limit."),
    ] = None
    max_tool_output_bytes: Annotated[
        Bytes | None,
        read_by(_none_for_zero),
        Meta(description="Longer results are truncated, with a marker. Default: `limits.result_bytes`."),
    ] = None


class ToolTraits(Section):
    """Properties of one tool that the server does not declare reliably."""

    tool_class: Annotated[
        ToolClass | None,
        Meta(
            description="What the gateway may do after a lost connection: `once` (never resend), `read`, `repeatable`, or "
            "`keyed` (resend with an idempotency key)."
        ),
    ] = field(name="class", default=None)
    key_argument: Annotated[
        str | None, Meta(description="With `class: keyed`: the argument that carries the idempotency key.")
    ] = None

    risk: Annotated[
        Risk | None,
        Meta(
            description="How much the tool can change: `reads`, `writes`, `undeclared` or `destructive`. Default: what the server "
            "declares, if `trust_annotations` is on; otherwise `destructive` if it declares that, else `undeclared`."
        ),
    ] = None

    def __post_init__(self) -> None:
        if (self.tool_class is ToolClass.KEYED) != (self.key_argument is not None):
            raise ValueError("class: keyed and key_argument require each other; set both or neither")


class Expose(Section):
    """Which tools of a server are visible."""

    mode: Annotated[
        Literal["all", "allowlist", "blocklist"],
        Meta(description="`all`; `allowlist`: only `tools`; `blocklist`: all but `tools`."),
    ] = "all"
    tools: Annotated[Patterns, Meta(description="Globs on the server's own tool names.")] = ()


class RecordApproval(Section):
    """A minimum strictness for this server's tools. It can only tighten what the rules decide."""

    default: Annotated[Strictness, Meta(description="Minimum strictness for all tools of this server.")] = "forward"
    approval: Annotated[Name | None, Meta(description="Workflow when `approve` applies and no rule names one.")] = None
    tools: Annotated[dict[Pattern, Strictness], Meta(description="Minimum strictness by tool (globs).")] = field(
        default_factory=dict
    )


class Restart(Section):
    """When a crashing server process is no longer restarted for a while."""

    limit: Annotated[
        Count, Meta(description="Stop restarting for one minute after this many crashes within `within`.")
    ] = 5
    within: Annotated[Duration, Meta(description="Period in which crashes are counted.")] = duration("1m")


class ServerAuth(Section):
    """How the gateway authenticates to an HTTP server.

    Tokens are obtained and renewed automatically; a caller's own token is never forwarded.
    """

    type: Annotated[
        Literal["client_credentials", "authorization_code", "token_exchange", "forward_identity"],
        Meta(
            description="`client_credentials`: the gateway's own account; `authorization_code`: a user's login; "
            "`token_exchange`: a token for each caller, exchanged for an assertion of the gateway (RFC 8693); "
            "`forward_identity`: the assertion itself."
        ),
    ]
    per_user: Annotated[
        bool,
        Meta(
            description="With `authorization_code`: each caller connects their own account. Otherwise all share the login "
            "made with `taskgate servers login NAME`."
        ),
    ] = False
    header: Annotated[
        str,
        Meta(
            pattern="^[A-Za-z0-9-]{1,64}$",
            description="With `forward_identity`: the header that carries the assertion.",
        ),
    ] = "Authorization"
    client_id: Annotated[
        str | None, Meta(description="Client id of the gateway at the issuer. Default: dynamic registration.")
    ] = None
    client_secret: Annotated[
        str | None,
        Meta(extra=SECRET, description="Client secret, by reference, for example `${env:SECRET}`."),
    ] = None
    issuer: Annotated[
        HttpUrl | None, Meta(description="Issuer of the tokens. Default: from the server's metadata.")
    ] = None
    token_url: Annotated[HttpUrl | None, Meta(description="Token endpoint. Default: from the issuer's metadata.")] = (
        None
    )
    scope: Annotated[str | None, Meta(description="OAuth scopes to request, separated by spaces.")] = None

    def __post_init__(self) -> None:
        if self.type in ("client_credentials", "token_exchange") and None in (self.client_id, self.client_secret):
            raise ValueError(f"type {self.type} needs client_id and client_secret; add them")
        if self.per_user and self.type != "authorization_code":
            raise ValueError(
                "per_user applies only to authorization_code; remove it (token_exchange and forward_identity are per user)"
            )


class Server(Section):
    """One upstream MCP server: a program (`command`) or an address (`url`)."""

    command: Annotated[str | None, Meta(description="Program of a stdio server. Never run by a shell.")] = None
    args: Annotated[Strings, Meta(description="Arguments of the program.")] = ()
    env: Annotated[
        dict[str, str],
        Meta(
            extra=SECRET,
            description="Environment variables for the program, in addition to a small safe set.",
        ),
    ] = field(default_factory=dict)
    cwd: Annotated[str | None, Meta(description="Working directory of the program, relative to this file.")] = None
    url: Annotated[
        HttpUrl | None, Meta(description="Address of an HTTP server, for example `https://host.example/mcp`.")
    ] = None
    headers: Annotated[HeaderMap, Meta(extra=SECRET, description="Headers that are sent with every request.")] = field(
        default_factory=dict
    )
    auth: Annotated[ServerAuth | None, Meta(description="OAuth, for servers that require it.")] = None
    transport: Annotated[Transport, Meta(description="`auto`, `stdio`, `http`, or `sse` (HTTP+SSE of 2024-11-05).")] = (
        "auto"
    )
    enabled: Annotated[bool, Meta(description="A disabled server is skipped.")] = True
    display_name: Annotated[str | None, Meta(description="Name that is shown to people.")] = None
    tags: Annotated[Strings, Meta(description="Tags by which scopes and profiles select servers.")] = ()
    namespace: Annotated[
        ServerId | None, Meta(description="Prefix of the tool names instead of the id (alias: `prefix`).")
    ] = None
    instances: Annotated[
        Instances,
        Meta(
            description="Who shares a connection. `shared`: all callers; `per_session`; `per_principal`; `auto`: HTTP per "
            "session, stdio per principal, but not one process for two conversations whose clients can be asked, "
            "unless the server asks nothing, and one process per conversation after a question could not be "
            "assigned to a caller."
        ),
    ] = "auto"
    generation: Annotated[
        ProtocolGeneration,
        Meta(
            description="Protocol generation to use with this server. `auto`: the caller's, where the server supports both; "
            "`2025-11-25` includes older revisions."
        ),
    ] = "auto"
    budgets: Annotated[Budgets, Meta(description="Time, concurrency and output limits.")] = Budgets()
    trust_annotations: Annotated[
        bool, Meta(description="Trust the `readOnlyHint` and `idempotentHint` of its tools.")
    ] = False
    tools: Annotated[dict[str, ToolTraits], Meta(description="Properties of single tools, by their own names.")] = (
        field(default_factory=dict)
    )
    expose: Annotated[Expose, Meta(description="Which tools are visible.")] = Expose()
    allowed_tools: Annotated[Patterns, Meta(description="Tools (globs) that may be used; `[]` allows none.")] = ("*",)
    approval_policy: Annotated[
        RecordApproval, Meta(description="Minimum strictness. Also accepts a single word: `approve` or `deny`.")
    ] = RecordApproval()
    sampling: Annotated[
        Literal["relay", "provider", "refuse"],
        Meta(
            description="Who answers this server's sampling requests. `relay`: the caller or the inbox; `provider`: also a "
            "model from `providers`; `refuse`: they are refused."
        ),
    ] = "relay"
    questions: Annotated[
        Literal["inbox", "refuse"],
        Meta(
            description="What happens to a question that the caller cannot answer: it waits in the `inbox`, or is refused."
        ),
    ] = "inbox"
    restart: Annotated[Restart, Meta(description="When a crashing process is no longer restarted.")] = Restart()

    def __post_init__(self) -> None:
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
