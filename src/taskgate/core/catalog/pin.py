"""Pins: the definition of a tool when it was first seen or last accepted, so that it cannot change unnoticed.

The digest covers the whole definition, including unknown fields, so a change of any byte counts. `pins` decides what
follows: `off` ignores the change, `warn` reports the difference, `enforce` quarantines the tool until a person accepts
the new definition. The gateway stores pins and hides quarantined tools.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final, TypeAlias

import msgspec

from taskgate.core import wire
from taskgate.core.catalog.suspicions import Flag, suspicions
from taskgate.core.digest import digest as canonical_digest
from taskgate.core.digest import digest_of_bytes
from taskgate.core.redaction.difference import Difference, difference
from taskgate.core.strict_json import AmbiguousJson
from taskgate.core.wire import Raw

LOOKALIKES: Final = "taskgate/lookalikes"
"""Where the pinned definition names the other tools of the server that look like this one."""


class PinMode(StrEnum):
    """`pins` in the configuration."""

    OFF = "off"
    WARN = "warn"
    ENFORCE = "enforce"


class Pin(msgspec.Struct, frozen=True, gc=False):
    """What was accepted: the digest, and the JSON of the definition, so that a later difference can be shown. A struct, because
    there may be thousands.
    """

    digest: str
    raw: Raw

    @classmethod
    def of(cls, digest: str, definition: Mapping[str, Any]) -> Pin:
        return cls(digest, raw_definition(definition))

    @property
    def definition(self) -> Mapping[str, Any]:
        return parsed_definition(self.raw)


def raw_definition(definition: Mapping[str, Any]) -> Raw:
    """Return a definition as JSON."""
    try:
        return wire.raw(dict(definition))
    except (OverflowError, UnicodeError):
        # The standard library preserves integers of any size and halves of surrogate pairs.
        return Raw(json.dumps(dict(definition)).encode())


def parsed_definition(raw: Raw) -> Mapping[str, Any]:
    definition: Mapping[str, Any] = json.loads(bytes(raw))
    return definition


class Accepted(msgspec.Struct, frozen=True):
    """The definition is the pinned one (or pinning is off)."""

    digest: str


class FirstSeen(msgspec.Struct, frozen=True):
    """Not seen before: pin it. `flags` are reported to the operator."""

    digest: str
    flags: tuple[Flag, ...]


class PinChanged(msgspec.Struct, frozen=True):
    """Not the pinned definition. `quarantined`: hide the tool and refuse calls until a person accepts it."""

    digest: str
    pinned: str
    quarantined: bool
    changes: Difference
    flags: tuple[Flag, ...]


Pinned: TypeAlias = Accepted | FirstSeen | PinChanged


def definition_digest(tool: Mapping[str, Any]) -> str:
    """Return the digest of a whole definition: names, texts, both schemas, annotations, icons, `_meta` and unknown
    fields.
    """
    whole = dict(tool)
    try:
        return canonical_digest(whole)
    except AmbiguousJson:
        # A hostile server must not evade its pin by sending something without canonical bytes.
        return digest_of_bytes(json.dumps(whole, sort_keys=True, separators=(",", ":")).encode())


def raw_with_lookalikes(raw: Raw, alike: Iterable[str]) -> Raw:
    """Return what is pinned of a tool whose name looks like others of its server: they belong to the definition, because a
    reader takes one for the other.
    """
    return raw_definition({**parsed_definition(raw), LOOKALIKES: sorted(alike)})


def digest_with_lookalikes(digest: str, alike: Iterable[str]) -> str:
    """Return the digest of a definition together with these names. It is not that of any definition, so a server cannot
    declare the names before there are such tools.
    """
    return digest_of_bytes(json.dumps([digest, *sorted(alike)]).encode())


def covers_lookalikes(pin: Pin, digest: str, alike: Iterable[str]) -> bool:
    """Return whether the pin is of the definition with this digest and of these names, or of more than these."""
    names = pin.definition.get(LOOKALIKES)
    if type(names) is not list or not all(type(name) is str for name in names):
        return False
    return pin.digest == digest_with_lookalikes(digest, names) and set(alike) <= set(names)


def compare_pin(
    mode: PinMode, tool: Mapping[str, Any], pin: Pin | None, other_servers: Iterable[str] = (), *, digest: str = ""
) -> Pinned:
    """Compare the current definition of a tool with the pinned one. `digest` is that of the definition, if it is known."""
    now = digest or definition_digest(tool)
    if mode is PinMode.OFF or (pin is not None and pin.digest == now):
        return Accepted(now)
    flags = suspicions(tool, other_servers)
    if pin is None:
        return FirstSeen(now, flags)
    changes = difference(dict(pin.definition), dict(tool))
    return PinChanged(digest=now, pinned=pin.digest, quarantined=mode is PinMode.ENFORCE, changes=changes, flags=flags)
