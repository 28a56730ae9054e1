"""Split Cedar text into statements with their line numbers, so that an error can name file and line.

Cedar's parser reports neither. The split needs only strings, comments and semicolons; everything else is left to that
parser.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

# Cedar text cut into statements with their line numbers, so that an error can say file and line.
#
# Cedar's own parser reports neither. Cutting needs only strings, comments and semicolons; everything else is left to
# that parser.

_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|;|\s+|[^";/\s]+|.', re.DOTALL)


@dataclass(frozen=True, slots=True)
class PolicyFile:
    """One file of policies, already read."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Statement:
    """One policy and where it begins."""

    text: str
    file: str
    line: int

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"


def statements(source: PolicyFile) -> Iterator[Statement]:
    """Every statement of a file. A last one without a semicolon is left for the parser to complain about."""
    pieces: list[str] = []
    line, begins = 1, 1
    for token in _TOKEN.findall(source.text):
        skipped = token.isspace() or token.startswith("//")
        if not pieces and skipped:
            line += token.count("\n")
            continue
        if not pieces:
            begins = line
        pieces.append(token)
        line += token.count("\n")
        if token == ";":
            yield Statement("".join(pieces), source.name, begins)
            pieces = []
    if pieces:
        yield Statement("".join(pieces), source.name, begins)
