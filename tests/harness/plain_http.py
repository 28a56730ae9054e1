"""For callers that speak plain HTTP to this machine only: one TLS context for all of them.

An HTTP client makes itself a context with every certificate authority there is, which takes longer than many a test.
"""

from __future__ import annotations

import ssl
from typing import Final

NO_TLS: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Trusts no certificate: a client with it cannot use TLS."""
