"""Periodic work of a running gateway: once a second, and twice a minute."""

from __future__ import annotations

from typing import Final

from taskgate.assembly.app import App
from taskgate.telemetry.logs import log

HOUSEKEEPING_S: Final = 1.0
REAP_EVERY: Final = 30


async def run_housekeeping(app: App, rounds: int) -> None:
    """Run one round of housekeeping. A failing store must not end the loop."""
    gateway = app.gateway.lifecycle
    try:
        log.report_suppressed()
        gateway.journal.flush(last=gateway.status.stopping)
        await app.audit.maintain()
        await gateway.refresh()
        if rounds % REAP_EVERY == 0:
            await gateway.reap()
    except Exception as fault:  # one round of a background loop: without the next ones tasks would never expire
        log.error("housekeeping failed; it is retried", exc_info=fault)
