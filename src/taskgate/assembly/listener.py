"""Settings of the HTTP listener: TLS, trusted proxies, and the Host and Origin guard."""

from __future__ import annotations

import ssl
from pathlib import Path

from taskgate.access.arrival import Arrivals, is_loopback
from taskgate.access.guard import Guard
from taskgate.config.problems import ConfigError, Problem
from taskgate.core.settings.gateway_file import GatewayFile
from taskgate.inbound.http.tls import ListenerTls, TlsFiles


def arrivals_by(root: GatewayFile) -> Arrivals:
    return Arrivals(root.listen.trusted_proxies, root.listen.client_certificate_header)


def listener_tls(root: GatewayFile) -> ListenerTls | None:
    """Return the TLS settings, or None for plain HTTP. Raises ConfigError if the files are not a certificate and its key."""
    tls = root.listen.tls
    if tls is None:
        return None
    client_ca = None if tls.client_ca is None else Path(tls.client_ca)
    try:
        return ListenerTls(TlsFiles(Path(tls.cert), Path(tls.key), client_ca, tls.require_client_cert))
    except (OSError, ssl.SSLError) as fault:
        hint = "give a PEM certificate with its chain, and the key that belongs to it"
        problem = Problem(
            file="configuration", line=0, column=0, key="listen.tls", message=f"cannot be used: {fault}", hint=hint
        )
        raise ConfigError([problem]) from None


def guard(root: GatewayFile) -> Guard:
    hosts = list(root.allowed_hosts)
    origins = list(root.allowed_origins)
    if root.public_url is not None:
        origins.append(str(root.public_url))
        hosts.append(str(root.public_url).split("://", 1)[-1].split("/", 1)[0])
    listens_at = root.listen.host
    near = [listens_at] if is_loopback(listens_at) else []
    if not near and listens_at not in ("0.0.0.0", "::"):
        hosts.append(listens_at)
    return Guard(hosts, origins, open_to_all=not root.requires_identity and root.auth.anonymous is None, near=near)
