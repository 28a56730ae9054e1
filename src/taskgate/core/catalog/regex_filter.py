"""Filters by regular expressions from callers, matched in linear time."""

from __future__ import annotations

from typing import Final

from taskgate.core.errors import CallerError

MAX_PATTERN: Final = 200
_SIZE_LIMIT: Final = 1 << 20


class RegexFilter:
    """Matches anywhere in a name; without a pattern everything passes."""

    __slots__ = ("_validator",)

    def __init__(self, name: str, pattern: str | None) -> None:
        self._validator = None
        if pattern is None:
            return
        if len(pattern) > MAX_PATTERN:
            raise CallerError("invalid_params", f'"{name}" may have at most {MAX_PATTERN} characters.')
        try:
            # Imported on first use, to keep an idle gateway small.
            import jsonschema_rs

            options = jsonschema_rs.RegexOptions(size_limit=_SIZE_LIMIT, dfa_size_limit=_SIZE_LIMIT)
            self._validator = jsonschema_rs.Draft202012Validator({"pattern": pattern}, pattern_options=options)
        except (ValueError, TypeError):
            raise CallerError(
                "invalid_params",
                f'"{name}" is not a regular expression that can be used here (no look-around, no back-references).',
            ) from None

    def matches(self, text: str) -> bool:
        return self._validator is None or self._validator.is_valid(text)
