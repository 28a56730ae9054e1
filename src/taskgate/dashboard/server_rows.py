"""State, health and recent stderr of every server as JSON rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taskgate.ports.upstream import Upstream


def server_rows(upstreams: Mapping[str, Upstream]) -> list[dict[str, Any]]:
    """State, health and recent stderr of every server."""
    rows = []
    for name, upstream in upstreams.items():
        status = upstream.status()
        rows.append(
            {
                "name": name,
                "transport": upstream.transport,
                "state": status.state.value,
                "generations": [generation.value for generation in status.generations],
                "reconnect_attempt": status.reconnect_attempt,
                "next_retry_ms": status.next_retry_ms,
                "last_error": status.last_error,
                "stderr": list(status.stderr[-20:]),
            }
        )
    return rows
