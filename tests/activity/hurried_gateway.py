"""Runs `taskgate ARGUMENTS...` in a hurry: a watch over its servers that does not wait half a minute between two looks, and
tasks that are kept for two seconds after their end instead of a minute.
"""

from __future__ import annotations

from taskgate.cli.main import main
from taskgate.core.tasks import expiry
from taskgate.upstreams import health

if __name__ == "__main__":
    health.EVERY_S = health.WHEN_DEGRADED_S = health.PATIENCE_S = 0.5  # type: ignore[misc]
    expiry.KEPT_AFTER_FINISH_MS = 2000  # type: ignore[misc]
    main()
