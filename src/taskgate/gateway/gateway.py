"""The gateway, divided by consumer: each adapter depends on its own part only."""

from __future__ import annotations

import msgspec

from taskgate.gateway.services.access import AccessServices
from taskgate.gateway.services.configuration import ConfigurationServices
from taskgate.gateway.services.console import ConsoleServices
from taskgate.gateway.services.lifecycle import GatewayLifecycle
from taskgate.gateway.services.transports import TransportServices


class Gateway(msgspec.Struct, eq=False, kw_only=True):
    """Built by `wiring`."""

    transports: TransportServices
    access: AccessServices
    console: ConsoleServices
    configuration: ConfigurationServices
    lifecycle: GatewayLifecycle
