"""The content of an interface as a definition: what is pinned of it, and how a change is displayed.

A host runs the content of a tool's `ui://` URI, so a change of it is a change of the tool. The digest covers every byte
and every setting (content security policy, permissions). Texts are stored for comparison up to a limit; beyond it a
change is shown as another digest and another size.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec.structs import replace

from taskgate.core.catalog.pin import Accepted, FirstSeen, Pin, PinChanged, PinMode, Pinned, definition_digest
from taskgate.core.redaction.difference import ChangeKind, Difference, FieldChange, difference

KEPT_TEXT: Final = 65_536
SHOWN_LINES: Final = 40
SHOWN_TEXT: Final = 4_000
_TEXT: Final = "text"


def content_bytes(content: Mapping[str, Any]) -> bytes | None:
    """Return the bytes of one element of `contents`, from text or base64; None if it has neither."""
    text, blob = content.get(_TEXT), content.get("blob")
    if isinstance(text, str):
        return text.encode("utf-8", "surrogatepass")
    if not isinstance(blob, str):
        return None
    try:
        return base64.b64decode(blob, validate=True)
    except (binascii.Error, ValueError):
        return None


def sha256_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def content_definition(uri: str, contents: Iterable[Any], listed: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return what is pinned of an interface: the `contents` that reading it returned, and its entry in `resources/list`
    if there is one, because hosts take settings from it that the content lacks.
    """
    described = {"uri": uri, "contents": [_described(content) for content in contents]}
    return described if listed is None else {**described, "listed": dict(listed)}


def _described(content: Any) -> Any:
    if not isinstance(content, Mapping):
        return content
    described = {key: value for key, value in content.items() if key not in (_TEXT, "blob", "uri")}
    found = content_bytes(content)
    if found is None:
        return {**described, "blob": content.get("blob")}
    described |= {"bytes": len(found), "digest": sha256_of(found)}
    if len(found) <= KEPT_TEXT:
        described[_TEXT] = found.decode("utf-8", "replace")
    return described


def compare_content(mode: PinMode, definition: Mapping[str, Any], pin: Pin | None) -> Pinned:
    """Compare the content of an interface with the pinned content. Programs are not searched for deceptive characters."""
    now = definition_digest(definition)
    if mode is PinMode.OFF or (pin is not None and pin.digest == now):
        return Accepted(now)
    if pin is None:
        return FirstSeen(now, ())
    return PinChanged(
        digest=now,
        pinned=pin.digest,
        quarantined=mode is PinMode.ENFORCE,
        changes=content_difference(pin.definition, definition),
        flags=(),
    )


def content_difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> Difference:
    """As for tools, but of long texts only the changed lines."""
    found = difference(dict(before), dict(after))
    return replace(found, changes=tuple(_shortened(change) for change in found.changes))


def _shortened(change: FieldChange) -> FieldChange:
    before, after = change.before, change.after
    if change.kind is ChangeKind.CHANGED and isinstance(before, str) and isinstance(after, str):
        old, new = before.splitlines(), after.splitlines()
        same = _equal_at_the_start(old, new)
        rest = min(len(old), len(new)) - same
        tail = _equal_at_the_start(old[: -rest - 1 : -1] if rest else [], new[: -rest - 1 : -1] if rest else [])
        return replace(change, before=_lines(old, same, tail), after=_lines(new, same, tail))
    return replace(change, before=_bounded(before), after=_bounded(after))


def _equal_at_the_start(one: list[str], other: list[str]) -> int:
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count


def _lines(lines: list[str], same: int, tail: int) -> str:
    changed = lines[same : len(lines) - tail]
    shown = [_bounded(line) for line in changed[:SHOWN_LINES]]
    if same:
        shown.insert(0, f"(line {same + 1})")
    if len(changed) > SHOWN_LINES:
        shown.append(f"({len(changed) - SHOWN_LINES} more lines)")
    return str(_bounded("\n".join(shown)))


def _bounded(value: Any) -> Any:
    if not isinstance(value, str) or len(value) <= SHOWN_TEXT:
        return value
    return f"{value[:SHOWN_TEXT]}… ({len(value) - SHOWN_TEXT} characters more)"


def changed_definition(digest: str, content_digest: str) -> str:
    """Return the digest of a tool whose interface is not the pinned one: approvals were given for another tool."""
    return sha256_of(f"{digest} {content_digest}".encode())
