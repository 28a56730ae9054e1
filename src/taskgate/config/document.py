"""Parse the text of a configuration file (YAML, JSON with comments, TOML) to a tree with positions."""

from __future__ import annotations

from taskgate.config.json_text import read_json
from taskgate.config.problems import ConfigError, Mark, problem_at
from taskgate.config.toml_text import read_toml
from taskgate.config.tree import Mapping, Scalar, Sequence


def read_document(text: str, name: str, kind: str = "yaml") -> Mapping:
    """Return the root of the file, which must be a map; an empty file is an empty map.

    Raises ConfigError for a syntax error or another kind of root.
    """
    match kind:
        case "yaml":
            # Imported here: the library takes 0.8 MB, and another format does not need it.
            from taskgate.config.yaml_text import read_yaml

            root = read_yaml(text, name)
        case "json":
            root = read_json(text, name)
        case "toml":
            root = read_toml(text, name)
        case _:
            raise ValueError(f"unknown document format: {kind}")
    if root is None or (isinstance(root, Scalar) and root.text is None):
        return Mapping({}, Mark(name, 1, 1))
    if not isinstance(root, Mapping):
        what = "a list" if isinstance(root, Sequence) else "a single value"
        raise ConfigError(
            [problem_at(root.mark, "", f"the file contains {what}", "write a map of keys, starting with `schema: 1`")]
        )
    return root


def kind_of(name: str) -> str:
    """Return the format for a file name: json, toml, or yaml for every other ending."""
    lower = name.lower()
    if lower.endswith((".json", ".jsonc")):
        return "json"
    return "toml" if lower.endswith(".toml") else "yaml"
