"""The `listen` and `local` sections: the addresses the gateway binds, and the on-demand local gateway."""

from __future__ import annotations

import ipaddress
from datetime import timedelta
from typing import Annotated

from taskgate.config.model.values import Duration, Integer, Strings
from taskgate.config.sections import AfterValidator, Field, Section, model_validator


def _networks(words: tuple[str, ...]) -> tuple[str, ...]:
    for word in words:
        try:
            ipaddress.ip_network(word, strict=False)
        except ValueError:
            raise ValueError(
                f'"{word[:60]}" is not an IP address or network; write for example 10.0.0.1 or 10.0.0.0/8'
            ) from None
    return words


def _internal(text: str) -> str:
    if text.startswith("/"):
        return text
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError("is not an address; write HOST:PORT, or the path of a Unix socket, /run/taskgate/a.sock")
    if host.strip("[]") in ("0.0.0.0", "::", "*"):
        raise ValueError("must be an address at which other gateways reach this one; write the address of this host")
    return text


class ListenTls(Section):
    """TLS for the listener. Changed files are reloaded automatically."""

    cert: str = Field(description="Certificate file with its chain (PEM), relative to this file.")
    key: str = Field(description="Private key file (PEM, without a passphrase), relative to this file.")
    client_ca: str | None = Field(
        default=None,
        description="CA certificates (PEM) that sign client certificates. When set, clients are asked for a certificate.",
    )
    require_client_cert: bool = Field(
        default=False, description="Refuse clients without a certificate. Requires `client_ca`."
    )

    @model_validator
    def _require_client_ca(self) -> ListenTls:
        if self.require_client_cert and self.client_ca is None:
            raise ValueError("require_client_cert needs client_ca; add the CA that signs client certificates")
        return self


class Listen(Section):
    """The address the gateway listens on."""

    host: str = Field(
        default="127.0.0.1",
        description="Address to bind. Any address but loopback requires `tokens`, `auth`, or an explicit `auth: none`.",
    )
    port: Annotated[Integer, Field(ge=0, le=65535)] = Field(default=7467, description="TCP port; 0 selects a free one.")
    trusted_proxies: Annotated[Strings, AfterValidator(_networks)] = Field(
        default=(),
        description="Addresses or networks of reverse proxies whose `X-Forwarded-For` header is trusted, for example "
        "`10.0.0.0/8`.",
    )
    tls: ListenTls | None = Field(default=None, description="Serve https instead of http.")
    client_certificate_header: str | None = Field(
        default=None,
        description="Header in which a trusted proxy passes the subject of the client certificate, for example `X-Client-DN`.",
    )
    internal: Annotated[str, AfterValidator(_internal)] | None = Field(
        default=None,
        description="Address at which other gateways on the same PostgreSQL store reach this one: `HOST:PORT`, or the path of "
        "a Unix socket.",
    )


class Local(Section):
    """The local gateway that `taskgate stdio` starts for this user's clients."""

    end_after: Duration = Field(
        default=timedelta(minutes=10),
        description="Exit after this time without a client, a session, an open task or an open approval.",
    )
