"""Parses the Bearer challenge in the `WWW-Authenticate` header of a 401 or 403 response."""

from __future__ import annotations

import re
from typing import Final

import msgspec

_PARAMETER: Final = re.compile(r'([a-zA-Z_]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')
MAX_HEADER: Final = 4096


class Challenge(msgspec.Struct, frozen=True):
    """The parameters of a challenge that a login needs."""

    resource_metadata: str | None = None
    scope: str | None = None
    error: str | None = None

    @classmethod
    def from_header(cls, header: str) -> Challenge:
        """An empty challenge where the header has another scheme."""
        scheme, _, rest = header[:MAX_HEADER].partition(" ")
        if scheme.lower() != "bearer":
            return cls()
        found = {name.lower(): quoted or plain for name, quoted, plain in _PARAMETER.findall(rest)}
        return cls(found.get("resource_metadata"), found.get("scope"), found.get("error"))

    @property
    def insufficient_scope(self) -> bool:
        return self.error == "insufficient_scope"
