"""Whether the gateway is shutting down. Shared by everything that must refuse new work from that moment on."""

from __future__ import annotations

import msgspec


class GatewayStatus(msgspec.Struct, eq=False):
    stopping: bool = False

    def stop(self) -> None:
        self.stopping = True
