"""Load modules that most gateways never need in a thread, when a request needs one for the first time.

Importing such a module takes 20 to 70 ms, which would block the event loop. A thread yields to the loop every few milliseconds.
The code that uses a module imports it locally; by then it is loaded.
"""

from __future__ import annotations

import asyncio
import importlib
from typing import Final

FUZZY: Final = ("rapidfuzz.process", "rapidfuzz.distance")
"""For searches and completions that tolerate typing errors."""
SIGNING: Final = ("joserfc.jws", "joserfc.jwk")
"""For signed tokens."""
METRICS: Final = ("prometheus_client",)
SCHEMAS: Final = ("jsonschema_rs",)
"""For arguments and results that are checked: 6 MB."""
CONSOLE: Final = ("taskgate.dashboard.site", "taskgate.assembly.console_configuration")
"""For the console and the JSON API."""
PAGES: Final = ("taskgate.dashboard.pages",)
"""For the pages of the console."""

_loaded: set[str] = set()
"""Not `sys.modules`, which also names what another thread is still loading."""


async def load(*modules: str) -> None:
    """Load these modules; returns when importing them does not block."""
    if _loaded.issuperset(modules):
        return
    await asyncio.to_thread(_import, modules)
    _loaded.update(modules)


def load_now(*modules: str) -> None:
    """Load these modules now. For code that runs before the gateway serves."""
    _import(modules)
    _loaded.update(modules)


def _import(modules: tuple[str, ...]) -> None:
    for name in modules:
        importlib.import_module(name)
