"""The small sections: where to listen, where to store, what to measure, what to be compatible with."""

from __future__ import annotations

import ipaddress
from datetime import timedelta
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator

from taskgate.config.words import Duration, HeaderMap, HttpUrl, Section, Whole, Words

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
        description="PostgreSQL: let plain calls go on although grants, pins and scopes were not confirmed for 5 seconds.",
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


class Facade(Section):
    """The facade tools."""

    add_server: Annotated[Literal["off", "session", "on"], BeforeValidator(_word_for_switch)] | None = Field(
        default=None,
        description="Whether callers may add servers: off (the default), session (callers on standard streams), on. "
        "Governed as the tool add_server of the server taskgate.",
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
