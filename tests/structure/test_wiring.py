"""Every part of the gateway gets what it needs when it is made, and what guards cannot be left out."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.structure.wiring_check import violations_in, violations_of

SOURCE = Path(__file__).resolve().parents[2] / "src" / "taskgate"


def test_no_collaborator_is_assigned_after_construction() -> None:
    found = violations_of(SOURCE)
    assert not found, "\n".join(f"{path}:{line}: {what}" for path, line, what in found)


VIOLATIONS = {
    "gateway.tasks.runs.on_idle = told": "assigns gateway.tasks.runs.on_idle",
    "def wire(relay: Relay) -> None:\n    relay.urls = urls": "assigns relay.urls",
    "class A:\n    def f(self):\n        self.records.check = check": "assigns self.records.check",
    "a.b, (c.d, e) = 1, (2, 3)": "assigns c.d",
    "counter.count += 1": "assigns counter.count",
    "thing.hook: object = None": "assigns thing.hook",
    "class A:\n    def __init__(self):\n        self.look = lambda task: None": "default lambda task: None",
    "class A:\n    look: object = lambda task: None": "default lambda task: None",
    "def f(look=lambda task: None): ...": "default lambda task: None",
    "def f(*, look=lambda task: None): ...": "default lambda task: None",
    "def go(task):\n    return None\ndef f(look=go): ...": "default go",
    "async def go(task):\n    'Says yes.'\nclass A:\n    def __init__(self):\n        self.look = go": "default go",
    "getattr(outlet, 'begin', None)": "getattr(outlet, 'begin', None)",
    "hasattr(outlet, 'begin')": "hasattr(outlet, 'begin')",
    "setattr(relay, 'urls', urls)": "setattr(relay, 'urls', urls)",
    "object.__setattr__(relay, 'urls', urls)": "object.__setattr__(relay, 'urls', urls)",
    "force_setattr(relay, 'urls', urls)": "force_setattr(relay, 'urls', urls)",
    "msgspec.structs.force_setattr(relay, 'urls', urls)": "msgspec.structs.force_setattr(relay, 'urls', urls)",
    "vars(relay)['urls'] = urls": "vars(relay)['urls']",
    "relay.__dict__['urls'] = urls": "relay.__dict__['urls']",
    "for relay.urls in urls: ...": "assigns relay.urls",
    "with opened() as relay.urls: ...": "assigns relay.urls",
}


@pytest.mark.parametrize("source", VIOLATIONS)
def test_the_check_detects_late_wiring(source: str) -> None:
    assert VIOLATIONS[source] in [what for _, _, what in violations_in("x.py", source)]


FINE = [
    "class A:\n    def f(self):\n        self.x = 1\n        self.y += 1",
    "class Held: ...\ndef f(held: Held) -> None:\n    held.work = None",
    "class Held: ...\ndef f(held: Held | None) -> None:\n    held.work = None",
    "class Held: ...\ndef f() -> None:\n    held = Held()\n    held.work = None",
    "class Held:\n    @classmethod\n    def made(cls):\n        held = cls()\n        held.work = None",
    "class Held:\n    def __post_init__(self):\n        object.__setattr__(self, 'work', None)",
    "run.__doc__ = command.__doc__",
    "getattr(transport, name)",
    "hasattr(socket, 'AF_UNIX')",
    "def go(task):\n    return judge(task)\ndef f(look=go): ...",
]


@pytest.mark.parametrize("source", FINE)
def test_the_check_accepts_constructor_arguments(source: str) -> None:
    assert list(violations_in("x.py", source)) == []
