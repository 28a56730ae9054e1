"""Make text from peers safe to show: escape characters that are invisible or change how text is displayed."""

from __future__ import annotations

# Text from elsewhere on its way to people: what prints nothing, or makes text read other than it is, becomes an escape.


def visible(text: str, keep: str = "\n") -> str:
    """Control, format (bidi, zero width), private and unassigned characters as `\\uXXXX`; `keep` are left as they are."""
    if text.isprintable():
        return text
    # Each kind of character is judged once, however long the text.
    hidden = {ord(kind): _escaped(kind) for kind in set(text) if not kind.isprintable() and kind not in keep}
    return text.translate(hidden) if hidden else text


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
