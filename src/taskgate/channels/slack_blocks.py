"""An approval card as Slack blocks (Block Kit).

Arguments are in a preformatted rich-text element, which Slack does not interpret, so mentions, links and emoji have no effect. What
exceeds Slack's limits is cut; a cut card offers no approval and links to the full page.
"""

from __future__ import annotations

from typing import Any

from taskgate.channels.card_json import moment
from taskgate.core.governance.approval import State
from taskgate.core.governance.card import Card, Excerpt, excerpt, history_line, show_name, show_value
from taskgate.core.governance.script_plan import Meets, PlannedScript, PlannedTool, lines_text, meets_word, plan_summary
from taskgate.core.redaction.difference import ChangeKind

APPROVE_ACTION, DENY_ACTION, DENY_VIEW = "taskgate_approve", "taskgate_deny", "taskgate_deny_reason"
REASON_BLOCK, REASON_INPUT = "reason", "text"
ARGUMENTS_LIMIT = 2_500
TEXT_LIMIT = 2_900
SHOWN_CHANGES = 10
SHOWN_TOOLS = 10

Block = dict[str, Any]


def fallback_text(card: Card) -> str:
    """The text of Slack's notification."""
    return escaped(excerpt(_request(card), 300).text)


def _request(card: Card) -> str:
    who, tool, server = map(show_name, (card.requester, card.tool, card.server))
    return f"{who} requests approval to call {tool} on {server}"


def _confirmed(card: Card) -> str:
    return f"{show_name(card.tool)} on {show_name(card.server)} will run with exactly these arguments."


def whole(card: Card) -> bool:
    """Whether the card shows all arguments, so that it may offer approval."""
    return len(card.arguments) <= ARGUMENTS_LIMIT


def blocks(card: Card, *, buttons: bool) -> list[Block]:
    """The whole message. Without `buttons`, people decide by reactions."""
    made = [
        {"type": "header", "text": _plain(excerpt(f"Approval: {show_name(card.tool)}", 140).text)},
        _section(_facts(card)),
        *([_section(_plan(card.plan))] if card.plan is not None else []),
        *([_preformatted(excerpt(card.script, ARGUMENTS_LIMIT))] if card.script else []),
        _preformatted(excerpt(card.arguments, ARGUMENTS_LIMIT)),
    ]
    warnings = _warnings(card)
    if warnings:
        made.append(_section(warnings))
    if card.changes is not None:
        made.append(_section(_changed(card)))
    if card.votes:
        made.append(_section(f"Decisions: {escaped(history_line(card.votes))}"))
    made.append(_ending(card, buttons) if card.state is State.OPEN else _section(f"*{_outcome(card)}*"))
    return made


def reason_view(approval_id: str, digest: str) -> Block:
    """The dialog for the reason of a denial."""
    return {
        "type": "modal",
        "callback_id": DENY_VIEW,
        "private_metadata": button_value(approval_id, digest),
        "title": _plain("Deny this call"),
        "submit": _plain("Deny"),
        "close": _plain("Back"),
        "blocks": [
            {
                "type": "input",
                "block_id": REASON_BLOCK,
                "optional": True,
                "label": _plain("Reason (shown to the caller)"),
                "element": {
                    "type": "plain_text_input",
                    "action_id": REASON_INPUT,
                    "multiline": True,
                    "max_length": 2000,
                },
            }
        ],
    }


def button_value(approval_id: str, digest: str) -> str:
    """The value of a button."""
    return f"{approval_id} {digest}"


def read_button_value(value: str) -> tuple[str, str]:
    """The approval id and the digest of the arguments on the card."""
    approval_id, _, digest = value.partition(" ")
    return approval_id, digest


def escaped(text: str) -> str:
    """The text with Slack's three control characters escaped."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _facts(card: Card) -> str:
    who, tool, server = (escaped(show_name(name)) for name in (card.requester, card.tool, card.server))
    lines = [
        f"*{who}* requests approval to call *{tool}* on *{server}*",
        f"Scope: {escaped(card.scope or '-')}   Workflow: {escaped(card.workflow)}   Rule: {escaped(card.rule)}",
        f"Approvals: {card.approvals_given} of {card.approvals_needed}   Until: {moment(card.expires_at_ms)}",
        f"Id: {escaped(card.approval_id)}",
    ]
    if card.from_script is not None:
        lines.append(f"From {escaped(card.from_script.in_words())}")
    return excerpt("\n".join(lines), TEXT_LIMIT).text


def _plan(plan: PlannedScript) -> str:
    """The plan of a script: in one line, then the tools that are not simply allowed."""
    governed = [tool for tool in plan.tools if tool.meets is not Meets.FORWARD]
    lines = [
        f"The script {plan_summary(plan)}.",
        *(
            f"• {_tool_name(tool)}: {meets_word(tool.meets)}, {lines_text(tool.lines)}"
            for tool in governed[:SHOWN_TOOLS]
        ),
    ]
    if len(governed) > SHOWN_TOOLS:
        lines.append(f"• and {len(governed) - SHOWN_TOOLS} more")
    return excerpt("\n".join(lines), TEXT_LIMIT).text


def _tool_name(tool: PlannedTool) -> str:
    return escaped(show_value(excerpt(tool.tool, 120).text))


def _warnings(card: Card) -> str:
    lines = []
    if card.hidden:
        lines.append(f":lock: Redacted: {escaped(', '.join(map(show_name, card.hidden)))}")
    if card.deceptive:
        lines.append(f":warning: Misleading characters: {escaped(', '.join(card.deceptive))}")
    if card.unvalidated:
        lines.append(f":warning: The arguments were not validated: {escaped(card.unvalidated)}")
    if not whole(card):
        left_out = excerpt(card.arguments, ARGUMENTS_LIMIT).left_out
        lines.append(f":scissors: {left_out} characters are not shown here. Approve on the full page: {_link(card)}")
    return excerpt("\n".join(lines), TEXT_LIMIT).text


def _changed(card: Card) -> str:
    changes = card.changes.changes if card.changes is not None else ()
    if not changes:
        return "The same arguments as in the last approved call."
    lines = ["Changes since the last approved call:"]
    for change in changes[:SHOWN_CHANGES]:
        before = "" if change.kind is ChangeKind.ADDED else f" was {_short(change.before)}"
        after = "" if change.kind is ChangeKind.REMOVED else f" is {_short(change.after)}"
        lines.append(f"• {escaped(show_name(change.path))} ({change.kind.value}):{before}{after}")
    more = len(changes) - SHOWN_CHANGES + (card.changes.left_out if card.changes is not None else 0)
    if more > 0:
        lines.append(f"• and {more} more: {_link(card)}")
    return excerpt("\n".join(lines), TEXT_LIMIT).text


def _ending(card: Card, buttons: bool) -> Block:
    if not buttons:
        if whole(card):
            return _section("React with :white_check_mark: to approve or with :x: to deny.")
        return _section("React with :x: to deny. To approve, open the full page.")
    value = button_value(card.approval_id, card.arguments_digest)
    elements: list[Block] = []
    if whole(card):
        confirm = {
            "title": _plain("Approve this call?"),
            "text": _plain(excerpt(_confirmed(card), 250).text),
            "confirm": _plain("Approve"),
            "deny": _plain("Back"),
        }
        elements.append(_button("Approve", APPROVE_ACTION, value, style="primary", confirm=confirm))
    elements.append(_button("Deny", DENY_ACTION, value, style="danger"))
    return {"type": "actions", "elements": elements}


def _outcome(card: Card) -> str:
    words = {
        State.APPROVED: "Approved",
        State.USED: "Approved and sent",
        State.DENIED: "Denied",
        State.EXPIRED: "Expired without a decision",
        State.CANCELLED: "Withdrawn",
        State.INVALID: "Invalid: the call or its rules changed",
    }
    outcome = words.get(card.state, card.state.value)
    return excerpt(f"{outcome}. {escaped(card.reason)}".strip(), TEXT_LIMIT).text


def _short(value: Any) -> str:
    in_one_line = " ".join(line.strip() for line in show_value(value).split("\n"))
    return escaped(excerpt(in_one_line, 120).text)


def _link(card: Card) -> str:
    return f"<{card.url}>" if card.url else "the gateway's inbox"


def _plain(text: str) -> Block:
    return {"type": "plain_text", "text": text, "emoji": False}


def _section(text: str) -> Block:
    return {"type": "section", "text": {"type": "mrkdwn", "text": text, "verbatim": True}}


def _preformatted(shown: Excerpt) -> Block:
    text = shown.text + (f"\n… and {shown.left_out} more characters" if shown.left_out else "")
    element = {"type": "rich_text_preformatted", "elements": [{"type": "text", "text": text}]}
    return {"type": "rich_text", "elements": [element]}


def _button(label: str, action: str, value: str, **more: Any) -> Block:
    return {"type": "button", "text": _plain(label), "action_id": action, "value": value, **more}
