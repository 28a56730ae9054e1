"""Load the configuration of a command. Without the command line library, which `taskgate serve` does not load."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from taskgate.cli.exit_codes import ExitCode
from taskgate.cli.found_file import say_found_file
from taskgate.consent import NotAllowedHere, file_for_client
from taskgate.folders import find_config

if TYPE_CHECKING:
    from taskgate.config.load import LoadedConfig


def loaded_or_exit(config: str | None) -> LoadedConfig:
    """Load the configuration of a command that a person typed, or print all problems and exit."""
    from taskgate.config.load import load_or_default

    say_found_file(find_config(config, os.environ), config)
    return _loaded(lambda: load_or_default(config))


def loaded_for_client(config: str | None) -> LoadedConfig:
    """Load the configuration of a gateway that a client started, or print all problems and exit."""
    from taskgate.config.load import load_for_client

    try:
        chosen = file_for_client(config, os.environ)
    except NotAllowedHere as problem:
        _say(str(problem))
        sys.exit(ExitCode.USAGE)
    except OSError as problem:
        _say(f"The records of allowed files cannot be used: {problem}")
        sys.exit(ExitCode.CANNOT_CONNECT)
    if chosen.note:
        _say(chosen.note)
    return _loaded(lambda: load_for_client(chosen.path, is_found=chosen.is_found))


def _loaded(load: Callable[[], LoadedConfig]) -> LoadedConfig:
    from taskgate.config.problems import ConfigError
    from taskgate.telemetry.logs import log

    try:
        loaded = load()
    except ConfigError as error:
        _say(str(error))
        sys.exit(ExitCode.USAGE)
    log.hide(loaded.secret_values.text)
    return loaded


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
