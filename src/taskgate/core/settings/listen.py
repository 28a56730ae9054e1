"""The `listen` and `local` sections: the addresses the gateway binds, and the on-demand local gateway."""

from __future__ import annotations

import ipaddress
from typing import Annotated

from msgspec import Meta

from taskgate.core.settings.durations import duration
from taskgate.core.settings.section import Section, read_by
from taskgate.core.settings.values import Duration, Strings


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

    cert: Annotated[str, Meta(description="Certificate file with its chain (PEM), relative to this file.")]
    key: Annotated[str, Meta(description="Private key file (PEM, without a passphrase), relative to this file.")]
    client_ca: Annotated[
        str | None,
        Meta(
            description="CA certificates (PEM) that sign client certificates. When set, clients are asked for a certificate."
        ),
    ] = None
    require_client_cert: Annotated[
        bool, Meta(description="Refuse clients without a certificate. Requires `client_ca`.")
    ] = False

    def __post_init__(self) -> None:
        if self.require_client_cert and self.client_ca is None:
            raise ValueError("require_client_cert needs client_ca; add the CA that signs client certificates")


class Listen(Section):
    """The address the gateway listens on."""

    host: Annotated[
        str,
        Meta(
            description="Address to bind. Any address but loopback requires `tokens`, `auth`, or an explicit `auth: none`."
        ),
    ] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535, description="TCP port; 0 selects a free one.")] = 7_467
    trusted_proxies: Annotated[
        Strings,
        read_by(_networks),
        Meta(
            description="Addresses or networks of reverse proxies whose `X-Forwarded-For` header is trusted, for example "
            "`10.0.0.0/8`."
        ),
    ] = ()
    tls: Annotated[ListenTls | None, Meta(description="Serve https instead of http.")] = None
    client_certificate_header: Annotated[
        str | None,
        Meta(
            description="Header in which a trusted proxy passes the subject of the client certificate, for example "
            "`X-Client-DN`."
        ),
    ] = None
    internal: Annotated[
        str | None,
        read_by(_internal),
        Meta(
            description="Address at which other gateways on the same PostgreSQL store reach this one: `HOST:PORT`, or the "
            "path of a Unix socket."
        ),
    ] = None


class Local(Section):
    """The local gateway that `taskgate stdio` starts for this user's clients."""

    end_after: Annotated[
        Duration,
        Meta(description="Exit after this time without a client, a session, an open task or an open approval."),
    ] = duration("10m")
