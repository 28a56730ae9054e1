"""Detect a configuration file that was only partly written, before a reload applies it.

A full disk, an editor that writes in two steps or an editing mistake can leave an empty file, or one without its end. Most such
files are valid: they just have no rules. At the start there is nothing to compare with; a reload compares with the configuration
in force. A final line `...`, which ends a YAML document, states that the file is complete. The same applies to policies and to
server records, where a comment may end with the dots.
"""

from __future__ import annotations

from typing import Final

from taskgate.config.load import LoadedConfig
from taskgate.config.problems import ConfigError, Mark, Problem, problem_at

_DOCUMENT_END: Final = "..."
_LAST_LINES: Final = "its last lines"
_IF_INTENDED: Final = "if this is intended, end the file with a line of three dots (...)"


def refuse_truncated(before: LoadedConfig, after: LoadedConfig) -> None:
    """Raise ConfigError if the new file, or one that it references, seems truncated, or if all servers are gone."""
    if after.path is None:
        return
    problems = _all_servers_missing(before, after)
    if before.path == after.path:
        lost = ", ".join(sorted(before.sections - after.sections)) or _LAST_LINES
        problems = [*_truncated(str(after.path), before.text, after.text, lost), *problems]
    for file, text in after.beside.items():
        problems += _truncated(file, before.beside.get(file, ""), text, _LAST_LINES)
    if problems:
        raise ConfigError(problems)


def _truncated(file: str, old: str, new: str, lost: str) -> list[Problem]:
    mark = Mark(file)
    if new.rstrip().endswith(_DOCUMENT_END):
        return []
    if not new.strip():
        hint = "the running configuration is kept; save the file again"
        return [problem_at(mark, "", "the file is empty", hint)] if old.strip() else []
    if len(new) < len(old) and old.startswith(new):
        return [problem_at(mark, "", f"the end of the file is missing ({lost})", _IF_INTENDED)]
    if old.endswith("\n") and not new.endswith("\n"):
        return [problem_at(mark, "", "the file ends in the middle of a line, so it may be incomplete", _IF_INTENDED)]
    return []


def _all_servers_missing(before: LoadedConfig, after: LoadedConfig) -> list[Problem]:
    if after.root.servers or not before.root.servers or "servers" in after.sections:
        return []
    message = f"all {len(before.root.servers)} servers are missing"
    return [problem_at(Mark(str(after.path)), "servers", message, "if this is intended, write servers: {}")]
