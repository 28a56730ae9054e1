"""Durations, sizes, counts and rates in the units that people read: 4.9 s, 1.2 MB, 12.4k, 0.3/s.

A value has two or three significant digits, so that numbers in a column can be compared at a glance. The exact value belongs in the
JSON of the page.
"""

from __future__ import annotations

from typing import Final

NONE: Final = "–"
"""Shown where there is no value."""
_SIZES: Final = ("B", "kB", "MB", "GB", "TB")
_MINUTE_S: Final = 60
_HOUR_S: Final = 3_600
_DAY_S: Final = 86_400


def duration(ms: float | None) -> str:
    """`0.7 ms`, `320 ms`, `4.9 s`, `10 min`, `2 h 5 min`, `3 days`."""
    if ms is None:
        return NONE
    ms = max(0.0, ms)
    if ms < 999.5:
        return f"{_digits(ms)} ms"
    if ms < 59_950:
        return f"{_digits(ms / 1000)} s"
    seconds = round(ms / 1000)
    if seconds < 10 * _MINUTE_S:
        minutes, rest = divmod(seconds, _MINUTE_S)
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    if seconds < _HOUR_S:
        return f"{seconds // _MINUTE_S} min"
    if seconds < 2 * _DAY_S:
        hours, minutes = divmod(seconds // _MINUTE_S, 60)
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{seconds // _DAY_S} days"


def size(count: float | None) -> str:
    """A number of bytes, in powers of 1000: `312 B`, `4.1 kB`, `1.2 MB`."""
    if count is None:
        return NONE
    amount, unit = max(0.0, float(count)), 0
    while amount >= 999.5 and unit < len(_SIZES) - 1:
        amount /= 1000
        unit += 1
    return f"{int(amount) if unit == 0 else _digits(amount)} {_SIZES[unit]}"


def count(number: float | None) -> str:
    """`7`, `950`, `12.4k`, `3.1M`."""
    if number is None:
        return NONE
    for bound, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if number >= bound * 0.9995:
            return f"{_digits(number / (1e3 if unit == 'k' else bound))}{unit}"
    return f"{number:,.0f}"


def rate(per_second: float | None) -> str:
    """`12/s`, `0.4/s`; below one in ten seconds per minute or hour, so that a rare call does not read as none."""
    if per_second is None:
        return NONE
    for factor, unit in ((1, "s"), (_MINUTE_S, "min"), (_HOUR_S, "h")):
        if per_second * factor >= 0.1 or unit == "h":
            return f"{_digits(per_second * factor)}/{unit}"
    raise AssertionError


def percent(share: float | None) -> str:
    """A share from 0 to 1. Anything above none is at least `<0.1%`, and anything below all at most `99.9%`."""
    if share is None:
        return NONE
    if 0 < share < 0.001:
        return "<0.1%"
    if 0.999 < share < 1:
        return "99.9%"
    return f"{_digits(share * 100)}%"


def _digits(number: float) -> str:
    """One decimal below a hundred and none above, without a trailing zero: `4.9`, `10`, `320`."""
    return f"{number:.1f}".removesuffix(".0") if number < 99.95 else f"{number:.0f}"
