"""What the JSON library raises for bytes that cannot be decoded."""

from __future__ import annotations

from typing import Final

import msgspec

UNDECODABLE: Final = (msgspec.MsgspecError, UnicodeError, RecursionError)
"""Not only the library's own errors: strings that are not UTF-8 and deep nesting raise Python's."""
