"""Whether a configuration may be served on an address: beyond loopback only with identity, or with `auth: none` spelled out.

Asked before the port is opened and before a reload is taken over, because either may change the answer.
"""

from __future__ import annotations

from taskgate.config.gateway_file import GatewayFile
from taskgate.config.problems import ConfigError, Problem
from taskgate.inbound.http.arrival import Guard, is_loopback
from taskgate.telemetry.logs import log

BANNER = "NO AUTHENTICATION: anybody who can reach this address may call every tool (auth: none)."


def check_exposure(root: GatewayFile, host: str) -> None:
    """Raises ConfigError for a gateway that would serve strangers without anybody having said so."""
    if is_loopback(host) or root.requires_identity or root.auth.none:
        return
    message = f"{host} is reachable from other machines, and nobody would have to say who they are"
    hint = "`taskgate token new NAME` makes a token for `tokens`; or name an issuer under `auth.jwt`, or write `auth: none`"
    raise ConfigError([Problem("configuration", 0, 0, "listen.host", message, hint)])


def is_open_to_strangers(root: GatewayFile, host: str) -> bool:
    """Whether the banner is due: strangers are served, because somebody spelled it out."""
    return root.auth.none and not is_loopback(host)


def warn_of_exposure(root: GatewayFile, host: str) -> None:
    if is_open_to_strangers(root, host):
        log.warning(BANNER, host=host)


def guard(root: GatewayFile) -> Guard:
    hosts = list(root.allowed_hosts)
    origins = list(root.allowed_origins)
    if root.public_url is not None:
        origins.append(str(root.public_url))
        hosts.append(str(root.public_url).split("://", 1)[-1].split("/", 1)[0])
    if root.listen.host not in ("0.0.0.0", "::"):
        hosts.append(root.listen.host)
    return Guard(hosts, origins, open_to_all=not root.requires_identity and root.auth.anonymous is None)
