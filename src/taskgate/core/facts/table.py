"""The facts that rules can depend on. A new condition is one entry of `FACTS`.

The table is the only list of them: conditions of rules, the context of Cedar policies, explanations and the reference page are made
from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from itertools import chain
from typing import Any, Final

import msgspec

from taskgate.core.facts.kinds import ARGUMENT, BOOLEAN, SET, TEXT, TIME, FactKind, choice, scale
from taskgate.core.facts.truth import MISSING, NOT_KNOWN, Special
from taskgate.core.generations.generation import NEWEST_STATEFUL, NEWEST_STATELESS, Generation
from taskgate.core.identity.identity import tenant_of
from taskgate.core.patterns import PatternKind
from taskgate.core.risk import Risk

REVISIONS: Final = {Generation.STATEFUL: NEWEST_STATEFUL, Generation.STATELESS: NEWEST_STATELESS}
MAX_ELEMENTS: Final = 10_000
"""A condition on more elements of a list than that cannot be evaluated."""
MAX_STEPS: Final = 16


class Known(IntEnum):
    """When a fact is known. It is evaluated as early as that."""

    WITH_ENTRY = 0
    WITH_CALLER = 1
    WITH_CALL = 2


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an entry, its caller and a call."""

    kind: PatternKind | Special = NOT_KNOWN
    server: str | Special = NOT_KNOWN
    name: str | Special = NOT_KNOWN
    """A URI in its normal form."""
    tags: frozenset[str] | Special = NOT_KNOWN
    risk: Risk | Special = NOT_KNOWN
    scope: str | Special = NOT_KNOWN
    principal: str | Special = NOT_KNOWN
    token_id: str | Special = NOT_KNOWN
    roles: frozenset[str] | Special = NOT_KNOWN
    from_script: bool | Special = NOT_KNOWN
    client: str | Special = NOT_KNOWN
    generation: Generation | Special = NOT_KNOWN
    at_s: int | Special = NOT_KNOWN
    """Seconds since 1970."""
    arguments: Mapping[str, Any] | Special = NOT_KNOWN


NO_FACTS: Final = Facts()
NO_SCRIPT: Final = Facts(from_script=False)
"""Of all callers whose calls no script makes."""


class Fact(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One fact. `of` returns its value, or NOT_KNOWN."""

    name: str
    kind: FactKind
    known: Known
    about: str
    """For the reference page and editors, after "Condition on"."""
    example: str
    """A value of a condition, for the reference page and editors."""
    of: Callable[[Facts], Any]
    forgeable: bool = False
    """Whether a caller can state it as it likes."""
    for_tools_only: bool = False


def _tenant(facts: Facts) -> Any:
    return tenant_of(facts.principal) if isinstance(facts.principal, str) else NOT_KNOWN


def _generation(facts: Facts) -> Any:
    return REVISIONS[facts.generation] if isinstance(facts.generation, Generation) else NOT_KNOWN


ARGUMENT_NAME: Final = "argument"
NAME: Final = "tool"
_ALL: Final = (
    Fact(
        name="server",
        kind=TEXT,
        known=Known.WITH_ENTRY,
        about="the server",
        example="files",
        of=lambda facts: facts.server,
    ),
    Fact(
        name=NAME,
        kind=TEXT,
        known=Known.WITH_ENTRY,
        about="the name of the tool or prompt at its server, or the URI of the resource",
        example="drop_table",
        of=lambda facts: facts.name,
    ),
    Fact(
        name="kind",
        kind=choice(PatternKind),
        known=Known.WITH_ENTRY,
        about="what is called",
        example="resource",
        of=lambda facts: facts.kind,
    ),
    Fact(
        name="tags",
        kind=SET,
        known=Known.WITH_ENTRY,
        about="the tags of the server",
        example="prod",
        of=lambda facts: facts.tags,
    ),
    Fact(
        name="risk",
        kind=scale(Risk),
        known=Known.WITH_ENTRY,
        about="how much the tool can change",
        example=">= undeclared",
        of=lambda facts: facts.risk,
        for_tools_only=True,
    ),
    Fact(
        name="scope",
        kind=TEXT,
        known=Known.WITH_CALLER,
        about="the scope of the caller",
        example="ci-*",
        of=lambda facts: facts.scope,
    ),
    Fact(
        name="caller",
        kind=TEXT,
        known=Known.WITH_CALLER,
        about="the principal of the caller",
        example="acme/*",
        of=lambda facts: facts.principal,
    ),
    Fact(
        name="token",
        kind=TEXT,
        known=Known.WITH_CALLER,
        about="the id of the configured token of the caller; empty with another credential",
        example="ci-*",
        of=lambda facts: facts.token_id,
    ),
    Fact(
        name="role",
        kind=SET,
        known=Known.WITH_CALLER,
        about="the roles of the caller's token, and its groups at the issuer",
        example="intern",
        of=lambda facts: facts.roles,
    ),
    Fact(
        name="tenant",
        kind=TEXT,
        known=Known.WITH_CALLER,
        about="the tenant of the caller",
        example="acme",
        of=_tenant,
    ),
    Fact(
        name="from_script",
        kind=BOOLEAN,
        known=Known.WITH_CALLER,
        about="whether a script makes the call (`run_script`)",
        example="true",
        of=lambda facts: facts.from_script,
        for_tools_only=True,
    ),
    Fact(
        name="client",
        kind=TEXT,
        known=Known.WITH_CALL,
        about="the name of the client program, as it states it",
        example="claude-*",
        of=lambda facts: facts.client,
        forgeable=True,
    ),
    Fact(
        name="generation",
        kind=choice(REVISIONS.values()),
        known=Known.WITH_CALL,
        about="the protocol generation of the call",
        example="2026-07-28",
        of=_generation,
        forgeable=True,
    ),
    Fact(
        name="time",
        kind=TIME,
        known=Known.WITH_CALL,
        about="the time of day in a zone; the end does not belong to it",
        example="outside 08:00-18:00 Europe/Berlin",
        of=lambda facts: facts.at_s,
    ),
    Fact(
        name=ARGUMENT_NAME,
        kind=ARGUMENT,
        known=Known.WITH_CALL,
        about="an argument by its path, such as `argument.amount`, `argument.address.city` or `argument.items.*.price`",
        example="> 1000",
        of=lambda facts: facts.arguments,
    ),
)
FACTS: Final[Mapping[str, Fact]] = {fact.name: fact for fact in _ALL}


def plain_facts(names: Iterable[str], facts: Facts) -> dict[str, Any]:
    """Return the values of some facts as texts, booleans and lists of texts. A fact that is not known is omitted."""
    values = ((name, FACTS[name].of(facts)) for name in names)
    return {
        name: sorted(value) if isinstance(value, frozenset) else value
        for name, value in values
        if value is not NOT_KNOWN
    }


def argument_at(arguments: Mapping[str, Any] | Special, path: tuple[str, ...]) -> list[Any] | Special:
    """Return the values at a path (several after `*`), or NOT_KNOWN. What does not exist is MISSING."""
    if isinstance(arguments, Special):
        return arguments
    found: list[Any] = [arguments]
    for step in path:
        if step == "*":
            found = list(chain.from_iterable(map(_elements, found)))
        else:
            found = [value.get(step, MISSING) if isinstance(value, Mapping) else _without(value) for value in found]
        if len(found) > MAX_ELEMENTS or any(each is NOT_KNOWN for each in found):
            return NOT_KNOWN
    return found


def _elements(value: Any) -> list[Any]:
    if isinstance(value, list):
        return list(value)
    return list(value.values()) if isinstance(value, Mapping) else [_without(value)]


def _without(value: Any) -> Special:
    """The member of a value that has none: of nothing it is missing, of another type it cannot be determined."""
    return MISSING if value is MISSING or value is None else NOT_KNOWN
