"""Generate the reference of conditions from the table of facts.

`python -m taskgate.config.explain_conditions > docs/conditions.md`; a test compares the file with the output.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from taskgate.core.facts.kinds import MAX_CHOICES, OPERATORS
from taskgate.core.facts.requirements import LONGEST_TEXT
from taskgate.core.facts.table import ARGUMENT_NAME, FACTS, MAX_ELEMENTS, MAX_STEPS, Fact, Known
from taskgate.core.risk import Risk

_KNOWN: Final = {
    Known.WITH_ENTRY: "with the entry",
    Known.WITH_CALLER: "with the caller",
    Known.WITH_CALL: "with the call",
}
_ARGUMENT_EXAMPLE: Final = f"{ARGUMENT_NAME}.amount"

_INTRODUCTION = """# Conditions of rules

This is the reference of all facts that `when` of a [rule](governance.md#conditions) can depend on, and of the forms of their
values.

```yaml
governance:
  rules:
    - {match: "transfer", when: {argument.amount: "> 1000", role: {not: treasurer}}, action: approve}
```

All conditions of a rule must be met. The first rule whose pattern matches and whose conditions are met decides. `taskgate check`
reports an unknown fact or an invalid value with its line, and the schema of `taskgate schema` completes both in editors.

## Facts
"""
_KNOWN_MEANS = """
*Known* is when a fact is known, and so where it counts:

- **with the entry**: it decides in lists and calls of every caller.
- **with the caller**: it decides in lists and calls of this caller.
- **with the call**: it decides the call only. It never hides a tool: a tool is listed unless all its calls are denied.

A fact marked \\* can be stated by a caller as it likes. Use it to restrict, not to forward: `taskgate check` warns of a rule
that forwards by it.

## Values

Quote values that begin with `>`, `<`, `*`, `[` or `{`, because YAML reads these differently. A value is one of:
"""
_FORMS: Final = (
    ("Form", "Met by"),
    (
        "a text without `*`, `?` and `[`",
        'exactly this value, in this case; `5` is the number and the text, `true` the boolean and the text, `"null"` also null',
    ),
    ("a text with `*`, `?` or `[`", "a text that the [glob](governance.md#rules) matches"),
    (
        '`"> 5"`, `">= 5"`, `"< 5"`, `"<= 5"`, `"1..5"`',
        "a number in this range (both ends of `1..5` belong to it); only for arguments",
    ),
    ('`[a, "b*"]`', f"any of up to {MAX_CHOICES:,} values"),
    ("`{OPERATOR: VALUE}`", "what the operator requires:"),
)
_ARGUMENTS = f"""
## Arguments

`argument.NAME` is an argument, `argument.address.city` a member of one, and `*` stands for all elements of a list or all members
of a map: `argument.items.*.price`. A path has up to {MAX_STEPS} names. Names are compared exactly. A name that contains a dot
cannot be written.
"""
_RESULTS: Final = (
    ("The value", "Result"),
    (
        "is missing, or a part of its path is missing or null",
        "not met, but `{not: ...}` and `{present: false}` are met",
    ),
    ("is null", 'the same; also met by `"null"`'),
    (
        "has another type than the condition compares: a text for `> 5`, a number for a glob, a list for a name",
        'cannot be evaluated (the text `"6"` is not the number 6)',
    ),
    (f"is a text of more than {LONGEST_TEXT:,} characters", "cannot be evaluated by a glob, only by other forms"),
    ("is a member of a text, number or list", "cannot be evaluated"),
    ("`*`: all elements meet it, or none does", "met, or not met; not met if there are no elements"),
    ("`*`: some elements meet it and others do not", "cannot be evaluated"),
    (f"`*`: there are more than {MAX_ELEMENTS:,} elements", "cannot be evaluated"),
)
_TIMES_AND_RISK = f"""
**If a condition cannot be evaluated, the strictest possible decision counts**: that of the rule, or that of the rules after it.
So a rule that restricts applies to a list in which any element meets its condition, and a rule that forwards to one in which all
do. The audit log then has `because it cannot be ruled out: argument.amount > 1000`. A call whose arguments could be read in two
ways is rejected ([why](governance.md#rejected-before-approval)).

## Times

`time` is the time of day at which the call is decided, by the gateway's clock in the named zone. A call that waited is decided
again, with the time at which it is sent.

- The first minute belongs to the period and the last does not: `08:00-18:00` ends at 17:59:59.
- `22:00-06:00 UTC` is over midnight. `24:00` may be an end.
- `outside 08:00-18:00 Europe/Berlin` is the rest of the day.
- Zones are names of the tz database, such as `Europe/Berlin`, with its changes of the clock. An hour that the clock repeats
  belongs to the period both times; one that it skips does not exist on that day. A machine without the tz database knows `UTC`
  only.

## Risk

`risk` is how much a tool can change, in this order: {" < ".join(f"`{word}`" for word in Risk)}. So `risk: ">= undeclared"` is met
by the last two. It comes from the first of these that exists:

1. `tools: {{NAME: {{risk: reads}}}}` of the server in your configuration.
2. The hints of the tool, if the server has `trust_annotations: true`.
3. `destructive`, if the hints declare it: a server can always raise the risk of its tools.
4. `undeclared`.

| Hints of the tool | Declared risk |
|---|---|
| `readOnlyHint: true` | `reads` |
| `destructiveHint: false` | `writes` |
| `destructiveHint: true`, or `readOnlyHint: false` alone | `destructive` |
| none of these | `undeclared` |

```yaml
servers:
  files:
    command: python
    args: ["-m", "taskgate.demo.files"]
    trust_annotations: true
    tools: {{delete_file: {{risk: destructive}}}}
governance:
  rules:
    - {{match: "*", when: {{risk: ">= undeclared"}}, action: approve}}
```

A tool that no server lists has the risk `undeclared`, or that of a listed tool that its name
[looks like](governance.md#names-that-look-alike), if that is higher. Resources and prompts have none.

Next: [rules](governance.md#conditions), and [test them](governance.md#testing-rules) with `taskgate policy test`.
"""


def conditions_page() -> str:
    """Return the reference of conditions as Markdown."""
    facts = (("Fact", "Condition on", "Known", "Value", "Example"), *map(_row, FACTS.values()))
    operators = (
        ("Operator", "Met by", "For"),
        *((f"`{name}`", about, _facts_with(name)) for name, about in OPERATORS.items()),
    )
    parts = (
        *(_INTRODUCTION, _table(facts)),
        *(_KNOWN_MEANS, _table(_FORMS), _table(operators)),
        *(_ARGUMENTS, _table(_RESULTS)),
        _TIMES_AND_RISK,
    )
    return "".join(parts)


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    head, *others = (f"| {' | '.join(row)} |\n" for row in rows)
    return f"\n{head}{'|---' * len(rows[0])}|\n{''.join(others)}"


def _row(fact: Fact) -> tuple[str, ...]:
    name = f"`{_path(fact)}`" + (" \\*" if fact.forgeable else "")
    about = f"{fact.about}; only of tools" if fact.for_tools_only else fact.about
    return name, about, _KNOWN[fact.known], fact.kind.forms, f"`{_path(fact)}: {_written(fact.example)}`"


def _path(fact: Fact) -> str:
    return _ARGUMENT_EXAMPLE if fact.name == ARGUMENT_NAME else fact.name


def _written(value: str) -> str:
    return value if value.isidentifier() else f'"{value}"'


def _facts_with(operator: str) -> str:
    with_it = [fact.name for fact in FACTS.values() if operator in fact.kind.operators]
    return "all facts" if len(with_it) == len(FACTS) else ", ".join(f"`{name}`" for name in with_it)


if __name__ == "__main__":
    sys.stdout.write(conditions_page())
