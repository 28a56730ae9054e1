"""Runs `taskgate ARGUMENTS...` in a hurry: a watch over its servers that does not wait half a minute between two looks."""

from __future__ import annotations

from taskgate.cli.main import main
from taskgate.upstreams import health

if __name__ == "__main__":
    health.EVERY_S = health.WHEN_DEGRADED_S = health.PATIENCE_S = 0.5  # type: ignore[misc]
    main()
