"""Whether the gateway is shutting down. Shared by everything that must refuse new work from that moment on."""

from __future__ import annotations

from taskgate.lazy_dataclass import dataclass


@dataclass(slots=True, eq=False)
class GatewayStatus:
    stopping: bool = False

    def stop(self) -> None:
        self.stopping = True
