"""What the tests of this folder share: tokens of the configuration, and requests that show them."""

from __future__ import annotations

import hashlib
from typing import Any


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def token(name: str, *roles: str, **more: Any) -> dict[str, Any]:
    """A token of the configuration; its bearer sends NAME-token."""
    return {"id": name, "sha256": digest(f"{name}-token"), "roles": list(roles), **more}


def bearer(text: str) -> dict[str, str]:
    return {"authorization": f"Bearer {text}"}
