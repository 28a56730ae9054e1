"""Load one YAML file, and the files it references, into a validated, frozen `GatewayFile`.

The only package that uses pydantic. `assembly` converts the result to the plain values that other packages accept.
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
