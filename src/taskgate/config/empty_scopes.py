"""Warn about scopes whose lists together select no server, although each of them selects some."""

from __future__ import annotations

from contextlib import suppress

from taskgate.config.cross_references import References
from taskgate.config.problems import problem_at
from taskgate.config.tool_name_collisions import registry_of, subset_of
from taskgate.config.tree import Mapping
from taskgate.core.errors import TaskgateError
from taskgate.core.scoping.registry import Registry


def check_empty_scopes(found: References) -> None:
    """Add a warning for each scope that is empty for another reason than those that were found in it before."""
    registry: Registry | None = None
    reported = {problem.key for problem in (*found.problems, *found.warnings)}
    for entry in found.root.map("scopes"):
        key = f"scopes.{entry.key}"
        is_reported = any(each == key or each.startswith(f"{key}.") for each in reported)
        if not found.servers or is_reported or not isinstance(entry.value, Mapping):
            continue
        with suppress(TaskgateError):  # an invalid pattern or profile is reported at its own position
            registry = registry or registry_of(found.servers)
            if not subset_of(found.root, registry, entry.key, entry.value).servers:
                message = "its lists together select no server, so its callers see no tools"
                hint = "compare its servers and tags with its profile and with what that excludes"
                found.warnings.append(problem_at(entry.key_mark, key, message, hint))
