"""Parse TOML to a tree with positions.

`tomllib` reports no positions, so the line of a key is found by searching for its name: exact enough for a message.
"""

from __future__ import annotations

from typing import assert_never

from taskgate.config.problems import ConfigError, Mark, Problem
from taskgate.config.tree import Entry, Mapping, Node, Scalar, Sequence, from_plain


def read_toml(text: str, name: str) -> Node:
    """Parse TOML. Raises ConfigError."""
    import tomllib  # few files are TOML, and it takes a hundredth of the start

    try:
        value = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            [Problem(file=name, line=0, column=0, key="", message=f"not valid TOML: {str(error)[:200]}")]
        ) from None
    except RecursionError:
        raise ConfigError(
            [Problem(file=name, line=0, column=0, key="", message="nested too deeply", hint="flatten this section")]
        ) from None
    root = from_plain(value, Mark(name, 1, 1))
    lines = text.splitlines()
    return _with_lines(root, name, lines)


def _with_lines(node: Node, name: str, lines: list[str]) -> Node:
    match node:
        case Mapping():
            entries = {}
            for entry in node:
                mark = _toml_mark(entry.key, name, lines) or entry.key_mark
                entries[entry.key] = Entry(entry.key, mark, _with_lines(entry.value, name, lines))
            return Mapping(entries, node.mark)
        case Sequence():
            return Sequence(tuple(_with_lines(item, name, lines) for item in node.items), node.mark)
        case Scalar():
            return node
        case _:
            assert_never(node)


def _toml_mark(key: str, name: str, lines: list[str]) -> Mark | None:
    starts = (f"{key} ", f"{key}=", f'"{key}"', f"[{key}]", f"[[{key}]]")
    for number, line in enumerate(lines, 1):
        stripped = line.lstrip()
        if stripped.startswith(starts) or (stripped.startswith("[") and stripped.rstrip().endswith(f".{key}]")):
            return Mark(name, number, len(line) - len(stripped) + 1)
    return None
