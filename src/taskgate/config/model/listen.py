"""The `listen` and `local` sections: the addresses the gateway binds, and the on-demand local gateway."""

from __future__ import annotations

import ipaddress
from datetime import timedelta
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from taskgate.config.model.values import Duration, Section, Whole, Words


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
