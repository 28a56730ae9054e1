"""Start a gateway whose limits per second are divided by `SLOWDOWN`, for counting instructions with callgrind.

A gateway writes an audit row for each of the first 200 plain calls of a second and a row of history for each of the first
20; at thousands of calls per second both are rare. Callgrind runs a program some fifty times slower, so without this nearly
every call that it counts would write both.

    python tests/benchmarks/gateway_in_slow_time.py serve ...
"""

from __future__ import annotations

from typing import Final

from taskgate.cli.main import main
from taskgate.gateway.governance import journal
from taskgate.inbound.http import loop_lag

SLOWDOWN: Final = 50
HISTORY_SAMPLE: Final = 0
"""`history.sample` for such a gateway: 20 per second divided by `SLOWDOWN`."""

if __name__ == "__main__":
    journal.ROWS_PER_ROUND = journal.ROWS_PER_ROUND // SLOWDOWN  # type: ignore[misc]
    loop_lag.PROBE_S = loop_lag.PROBE_S * SLOWDOWN  # type: ignore[misc]
    main()
