"""Escaping for the markup of charts, and coordinates as short as a pixel needs them."""

from __future__ import annotations

import html

from taskgate.core.text.plain_text import visible

LONGEST_LABEL = 120


def text(label: object) -> str:
    """A label from a caller or a server as the content of an element or attribute."""
    shown = str(label)
    if len(shown) > LONGEST_LABEL:
        shown = shown[: LONGEST_LABEL - 1] + "…"
    return html.escape(visible(shown))


def address(href: str) -> str:
    """An address as an attribute. Charts link within the console only: anything but a path becomes the start page."""
    return html.escape(href) if href.startswith("/") and not href.startswith(("//", "/\\")) else "/"


def number(value: float) -> str:
    """A coordinate with at most one decimal."""
    return f"{value:.1f}".removesuffix(".0")
