"""The `--config` option, and why servers of the configuration are skipped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from taskgate.cli.command_line import Option

if TYPE_CHECKING:
    from taskgate.config.load import SkippedServer


ConfigOption = Annotated[
    str | None,
    Option("-c", "--config", help="Configuration file. Default: ./taskgate.yaml, or the one in ~/.config/taskgate."),
]


def skip_reason(skipped: SkippedServer) -> str:
    """Return why a server is skipped."""
    if skipped.reason == "env_missing":
        return f"{skipped.detail} {'are' if ',' in skipped.detail else 'is'} not set"
    return skipped.detail or skipped.reason
