"""Load the configuration of a command. Without the command line library, which `taskgate serve` does not load."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from taskgate.cli.exit_codes import ExitCode

if TYPE_CHECKING:
    from taskgate.config.load import LoadedConfig


def loaded_or_exit(config: str | None) -> LoadedConfig:
    """Load the configuration, or print all problems and exit."""
    from taskgate.config.load import load_or_default
    from taskgate.config.problems import ConfigError
    from taskgate.telemetry.logs import log

    try:
        loaded = load_or_default(config)
    except ConfigError as error:
        print(error, file=sys.stderr, flush=True)
        sys.exit(ExitCode.USAGE)
    log.hide(loaded.secret_values.text)
    return loaded
