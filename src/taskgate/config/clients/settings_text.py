"""Read, replace and restore the map of servers in the text of a settings file, in JSON or TOML. Pure.

Raises `SettingsError` when the text cannot be parsed.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from typing import Any, TypeVar

from tomlkit.exceptions import TOMLKitError

from taskgate.config.clients.client import GATEWAY_NAME, Entry, Format, Pointer, SettingsPlace
from taskgate.config.clients.json_edit import json_remove_value, json_set_value, json_value_at, raw_at, set_raw
from taskgate.config.clients.toml_edit import toml_remove_value, toml_set_value, toml_value_at
from taskgate.config.json_text import JsonTextError

Result = TypeVar("Result")


class SettingsError(Exception):
    """A client's settings cannot be parsed or changed."""


def servers_in(text: str, place: SettingsPlace) -> dict[str, Entry]:
    """Return the servers of a place in the client's format; entries that are not maps are skipped."""
    found = _value_at(text, place.format, place.pointer)
    if not isinstance(found, dict):
        return {}
    return {name: entry for name, entry in found.items() if isinstance(entry, dict)}


def with_servers(text: str, place: SettingsPlace, servers: dict[str, Entry]) -> str:
    """Return the text with exactly these servers at a place. Raises SettingsError."""
    if place.format is Format.JSON:
        return _guarded(lambda: json_set_value(text, place.pointer, servers))
    after = _guarded(lambda: toml_set_value(text, place.pointer, servers))
    if _rest(after, place) != _rest(text, place) or servers_in(after, place) != servers:
        raise SettingsError("the formatting prevents a safe change; move its servers manually")
    return after


def restored(current: str, before: str, place: SettingsPlace) -> str:
    """Return the current text with the former servers; servers added since are kept, the gateway is removed."""
    was = _value_at(before, place.format, place.pointer)
    now = servers_in(current, place)
    was_servers = was if isinstance(was, dict) else {}
    added = {name: entry for name, entry in now.items() if name != GATEWAY_NAME and name not in was_servers}
    if was is None and not added:
        edit = toml_remove_value if place.format is Format.TOML else json_remove_value
        return _guarded(lambda: edit(current, place.pointer))
    if place.format is Format.TOML:
        return with_servers(current, place, {**was_servers, **added})
    raw = _guarded(lambda: raw_at(before, place.pointer)) or json.dumps({})
    text = _guarded(lambda: set_raw(current, place.pointer, raw))
    for name, entry in added.items():
        text = json_set_value(text, (*place.pointer, name), entry)
    return text


def _rest(text: str, place: SettingsPlace) -> dict[str, Any]:
    """Return everything except the servers of the place."""
    return {key: value for key, value in tomllib.loads(text).items() if key != place.pointer[0]}


def _value_at(text: str, form: Format, pointer: Pointer) -> Any:
    read = toml_value_at if form is Format.TOML else json_value_at
    return _guarded(lambda: read(text, pointer))


def _guarded(work: Callable[[], Result]) -> Result:
    try:
        return work()
    except JsonTextError as error:
        raise SettingsError(f"invalid JSON: {error.message}") from None
    except (TOMLKitError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"invalid TOML: {str(error)[:200]}") from None
