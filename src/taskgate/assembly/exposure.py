"""Decide whether a configuration may be served on an address: beyond loopback only with identity or an explicit `auth: none`.

Checked before the port is opened and before a reload is applied, because either may change the result."""

from __future__ import annotations

from taskgate.access.arrival import is_loopback
from taskgate.config.model.gateway_file import GatewayFile
from taskgate.config.problems import ConfigError, Problem
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
