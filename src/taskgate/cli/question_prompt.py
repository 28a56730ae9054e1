"""Ask the person at the terminal the question of a server: a form field by field, or whether to open a URL.

Blocking on purpose: the caller runs it in a thread. A URL is opened only after it was shown in full and confirmed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from taskgate.cli.printing import clean, note, one_line

if TYPE_CHECKING:
    from taskgate.client import Question


Ask = Callable[[str], str]


class NotValid(ValueError):
    """The input is invalid; the message states what is accepted."""


def answer_question(question: Question, ask: Ask | None = None) -> dict[str, Any]:
    """Ask at the terminal and return the answer to an elicitation; end of input cancels it."""
    ask = ask or read_line
    try:
        return _answer_url(question, ask) if question.is_url else _answer_form(question, ask)
    except EOFError:
        return {"action": "cancel"}


def read_line(prompt: str) -> str:
    note_without_end(prompt)
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.strip()


def note_without_end(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def _answer_url(question: Question, ask: Ask) -> dict[str, Any]:
    url = str(question.params.get("url", ""))
    note(f"\nThe server requests that you open a page: {clean(question.message)}")
    note(f"  {clean(url)}")
    if not url.startswith(("https://", "http://")) or clean(url) != url:
        note("  This is not an http or https address; the request was declined.")
        return {"action": "decline"}
    match ask("Open it in the browser? [y]es, [d]one, [n]o: ").lower()[:1]:
        case "y":
            import webbrowser

            webbrowser.open(url)
            return {"action": "accept"}
        case "d":
            return {"action": "accept"}
    return {"action": "decline"}


def _answer_form(question: Question, ask: Ask) -> dict[str, Any]:
    schema = question.params.get("requestedSchema")
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    required = schema.get("required") if isinstance(schema, Mapping) else None
    note(f"\nQuestion from the server: {clean(question.message)}")
    if ask("Answer? [Y]es, [n]o: ").lower()[:1] == "n":
        return {"action": "decline"}
    content = {}
    for name, field in (properties or {}).items():
        field = field if isinstance(field, Mapping) else {}
        value = _ask_field(name, field, name in (required or ()), ask)
        if value is not None:
            content[name] = value
    return {"action": "accept", "content": content}


def _ask_field(name: str, field: Mapping[str, Any], required: bool, ask: Ask) -> Any:
    prompt = _prompt(name, field, required)
    while True:
        typed = ask(prompt)
        if not typed:
            if "default" in field:
                return field["default"]
            if not required:
                return None
            note("  This field is required.")
            continue
        try:
            return read_value(field, typed)
        except NotValid as error:
            note(f"  {error}")


def read_value(field: Mapping[str, Any], typed: str) -> Any:
    """Convert the input to the type of its schema. Raises NotValid."""
    choices = choices_of(field)
    match field.get("type"):
        case "boolean":
            if typed.lower() in ("y", "yes", "true", "1"):
                return True
            if typed.lower() in ("n", "no", "false", "0"):
                return False
            raise NotValid("Type yes or no.")
        case "integer" | "number":
            return _read_number(field, typed)
        case "array":
            return [_choose(choices, part.strip()) for part in typed.split(",") if part.strip()]
    return _choose(choices, typed) if choices else _read_text(field, typed)


def choices_of(field: Mapping[str, Any]) -> dict[str, str]:
    """Return the allowed values and their titles, from `oneOf`, `anyOf` or `enum`."""
    items = field.get("items")
    holder = items if isinstance(items, Mapping) else field
    for key in ("oneOf", "anyOf"):
        listed = holder.get(key)
        if isinstance(listed, list):
            return {
                str(one["const"]): str(one.get("title", one["const"]))
                for one in listed
                if isinstance(one, Mapping) and "const" in one
            }
    values = holder.get("enum")
    if not isinstance(values, list):
        return {}
    names = holder.get("enumNames")
    titles = names if isinstance(names, list) and len(names) == len(values) else values
    return {str(value): str(title) for value, title in zip(values, titles, strict=True)}


def _choose(choices: Mapping[str, str], typed: str) -> str:
    if typed in choices or not choices:
        return typed
    if typed.isdigit() and 1 <= int(typed) <= len(choices):
        return list(choices)[int(typed) - 1]
    raise NotValid(f"Choose a number from 1 to {len(choices)}.")


def _read_number(field: Mapping[str, Any], typed: str) -> int | float:
    try:
        value = int(typed) if field.get("type") == "integer" else float(typed)
    except ValueError:
        raise NotValid("Type an integer." if field.get("type") == "integer" else "Type a number.") from None
    low, high = field.get("minimum"), field.get("maximum")
    if (low is not None and value < low) or (high is not None and value > high):
        raise NotValid(
            " ".join(
                ["The number must be", *([f"at least {low}"] if low is not None else [])]
                + (["and"] if low is not None and high is not None else [])
                + ([f"at most {high}"] if high is not None else [])
            )
            + "."
        )
    return value


def _read_text(field: Mapping[str, Any], typed: str) -> str:
    shortest, longest, pattern = field.get("minLength", 0), field.get("maxLength"), field.get("pattern")
    if len(typed) < shortest or (longest is not None and len(typed) > longest):
        length = f"at least {shortest}" if longest is None else f"{shortest} to {longest}"
        raise NotValid(f"The text must have {length} characters.")
    if field.get("format") == "email" and not re.fullmatch(r"[^@\s]+@[^@\s]+", typed):
        raise NotValid("Type an e-mail address.")
    if field.get("format") == "date" and not re.fullmatch(r"\d{4}-\d{2}-\d{2}", typed):
        raise NotValid("Type a date, for example 2026-07-28.")
    if isinstance(pattern, str) and len(pattern) < 200 and not _matches(pattern, typed):
        raise NotValid(f"The text must match {pattern}.")
    return typed


def _matches(pattern: str, typed: str) -> bool:
    try:
        return re.search(pattern, typed[:200]) is not None
    except re.error:
        return True


def _prompt(name: str, field: Mapping[str, Any], required: bool) -> str:
    title = one_line(field.get("title") or name)
    lines = [f"  {title}" + (f" ({one_line(field['description'])})" if field.get("description") else "")]
    lines += [f"    {number}. {one_line(label)}" for number, label in enumerate(choices_of(field).values(), 1)]
    hints = [] if required else ["optional"]
    if "default" in field:
        hints = [f"default {one_line(field['default'])}"]
    if field.get("type") == "boolean":
        hints.insert(0, "yes or no")
    if field.get("type") == "array":
        hints.insert(0, "separated by commas")
    return "\n".join(lines) + (f" [{', '.join(hints)}]" if hints else "") + ": "
