"""Make text from peers safe to show: escape characters that are invisible or change how text is displayed."""

from __future__ import annotations


def visible(text: str, keep: str = "\n") -> str:
    """Escape control, format (bidi, zero width), private and unassigned characters as `\\uXXXX`; those in `keep` are
    left unchanged.
    """
    if text.isprintable():
        return text
    # Each distinct character is checked once, however long the text.
    hidden = {ord(kind): _escaped(kind) for kind in set(text) if not kind.isprintable() and kind not in keep}
    return text.translate(hidden) if hidden else text


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def html_escaped(text: str) -> str:
    """The same as `html.escape`, whose module contains a table of all names of characters, which takes 0.3 MB."""
    for character, escaped in _HTML_ESCAPES:
        text = text.replace(character, escaped)
    return text


_HTML_ESCAPES = (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;"), ("'", "&#x27;"))
