"""Finds the fenced blocks of a document, and the commands in a console block."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LANGUAGES = {"console", "python", "yaml", "toml", "json", "cedar", "text", "mermaid", "ini", "nginx", "dockerfile"}
_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>[\w-]*)(?P<info>[^\n]*)\n(?P<body>.*?)^(?P=indent)```", re.S | re.M
)
_MARKER = re.compile(r"<!-- example: (.+?) -->\s*\Z")
_FILE = re.compile(r"(?:#|//) ([\w.-]+(?:/[\w.-]+)*\.(?:ya?ml|json|toml|cedar|service|py|env))(?::.*)?\n")
_NOT_RUN = re.compile(r"not run, (.{10,})")


@dataclass(frozen=True, slots=True)
class Block:
    document: str
    line: int
    language: str
    body: str
    marker: str

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"

    @property
    def file(self) -> str | None:
        """The file that this block is, if it is one."""
        if self.marker.startswith("file "):
            return self.marker.removeprefix("file ")
        found = _FILE.match(self.body)
        return found[1] if found is not None else None

    @property
    def not_run(self) -> str | None:
        """Why it cannot be run anywhere."""
        found = _NOT_RUN.fullmatch(self.marker)
        return found[1] if found is not None else None

    @property
    def givens(self) -> list[str]:
        given = self.marker.removeprefix("given ") if self.marker.startswith("given ") else ""
        return [name.strip() for name in given.split(",") if name.strip()]

    @property
    def exit_code(self) -> int:
        return int(self.marker.removeprefix("exit ")) if self.marker.startswith("exit ") else 0


@dataclass(frozen=True, slots=True)
class Command:
    text: str
    shown: tuple[str, ...]


def documents() -> list[str]:
    """README and everything below docs, by path from the root of the repository."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [path.relative_to(ROOT).as_posix() for path in found]


def blocks_of(document: str) -> list[Block]:
    text = (ROOT / document).read_text(encoding="utf-8")
    return [_block(document, text, found) for found in _FENCE.finditer(text)]


def without_blocks(document: str) -> str:
    """What of a document is not in a fenced block."""
    return _FENCE.sub("", (ROOT / document).read_text(encoding="utf-8"))


def _block(document: str, text: str, found: re.Match[str]) -> Block:
    before = text[: found.start()]
    marker = _MARKER.search(before[-400:])
    indent = len(found["indent"])
    body = "".join(line[indent:] for line in found["body"].splitlines(keepends=True))
    return Block(document, before.count("\n") + 1, found["language"], body, marker[1] if marker is not None else "")


def commands_in(block: Block) -> list[Command]:
    """`$ ` begins a command; a line that ends in a backslash goes on; everything else is what it prints."""
    found: list[tuple[list[str], list[str]]] = []
    goes_on = False
    for line in block.body.splitlines():
        if goes_on:
            found[-1][0].append(line)
        elif line.startswith("$ "):
            found.append(([line.removeprefix("$ ")], []))
        else:
            assert found, f"{block}: a console block begins with a command"
            if line.strip():
                found[-1][1].append(line)
            continue
        goes_on = line.endswith("\\")
    return [Command("\n".join(words), tuple(shown)) for words, shown in found]
