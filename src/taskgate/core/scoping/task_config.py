"""Parse a scope from a flat map of strings with `mcp.*` keys, as task schedulers store it with a task.

Lists are JSON arrays or comma-separated, switches are `"true"` and `"false"`. Scoping is off unless `mcp.enabled` is
`"true"`: such a map results in a scope that shows nothing. All problems are reported at once, each with its key. Other keys
of the map are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeVar

from msgspec.structs import replace

from taskgate.core.catalog.names import NameStyle
from taskgate.core.errors import CallerError
from taskgate.core.globs import Glob, PatternError
from taskgate.core.patterns import PatternSet
from taskgate.core.scoping.profile import Narrowing, Profile, ProfileError, ResolvedProfile, resolve_profile
from taskgate.core.scoping.scope import HelperTools, ScopeMode, ScopePolicy
from taskgate.core.text.similar_names import similar_names

MAX_VALUE = 65_536

KEYS = tuple(
    f"mcp.{key}"
    for key in [
        "enabled",
        "default_server_ids",
        "allowed_server_ids",
        "tool_allowlist",
        "tool_denylist",
        "profile",
        "profile_overrides",
        "tags",
        "mode",
        "names",
        "helper_tools",
    ]
)
_Choice = TypeVar("_Choice", bound=StrEnum)
_OVERRIDE_KEYS = ("servers", "exclude_servers", "tool_allowlist", "tool_denylist")


class TaskConfigError(CallerError):
    """A map that cannot be parsed as a scope, with all problems."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("bad_task_config", " ".join(problems), data={"problems": problems})


def scope_from_task_config(
    config: Mapping[str, str],
    name: str = "task",
    profiles: Mapping[str, Profile] | None = None,
) -> ScopePolicy:
    """Return the scope that a map of strings describes. Raises TaskConfigError."""
    reader = _Reader(config)
    reader.refuse_unknown_keys()
    allowed = reader.servers("mcp.allowed_server_ids")
    default = reader.servers("mcp.default_server_ids") or ()
    scope = ScopePolicy(
        name=name,
        enabled=reader.switch("mcp.enabled"),
        default_servers=default,
        allowed_servers=allowed,
        tool_allowlist=reader.patterns("mcp.tool_allowlist"),
        tool_denylist=reader.patterns("mcp.tool_denylist") or PatternSet(),
        tags=reader.words("mcp.tags") or (),
        mode=reader.choice("mcp.mode", ScopeMode, ScopeMode.DIRECT),
        names=reader.choice("mcp.names", NameStyle, NameStyle.PREFIXED),
        helper_tools=reader.choice("mcp.helper_tools", HelperTools, HelperTools.AUTO),
    )
    scope = replace(scope, profile=reader.profile(profiles or {}))
    reader.refuse_default_outside_allowed(default, allowed)
    if reader.problems:
        raise TaskConfigError(reader.problems)
    return scope


class _Reader:
    """Parses keys and collects all problems, so that they can be fixed at once."""

    def __init__(self, config: Mapping[str, str]) -> None:
        self.config = config
        self.problems: list[str] = []

    def refuse_unknown_keys(self) -> None:
        for key in self.config:
            if key.startswith("mcp.") and key not in KEYS:
                near = similar_names(key, KEYS)
                self.problems.append(f"Unknown key {key!r}.{f' Did you mean {near[0]!r}?' if near else ''}")

    def refuse_default_outside_allowed(self, default: tuple[str, ...], allowed: tuple[str, ...] | None) -> None:
        if allowed is None:
            return
        globs = [Glob.compile(text) for text in allowed]
        outside = [text for text in default if Glob.compile(text).literal and not any(g.matches(text) for g in globs)]
        if outside:
            names = ", ".join(repr(text) for text in outside)
            self.problems.append(f"mcp.default_server_ids has {names}, which mcp.allowed_server_ids does not allow.")

    def text(self, key: str) -> str | None:
        value: Any = self.config.get(key)
        if value is None:
            return None
        if not isinstance(value, str) or len(value) > MAX_VALUE:
            self.problems.append(f"{key} must be a string of at most {MAX_VALUE} characters.")
            return None
        return value.strip()

    def switch(self, key: str) -> bool:
        value = self.text(key)
        if value not in (None, "true", "false"):
            self.problems.append(f'{key} must be "true" or "false", not {value!r}.')
        return value == "true"

    def choice(self, key: str, choices: type[_Choice], default: _Choice) -> _Choice:
        value = self.text(key)
        if value is None:
            return default
        found = next((choice for choice in choices if choice.value == value), None)
        if found is None:
            self.problems.append(f"{key} must be one of {', '.join(choices)}, not {value!r}.")
            return default
        return found

    def words(self, key: str) -> tuple[str, ...] | None:
        value = self.text(key)
        if value is None:
            return None
        if not value.startswith("["):
            return tuple(dict.fromkeys(part for part in (piece.strip() for piece in value.split(",")) if part))
        return self.strings(key, _json(value))

    def strings(self, key: str, value: Any) -> tuple[str, ...] | None:
        if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
            self.problems.append(f"{key} must be a JSON array of strings, or a comma-separated list.")
            return None
        return tuple(dict.fromkeys(value))

    def servers(self, key: str) -> tuple[str, ...] | None:
        return self.globs(key, self.words(key))

    def globs(self, key: str, words: tuple[str, ...] | None) -> tuple[str, ...] | None:
        try:
            for word in words or ():
                Glob.compile(word)
        except PatternError as error:
            self.problems.append(f"{key}: {error.message}")
            return None
        return words

    def patterns(self, key: str) -> PatternSet | None:
        return self.compiled(key, self.words(key))

    def compiled(self, key: str, words: tuple[str, ...] | None) -> PatternSet | None:
        try:
            return None if words is None else PatternSet.of(words)
        except PatternError as error:
            self.problems.append(f"{key}: {error.message}")
            return None

    def profile(self, profiles: Mapping[str, Profile]) -> ResolvedProfile | None:
        name, overrides = self.text("mcp.profile"), self.overrides()
        if not name:
            if overrides is not None:
                self.problems.append("mcp.profile_overrides needs mcp.profile.")
            return None
        try:
            profile = resolve_profile(profiles, name)
        except ProfileError as error:
            self.problems.append(f"mcp.profile: {error.message}")
            return None
        return profile if overrides is None else profile.narrowed(overrides)

    def overrides(self) -> Narrowing | None:
        key = "mcp.profile_overrides"
        value = self.text(key)
        if value is None:
            return None
        parsed = _json(value)
        if not isinstance(parsed, dict) or not set(parsed) <= set(_OVERRIDE_KEYS):
            self.problems.append(f"{key} must be a JSON object with the keys {', '.join(_OVERRIDE_KEYS)}.")
            return None
        lists = {name: self.strings(f"{key}.{name}", entry) for name, entry in parsed.items()}
        return Narrowing(
            servers=self.globs(f"{key}.servers", lists.get("servers")),
            exclude_servers=self.globs(f"{key}.exclude_servers", lists.get("exclude_servers")) or (),
            tool_allowlist=self.compiled(f"{key}.tool_allowlist", lists.get("tool_allowlist")),
            tool_denylist=self.compiled(f"{key}.tool_denylist", lists.get("tool_denylist")) or PatternSet(),
        )


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
