"""The certificates that this machine trusts, read once: every client of httpx2 reads them anew, 25 to 50 ms of processor time, and
hundreds of tests make one to talk to a plain port of this machine."""

from __future__ import annotations

import importlib
import os
import ssl
import sys
from functools import cache, wraps


def read_trust_store_once() -> None:
    """From now on clients of this process that ask for the usual context have the same one. Nobody changes it."""
    if "httpx2" not in sys.modules:
        return
    library = importlib.import_module("httpcore2")
    make = library.default_ssl_context
    if hasattr(make, "__wrapped__"):
        return

    @cache
    def made(trust_env: bool, _file: str | None, _folder: str | None) -> ssl.SSLContext:
        context: ssl.SSLContext = make(_trust_env=trust_env)
        return context

    @wraps(make)
    def shared(*, _trust_env: bool = True) -> ssl.SSLContext:
        return made(_trust_env, os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))

    vars(library)[make.__name__] = shared
