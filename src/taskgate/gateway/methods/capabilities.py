"""The capabilities that the gateway declares to a caller: those of the servers in its scope, and its own.

In a scope with one server and without helper tools (`alone`) they are those of the server, changes of its lists, and tasks: nothing
else lets a caller there follow a call that is held or takes long.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from taskgate import __version__
from taskgate.core.catalog.apps import UI_EXTENSION
from taskgate.core.catalog.skills import SKILLS_EXTENSION, declares_skills
from taskgate.core.catalog.task_support import sends_task_status
from taskgate.core.generations.stateful import supports_tasks
from taskgate.core.generations.stateless import TASKS_EXTENSION

SERVER: Final = {"name": "taskgate", "title": "Taskgate", "version": __version__}
UNLISTED_SERVER: Final = {"resources": {"subscribe": True}, "extensions": {SKILLS_EXTENSION: {}}}
"""Assumed for a server that was not listed yet: a client that sees no support at first never tries."""
_NOT_MERGED: Final = frozenset({"tasks", "notifications", "extensions"})


def merged(all_capabilities: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The union of capability objects. A flag that one server sets is set."""
    union: dict[str, Any] = {}
    for capabilities in all_capabilities:
        for key, value in capabilities.items():
            if key in _NOT_MERGED:
                continue
            before = union.get(key)
            if isinstance(before, dict) and isinstance(value, Mapping):
                union[key] = {**before, **{k: v for k, v in value.items() if v or k not in before}}
            elif key not in union:
                union[key] = dict(value) if isinstance(value, Mapping) else value
    return union


def stateful_capabilities(upstreams: list[Mapping[str, Any]], version: str, *, alone: bool = False) -> dict[str, Any]:
    capabilities = merged(upstreams)
    _add_own_capabilities(capabilities, alone=alone)
    extensions = {**_apps(upstreams, alone=alone), **_skills(upstreams)}
    if extensions:
        capabilities["extensions"] = extensions
    if supports_tasks(version):
        capabilities["tasks"] = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}, "tools/call": True}}
        if any(sends_task_status(upstream) for upstream in upstreams):
            capabilities["notifications"] = {"tasks": {"status": True}}
    return capabilities


def stateless_capabilities(
    upstreams: list[Mapping[str, Any]], *, more_skills: bool = False, alone: bool = False
) -> dict[str, Any]:
    """`more_skills`: a server may have skills that it does not declare in the generation in which it was listed."""
    capabilities = merged(upstreams)
    _add_own_capabilities(capabilities, alone=alone)
    capabilities["extensions"] = {
        **merged(_extensions(upstream) for upstream in upstreams),
        **_apps(upstreams, alone=alone),
        TASKS_EXTENSION: {},
    }
    capabilities["extensions"].pop(SKILLS_EXTENSION, None)
    capabilities["extensions"] |= _skills(upstreams, more=more_skills)
    return capabilities


def _extensions(upstream: Mapping[str, Any]) -> Mapping[str, Any]:
    extensions = upstream.get("extensions")
    return extensions if isinstance(extensions, Mapping) else {}


def _apps(upstreams: list[Mapping[str, Any]], *, alone: bool) -> dict[str, Any]:
    return (
        {} if alone and not any(UI_EXTENSION in _extensions(upstream) for upstream in upstreams) else {UI_EXTENSION: {}}
    )


def _skills(upstreams: list[Mapping[str, Any]], *, more: bool = False) -> dict[str, Any]:
    """The gateway builds folders itself for servers without `directoryRead`."""
    has_skills = more or any(declares_skills(upstream) for upstream in upstreams)
    return {SKILLS_EXTENSION: {"directoryRead": True}} if has_skills else {}


def _add_own_capabilities(capabilities: dict[str, Any], *, alone: bool) -> None:
    """Lists may change at any time (a late start, a reload, a reconnect), so `listChanged` is always declared."""
    for key in ("tools", "prompts", "resources"):
        if key in capabilities or not alone:
            capabilities[key] = {**capabilities.get(key, {}), "listChanged": True}
    if not alone:
        # The gateway completes names, URIs and tool arguments itself, and keeps log levels itself.
        capabilities.setdefault("completions", {})
        capabilities.setdefault("logging", {})
