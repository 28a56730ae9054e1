"""Settings that the environment may give directly, whatever the file says.

`TASKGATE_TASK_FORCE_REQUIRED` adds to the file's list instead of replacing it: a variable must not quietly loosen a
safety list.
"""

from __future__ import annotations

import re
from collections.abc import Mapping as Environment

from taskgate.config.overlays import branch
from taskgate.config.problems import Mark, Problem, problem_at
from taskgate.config.tree import Mapping, Scalar, Sequence

FORCE_REQUIRED = "TASKGATE_TASK_FORCE_REQUIRED"
# variable -> (section, key, factor to the key's unit)
NUMBERS = {
    "TASKGATE_TASK_DEFAULT_TTL_MS": ("tasks", "default_ttl_ms", 1),
    "TASKGATE_TASK_MAX_TTL_MS": ("tasks", "max_ttl_ms", 1),
    "TASKGATE_SYNC_FORWARD_TIMEOUT_SECS": ("tasks", "sync_forward_timeout_ms", 1000),
    "TASKGATE_TOOLS_FETCH_TIMEOUT_MS": ("limits", "tools_fetch_timeout_ms", 1),
    "TASKGATE_TOOLS_MAX_PAGES": ("limits", "tools_max_pages", 1),
}


def apply_overrides(root: Mapping, environment: Environment[str, str]) -> tuple[Mapping, list[Problem]]:
    """The root with the variables laid over it."""
    problems: list[Problem] = []
    for variable, (section, key, factor) in NUMBERS.items():
        text = environment.get(variable, "").strip()
        if not text:
            continue
        mark = Mark(f"${variable}")
        if not re.fullmatch(r"\d{1,15}", text, re.ASCII) or int(text) == 0:
            problems.append(problem_at(mark, "", f'"{text[:40]}" is not a whole number above 0', "write digits only"))
            continue
        value = Scalar(str(int(text) * factor), mark)
        root = root.with_value(section, branch(root, section).with_value(key, value, mark))
    return _with_force_required(root, environment), problems


def _with_force_required(root: Mapping, environment: Environment[str, str]) -> Mapping:
    words = [word.strip() for word in environment.get(FORCE_REQUIRED, "").split(",") if word.strip()]
    if not words:
        return root
    mark = Mark(f"${FORCE_REQUIRED}")
    governance = branch(root, "governance")
    known = governance.get("force_required")
    before = known.items if isinstance(known, Sequence) else (known,) if known is not None else ()
    merged = Sequence((*before, *(Scalar(word, mark) for word in words)), known.mark if known else mark)
    return root.with_value("governance", governance.with_value("force_required", merged))
