"""Make text from peers safe to show: escape characters that are invisible or change how text is displayed."""

from __future__ import annotations

import re
from typing import Final

_BLANK: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0e\uffa0\U00016fe4\U0001d159\U000e0100-\U000e01ef]"
)
"""Letters, marks and signs without a visible glyph. Python counts them as printable."""
_EMOJI: Final = (
    "\xa9\xae\u203c\u2049\u2122\u2139\u2190-\u21ff\u2300-\u23ff\u24c2\u25a0-\u27bf\u2900-\u297f\u2b00-\u2bff\u3030\u303d\u3297\u3299"
    "\U0001f000-\U0001faff"
)
STRAY_SELECTOR: Final = re.compile(f"\ufe0f(?!\u20e3)(?<![{_EMOJI}]\ufe0f)|(?<![#*0-9])\ufe0f(?=\u20e3)")
"""U+FE0F where it does not select the coloured form of the sign before it."""


def is_blank(character: str) -> bool:
    """Whether a character that Python counts as printable is shown as nothing. U+FE0F depends on its context."""
    return _BLANK.match(character) is not None


def visible(text: str, keep: str = "\n") -> str:
    """Escape control, format (bidi, zero width), blank, private and unassigned characters as `\\uXXXX`; those in `keep` are
    left unchanged.
    """
    if text.isascii() and text.isprintable():
        return text
    # Each distinct character is checked once, however long the text.
    hidden = {ord(kind): _escaped(kind) for kind in set(text) if _is_hidden(kind) and kind not in keep}
    shown = text.translate(hidden) if hidden else text
    return STRAY_SELECTOR.sub(r"\\ufe0f", shown)


def _is_hidden(character: str) -> bool:
    return not character.isprintable() or is_blank(character)


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def html_escaped(text: str) -> str:
    """The same as `html.escape`, whose module contains a table of all names of characters, which takes 0.3 MB."""
    for character, escaped in _HTML_ESCAPES:
        text = text.replace(character, escaped)
    return text


_HTML_ESCAPES = (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;"), ("'", "&#x27;"))
