"""Parse the `WWW-Authenticate` header of a 401 or 403. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

_PARAMETER = re.compile(r'([a-zA-Z_]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')


@dataclass(frozen=True, slots=True)
class Challenge:
    """The parameters of a bearer challenge that the client uses."""

    resource_metadata: str | None = None
    scope: str | None = None
    error: str | None = None

    @classmethod
    def from_header(cls, header: str) -> Challenge:
        scheme, _, rest = header.partition(" ")
        if scheme.lower() != "bearer":
            return cls()
        found = {name.lower(): quoted or plain for name, quoted, plain in _PARAMETER.findall(rest)}
        return cls(found.get("resource_metadata"), found.get("scope"), found.get("error"))
