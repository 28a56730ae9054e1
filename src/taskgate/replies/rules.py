"""Rules in force, suggestions, recorded calls and rehearsals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Struct

from taskgate.core.governance.rehearse import EXAMPLES, RecordedCall, Rehearsal
from taskgate.core.governance.rules import DescribedRule
from taskgate.replies.fields import about


class RuleInForce(DescribedRule, frozen=True, kw_only=True):
    """A rule, and how often it decided."""

    calls: Annotated[int, about("recent recorded calls that it decided")]
    unmatched: Annotated[
        str, about("that it matches nothing the servers list, and what was probably meant; empty if not certain")
    ]


class PatternWithoutMatch(Struct, frozen=True, kw_only=True):
    """A pattern of the configuration that matches nothing that the servers list."""

    place: Annotated[str, about("place in the configuration, for example `rules[0]`")]
    pattern: Annotated[str, about("pattern")]
    names: Annotated[int, about("number of names that it was compared with")]
    instead: Annotated[Sequence[str], about("patterns that were probably meant, each of which matches something")]
    message: Annotated[str, about("all of this as a sentence")]


class RuleList(Struct, frozen=True, kw_only=True):
    """The rules in force."""

    recording: Annotated[bool, about("whether calls are recorded")]
    rules: Sequence[RuleInForce]
    unmatched: Annotated[
        Sequence[PatternWithoutMatch],
        about(
            "patterns of rules and of all lists that match nothing; a server whose lists are not known counts as a match"
        ),
    ]


class RecordedCallsPage(Struct, frozen=True, kw_only=True):
    """A page of recorded calls."""

    calls: Annotated[Sequence[RecordedCall], about("fields with their default value are omitted")]
    next: Annotated[int | None, about("value of `after` for the next page; null at the end")]
    recording: Annotated[bool, about("whether calls are recorded")]


class OutcomeCount(Struct, frozen=True, kw_only=True):
    """Calls with the same decision before and after."""

    before: Annotated[str, about("decision")]
    after: Annotated[str, about("new decision, `cannot tell` if undecided")]
    calls: Annotated[int, about("number of calls")]


class ToolChange(Struct, frozen=True, kw_only=True):
    """Calls of a tool that are decided differently or cannot be decided."""

    server: Annotated[str, about("name of the server")]
    tool: Annotated[str, about("name of the tool")]
    before: Annotated[str, about("decision")]
    after: Annotated[str, about("new decision")]
    why: Annotated[str, about("reason")]
    calls: Annotated[int, about("number of calls")]


class ChangedCall(Struct, frozen=True, kw_only=True):
    """A call that is decided differently."""

    at_ms: Annotated[int, about("time, in milliseconds since 1970")]
    caller: Annotated[str, about("principal")]
    scope: Annotated[str, about("scope")]
    server: Annotated[str, about("name of the server")]
    tool: Annotated[str, about("name of the tool")]
    arguments: Annotated[str | None, about("arguments as JSON text, redacted")]
    before: Annotated[str, about("decision")]
    rule_before: Annotated[str, about("rule that decided")]
    after: Annotated[str, about("new decision")]
    rule_after: Annotated[str, about("rule that would decide")]
    why: Annotated[str, about("reason")]


class RehearsalResult(Struct, frozen=True, kw_only=True):
    """What a changed set of rules changes."""

    calls: Annotated[int, about("number of calls")]
    changed: Annotated[int, about("number that would be decided differently")]
    undecided: Annotated[int, about("number that cannot be decided from the recorded data")]
    cannot_tell: Annotated[int, about("deprecated name of `undecided`")]
    outcomes: Sequence[OutcomeCount]
    tools: Sequence[ToolChange]
    examples: Sequence[ChangedCall]


def rehearsal_result(found: Rehearsal) -> RehearsalResult:
    """Everything that the page and the command show of a rehearsal."""
    return RehearsalResult(
        calls=found.calls,
        changed=found.changed,
        undecided=found.undecided,
        cannot_tell=found.undecided,
        outcomes=[
            OutcomeCount(before=before, after=after, calls=count)
            for (before, after), count in sorted(found.outcomes.items())
        ],
        tools=[
            ToolChange(server=server, tool=name, before=before, after=after, why=why, calls=count)
            for (server, name, before, after, why), count in found.tools.most_common(EXAMPLES)
        ],
        examples=[
            ChangedCall(
                at_ms=one.call.at_ms,
                caller=one.call.principal,
                scope=one.call.scope,
                server=one.call.server,
                tool=one.call.name,
                arguments=one.call.arguments,
                before=one.call.before.value,
                rule_before=one.call.rule,
                after=one.outcome,
                rule_after=one.rule,
                why=one.why,
            )
            for one in found.examples
        ],
    )
