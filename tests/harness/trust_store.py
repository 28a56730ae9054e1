"""Read the certificates that this machine trusts once: every client of httpx and httpx2 reads them again, 25 to 50 ms of CPU time,
and hundreds of tests and of programs that they start create one to connect to a plain port of this machine.

The template of an environment (`tests/harness/template.py`) runs this file, so that the programs forked from it share the context
too. It therefore uses the standard library only.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import ssl
import sys
from collections.abc import Callable
from functools import cache, wraps
from typing import Any

# The module in which each library looks up the function that creates its usual context, and the function's name.
CONTEXTS = {
    "httpx2": ("httpcore2", "default_ssl_context"),
    "httpx": ("httpx._transports.default", "create_ssl_context"),
}
USUAL: tuple[dict[str, Any], ...] = ({}, {"_trust_env": True}, {"verify": True, "cert": None, "trust_env": True})


def read_trust_store_once() -> None:
    """From now on clients of this process that need the usual context share one, which none of them changes."""
    for library, (module, name) in CONTEXTS.items():
        if library in sys.modules:
            found = vars(importlib.import_module(module))
            if not hasattr(found[name], "__wrapped__"):
                found[name] = _shared(found[name])


def _shared(make: Callable[..., ssl.SSLContext]) -> Callable[..., ssl.SSLContext]:
    @cache
    def made(_file: str | None, _folder: str | None) -> ssl.SSLContext:
        return make()

    @wraps(make)
    def shared(**options: Any) -> ssl.SSLContext:
        if options not in USUAL:
            return make(**options)
        return made(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))

    return shared


def read_before_forking() -> None:
    """In a template: the context exists before the first program is forked."""
    for library in CONTEXTS:
        if importlib.util.find_spec(library) is not None:
            importlib.import_module(library)
    read_trust_store_once()
    for library, (module, name) in CONTEXTS.items():
        if library in sys.modules:
            vars(importlib.import_module(module))[name]()


if __name__ == "__template__":
    read_before_forking()
