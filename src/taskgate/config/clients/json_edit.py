"""Change one value of a JSON text with comments, and leave every other byte unchanged. Pure.

Comments outside the changed value are kept; comments inside it are removed with it.
"""

from __future__ import annotations

import json
import re
from typing import Any

from taskgate.config.clients.client import Pointer
from taskgate.config.json_text import Member, Span, Value, scan

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def json_value_at(text: str, pointer: Pointer) -> Any:
    """Return the plain value at a pointer, or None."""
    if not text.strip():
        return None
    found = _walk(_scan(text), pointer)
    return plain(found[-1]) if len(found) == len(pointer) + 1 else None


def raw_at(text: str, pointer: Pointer) -> str | None:
    """Return the source text of the value at a pointer, with comments, or None."""
    if not text.strip():
        return None
    found = _walk(_scan(text), pointer)
    span = found[-1].span
    return text[span.start : span.end] if len(found) == len(pointer) + 1 else None


def set_raw(text: str, pointer: Pointer, raw: str) -> str:
    """Return the text with `raw` as the source text of the value at a pointer."""
    text = json_set_value(text, pointer, None)
    span = _walk(_scan(text), pointer)[-1].span
    return text[: span.start] + raw + text[span.end :]


def json_set_value(text: str, pointer: Pointer, value: Any) -> str:
    """Return the text with a value at a pointer; missing objects on the path are created."""
    if not text.strip():
        text = "{}\n"
    found = _walk(_scan(text), pointer)
    here, rest = found[-1], pointer[len(found) - 1 :]
    if not rest:
        return text[: here.span.start] + _rendered(value, text, here.span) + text[here.span.end :]
    for key in reversed(rest[1:]):
        value = {key: value}
    if here.members is None:
        # A value that is not an object is replaced completely.
        return text[: here.span.start] + _rendered({rest[0]: value}, text, here.span) + text[here.span.end :]
    return _with_member(text, here, rest[0], value)


def json_remove_value(text: str, pointer: Pointer) -> str:
    """Return the text without the member at a pointer."""
    found = _walk(_scan(text), pointer)
    if len(found) != len(pointer) + 1:
        return text
    owner = found[-2]
    members = owner.members or ()
    index = next(i for i, member in enumerate(members) if member.key == pointer[-1])
    if index + 1 < len(members):
        return text[: members[index].span.start] + text[members[index + 1].span.start :]
    if index:
        return text[: members[index - 1].span.end] + text[members[index].span.end :]
    return text[: owner.span.start] + "{}" + text[owner.span.end :]


def plain(value: Value) -> Any:
    """Convert a scanned value to plain data."""
    if value.members is not None:
        return {member.key: plain(member.value) for member in value.members}
    if value.items is not None:
        return [plain(item) for item in value.items]
    return value.scalar


def _scan(text: str) -> Value:
    # Some clients store histories in these files, so they may be far larger than a configuration of ours.
    return scan(text, max_values=5_000_000)


def _walk(root: Value, pointer: Pointer) -> list[Value]:
    """Return the values along a pointer as far as they exist, starting with the root."""
    found = [root]
    for key in pointer:
        member = found[-1].member(key)
        if member is None:
            break
        found.append(member.value)
    return found


def _with_member(text: str, owner: Value, key: str, value: Any) -> str:
    members = owner.members or ()
    unit = _unit(text)
    outer = _indent_of_line(text, owner.span.start)
    inner = _indent_of_member(text, members) or outer + unit
    after = members[-1].span.end if members else owner.span.start + 1
    closing = owner.span.end - 1
    between = text[after:closing]
    comma = "," if members and "," not in _COMMENT.sub("", between) else ""
    body = json.dumps(value, indent=unit, ensure_ascii=False).replace("\n", f"\n{inner}")
    added = f"{comma}{between.rstrip()}\n{inner}{json.dumps(key, ensure_ascii=False)}: {body}\n{outer}"
    return text[:after] + added + text[closing:]


def _rendered(value: Any, text: str, span: Span) -> str:
    indent = _indent_of_line(text, span.start)
    return json.dumps(value, indent=_unit(text), ensure_ascii=False).replace("\n", f"\n{indent}")


def _indent_of_line(text: str, offset: int) -> str:
    start = text.rfind("\n", 0, offset) + 1
    line = text[start:offset]
    return line[: len(line) - len(line.lstrip())]


def _indent_of_member(text: str, members: tuple[Member, ...]) -> str | None:
    if not members:
        return None
    start = members[0].span.start
    before = text[text.rfind("\n", 0, start) + 1 : start]
    return before if not before.strip() and before else None


def _unit(text: str) -> str:
    """Return one level of indentation of this text."""
    found = re.search(r"^([ \t]+)[\"}/]", text, re.MULTILINE)
    if not found:
        return "  "
    return "\t" if found[1].startswith("\t") else found[1][:8]
