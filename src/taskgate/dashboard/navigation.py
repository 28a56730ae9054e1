"""A page of the console as its route declares it: title, place in the menu, JSON route and topics."""

from __future__ import annotations

import msgspec

from taskgate.dashboard.topics import Topic


class Page(msgspec.Struct, frozen=True):
    name: str
    title: str
    json: str
    """The address of the JSON route that returns the same data; the page shows it, and the command of that route."""
    topics: tuple[Topic, ...] = ()
    """Changes that make an open page fetch itself again."""
    menu: int | None = None
    """The position in the menu; None for pages that are reached from others."""
