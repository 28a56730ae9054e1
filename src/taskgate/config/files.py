"""Read the files that a configuration names: regular files only, bounded in size, UTF-8."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from taskgate.config.problems import ConfigError, Problem, problem_at
from taskgate.config.tree import Mapping, text_of


def absolute(text: str, base: Path) -> str:
    """Return a path relative to `base` as a normalized absolute path."""
    return os.path.normpath(base / Path(text).expanduser())


def leads_out(path: str, base: Path) -> bool:
    """Whether a normalized path below `base` leads out of it through a link."""
    folder = os.path.normpath(base)
    return _is_below(path, folder) and not _is_below(os.path.realpath(path), os.path.realpath(folder))


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(os.path.join(folder, ""))


def unreadable(tree: Mapping, base: Path) -> list[Problem]:
    """Return a problem for each policy file that cannot be read, so that the start fails and not the first call."""
    problems = []
    cedar = tree.map("cedar")
    named = [(node, f"cedar.policies[{i}]") for i, node in enumerate(cedar.list("policies"))]
    if (entities := cedar.get("entities")) is not None:
        named.append((entities, "cedar.entities"))
    for node, key in named:
        text = text_of(node)
        if text is not None and not _readable(absolute(text, base)):
            problems.append(
                problem_at(
                    node.mark,
                    key,
                    f'the file "{text}" cannot be read',
                    "check the path (relative to this file) and the permissions",
                )
            )
    return problems


def _readable(path: str) -> bool:
    return "\0" not in path and os.path.isfile(path) and os.access(path, os.R_OK)


def read_text(path: Path, limit: int) -> str:
    """Return the text of a file. Raises ConfigError if it cannot be read or is not UTF-8 text."""
    return decode(read_bytes(path, limit), str(path))


def read_bytes(path: Path, limit: int) -> bytes:
    """Return the bytes of a regular file of at most `limit` bytes. Raises ConfigError."""
    name = str(path)
    try:
        # Non-blocking, so that a named pipe in place of the file cannot block the start.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise ConfigError(
            [
                Problem(
                    file=name,
                    line=0,
                    column=0,
                    key="",
                    message=f"cannot be opened ({reason})",
                    hint="check the path and its permissions",
                )
            ]
        ) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ConfigError(
            [
                Problem(
                    file=name,
                    line=0,
                    column=0,
                    key="",
                    message="is not a regular file",
                    hint="give the path of a text file",
                )
            ]
        )
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ConfigError(
            [
                Problem(
                    file=name,
                    line=0,
                    column=0,
                    key="",
                    message=f"is larger than {limit} bytes",
                    hint="is this the right file?",
                )
            ]
        )
    return data


def decode(data: bytes, name: str) -> str:
    """Decode UTF-8 without a byte order mark. Raises ConfigError."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        column = error.start - (data[: error.start].rfind(b"\n") + 1) + 1
        raise ConfigError(
            [
                Problem(
                    file=name,
                    line=line,
                    column=column,
                    key="",
                    message="is not UTF-8 text",
                    hint="save it as UTF-8; is this the right file?",
                )
            ]
        ) from None
    if "\0" in text[:65536]:
        line = text[: text.index("\0")].count("\n") + 1
        raise ConfigError(
            [
                Problem(
                    file=name,
                    line=line,
                    column=1,
                    key="",
                    message="is not a text file (it contains NUL bytes)",
                    hint="is this the right file?",
                )
            ]
        )
    return text
