"""The event hub calls all subscribers in order, and an exception of one does not affect the others."""

from __future__ import annotations

from typing import Any

import pytest

from taskgate.gateway import events
from taskgate.gateway.events import EventHub, HubEvent
from taskgate.gateway.plan import Live
from taskgate.telemetry.logs import log


class Rained(HubEvent, frozen=True):
    millimetres: int


class Snowed(HubEvent, frozen=True):
    pass


def test_subscribers_get_events_of_their_type_at_once_and_in_order() -> None:
    hub = EventHub()
    received: list[Any] = []
    hub.subscribe(Rained, lambda event: received.append(("first", event.millimetres)))
    hub.subscribe(Rained, lambda event: received.append(("second", event.millimetres)))
    hub.publish(Snowed())
    assert received == []
    hub.publish(Rained(3))
    assert received == [("first", 3), ("second", 3)]


def test_a_failing_subscriber_is_logged_and_the_others_get_the_event(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = EventHub()
    received: list[Any] = []
    logged: list[Any] = []

    def fails(_event: Rained) -> None:
        raise ValueError("broken")

    monkeypatch.setattr(log, "error", lambda text, **facts: logged.append((text, facts["kind"])))
    hub.subscribe(Rained, fails)
    hub.subscribe(Rained, received.append)
    hub.publish(Rained(1))
    assert received == [Rained(1)]
    assert logged == [("an event was not handled", "Rained")]


def test_a_subscriber_may_subscribe_during_delivery() -> None:
    hub = EventHub()
    received: list[Any] = []
    hub.subscribe(Rained, lambda _event: hub.subscribe(Rained, received.append))
    hub.publish(Rained(1))
    assert received == []
    hub.publish(Rained(2))
    assert received == [Rained(2)]


def test_every_event_is_a_frozen_value() -> None:
    kinds = [kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, HubEvent)]
    assert len(kinds) > 10
    for kind in kinds:
        if kind is not HubEvent:
            assert kind.__struct_config__.frozen, kind
    with pytest.raises(AttributeError):
        Rained(1).millimetres = 2  # type: ignore[misc]


def test_a_live_value_is_read_each_time() -> None:
    live = Live(1)
    assert live.value == 1
    live.replace(2)
    assert live.value == 2
