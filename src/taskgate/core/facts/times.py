"""A time of day in a zone, such as `08:00-18:00 Europe/Berlin`, also over midnight and across changes of the clock."""

from __future__ import annotations

import re
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from typing import Any, Final
from zoneinfo import ZoneInfo

import msgspec

from taskgate.core.facts.truth import Truth

TIME_FORM: Final = r"(outside +)?([0-9]{1,2}):([0-9]{2}) *- *([0-9]{1,2}):([0-9]{2}) +(\S{1,64})"
_FORM: Final = re.compile(TIME_FORM)
_EXAMPLE: Final = "write for example 08:00-18:00 Europe/Berlin, or outside 08:00-18:00 UTC"
_DAY_MINUTES: Final = 24 * 60


class TimeOfDay(msgspec.Struct, frozen=True):
    """From the first minute up to, and without, the last one. `begin` after `end` is over midnight."""

    begin: int
    end: int
    zone: str
    text: str
    outside: bool = False

    def truth(self, value: Any) -> Truth:
        """`value`: seconds since 1970."""
        local = datetime.fromtimestamp(value, zone_named(self.zone))
        minute = local.hour * 60 + local.minute
        if self.begin < self.end:
            within = self.begin <= minute < self.end
        else:
            within = minute >= self.begin or minute < self.end
        return Truth.of(within is not self.outside)

    def __str__(self) -> str:
        return f"is {self.text}"


def time_of_day(text: str) -> TimeOfDay:
    """Raises ValueError."""
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text[:60]!r} is not a time of day with a zone; {_EXAMPLE}")
    outside, zone = bool(found[1]), found[6]
    begin, end = (int(found[n]) * 60 + int(found[n + 1]) for n in (2, 4))
    if int(found[3]) > 59 or int(found[5]) > 59 or begin >= _DAY_MINUTES or end > _DAY_MINUTES:
        raise ValueError(f"{text[:60]!r} is not a time between 00:00 and 24:00; {_EXAMPLE}")
    if begin == end:
        raise ValueError(f"{text[:60]!r} begins when it ends; {_EXAMPLE}")
    zone_named(zone)
    return TimeOfDay(begin=begin, end=end, zone=zone, text=" ".join(text.split()), outside=outside)


@lru_cache(maxsize=64)
def zone_named(name: str) -> tzinfo:
    """Return a zone of the tz database. Raises ValueError."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):
        raise ValueError(
            f"{name!r} is not a known time zone (on a machine without the tz database, only UTC is known); write for example "
            "Europe/Berlin or UTC"
        ) from None
