"""Rewrite registry records in the format of SPEAR's `McpServerRecord` to the keys of `servers`.

Its records differ in a few keys (`tool_namespace`, `env_from`, `auth_ref`, `default_policy`, `per_tool`) and use an empty
text for an unset value. A server whose credential cannot be resolved is skipped like any other with an unset variable: it
must never be called without it.
"""

from __future__ import annotations

import re

from taskgate.config.tree import Entry, Mapping, Node, Scalar, Sequence, text_of

_MAY_BE_EMPTY = ("cwd", "namespace", "display_name", "auth_ref", "url", "command")
_STRICTNESS = {"never": "forward", "policy": "forward", "always": "approve", "": "forward"}
"""`policy` defers to the rules, which always apply; a record can only be stricter."""
_REFERENCE = re.compile(r"(?:env:|ENV:)?([A-Za-z_][A-Za-z0-9_]*)\Z")


def normalize_record(record: Mapping) -> Mapping:
    """Return one record with SPEAR's keys converted to ours; other keys are unchanged."""
    record = record.without("updated_at_ms")
    if "tool_namespace" in record.entries:
        entry = record.entries["tool_namespace"]
        record = record.without("tool_namespace")
        if "namespace" not in record.entries:
            record = record.with_entries(Entry("namespace", entry.key_mark, entry.value))
    record = record.without(*(key for key in _MAY_BE_EMPTY if record.text(key) == ""))
    return _with_policy(_with_credential(_with_variables(record)))


def _with_variables(record: Mapping) -> Mapping:
    """Convert `env_from: [NAME]`, which passes environment variables of the gateway to the server."""
    names = record.entries.get("env_from")
    if names is None or not isinstance(names.value, Sequence):
        return record
    env = record.map("env")
    for node in names.value.items:
        name = (text_of(node) or "").strip()
        if name:
            env = env.with_value(name, Scalar(f"${{{name}}}", node.mark))
    return record.without("env_from").with_value("env", env, names.key_mark)


def _with_credential(record: Mapping) -> Mapping:
    """Convert `auth_ref`, which names the environment variable with the bearer token."""
    entry = record.entries.get("auth_ref")
    if entry is None:
        return record
    text = text_of(entry.value) or ""
    found = _REFERENCE.match(text)
    token = f"${{{found[1]}}}" if found else text if text.startswith("${") else f"${{{text} (auth_ref)}}"
    header = Scalar(f"Bearer {token}", entry.value.mark)
    headers = record.map("headers").with_value("Authorization", header)
    return record.without("auth_ref").with_value("headers", headers, entry.key_mark)


def _with_policy(record: Mapping) -> Mapping:
    policy = record.get("approval_policy")
    if not isinstance(policy, Mapping) or not {"default_policy", "per_tool"} & set(policy.entries):
        return record
    ours = policy.without("default_policy", "per_tool")
    default, tools = policy.entries.get("default_policy"), policy.entries.get("per_tool")
    if default is not None:
        ours = ours.with_value("default", _strictness(default.value), default.key_mark)
    if tools is not None and isinstance(tools.value, Mapping):
        words = {e.key: Entry(e.key, e.key_mark, _strictness(e.value)) for e in tools.value}
        ours = ours.with_value("tools", Mapping(words, tools.value.mark), tools.key_mark)
    return record.with_value("approval_policy", ours)


def _strictness(node: Node) -> Node:
    text = text_of(node)
    return Scalar(_STRICTNESS.get(text, text), node.mark) if text is not None else node
