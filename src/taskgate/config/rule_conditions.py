"""Check the conditions of a rule, with their positions in the file."""

from __future__ import annotations

from contextlib import suppress

from taskgate.config.problems import Problem, did_you_mean, problem_at
from taskgate.config.tree import Mapping, plain
from taskgate.core.facts.conditions import conditions
from taskgate.core.facts.table import FACTS
from taskgate.core.globs import PatternError
from taskgate.core.patterns import Pattern, PatternKind


def mistakes(rule: Mapping, key: str) -> list[Problem]:
    """Return what is invalid in `when` and `from` of a rule. `key` is that of the rule."""
    found, is_for_tools = list[Problem](), _is_for_tools(rule)
    if rule.text("from") is not None and not is_for_tools:
        message = "from: script applies only to tools, because scripts call nothing else"
        found.append(problem_at(rule.mark, key, message, "remove it"))
    when = rule.get("when")
    for name, entry in when.entries.items() if isinstance(when, Mapping) else ():
        fact = FACTS.get(name.partition(".")[0])
        place = f"{key}.when.{name[:60]}"
        if fact is None:
            hint = did_you_mean(name, FACTS) or f"known: {', '.join(FACTS)}"
            found.append(problem_at(entry.key_mark, place, "there is no such fact", hint))
            continue
        if fact.for_tools_only and not is_for_tools:
            found.append(problem_at(entry.key_mark, place, "applies only to tools", "remove it, or match tools"))
        try:
            conditions({name: plain(entry.value)})
        except ValueError as error:
            message, _, hint = str(error).removeprefix(f"{name[:60]}: ").partition("; ")
            found.append(problem_at(entry.key_mark, place, message, hint))
    return found


def forgeable(rule: Mapping, key: str) -> list[Problem]:
    """Return a warning for each condition of a rule that forwards by what a caller can state as it likes."""
    when = rule.get("when")
    if rule.text("action") != "forward" or not isinstance(when, Mapping):
        return []
    found = list[Problem]()
    for name, entry in when.entries.items():
        fact = FACTS.get(name.partition(".")[0])
        if fact is not None and fact.forgeable:
            message = f"forwards calls by their {fact.name}, which every caller can state as it likes"
            hint = "forward by caller, token, role or scope; use this fact only to restrict"
            found.append(problem_at(entry.key_mark, f"{key}.when.{name}", message, hint))
    return found


def _is_for_tools(rule: Mapping) -> bool:
    with suppress(PatternError):
        return Pattern.compile(rule.text("match") or "*").kind is PatternKind.TOOL
    return True
