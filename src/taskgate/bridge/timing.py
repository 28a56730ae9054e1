"""The time, for the bridge: `taskgate.clock` brings the event loop along, which costs more than the whole bridge."""

from __future__ import annotations

import time

monotonic = time.monotonic
sleep = time.sleep
