"""Libraries that most gateways never need, loaded beside the event loop when a request needs one for the first time.

Importing such a library takes 20 to 70 ms, during which a gateway would answer nobody. A thread gives the event loop its turn every
few milliseconds. The code that uses a library imports it where it is used; by then it is loaded.
"""

from __future__ import annotations

import asyncio
import importlib
from typing import Final

FUZZY: Final = ("rapidfuzz.process", "rapidfuzz.distance")
"""For searches and completions with typing mistakes."""
SIGNING: Final = ("joserfc.jws", "joserfc.jwk")
"""For signed tokens."""
METRICS: Final = ("prometheus_client",)

_loaded: set[str] = set()
"""Not `sys.modules`, which also names what another thread is still loading."""


async def load(*modules: str) -> None:
    """Return when these can be imported at once."""
    if _loaded.issuperset(modules):
        return
    await asyncio.to_thread(_import, modules)
    _loaded.update(modules)


def load_now(*modules: str) -> None:
    """The same for code that runs before the gateway serves."""
    _import(modules)
    _loaded.update(modules)


def _import(modules: tuple[str, ...]) -> None:
    for name in modules:
        importlib.import_module(name)
