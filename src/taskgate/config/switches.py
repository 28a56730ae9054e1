"""The small sections: where to listen, where to store, what to measure, every limit, and how calls become tasks."""

from __future__ import annotations

import ipaddress
from datetime import timedelta
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator

from taskgate.config.words import Bytes, Count, Duration, HeaderMap, HttpUrl, Milliseconds, Money, Section, Whole, Words

SHORTEST_KEY: Final = 32


def _store_url(text: str) -> str:
    if text.startswith("sqlite:///") and len(text) > len("sqlite:///"):
        return text
    if text.startswith(("postgresql://", "postgres://")):
        return text
    raise ValueError("is not a store; write sqlite:///./taskgate.db or postgresql://user@host/database")


def _networks(words: tuple[str, ...]) -> tuple[str, ...]:
    for word in words:
        try:
            ipaddress.ip_network(word, strict=False)
        except ValueError:
            raise ValueError(f'"{word[:60]}" is not an address; write one like 10.0.0.1 or 10.0.0.0/8') from None
    return words


def _internal(text: str) -> str:
    if text.startswith("/"):
        return text
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError("is not an address; write HOST:PORT, or the path of a socket such as /run/taskgate/a.sock")
    if host.strip("[]") in ("0.0.0.0", "::", "*"):
        raise ValueError("must be an address under which other gateways reach this one, not every address")
    return text


def _word_for_switch(value: Any) -> Any:
    """`true` and `false` where a word is wanted: YAML writers mean on and off."""
    word = str(value).lower() if isinstance(value, (bool, str)) else value
    return {"true": "on", "yes": "on", "false": "off", "no": "off"}.get(word, word)


class ListenTls(Section):
    """TLS of the listener. Files are taken anew when they change."""

    cert: str = Field(description="The certificate with its chain (PEM), relative to this file.")
    key: str = Field(description="Its private key (PEM, without a passphrase).")
    client_ca: str | None = Field(default=None, description="Who signs clients' certificates; then they are asked for.")
    require_client_cert: bool = Field(default=False, description="Whether a client without one is turned away.")

    @model_validator(mode="after")
    def _somebody_signs(self) -> ListenTls:
        if self.require_client_cert and self.client_ca is None:
            raise ValueError("require_client_cert needs client_ca, which says whose certificates are good")
        return self


def _one_or_more(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


def _store_keys(keys: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
    if any(len(key) < SHORTEST_KEY for key in keys):
        raise ValueError(
            f"a key must have {SHORTEST_KEY} characters or more, such as what `openssl rand -base64 32` prints"
        )
    return keys


class Listen(Section):
    """Where the gateway listens."""

    host: str = Field(default="127.0.0.1", description="Address to bind; loopback unless you know better.")
    port: Annotated[Whole, Field(ge=0, le=65535)] = Field(default=7467, description="Port; 0 picks a free one.")
    trusted_proxies: Annotated[Words, AfterValidator(_networks)] = Field(
        default=(),
        description="Addresses or networks of proxies whose X-Forwarded-For is believed, such as 10.0.0.0/8.",
    )
    tls: ListenTls | None = Field(default=None, description="Serve https instead of http.")
    client_certificate_header: str | None = Field(
        default=None, description="Header in which a trusted proxy names its client's certificate, such as X-Client-DN."
    )
    internal: Annotated[str, AfterValidator(_internal)] | None = Field(
        default=None,
        description="Where other gateways on the same PostgreSQL store reach this one: HOST:PORT, or /PATH of a socket.",
    )


class Local(Section):
    """The gateway that `taskgate stdio` starts for this user's clients."""

    end_after: Duration = Field(
        default=timedelta(minutes=10),
        description="It ends after so long without a client, a session and an open task or approval.",
    )


class Store(Section):
    """Where tasks, approvals and the audit log are kept."""

    url: Annotated[str, AfterValidator(_store_url)] = Field(
        description="sqlite:///PATH (relative to this file) or postgresql://...", repr=False
    )
    key: Annotated[tuple[SecretStr, ...], BeforeValidator(_one_or_more), AfterValidator(_store_keys)] = Field(
        default=(),
        repr=False,
        description="Encrypts arguments, results, questions and answers: 32 characters or more, by reference; of a list the first "
        "encrypts and all decrypt.",
    )
    unsafe_degraded_passthrough: bool = Field(
        default=False,
        description="PostgreSQL: let plain calls go on while the database is away, by the grants, pins and scopes that were last "
        "read; /ready stays 200 then and lists what is refused.",
    )


def keys_of(store: Store | None) -> tuple[str, ...]:
    """What encrypts the rows of the configured store; nothing by default."""
    return tuple(key.get_secret_value() for key in store.key) if store is not None else ()


class Secrets(Section):
    """References to secrets: `${file:PATH}`, `${keyring:SERVICE/USER}` and `${command:ARGV}`."""

    allow_command: bool = Field(
        default=False,
        description="Let ${command:ARGV} run programs as the gateway's user, without a shell and for at most 10 s each.",
    )


class Audit(Section):
    """The audit log."""

    keep: Duration | None = Field(
        default=None, description="How long rows are kept; without it for ever. The chain is cut at a signed mark."
    )
    export: str | None = Field(
        default=None, description="File that every new row is appended to as it happens, as JSON lines."
    )
    calls: Literal["summed", "every"] = Field(
        default="summed",
        description="Rows of plain calls: `summed` writes a row for each of the first 200 calls of a second and counts the "
        "others by caller, tool and outcome; `every` writes a row for every call. Refusals of authenticated callers, "
        "approvals, tasks and administrative acts always have a row each.",
    )


class Facade(Section):
    """The facade tools."""

    add_server: Annotated[Literal["off", "session", "on"], BeforeValidator(_word_for_switch)] | None = Field(
        default=None,
        description="Whether callers may add servers: off (the default), session (callers on standard streams), on. "
        "Governed as the tool add_server of the server taskgate.",
    )


class Apps(Section):
    """MCP Apps."""

    task_card: Annotated[Literal["auto", "all", "held", "off"], BeforeValidator(_word_for_switch)] = Field(
        default="auto",
        description="Which tools show the gateway's task card in hosts that render apps: held (calls that may wait for people), "
        "all (every tool whose calls may become tasks), off, or auto (all for sessions whose host renders apps; for callers of "
        "2026-07-28 those that are held or known to take long).",
    )


class Completion(Section):
    """Argument completion."""

    learn: bool = Field(
        default=True,
        description="Remember values that a caller used before, for that caller only, never secrets.",
    )


class Errors(Section):
    """Which numbers errors bear; the stable name is always data.error_type."""

    profile: Literal["mcp", "erlmcp"] = Field(
        default="mcp",
        description="erlmcp puts that server's legacy numbers on the wire.",
    )
    task_codes: Literal["mcp", "seed"] = Field(
        default="mcp",
        description="seed answers -32009 and -32010 for task required and forbidden.",
    )


class Otel(Section):
    """OpenTelemetry."""

    enabled: bool = Field(default=False, description="Send spans and metrics.")
    endpoint: HttpUrl | None = Field(default=None, description="OTLP over HTTP; default: the OTEL_ variables.")
    headers: HeaderMap = Field(default_factory=dict, repr=False, description="Headers for the collector.")
    service_name: str = Field(default="taskgate", description="Name of this service.")
    sample_ratio: Annotated[float, Field(ge=0.0, le=1.0)] = Field(
        default=1.0,
        description="Share of traces that is kept.",
    )
    export_timeout: Duration = Field(default=timedelta(seconds=10), description="For one export.")


class Telemetry(Section):
    """What is measured."""

    metrics: bool = Field(default=True, description="Serve /metrics.")
    otel: Otel = Field(default_factory=Otel, description="OpenTelemetry, off unless configured.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info",
        description="Least important line that is logged.",
    )
    log_format: Literal["auto", "text", "json"] = Field(
        default="auto",
        description="auto: text on a terminal, JSON elsewhere.",
    )


class Compat(Section):
    """Behaviour for particular peers."""

    vendor_methods: bool = Field(
        default=False,
        description="Answer tasks/create, requests/cancel and the list form of elicitation/create.",
    )
    result_not_ready: bool = Field(
        default=False,
        description="With vendor_methods: tasks/result of a task that has not ended is the error result_not_ready instead of "
        "waiting for the end, as MCP has it.",
    )


# Every limit of the gateway; each has a clear error at the limit. A reload changes all of them.


class Limits(Section):
    """Limits."""

    open_tasks_per_caller: Count = Field(
        default=200,
        description="Unfinished tasks of one caller, calls that became tasks included. Without a token: of one session or of one "
        "`taskgate/client`, and ten times as many of all such callers at one address.",
    )
    open_tasks_per_tenant: Count | None = Field(
        default=None, description="Unfinished tasks of all callers of one tenant together; without it no limit."
    )
    pending_approvals_per_caller: Count = Field(
        default=20, description="Open approvals of one token, or without one of one address."
    )
    pending_approvals_per_tenant: Count | None = Field(
        default=None, description="Open approvals of all callers of one tenant together; without it no limit."
    )
    anonymous_pending_approvals: Count = Field(
        default=200, description="Open approvals of all callers without a token together."
    )
    pending_questions_per_server: Count = Field(default=100, description="Open questions of one server.")
    request_bytes: Bytes = Field(default=4 << 20, description="One message from a caller.")
    result_bytes: Bytes = Field(default=16 << 20, description="One message from a server.")
    json_depth: Annotated[Count, Field(le=200)] = Field(
        default=64,
        description="Nesting of one message, from callers and from servers; in a list, of one tool. A tool beyond it is omitted.",
    )
    json_nodes: Count = Field(
        default=100_000,
        description="Values in one message, from callers and from servers; in a list, of one tool. A tool beyond it is omitted.",
    )
    tools_per_upstream: Count = Field(
        default=10_000, description="Tools of one server; the rest are not listed and cannot be called."
    )
    instances_per_server: Count = Field(
        default=16,
        description="Processes of one server for single conversations, with `instances: auto`; beyond it they are shared.",
    )
    tools_max_pages: Count = Field(default=100, description="Pages of one server's list.")
    tools_fetch_timeout_ms: Milliseconds = Field(default=30_000, ge=1, description="Time to fetch one server's lists.")
    list_max_age: Duration = Field(
        default=timedelta(seconds=60),
        description="A server's lists are fetched again when they are older; ten times that where it announces changes.",
    )
    sessions: Count = Field(default=10_000, description="Sessions at once.")
    sessions_per_caller: Count = Field(
        default=2_500, description="Sessions of one caller: of a token, or without one of an address."
    )
    sessions_per_tenant: Count | None = Field(
        default=None, description="Sessions of all callers of one tenant together; without it no limit."
    )
    anonymous_sessions: Count = Field(default=5_000, description="Sessions of all callers without a token together.")
    connections: Count = Field(default=10_000, description="Connections at once; more are answered 503 and closed.")
    connections_per_address: Count = Field(
        default=5_000, description="Connections of one address at once; trusted proxies may have more."
    )
    header_count: Count = Field(default=100, description="Headers of one request; more are answered 431.")
    header_bytes: Bytes = Field(default=64 << 10, description="Address and headers of one request together.")
    session_idle: Duration = Field(
        default=timedelta(minutes=30), description="A session without calls and streams ends after this."
    )
    calls_per_caller_per_second: Count | None = Field(
        default=None, description="Rate of calls of one caller; without it no limit."
    )
    burst_per_caller: Count = Field(default=50, description="Calls that may come at once when a rate is set.")
    calls_per_tenant_per_second: Count | None = Field(
        default=None, description="Rate of calls of all callers of one tenant together; without it no limit."
    )
    burst_per_tenant: Count = Field(
        default=500, description="Calls of a tenant that may come at once when a rate is set."
    )
    calls_in_flight_per_caller: Count | None = Field(
        default=None, description="Calls of one caller being answered at once; without it no limit."
    )
    calls_in_flight_per_tenant: Count | None = Field(
        default=None, description="Calls of all callers of one tenant being answered at once; without it no limit."
    )
    sampling_tokens_per_tenant_per_hour: Count | None = Field(
        default=None, description="Tokens of models for all callers of one tenant together; without it no limit."
    )
    sampling_money_per_tenant_per_hour: Money | None = Field(
        default=None, description="Money for models for all callers of one tenant together; without it no limit."
    )
    calls_in_flight: Count = Field(
        default=10_000, description="Calls being answered at once; more are refused at once and were not executed."
    )
    busy_after: Duration = Field(
        default=timedelta(milliseconds=500),
        description="The longest that calls may wait in the gateway itself. If every call waits longer, for as long as this, late "
        "calls are refused until one is on time.",
    )
    queue_per_server: Count = Field(default=1_000, description="Calls that may wait for a server's max_concurrency.")
    runs_per_server: Count = Field(
        default=500, description="Calls of tasks that one server has open at once; more wait in line."
    )
    stream_buffer_bytes: Bytes = Field(
        default=1 << 20,
        description="Bytes of one stream kept for replay; a session's stream with eight times as much unread is dropped.",
    )
    stream_buffer_events: Count = Field(default=256, description="Events of one stream kept for replay.")
    events_per_caller: Count = Field(default=1_000, description="Events kept for one caller.")
    events_age: Duration = Field(default=timedelta(minutes=30), description="How long events are kept for a caller.")
    question_timeout: Duration = Field(
        default=timedelta(minutes=10), description="How long a server's question waits for an answer."
    )
    timers_per_session: Count = Field(default=100, description="Timers of one session.")
    header_timeout: Duration = Field(
        default=timedelta(seconds=10), description="Time for a client to send its headers."
    )
    body_timeout: Duration = Field(default=timedelta(seconds=60), description="Time for a client to send its body.")
    drain_timeout: Duration = Field(default=timedelta(seconds=25), description="Time for open requests at shutdown.")
    url_elicitations_per_minute: Count = Field(default=10, description="URL elicitations of one caller.")
    url_elicitation_expiry: Duration = Field(default=timedelta(minutes=5), description="How long such a link is good.")
    url_elicitation_loopback: bool = Field(
        default=False, description="Whether a server's link may be plain http to this machine."
    )


# How calls become tasks, how long they live, and how long a reply is held open.


class Tasks(Section):
    """Tasks."""

    default_ttl_ms: Milliseconds = Field(
        default=600_000, ge=1, description="How long a task is kept when the caller does not say."
    )
    max_ttl_ms: Milliseconds = Field(default=86_400_000, ge=1, description="The longest a caller may ask for.")
    keep_result_ms: Milliseconds = Field(
        default=300_000, ge=1, description="How long a result can be read from its end on, however short its ttl was."
    )
    grace_ms: Milliseconds = Field(
        default=8_000, description="2026 callers: how long a reply is inline before it becomes a handle."
    )
    promote_after_ms: Milliseconds = Field(
        default=45_000, description="How long a plain call is held before it becomes a task; 0 switches promotion off."
    )
    hold_ms: Milliseconds = Field(
        default=300_000, description="The same for clients known to reset their timer on progress."
    )
    heartbeat_ms: Milliseconds = Field(
        default=15_000, ge=100, description="Pause between progress messages while a reply is held."
    )
    clients: Words = Field(default=(), description="More names (globs) of clients that reset their timer on progress.")
    annotation_mode: Literal["auto", "strict", "dual"] = Field(
        default="auto",
        description="What taskSupport shows: auto by caller, strict by the matrix for all, dual optional for all.",
    )
    execute_on: Literal["demand", "approval", "result"] = Field(
        default="demand",
        description="When an approved task runs: at its caller's next look at it, at once, or when its result is asked for.",
    )
    poll_interval_ms: Milliseconds = Field(
        default=1_000, ge=100, description="What callers are told to wait between polls; rises with load."
    )
    approval_poll_interval_ms: Milliseconds = Field(
        default=15_000, ge=100, description="The same while a person is being asked."
    )
    execution_timeout_ms: Milliseconds = Field(
        default=600_000, ge=1, description="Longest run of a task whose server sets no budget."
    )
    sync_forward_timeout_ms: Milliseconds = Field(
        default=60_000, ge=1, description="Longest plain call where promotion is off or strict."
    )
    tool_face_default_ttl_ms: Milliseconds = Field(
        default=300_000, ge=1, description="default_ttl_ms of tasks made by execute_tool."
    )
    tool_face_max_ttl_ms: Milliseconds = Field(
        default=1_800_000, ge=1, description="max_ttl_ms of tasks made by execute_tool."
    )
    sweep_interval_ms: Milliseconds = Field(
        default=60_000,
        ge=100,
        description="How often to look for what is past its time; it is then removed in portions until none is left.",
    )

    @model_validator(mode="after")
    def _default_within_max(self) -> Tasks:
        if self.default_ttl_ms > self.max_ttl_ms:
            raise ValueError("default_ttl_ms is larger than max_ttl_ms; raise the one or lower the other")
        if self.tool_face_default_ttl_ms > self.tool_face_max_ttl_ms:
            raise ValueError(
                "tool_face_default_ttl_ms is larger than tool_face_max_ttl_ms; raise the one or lower the other"
            )
        return self
