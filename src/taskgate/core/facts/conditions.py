"""`when` of a rule: conditions on facts, all of which must be met."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from taskgate.core.facts.requirements import Requirement
from taskgate.core.facts.table import ARGUMENT_NAME, FACTS, MAX_STEPS, Fact, Facts, argument_at
from taskgate.core.facts.truth import NOT_KNOWN, Special, Truth, every, of_elements


class Condition(msgspec.Struct, frozen=True):
    """One requirement of one fact. `path` is that of an argument."""

    fact: Fact
    requirement: Requirement
    path: tuple[str, ...] = ()

    def truth(self, facts: Facts) -> Truth:
        """Return whether it is met; unknown if the fact is not known, or cannot be compared."""
        value = self.fact.of(facts)
        if not self.path:
            return Truth.UNKNOWN if value is NOT_KNOWN else self.requirement.truth(value)
        found = argument_at(value, self.path)
        if isinstance(found, Special):
            return Truth.UNKNOWN
        return of_elements(map(self.requirement.truth, found))

    def __str__(self) -> str:
        return f"{'.'.join((self.fact.name, *self.path))} {self.requirement}"


def conditions(when: Mapping[str, Any]) -> tuple[Condition, ...]:
    """Read conditions. Raises ValueError, whose text begins with the name of the fact."""
    return tuple(_condition(name, value) for name, value in when.items())


def _condition(name: str, value: Any) -> Condition:
    head, _, rest = name.partition(".")
    fact = FACTS.get(head)
    if fact is None:
        raise ValueError(f"{name[:60]}: there is no such fact (known: {', '.join(FACTS)})")
    path = tuple(rest.split(".")) if rest else ()
    if (fact.name == ARGUMENT_NAME) is not bool(path):
        text = "write the path of the argument, such as argument.amount" if not path else f"write {head} without a path"
        raise ValueError(f"{name[:60]}: {text}")
    if len(path) > MAX_STEPS or not all(path):
        raise ValueError(f"{name[:60]}: a path has 1 to {MAX_STEPS} names, separated by single dots")
    try:
        return Condition(fact, fact.kind.requirement(value), path)
    except ValueError as error:
        raise ValueError(f"{name[:60]}: {error}") from None


def met(all_of: Iterable[Condition], facts: Facts) -> Truth:
    """Return whether all are met."""
    return every(condition.truth(facts) for condition in all_of)


def phrase(all_of: Iterable[Condition]) -> str:
    """Return conditions as one phrase: `argument.amount > 1000 and role is intern`."""
    return " and ".join(map(str, all_of))
