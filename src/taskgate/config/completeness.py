"""Whether a changed configuration file is whole, before it replaces the one in force.

A disk that was full, an editor that writes in two steps or a slip of the hand leaves an empty file, or one without its
end. Most such files are valid: they just have no rules any more. A start has nothing to compare with and takes what is
there; a reload does not. The line `...`, which ends a YAML document, says that a file is meant to be as short as it is.
"""

from __future__ import annotations

from typing import Final

from taskgate.config.load import LoadedConfig
from taskgate.config.problems import ConfigError, Mark, Problem, problem_at

_THE_END: Final = "..."
_MEANT: Final = "if that is meant, end the file with a line of three dots (...)"


def refuse_half_written(before: LoadedConfig, after: LoadedConfig) -> None:
    """Raises ConfigError where the new file seems to have lost its end, or all of its servers."""
    if after.path is None:
        return
    problems = [*_lost_its_end(before, after), *_lost_all_servers(before, after)]
    if problems:
        raise ConfigError(problems)


def _lost_its_end(before: LoadedConfig, after: LoadedConfig) -> list[Problem]:
    old, new = before.text, after.text
    mark = Mark(str(after.path))
    if before.path != after.path or new.rstrip().endswith(_THE_END):
        return []
    if not new.strip():
        return [problem_at(mark, "", "the file is empty", "the configuration in force stays")] if old.strip() else []
    if len(new) < len(old) and old.startswith(new):
        lost = ", ".join(sorted(before.sections - after.sections)) or "its last lines"
        return [problem_at(mark, "", f"the file has lost its end ({lost})", _MEANT)]
    if old.endswith("\n") and not new.endswith("\n"):
        return [problem_at(mark, "", "the file ends in the middle of a line, so it may be half written", _MEANT)]
    return []


def _lost_all_servers(before: LoadedConfig, after: LoadedConfig) -> list[Problem]:
    if after.root.servers or not before.root.servers or "servers" in after.sections:
        return []
    message = f"all {len(before.root.servers)} servers are gone"
    return [problem_at(Mark(str(after.path)), "servers", message, "if that is meant, write servers: {}")]
