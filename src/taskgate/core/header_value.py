"""Any text as the value of an HTTP header, and back (2026-07-28, transports: values that a header cannot carry).

Printable ASCII without padding stands for itself. Everything else, and what looks like the encoding, travels as base64 between
`=?base64?` and `?=`. Used for `Mcp-Name` and for `Mcp-Param-*`.
"""

from __future__ import annotations

import base64
from typing import Final

_START: Final = "=?base64?"
_END: Final = "?="


def encode_header_value(text: str) -> str:
    if text.isascii() and text.isprintable() and text == text.strip() and not text.startswith("=?"):
        return text
    return _START + base64.b64encode(text.encode("utf-8", "surrogatepass")).decode("ascii") + _END


def decode_header_value(value: str) -> str | None:
    """The text that a header stands for, or None where its encoding is broken or not the canonical one."""
    if not (value.startswith(_START) and value.endswith(_END) and len(value) >= len(_START) + len(_END)):
        return value
    encoded = value[len(_START) : -len(_END)]
    try:
        decoded = base64.b64decode(encoded, validate=True)
        return decoded.decode("utf-8") if base64.b64encode(decoded).decode("ascii") == encoded else None
    except ValueError:
        return None
