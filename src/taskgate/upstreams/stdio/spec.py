"""How a child process is described, how its command is found and what it may know of our environment.

A child gets only a small, harmless part of our environment, so that secrets of the gateway do not leak into every server;
whatever else it needs its entry in the configuration must name. There is never a shell in between.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass

from taskgate.upstreams.stdio.failure import ChildFailure, ChildProblem

_INHERITED = frozenset(
    {"PATH", "HOME", "LANG", "TERM", "USER", "LOGNAME", "SHELL", "TMPDIR", "VIRTUAL_ENV", "SystemRoot"}
)


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """A command as the operator wrote it."""

    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] | None = None
    cwd: str | None = None
    inherits: Mapping[str, str] | None = None
    """The environment of the client it is started for; None: ours."""


def harmless_part(environment: Mapping[str, str]) -> dict[str, str]:
    """What every child may know. Exported shell functions are never passed on."""
    return {
        name: value
        for name, value in environment.items()
        if (name in _INHERITED or name.startswith("LC_")) and not value.startswith("()")
    }


def child_environment(spec: ChildSpec) -> dict[str, str]:
    """The harmless part of its client's environment or of ours, then what the entry names."""
    return {**harmless_part(os.environ if spec.inherits is None else spec.inherits), **(spec.env or {})}


def find_program(spec: ChildSpec, environment: Mapping[str, str]) -> str:
    """The absolute path of the command, or a ChildFailure that says what is missing."""
    if spec.cwd is not None and not os.path.isdir(spec.cwd):
        raise ChildFailure(ChildProblem.NOT_FOUND, f"the working directory {spec.cwd!r} does not exist")
    command = spec.command
    if os.path.dirname(command) and not os.path.isabs(command):
        command = os.path.abspath(os.path.join(spec.cwd or ".", command))
    found = shutil.which(command, path=environment.get("PATH"))
    if found is None:
        raise ChildFailure(ChildProblem.NOT_FOUND, f"the command {spec.command!r} was not found or is not executable")
    return found
