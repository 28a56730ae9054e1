"""Parse and format durations: `10m`, `1h 30m`, `250ms`, `PT10M`.

A key that ends in `_ms` also accepts a bare number of milliseconds. Every other key requires a unit, because a bare
number would be ambiguous.
"""

from __future__ import annotations

import re

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_PART = re.compile(r"\s*(\d{1,12}(?:\.\d{1,6})?)\s*(ms|secs|sec|s|mins|min|m|h|d|w)\s*", re.ASCII)
_ISO = re.compile(
    r"P(?:(\d{1,9})W)?(?:(\d{1,9})D)?(?:T(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,9}(?:\.\d{1,6})?)S)?)?\Z", re.ASCII
)
_LONGEST_MS = 3650 * 86_400_000
_EXAMPLES = "write for example 10m, 1h 30m, 45s, 250ms or PT10M"


def duration(text: str) -> float:
    """Parse a duration and return its seconds. Raises ValueError with the accepted form."""
    if not text.strip():
        raise ValueError(f"is not a duration; {_EXAMPLES}")
    if re.fullmatch(r"[-+]?\d+(\.\d+)?", text.strip()):
        if float(text) == 0:
            return 0.0
        raise ValueError(f"has no unit; {_EXAMPLES}")
    return round(_total_ms(text.strip()), 3) / 1000


def milliseconds(text: str) -> int:
    """Parse a number of milliseconds, bare or as a duration with a unit. Raises ValueError."""
    if re.fullmatch(r"[-+]?\d{1,18}(_\d{1,18})*", text.strip()):
        if int(text) < 0:
            raise ValueError("must be at least 0")
        return int(text)
    if text.strip():
        return int(_total_ms(text.strip()))
    raise ValueError("is not a number of milliseconds; write a whole number like 45000, or 45s")


def format_duration(seconds: float) -> str:
    """Format a duration in its shortest form, for example `1h 30m`."""
    rest = round(seconds * 1000)
    parts = []
    for unit in ("d", "h", "m", "s", "ms"):
        count, rest = divmod(rest, _UNITS_MS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts) or "0s"


def _total_ms(text: str) -> float:
    total = _iso_ms(text) if text[:1] in "Pp" else _parts_ms(text)
    if total is None:
        raise ValueError(f"is not a duration; {_EXAMPLES}")
    if total > _LONGEST_MS:
        raise ValueError("is longer than ten years; use a shorter duration")
    return total


def _iso_ms(text: str) -> float | None:
    found = _ISO.fullmatch(text.upper())
    if not found or not any(found.groups()):
        return None
    return sum(
        float(amount) * _UNITS_MS[unit]
        for amount, unit in zip(found.groups(), ("w", "d", "h", "m", "s"), strict=True)
        if amount
    )


def _parts_ms(text: str) -> float | None:
    position, total = 0, 0.0
    while position < len(text):
        found = _PART.match(text, position)
        if not found or found.end() == position:
            return None
        unit = {"sec": "s", "secs": "s", "min": "m", "mins": "m"}.get(found[2], found[2])
        total += float(found[1]) * _UNITS_MS[unit]
        position = found.end()
    return total
