"""One TLS context for all callers that use only plain HTTP on this machine.

By default each HTTP client loads all certificate authorities, which takes longer than many tests.
"""

from __future__ import annotations

import ssl
from typing import Final

NO_TLS: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Trusts no certificate: a client with it cannot use TLS."""
