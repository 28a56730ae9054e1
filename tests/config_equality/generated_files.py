"""Configuration files from a JSON schema: each key with each kind of value, ends of ranges, names in maps, misspelt and missing
keys, and mixtures of them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

Tree = dict[str, Any]
Path = tuple[str | int, ...]

VALUES: tuple[Any, ...] = (
    True, False, None, 0, 1, -1, 7, 3.5, 10**12, "", " ", "x", "on", "off", "0", "12", "1.5", "10m", "90d", "-5s", "16MiB", "2 kb",
    "*", "read_*", "*a*", "a, b", "ä", "https://a.example/x", "http://127.0.0.1:9/mcp", "ftp://a.example", "not a url",
    20, 21, 200, 201, 10_000, 10_001, 65_535, 65_536, 10_000_000, 10_000_001, 0.5, 1.0, 1.01, -0.5, "nan", "inf",
    "1_000", " 7 ", "+7", "TRUE", "Yes", "t", "1h 30m", "PT10M", "P1D", "0s", "250ms", "0.5ms", "1s", "5m", "301s",
    "9999d", "x" * 70, "*" * 17, "[a", "resource:x",
    "${HOME}", "${env:MISSING}", "$${literal}", "2030-01-01T00:00:00Z", "2030-01-01", [], ["a"], ["a", "a"], ["*"], [1], [None],
    [["a"]], [{}], {}, {"a": 1}, {"a": "b"}, {"a": {}}, {"a": ["b"]}, {"x y": "z"},
)  # fmt: skip
NAMES = ("", "x y", "a__b", "_a", "resource", "v1", "a.b", "A" * 41, "A" * 65, "ä", "*a", "viewer", "X-Key", "1")
"""Names for the keys of maps whose keys the user chooses."""
NEEDED: dict[str, Tree] = {
    "Certificate": {"name": "dns:ann.example", "id": "ann"},
    "Introspection": {
        "issuer": "https://login.example",
        "url": "https://login.example/introspect",
        "client_id": "taskgate",
        "client_secret": "secret",
        "audiences": ["taskgate"],
    },
    "Jwt": {"issuer": "https://login.example", "audiences": ["taskgate"]},
    "ListenTls": {"cert": "cert.pem", "key": "key.pem"},
    "Model": {"name": "m"},
    "NotifyChannel": {"type": "notify", "urls": ["json://127.0.0.1"]},
    "OidcLogin": {"issuer": "https://login.example", "client_id": "taskgate"},
    "Provider": {"kind": "openai", "models": ["m"], "base_url": "http://127.0.0.1:9/v1"},
    "Rule": {"match": "delete_*", "action": "approve"},
    "Server": {"command": "true"},
    "ServerAuth": {
        "type": "client_credentials",
        "client_id": "a",
        "client_secret": "b",
        "issuer": "https://login.example",
    },
    "SlackChannel": {"type": "slack", "channel": "c", "bot_token": "xoxb", "app_token": "xapp"},
    "Store": {"url": "sqlite:///./taskgate.db"},
    "Token": {"id": "ann", "sha256": "0" * 64},
    "WebhookChannel": {"type": "webhook", "url": "https://hook.example", "secret": "s"},
    "ElicitationChannel": {"type": "elicitation"},
    "InboxChannel": {"type": "inbox"},
}
"""What a section needs besides the key in question, so that the file can be accepted."""
BESIDE: dict[str, Tree] = {
    "auth": {"public_url": "https://gate.example"},
    "listen": {"auth": "none"},
    "governance": {"approval": {"people": {"channels": ["inbox"]}}},
    "scopes": {"servers": {"one": {"command": "true"}}, "profiles": {"p": {"servers": ["*"]}}},
}
"""Top-level keys that the section needs beside it."""
MIXED = 3_000


def files(schema: Tree) -> Iterator[Tree]:
    """Every generated file as a tree, in the same order for the same schema."""
    yield {}
    for name, value in (("schema_version", 1), ("validate_arguments", "off"), ("schema", 1), ("schema", 2)):
        yield {name: value}
        yield {name: value, "schema": 1, "validate": "warn"}
    places = list(_places(schema, schema, (), ()))
    for path, key, node, needed in places:
        usual = [needed[key]] if key in needed else []
        for value in (*usual, *VALUES, *_own_values(node)):
            yield _file(path, {**needed, key: value})
        for misspelt in sorted({key[:-1], key + "s", key.upper(), key.replace("_", "-")} - {key, ""}):
            yield _file(path, {**needed, misspelt: (_own_values(node) or ["x"])[0]})
        if isinstance(held := node.get("additionalProperties"), dict):
            item = NEEDED.get(held.get("$ref", "").rpartition("/")[2], next(iter(_own_values(held)), "x"))
            for name in NAMES:
                yield _file(path, {**needed, key: {name: item}})
        if needed:
            without = {name: value for name, value in needed.items() if name != key}
            yield _file(path, without)
    chance = random.Random(20251)
    for _ in range(MIXED):
        tree: Tree = {}
        for path, key, node, needed in chance.sample(places, chance.randint(2, 6)):
            own = _own_values(node) or list(VALUES)
            _merge(tree, _file(path, {**needed, key: chance.choice(own)}))
        yield tree


def _places(root: Tree, section: Tree, path: Path, seen: tuple[str, ...]) -> Iterator[tuple[Path, str, Tree, Tree]]:
    """Every key of the section and those below it, with its path and what its section needs."""
    needed = NEEDED.get(seen[-1], {}) if seen else {}
    for key, node in section["properties"].items():
        yield path, key, node, needed
        for name, below in _sections_in(root, node, (*path, key)):
            if name not in seen:
                yield from _places(root, root["$defs"][name], below, (*seen, name))


def _sections_in(root: Tree, node: Tree, path: Path) -> Iterator[tuple[str, Path]]:
    """The sections that a key holds: itself, as items of a list, or by name."""
    if "$ref" in node:
        yield node["$ref"].rpartition("/")[2], path
    for each in node.get("anyOf", ()):
        yield from _sections_in(root, each, path)
    for key, each in node.get("properties", {}).items():
        yield from _sections_in(root, each, (*path, key))
    for each in node.get("patternProperties", {}).values():
        yield from _sections_in(root, each, (*path, "argument.amount"))
    if "items" in node:
        yield from _sections_in(root, node["items"], (*path, 0))
    if isinstance(node.get("additionalProperties"), dict):
        yield from _sections_in(root, node["additionalProperties"], (*path, "one"))


def _own_values(node: Tree) -> list[Any]:
    """Values that the schema names for this key: its default and its words, and each word misspelt."""
    found = [node["default"]] if "default" in node else []
    for each in (node, *node.get("anyOf", ()), node.get("items", {})):
        for word in each.get("enum", ()):
            found += [word, [word], *([word.upper(), word + "x"] if isinstance(word, str) else [])]
    return found


def _file(path: Path, content: Tree) -> Tree:
    """A whole file with this content at the path."""
    tree: Any = content
    for step in reversed(path):
        tree = [tree] if step == 0 else {step: tree}
    for depth, section in _sections_on(path):
        _merge(_at(tree, path[:depth]), dict(NEEDED[section]))
    whole: Tree = {**BESIDE.get(str(path[0]), {}), **tree} if path else tree
    return whole


def _sections_on(path: Path) -> Iterator[tuple[int, str]]:
    """Sections around the last one of a path that need keys of their own."""
    around = {"servers": (2, "Server"), "providers": (2, "Provider")}
    if path and path[0] in around and len(path) > around[str(path[0])][0]:
        yield around[str(path[0])]
    for depth, steps in ((3, ("auth", "jwt", 0)), (2, ("auth", "introspection")), (2, ("auth", "login"))):
        if path[: len(steps)] == steps and len(path) > depth:
            yield depth, {"jwt": "Jwt", "introspection": "Introspection", "login": "OidcLogin"}[str(steps[1])]


def _at(tree: Any, path: Path) -> Tree:
    for step in path:
        tree = tree[step]
    found: Tree = tree
    return found


def _merge(tree: Tree, more: Tree) -> None:
    """Add what the tree does not have."""
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(tree.get(key), dict):
            _merge(tree[key], value)
        else:
            tree.setdefault(key, value)
