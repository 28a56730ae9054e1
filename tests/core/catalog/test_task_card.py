"""Which tools are listed with the task card, for every setting and kind of caller."""

from __future__ import annotations

import json
from typing import cast

import pytest

from taskgate.core.catalog.apps import ui_addresses
from taskgate.core.catalog.own_tool_names import OwnToolName
from taskgate.core.catalog.own_tools import ToolFace
from taskgate.core.catalog.rendering import Audience
from taskgate.core.catalog.task_card import CARD_URI, TaskCard, has_card
from taskgate.core.generations.generation import Generation

PLAIN = Audience(Generation.STATEFUL)
HOST = Audience(Generation.STATEFUL, renders_apps=True)
STATELESS = Audience(Generation.STATELESS)


@pytest.mark.parametrize(
    ("mode", "audience", "held", "promotable", "takes_long", "expected"),
    [
        (TaskCard.AUTO, HOST, False, True, False, True),
        (TaskCard.AUTO, HOST, False, False, True, False),
        (TaskCard.AUTO, HOST, True, False, False, True),
        (TaskCard.AUTO, STATELESS, False, True, False, False),
        (TaskCard.AUTO, STATELESS, False, True, True, True),
        (TaskCard.AUTO, STATELESS, True, True, False, True),
        (TaskCard.ALL, STATELESS, False, True, False, True),
        (TaskCard.ALL, STATELESS, False, False, False, False),
        (TaskCard.HELD, HOST, False, True, True, False),
        (TaskCard.HELD, HOST, True, True, True, True),
        (TaskCard.HELD, STATELESS, True, False, False, True),
        (TaskCard.OFF, HOST, True, True, True, False),
        (TaskCard.OFF, STATELESS, True, True, True, False),
        (TaskCard.ALL, PLAIN, True, True, True, False),
        (TaskCard.AUTO, PLAIN, True, True, True, False),
    ],
)
def test_the_setting_the_caller_and_the_tool_decide(
    mode: TaskCard, audience: Audience, held: bool, promotable: bool, takes_long: bool, expected: bool
) -> None:
    assert has_card(mode, audience, held=held, promotable=promotable, takes_long=takes_long) is expected


@pytest.mark.parametrize("audience", [HOST, STATELESS])
def test_an_own_tool_declares_its_interface_and_visibility(audience: Audience) -> None:
    face = ToolFace(cast("OwnToolName", "show"), "Shows.")
    assert "_meta" not in json.loads(face.rendered(audience))
    assert ui_addresses(json.loads(face.rendered(audience, interface=CARD_URI))) == (CARD_URI,)
    assert json.loads(face.rendered(audience, only_for_apps=True))["_meta"] == {"ui": {"visibility": ["app"]}}
