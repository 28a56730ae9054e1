"""Rewrite alternative spellings of keys to the form that the sections have.

`task_annotation_overrides.force_required` is merged into `governance.force_required`, and a word that stands for a map becomes one:
a channel, `auth: none`, and the name of a model.
"""

from __future__ import annotations

from taskgate.config.environments import branch
from taskgate.config.problems import Problem, problem_at
from taskgate.config.tree import Entry, Mapping, Node, Scalar, Sequence

_LATER_AUTH = frozenset({"mtls", "oidc"})


def normalize_governance(root: Mapping) -> tuple[Mapping, list[Problem]]:
    """Return the root with governance keys in normalized form, and problems."""
    problems: list[Problem] = []
    root = _with_alias(_without_later_auth(root, problems), problems)
    return _with_models(_with_channels(_with_auth(root, problems))), problems


def _without_later_auth(root: Mapping, problems: list[Problem]) -> Mapping:
    auth = root.get("auth")
    if not isinstance(auth, Mapping):
        return root
    for key in _LATER_AUTH & auth.entries.keys():
        hint = "remove it, and identify callers with `tokens`, auth.jwt, auth.login or auth.certificates"
        problems.append(problem_at(auth.entries[key].key_mark, f"auth.{key}", "is not supported", hint))
        auth = auth.without(key)
    return root.with_value("auth", auth)


def _with_alias(root: Mapping, problems: list[Problem]) -> Mapping:
    alias = root.entries.get("task_annotation_overrides")
    if alias is None:
        return root
    root = root.without("task_annotation_overrides")
    if not isinstance(alias.value, Mapping):
        problems.append(problem_at(alias.key_mark, alias.key, "must be a map", "write {force_required: [tool]}"))
        return root
    for entry in alias.value.without("force_required"):
        key = f"{alias.key}.{entry.key}"
        problems.append(problem_at(entry.key_mark, key, "unknown key", "known keys: force_required"))
    added = alias.value.get("force_required")
    governance = branch(root, "governance")
    words = (*_items(governance.get("force_required")), *_items(added))
    merged = Sequence(words, added.mark if added else alias.key_mark)
    return root.with_value("governance", governance.with_value("force_required", merged, alias.key_mark))


def _items(node: Node | None) -> tuple[Node, ...]:
    if isinstance(node, Sequence):
        return node.items
    return () if node is None else (node,)


def _with_channels(root: Mapping) -> Mapping:
    workflows = root.get("approval")
    if not isinstance(workflows, Mapping):
        return root
    for entry in workflows:
        if isinstance(entry.value, Mapping) and "channels" in entry.value.entries:
            channels = entry.value.entries["channels"]
            value = Sequence(tuple(_map_of(item, "type") for item in _items(channels.value)), channels.value.mark)
            workflows = workflows.with_value(entry.key, entry.value.with_value("channels", value))
    return root.with_value("approval", workflows)


def _with_auth(root: Mapping, problems: list[Problem]) -> Mapping:
    """Rewrite `auth: none`, which is explicit so that a missing key never opens a gateway to the network."""
    if root.text("auth") != "none":
        return root
    auth = root.entries["auth"]
    if root.list("tokens"):
        hint = "remove one of them, or write auth: {anonymous: SCOPE} for the scope that needs no token"
        problems.append(problem_at(auth.key_mark, "auth", "none contradicts `tokens`", hint))
    return root.with_value("auth", _map_of(Scalar("true", auth.value.mark), "none"))


def _with_models(root: Mapping) -> Mapping:
    for entry in root.map("providers"):
        if isinstance(entry.value, Mapping) and isinstance(models := entry.value.get("models"), Sequence):
            named = Sequence(tuple(_map_of(model, "name") for model in models.items), models.mark)
            provider = entry.value.with_value("models", named)
            root = root.with_value("providers", root.map("providers").with_value(entry.key, provider))
    return root


def _map_of(node: Node, key: str) -> Node:
    """Return a single value as a map with one key; other nodes as they are."""
    if isinstance(node, Scalar) and node.text is not None:
        return Mapping({key: Entry(key, node.mark, node)}, node.mark)
    return node
