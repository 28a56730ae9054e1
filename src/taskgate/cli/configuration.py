"""The `--config` option, and loading the configuration of a command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from taskgate.cli.command_line import Exit, Option, echo
from taskgate.cli.exit_codes import ExitCode

if TYPE_CHECKING:
    from taskgate.config.load import LoadedConfig, SkippedServer


ConfigOption = Annotated[
    str | None,
    Option("-c", "--config", help="Configuration file. Default: ./taskgate.yaml, or the one in ~/.config/taskgate."),
]


def skip_reason(skipped: SkippedServer) -> str:
    """Return why a server is skipped."""
    if skipped.reason == "env_missing":
        return f"{skipped.detail} {'are' if ',' in skipped.detail else 'is'} not set"
    return skipped.detail or skipped.reason


def loaded_or_exit(config: str | None) -> LoadedConfig:
    """Load the configuration, or print all problems and exit."""
    from taskgate.config.load import load_or_default
    from taskgate.config.problems import ConfigError
    from taskgate.telemetry.logs import log

    try:
        loaded = load_or_default(config)
    except ConfigError as error:
        echo(str(error), err=True)
        raise Exit(ExitCode.USAGE) from None
    log.hide(loaded.secret_values.text)
    return loaded
