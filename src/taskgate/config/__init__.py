"""Configuration: one YAML file (and what it points to) -> a validated, frozen `GatewayFile`.

The only part of Taskgate that knows pydantic. `assembly` turns what it gives into the plain values that the other
parts take.
"""

from taskgate.config.load import LeftOut, LoadedConfig, default_config, find, load, load_or_default, load_text
from taskgate.config.problems import ConfigError, Mark, Problem

__all__ = [
    "ConfigError",
    "LeftOut",
    "LoadedConfig",
    "Mark",
    "Problem",
    "default_config",
    "find",
    "load",
    "load_or_default",
    "load_text",
]
