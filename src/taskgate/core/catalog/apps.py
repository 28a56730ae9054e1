"""MCP Apps (`io.modelcontextprotocol/ui`): the user interface of a tool, and whether the tool is for the model or for
apps.

A tool refers to its interface by a URI in `_meta`: `ui.resourceUri`, or one of the older keys `ui/resourceUri` and
`openai/outputTemplate`. `ui.visibility` lists whether the model, apps, or both may call the tool; the default is both.
The older keys for it are `openai/visibility` and `openai/widgetAccessible`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from taskgate.core import wire
from taskgate.core.meta import META
from taskgate.core.wire import Members, Raw

UI_EXTENSION: Final = "io.modelcontextprotocol/ui"
APP_MIME: Final = "text/html;profile=mcp-app"
UI_SCHEME: Final = "ui://"
RESOURCE_URI: Final = "resourceUri"
FLAT_KEYS: Final = ("ui/resourceUri", "openai/outputTemplate")
MODEL, APP = "model", "app"
_LONGEST: Final = 2_048


def supports_apps(capabilities: Mapping[str, Any]) -> bool:
    """Whether a client declared that it renders apps."""
    settings = extension_settings(capabilities, UI_EXTENSION)
    if settings is None:
        return False
    types = settings.get("mimeTypes")
    return types is None or (isinstance(types, list) and APP_MIME in types)


def extension_settings(capabilities: Mapping[str, Any], extension: str) -> Mapping[str, Any] | None:
    """Return what a peer declares about an extension; None if it does not declare it."""
    extensions = capabilities.get("extensions")
    settings = extensions.get(extension) if isinstance(extensions, Mapping) else None
    return settings if isinstance(settings, Mapping) else None


def ui_addresses(definition: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the URIs of a tool's interface without duplicates."""
    meta = definition.get(META)
    if not isinstance(meta, Mapping):
        return ()
    ui = meta.get("ui")
    nested = ui.get(RESOURCE_URI) if isinstance(ui, Mapping) else None
    found = (nested, *(meta.get(key) for key in FLAT_KEYS))
    return tuple(dict.fromkeys(uri for uri in found if isinstance(uri, str) and _is_valid(uri)))


def _is_valid(uri: str) -> bool:
    return uri.startswith(UI_SCHEME) and len(UI_SCHEME) < len(uri) <= _LONGEST


def is_for_model(definition: Mapping[str, Any]) -> bool:
    meta = definition.get(META)
    declared = _visibility(meta)
    if declared is not None:
        return MODEL in declared
    return not (isinstance(meta, Mapping) and meta.get("openai/visibility") == "private")


def is_for_apps(definition: Mapping[str, Any]) -> bool:
    meta = definition.get(META)
    declared = _visibility(meta)
    if declared is not None:
        return APP in declared
    return not (isinstance(meta, Mapping) and meta.get("openai/widgetAccessible") is False)


def _visibility(meta: Any) -> list[Any] | None:
    ui = meta.get("ui") if isinstance(meta, Mapping) else None
    declared = ui.get("visibility") if isinstance(ui, Mapping) else None
    return declared if isinstance(declared, list) else None


def with_addresses(tool: Members, shown: Mapping[str, str | None]) -> None:
    """Replace the interface URIs of a listed tool by those that the caller uses; None removes one."""
    meta = wire.members_of(tool[META])
    for holder, key in _places(meta):
        members = meta if holder is None else wire.members_of(meta[holder])
        uri = wire.parse_strictly(bytes(members[key]))
        if not isinstance(uri, str) or shown.get(uri, uri) == uri:
            continue
        replacement = shown[uri]
        if replacement is None:
            del members[key]
        else:
            members[key] = wire.raw(replacement)
        if holder is not None:
            meta[holder] = Raw(wire.join(members))
    tool[META] = Raw(wire.join(meta))


def _places(meta: Members) -> Iterator[tuple[str | None, str]]:
    ui = meta.get("ui")
    if ui is not None and bytes(ui)[:1] == b"{" and RESOURCE_URI in wire.members_of(ui):
        yield "ui", RESOURCE_URI
    for key in FLAT_KEYS:
        if key in meta:
            yield None, key


def with_interface(tool: Members, uri: str) -> None:
    """Declare an interface for a tool that has none, in the current and in the older form."""
    meta = wire.members_of(tool[META]) if META in tool and bytes(tool[META])[:1] == b"{" else {}
    ui = meta.get("ui")
    inner = wire.members_of(ui) if ui is not None and bytes(ui)[:1] == b"{" else {}
    inner[RESOURCE_URI] = wire.raw(uri)
    meta["ui"] = Raw(wire.join(inner))
    meta[FLAT_KEYS[0]] = wire.raw(uri)
    tool[META] = Raw(wire.join(meta))
