"""Mistakes in a configuration: where each one is, what is wrong, and how to correct it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

_ALIKE_ENOUGH = 70


class Mark(msgspec.Struct, frozen=True, gc=False):
    """A position in a file. Line and column count from 1; line 0 means that only the file is known."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        if not self.line:
            return self.file
        return f"{self.file}:{self.line}:{self.column}"


class Problem(msgspec.Struct, frozen=True):
    """One mistake: its position and key, what is wrong, and how to correct it."""

    file: str
    line: int
    column: int
    key: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        what = f"{self.message}; {self.hint}" if self.hint else self.message
        place = Mark(self.file, self.line, self.column)
        return f"{place}: {self.key}: {what}" if self.key else f"{place}: {what}"


def problem_at(mark: Mark, key: str, message: str, hint: str = "") -> Problem:
    """Return a problem at a mark."""
    return Problem(file=mark.file, line=mark.line, column=mark.column, key=key, message=message, hint=hint)


class ConfigError(Exception):
    """The configuration is invalid; `problems` lists all mistakes in the order of the file."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = sorted(set(problems), key=lambda p: (p.file, p.line, p.column, p.key, p.message))
        super().__init__("\n".join(str(p) for p in self.problems))


class ReferenceFailed(Exception):
    """A reference to a secret cannot be resolved. Neither `why` nor `hint` contains a secret value."""

    def __init__(self, why: str, hint: str) -> None:
        super().__init__(why)
        self.why = why
        self.hint = hint


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `did you mean "x"?` if a known word is similar to the given one, else an empty string."""
    # Imported on demand: most configurations are valid, and the import takes as long as loading one.
    from rapidfuzz import fuzz, process

    best = process.extractOne(word[:100].lower(), list(known), scorer=fuzz.ratio, score_cutoff=_ALIKE_ENOUGH)
    return f'did you mean "{best[0]}"?' if best else ""


def one_of(words: Iterable[str], limit: int = 12) -> str:
    """Return the allowed words as a list for a message, limited in length."""
    all_words = list(words)
    shown = ", ".join(all_words[:limit])
    return f"{shown}, and {len(all_words) - limit} more" if len(all_words) > limit else shown
