"""Runs `taskgate ARGUMENTS...` with a lease of a minute, for tests in which no gateway dies.

On a busy machine a process may be stopped for longer than the real lease, and then counts as dead. Everything else is
unchanged: a gateway that stops returns its lease at once, and other leases are checked as often as before.
"""

from __future__ import annotations

from unittest.mock import patch

from taskgate import clock
from taskgate.cli.main import main
from taskgate.store.postgres import committer, presence, store
from taskgate.store.postgres.presence import Presence

PATIENT_MS = 60_000
VERDICT_AFTER_S = presence.LEASE_MS / 1000


def usual_verdict(ours: Presence) -> bool:
    return ours.is_fresh and clock.monotonic() - ours.gapless_since >= VERDICT_AFTER_S


if __name__ == "__main__":
    with (
        patch.multiple(presence, LEASE_MS=PATIENT_MS, _LEASE_S=PATIENT_MS / 1000),
        patch.object(committer, "LEASE_MS", PATIENT_MS),
        patch.object(store, "LEASE_MS", PATIENT_MS),
        patch.object(Presence, "may_declare_dead", property(usual_verdict)),
    ):
        main()
