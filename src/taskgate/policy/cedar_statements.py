"""Split Cedar text into statements with their line numbers, so that an error can name file and line.

Cedar's parser reports neither. The split needs only strings, comments and semicolons; everything else is left to that
parser.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|;|\s+|[^";/\s]+|.', re.DOTALL)


class PolicyFile(msgspec.Struct, frozen=True):
    """The content of one policy file."""

    name: str
    text: str


class Statement(msgspec.Struct, frozen=True):
    """One policy and where it begins."""

    text: str
    file: str
    line: int

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"


def statements(source: PolicyFile) -> Iterator[Statement]:
    """Yield every statement of a file. A last one without a semicolon is left to the parser, which reports it."""
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
