"""Environment variables that override keys of the file.

`TASKGATE_TASK_FORCE_REQUIRED` adds to the list in the file instead of replacing it, so that a variable cannot silently
weaken it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping as Environment

from taskgate.config.environments import branch
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
FORMER_PREFIX = "THOUGHTGATE_"
"""Prefix of ThoughtGate's variables. This gateway reads the same settings under its own prefix."""


def ignored_variables(environment: Environment[str, str]) -> list[Problem]:
    """Return a warning for each set variable with the former prefix, which has no effect."""
    found = []
    for variable in sorted(name for name in environment if name.startswith(FORMER_PREFIX)):
        ours = "TASKGATE_" + variable.removeprefix(FORMER_PREFIX)
        hint = f"set {ours} instead" if ours in (*NUMBERS, FORCE_REQUIRED) else "Taskgate has no equivalent; unset it"
        found.append(problem_at(Mark(f"${variable[:80]}"), "", "this variable has no effect", hint))
    return found


def apply_overrides(root: Mapping, environment: Environment[str, str]) -> tuple[Mapping, list[Problem]]:
    """Return the root with the values of the environment variables, and problems with them."""
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
