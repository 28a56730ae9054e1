"""Which entries of W3C baggage are passed on: only those whose names the operator has listed.

Baggage often contains names of users and tenants, and servers may belong to third parties.
"""

from __future__ import annotations

from collections.abc import Callable


def allowed_baggage(header: str, is_allowed: Callable[[str], bool]) -> str:
    """Return the entries with allowed names, each with its exact value and properties; an empty string if there are none."""
    kept = []
    for entry in header.split(","):
        name, equals, _ = entry.partition("=")
        if equals and is_allowed(name.strip()):
            kept.append(entry.strip())
    return ",".join(kept)
