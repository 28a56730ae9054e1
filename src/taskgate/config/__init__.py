"""Load one YAML file, and the files it references, into a validated, frozen `GatewayFile`.

`assembly` converts the result to the plain values that other packages accept.
"""

from taskgate.config.load import LoadedConfig, SkippedServer, default_config, find, load, load_or_default, load_text
from taskgate.config.problems import ConfigError, Mark, Problem

__all__ = [
    "ConfigError",
    "LoadedConfig",
    "Mark",
    "Problem",
    "SkippedServer",
    "default_config",
    "find",
    "load",
    "load_or_default",
    "load_text",
]
