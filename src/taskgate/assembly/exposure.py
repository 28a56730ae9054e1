"""Decide whether a configuration may be served on an address: beyond loopback only with identity or an explicit `auth: none`.

Checked before the port is opened and before a reload is applied, because either may change the result."""

from __future__ import annotations

from taskgate.access.arrival import is_loopback
from taskgate.config.problems import ConfigError, Problem
from taskgate.core.settings.gateway_file import GatewayFile
from taskgate.telemetry.logs import log

BANNER = "NO AUTHENTICATION: every program that can reach this address can call every tool (auth: none)."


def check_exposure(root: GatewayFile, host: str) -> None:
    """Raises ConfigError if other machines could call without authentication and the configuration does not allow it."""
    if is_loopback(host) or root.requires_identity or root.auth.none:
        return
    message = f"{host} is reachable from other machines, and callers would not have to authenticate"
    hint = "`taskgate tokens new NAME` makes a token for `tokens`; or name an issuer under `auth.jwt`, or write `auth: none`"
    raise ConfigError([Problem(file="configuration", line=0, column=0, key="listen.host", message=message, hint=hint)])


def is_reachable_without_login(root: GatewayFile, host: str) -> bool:
    """Whether to print the warning: the configuration allows unauthenticated callers from other machines."""
    return root.auth.none and not is_loopback(host)


def warn_of_exposure(root: GatewayFile, host: str) -> None:
    if is_reachable_without_login(root, host):
        log.warning(BANNER, host=host)
