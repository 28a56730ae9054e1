"""Names similar to a misspelled one, for the text of an error."""

from __future__ import annotations

from collections.abc import Iterable


def similar_names(name: str, known: Iterable[str], count: int = 1, cutoff: float = 0.6) -> list[str]:
    """Return up to `count` of the known names, the most similar first. `cutoff`: 1 for equal names only, 0 for all."""
    # Imported here: most gateways never answer with such an error.
    import difflib

    return difflib.get_close_matches(name, list(known), count, cutoff)
