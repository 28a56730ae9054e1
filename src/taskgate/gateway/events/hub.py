"""One hub for telling facts inside the process: publishers do not know who listens, and listeners subscribe when they are made.

Handlers run at once, in the order of subscription. A handler that fails is logged and keeps nobody else from hearing. What may
stop or change something is no event: it is a required argument of whoever must ask it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from taskgate.telemetry.logs import log


class Event:
    """Base of everything that can be published: a frozen value that says what has happened."""

    __slots__ = ()


E = TypeVar("E", bound=Event)


class EventHub:
    def __init__(self) -> None:
        self._handlers: dict[type[Event], tuple[Callable[[Any], None], ...]] = {}

    def subscribe(self, kind: type[E], handler: Callable[[E], None]) -> None:
        self._handlers[kind] = (*self._handlers.get(kind, ()), handler)

    def publish(self, event: Event) -> None:
        for handler in self._handlers.get(type(event), ()):
            try:
                handler(event)
            except Exception as fault:  # one subscriber: the publisher and the other subscribers go on
                log.error("an event was not handled", kind=type(event).__name__, handler=repr(handler), exc_info=fault)
