"""What an approver sees, as one value that every channel renders in its own way.

The card has the exact arguments as text with hidden fields marked, the caller, the rule that requires approval, the
differences from the last approved call of the same tool, and the votes. Deceptive characters are listed. A channel that
shortens the arguments must link to the full view, and must not offer to approve what it did not show.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from taskgate.core.catalog.suspicions import character_flag, deceptive_characters, kinds_of, slices_of
from taskgate.core.governance.approval import Approval, Binding, State, Verdict, Vote
from taskgate.core.governance.script_changes import ScriptChanges, script_changes
from taskgate.core.governance.script_plan import PlannedScript, ScriptOrigin
from taskgate.core.governance.workflow import Workflow
from taskgate.core.redaction.difference import Difference, difference
from taskgate.core.redaction.fields import Redaction
from taskgate.core.text.homoglyphs import escape_homoglyphs
from taskgate.core.text.plain_text import STRAY_SELECTOR

LONGEST_CHANGE: Final = 4_000
"""Maximum number of characters of one changed value."""
TAB: Final = "→"
"""The beginning of a tab in code that is shown."""
_UNSEEN_SPACES: Final = re.compile("^ | (?= )| $")
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False)


class Card(msgspec.Struct, frozen=True):
    """One approval, ready for display."""

    approval_id: str
    state: State
    server: str
    tool: str
    requester: str
    scope: str
    workflow: str
    rule: str
    arguments: str
    hidden: tuple[str, ...]
    deceptive: tuple[str, ...]
    arguments_digest: str
    changes: Difference | None
    votes: tuple[Vote, ...]
    approvals_needed: int
    asked_at_ms: int
    expires_at_ms: int
    reason: str
    url: str | None
    unvalidated: str = ""
    """Why the arguments were not validated against the tool's input schema; empty if they were."""
    script: str = ""
    """The code, line by line, if the call runs a script or was made by one. The first is also in the arguments."""
    plan: PlannedScript | None = None
    """What the script would call, as of the request."""
    from_script: ScriptOrigin | None = None
    """The script that made the call, if one did."""
    script_changes: ScriptChanges | None = None
    """The lines of the script that differ from those of the last approved one, if there was one."""

    @property
    def approvals_given(self) -> int:
        """Number of approvals so far."""
        return sum(1 for vote in self.votes if vote.verdict is Verdict.APPROVE)


class Excerpt(msgspec.Struct, frozen=True):
    """Text cut to a channel's limit. `left_out` is the number of omitted characters."""

    text: str
    left_out: int


def card(
    approval: Approval,
    workflow: Workflow,
    arguments: Any,
    redaction: Redaction,
    *,
    last_approved: Any | None = None,
    url: str | None = None,
    runs_script: bool = False,
    from_script: Any | None = None,
    alike: Sequence[str] = (),
) -> Card:
    """Build the card. `last_approved` are the arguments of the last approved call of this tool, if there was one. `from_script`
    are the arguments of the script that made the call, `alike` the other tools of the server whose names look like this one.
    """
    shown = redaction.redact(arguments)
    text = _text(shown.value)
    bound = approval.binding
    runs = shown.value if runs_script else redaction.redact(from_script).value
    script = escape_homoglyphs(show_code(runs))
    previous = (
        escape_homoglyphs(show_code(redaction.redact(last_approved).value))
        if runs_script and last_approved is not None
        else None
    )
    return Card(
        approval_id=approval.id,
        state=approval.state,
        server=bound.server,
        tool=bound.tool,
        requester=bound.principal,
        scope=bound.scope,
        workflow=approval.workflow,
        rule=approval.rule,
        arguments=escape_homoglyphs(_visible_text(text)),
        hidden=shown.hidden,
        deceptive=(*_deceptive(text, bound), *map(_looks_like, alike)),
        arguments_digest=bound.arguments_digest,
        changes=None if last_approved is None else _bounded(difference(last_approved, arguments, redaction)),
        votes=approval.votes,
        approvals_needed=workflow.approvals_needed,
        asked_at_ms=approval.asked_at_ms,
        expires_at_ms=bound.expires_at_ms,
        reason=approval.reason,
        url=url,
        unvalidated=approval.unvalidated,
        script=script,
        plan=approval.plan,
        from_script=approval.from_script,
        script_changes=None if previous is None else script_changes(previous, script),
    )


def _deceptive(arguments: str, bound: Binding) -> tuple[str, ...]:
    """Deceptive characters of the arguments, and of the names on the card."""
    names = {"caller": bound.principal, "tool": bound.tool, "server": bound.server, "scope": bound.scope}
    in_names = [f"{character} in the name of the {whose}" for whose, name in names.items() for character in _odd(name)]
    return (*deceptive_characters(arguments), *in_names)


def _looks_like(other: str) -> str:
    return f"the name of the tool, which looks like {show_name(other)} of the same server"


def _odd(name: str) -> tuple[str, ...]:
    return (*deceptive_characters(name), *(["U+0020 SPACE"] if _UNSEEN_SPACES.search(name) else []))


def show_code(arguments: Any) -> str:
    """Return the code as it is redacted in the arguments, with the same characters escaped, and tabs as `TAB` and spaces.

    Lines end where the language ends them: after a carriage return alone, which ends a comment, the next line begins.
    """
    code = arguments.get("code") if type(arguments) is dict else None
    return _visible_text(_with_tabs(_with_line_ends(code))) if type(code) is str else ""


def _with_line_ends(code: str) -> str:
    return code.replace("\r\n", "\n").replace("\r", "\r\n") if "\r" in code else code


def _with_tabs(code: str) -> str:
    return code.replace("\t", TAB + " " * 3) if "\t" in code else code


def _bounded(found: Difference) -> Difference:
    """Large values by their beginning: the arguments are shown completely elsewhere on the card."""
    changes = (replace(one, before=_beginning(one.before), after=_beginning(one.after)) for one in found.changes)
    return replace(found, changes=tuple(changes))


def _beginning(value: Any) -> Any:
    if type(value) is str and len(value) > LONGEST_CHANGE:
        return f"{value[:LONGEST_CHANGE]}… ({len(value) - LONGEST_CHANGE} characters more)"
    if type(value) not in (dict, list):
        return value
    text = ""
    for part in _ENCODER.iterencode(value):
        text += part[: LONGEST_CHANGE + 1]
        if len(text) > LONGEST_CHANGE:
            return f"{text[:LONGEST_CHANGE]}… (more)"
    return value


def show_line(text: str) -> str:
    """Return a text for one line, with the characters escaped that `show_json` escapes."""
    if text.isascii() and text.isprintable():
        # Most names and states. A page has hundreds of them, and encoding each took a tenth of its time.
        return text
    return show_json(text)[1:-1].replace('\\"', '"').replace("\\\\", "\\")


def show_name(name: str) -> str:
    """Return a name for one line. Homoglyphs, spaces at its ends and repeated spaces are escaped too: two names differ visibly."""
    return _UNSEEN_SPACES.sub(r"\\u0020", escape_homoglyphs(show_line(name)))


def show_value(value: Any) -> str:
    """Like `show_json`, with homoglyphs escaped too: for values that a person compares or decides on."""
    return escape_homoglyphs(show_json(value))


def show_json(value: Any) -> str:
    """Return indented JSON in which every invisible character, or one that changes the direction of text, is escaped."""
    return _visible_text(_text(value))


def _visible_text(text: str) -> str:
    # Each distinct character is checked once, however long the text, and no slice blocks other threads for long.
    if text.isascii() and text.isprintable():
        return text
    hidden = {ord(kind): shown for kind in kinds_of(text) if (shown := _visible(kind)) != kind}
    seen = "".join(part.translate(hidden) for part in slices_of(text)) if hidden else text
    return STRAY_SELECTOR.sub(r"\\ufe0f", seen)


def excerpt(text: str, limit: int) -> Excerpt:
    """Return at most `limit` characters from the beginning, and how many were omitted."""
    if len(text) <= limit:
        return Excerpt(text, 0)
    return Excerpt(text[:limit], len(text) - limit)


def history_line(votes: Sequence[Vote]) -> str:
    """Return the votes in one line."""
    return ", ".join(f"{vote.approver}: {vote.verdict.value}" for vote in votes)


def _text(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _visible(character: str) -> str:
    if character == "\n" or (character.isprintable() and character_flag(character) is None):
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else "".join(f"\\u{half:04x}" for half in _surrogates(code))


def _surrogates(code: int) -> tuple[int, int]:
    above = code - 0x10000
    return 0xD800 + (above >> 10), 0xDC00 + (above & 0x3FF)
