"""Configurations with every vocabulary that decides about a call, and calls for each of them. The same seed makes the same cases.

It uses nothing of Taskgate, so that every version gets the same cases.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import msgspec

Tree = dict[str, Any]

CONFIGURATIONS = 1_000
CALLS = 100
"""Calls of each configuration that every version can decide."""
CALLS_OF_ALIKE = 10
"""Further calls of tools whose server lists names that look alike. Versions without `decide_listed` did not serve such tools."""

TOOLS: tuple[tuple[str, ...], ...] = (
    ("delete_file", "Delete_File", "ｄelete_file", "dеlete_file", "delete_file\u200b", " delete_file"),
    ("drop_x", "DROP_X", " drop_x", "drop＿x"),
    ("read", "READ", "ｒｅａｄ", "réad"),
    ("pay_1", "PAY_1", "pay_\u0661"),
    ("export_all", "Export_All"),
    ("deploy_prod", "Deploy_Prod", "deploy_рrod"),
    ("pay_10",),
    ("list_things",),
    ("a.b",),
    ("x[1]",),
    ("_private",),
    ("delete-file",),
    ("files__delete_file",),
    ("ns:tool",),
    ("transfer",),
    ("n" * 300,),
)  # fmt: skip
"""Names of tools. Those of one group look alike."""
RESOURCES: tuple[tuple[str, ...], ...] = (
    ("file:///etc/passwd", "FILE://localhost/etc/../etc/%70asswd", "file:////etc/passwd", "file://server/etc/passwd"),
    ("https://example.com/A/B", "HTTPS://EXAMPLE.com:443/A/B", "https://user@example.com/a/b"),
    ("http://127.0.0.1/x", "http://0x7f.1/x"),
    ("http://host/a?x=/../b",),
    ("http:/host/path",),
    ("ui://app/main", "UI://app/main"),
    ("note://1", "note://１"),
    ("file:///home/ann/notes.txt",),
    ("note://{id}",),
)
PROMPTS: tuple[tuple[str, ...], ...] = (
    ("draft_mail", "Draft_Mail", "draft_mаil"),
    ("review", "REVIEW"),
    ("draft_note",),
    ("sum up",),
)
NAMES = {"tool": TOOLS, "resource": RESOURCES, "prompt": PROMPTS}
OWN_TOOLS = ("get_task", "run_script", "find_tools")

TOOL_GLOBS = (
    "*", "delete_*", "delete_file", "Delete_*", "Delete_File", "DROP_X", "drop_*", "*_file", "*_x", "*e*", "d?lete_file", "[a-d]*",
    "[!_]*", "_*", "pay_?", "pay_1", "pay_1*", "p*_1", "x[[]1]", "x*", "read", "READ", "re[ae]d", "dеlete_*", "delete_.*",
    "/delete.*/", "ｒ*", "export_*", "*_all", "deploy_*", "deploy_prod", "a.b", "?.?", "transfer", "list_*", "n*", "*-*",
    "[dp]*_[!1]*", "delete?file",
)  # fmt: skip
KIND_GLOBS = {
    "tool": (*TOOL_GLOBS, "ns:tool", "ns:*"),
    "resource": (
        "*", "file:///etc/*", "file://*", "FILE:///etc/passwd", "https://example.com/*", "HTTPS://EXAMPLE.com:443/A/*", "ui://*",
        "*passwd", "note://[0-9]", "note://?", "http://127.0.0.1/*", "http://host/*", "file:///home/*/notes.txt", "note://1",
    ),
    "prompt": ("*", "draft_*", "Draft_*", "review", "*_mail", "draft_[mn]*", "sum*", "revie?"),
}  # fmt: skip
WIDE_GLOBS = {
    "tool": ("delete_*", "d*", "*_*", "[a-p]*", "*e*", "*_x", "pay_*", "r*"),
    "resource": ("file:*", "http*", "*/*", "note:*"),
    "prompt": ("draft_*", "*e*"),
}
SERVERS = ("files", "reports", "db", "File-s", "x1")
SERVER_GLOBS = ("*", "f*", "[a-f]*", "?b", "*s", "taskgate")
WORKFLOWS = {
    "ops": {},
    "money": {"approvals_needed": 2},
    "board": {"approvals_needed": 3, "approvers": ["ann", "bob", "eve"]},
    "default": {"approvals_needed": 2},
}
TAGS = ("prod", "dev", "eu")


class Session(msgspec.Struct, frozen=True):
    """A scope, and what a session requests within it."""

    scope: str
    servers: tuple[str, ...] | None = None
    tools: tuple[str, ...] | None = None


class Call(msgspec.Struct, frozen=True):
    """One call of a tool, or a request for a resource or prompt."""

    session: int
    kind: str
    server: str
    name: str
    listed: bool
    alike: tuple[str, ...] = ()
    """Listed names of the server that look like this one."""
    quarantined: tuple[tuple[str, str], ...] = ()
    from_script: bool = False


class Case(msgspec.Struct, frozen=True):
    """A configuration with its calls. `offers` has the names that servers list, by server and kind."""

    configuration: Tree
    sessions: tuple[Session, ...]
    offers: dict[str, dict[str, tuple[str, ...]]]
    calls: tuple[Call, ...]


def cases(count: int = CONFIGURATIONS, seed: int = 46) -> Iterator[Case]:
    for number in range(count):
        yield _Generator(random.Random(f"{seed} {number}")).case()


class _Generator:
    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.servers = chance.sample(SERVERS, chance.randint(1, 4))
        self.workflows = chance.sample(sorted(WORKFLOWS), chance.randint(1, 4))

    def case(self) -> Case:
        configuration = self.configuration()
        offers = {server: {kind: self.listed(kind) for kind in NAMES} for server in self.servers}
        sessions = tuple(self.sessions(configuration))
        calls = [self.call(len(sessions), offers) for _ in range(CALLS)]
        calls += [self.call_of_alike(len(sessions)) for _ in range(CALLS_OF_ALIKE)]
        return Case(configuration, sessions, offers, tuple(calls))

    def maybe(self, likelihood: float) -> bool:
        return self.chance.random() < likelihood

    def configuration(self) -> Tree:
        tree: Tree = {
            "servers": {server: self.server() for server in self.servers},
            "approval": {name: WORKFLOWS[name] for name in self.workflows},
            "governance": self.governance(),
        }
        if self.maybe(0.4):
            tree["profile"] = self.chance.choice(("production", "development"))
        if self.maybe(0.15):
            tree["task_annotation_overrides"] = {"force_required": self.patterns(2)}
        if self.maybe(0.4):
            tree["profiles"] = {"wide": self.profile(), "narrow": {**self.profile(), "extends": "wide"}}
        if self.maybe(0.7):
            tree["scopes"] = {
                name: self.scope("profiles" in tree)
                for name in self.chance.sample(("default", "team", "ops"), self.chance.randint(1, 3))
            }
        return tree

    def server(self) -> Tree:
        server: Tree = {"command": "true"}
        shape = self.chance.randint(0, 9)
        if shape < 3:
            server["expose"] = {
                "mode": self.chance.choice(("all", "allowlist", "blocklist")),
                "tools": self.patterns(4, empty=0.1),
            }
        elif shape == 3 and self.maybe(0.5):
            server[self.chance.choice(("includeTools", "excludeTools", "disabledTools"))] = self.patterns(3)
        if self.maybe(0.25):
            server["allowed_tools"] = self.patterns(4, empty=0.15)
        shape = self.chance.randint(0, 9)
        if shape < 2:
            server["approval_policy"] = self.chance.choice(("forward", "approve", "deny"))
        elif shape < 5:
            server["approval_policy"] = self.record()
        elif shape == 5:
            server["approval_policy"] = {
                "default_policy": self.chance.choice(("never", "policy", "always", "")),
                "per_tool": {glob: self.chance.choice(("never", "policy", "always")) for glob in self.patterns(2)},
            }
        if self.maybe(0.3):
            server["tags"] = self.chance.sample(TAGS, self.chance.randint(1, 2))
        if self.maybe(0.03):
            server["enabled"] = False
        if self.maybe(0.1):
            server["url"] = "http://127.0.0.1:9/mcp"
            del server["command"]
        return server

    def record(self) -> Tree:
        record: Tree = {"tools": {glob: self.strictness() for glob in self.patterns(3)}}
        if self.maybe(0.6):
            record["default"] = self.strictness()
        if self.maybe(0.8):
            record["approval"] = self.chance.choice(self.workflows)
        return record

    def strictness(self) -> str:
        return self.chance.choice(("forward", "approve", "approve", "deny"))

    def governance(self) -> Tree:
        governance: Tree = {"rules": [self.rule() for _ in range(self.chance.choice((0, 1, 3, 6, 10, 15, 25)))]}
        if self.maybe(0.5):
            governance["defaults"] = self.action()
            governance["defaults"].pop("policy_id", None)
        if self.maybe(0.3):
            governance["force_required"] = self.patterns(3)
        return governance

    def rule(self) -> Tree:
        kind = self.chance.choices(("tool", "resource", "prompt"), (7, 2, 1))[0]
        rule: Tree = {"match": self.pattern(kind), **self.action()}
        if self.maybe(0.2):
            rule["server"] = self.chance.choice(self.servers)
        if kind == "tool" and self.maybe(0.2):
            rule["from"] = "script"
        if self.maybe(0.4):
            rule["reason"] = self.chance.choice(("Deletes for good", "zahlt Geld", "äöü"))
        return rule

    def action(self) -> Tree:
        action: Tree = {"action": self.chance.choice(("forward", "approve", "deny", "policy"))}
        if action["action"] in ("approve", "policy") and self.maybe(0.6):
            action["approval"] = self.chance.choice(self.workflows)
        if action["action"] == "policy" and self.maybe(0.5):
            action["policy_id"] = self.chance.choice(("payments", "ops"))
        return action

    def pattern(self, kind: str) -> str:
        glob = self.chance.choice(KIND_GLOBS[kind])
        if self.maybe(0.3):
            # Most globs match few of the names.
            glob = self.chance.choice(WIDE_GLOBS[kind])
        prefix = f"{kind}:"
        if kind == "tool" and ":" not in glob and self.maybe(0.9):
            prefix = ""
        if self.maybe(0.25):
            prefix = f"{self.chance.choice((*self.servers, *SERVER_GLOBS))}:{prefix}"
        return prefix + glob

    def patterns(self, most: int, empty: float = 0.0) -> list[str]:
        if self.maybe(empty):
            return []
        kinds = self.chance.choices(("tool", "resource", "prompt"), (6, 1, 1), k=self.chance.randint(1, most))
        return list(dict.fromkeys(self.pattern(kind) for kind in kinds))

    def lists(self) -> Tree:
        lists: Tree = {}
        if self.maybe(0.3):
            lists["tool_allowlist"] = self.patterns(5, empty=0.1)
        if self.maybe(0.4):
            lists["tool_denylist"] = self.patterns(3)
        return lists

    def some_servers(self) -> list[str]:
        return self.chance.choice((["*"], self.chance.sample(self.servers, self.chance.randint(1, len(self.servers)))))

    def profile(self) -> Tree:
        profile: Tree = {"servers": self.some_servers(), **self.lists()}
        if self.maybe(0.2):
            profile["exclude_servers"] = [self.chance.choice(self.servers)]
        return profile

    def scope(self, has_profiles: bool) -> Tree:
        if self.maybe(0.1):
            text = json.dumps(self.patterns(3))
            return {
                "mcp.enabled": "true",
                "mcp.default_server_ids": ",".join(self.some_servers()),
                self.chance.choice(("mcp.tool_allowlist", "mcp.tool_denylist")): text,
            }
        scope: Tree = self.lists()
        if has_profiles and self.maybe(0.5):
            scope["profile"] = self.chance.choice(("wide", "narrow"))
            if self.maybe(0.4):
                scope["profile_overrides"] = self.lists()
        elif self.maybe(0.95):
            scope["default_servers"] = self.some_servers()
            if self.maybe(0.2):
                scope["allowed_servers"] = ["*"]
        if self.maybe(0.04):
            scope["enabled"] = False
        if self.maybe(0.2):
            scope["names"] = "plain"
        return scope

    def sessions(self, configuration: Tree) -> Iterator[Session]:
        for scope in configuration.get("scopes", {"default": {}}):
            yield Session(scope)
            if self.maybe(0.3):
                denials = [f"-{one}" for one in self.patterns(1)]
                tools = self.chance.choice((None, tuple(self.patterns(3)), tuple(denials)))
                yield Session(scope, tuple(self.some_servers()), tools)

    def listed(self, kind: str) -> tuple[str, ...]:
        """One name of most groups, so that none of them look alike."""
        return tuple(self.chance.choice(group[:2]) for group in NAMES[kind] if self.maybe(0.7))

    def call(self, sessions: int, offers: dict[str, dict[str, tuple[str, ...]]]) -> Call:
        if self.maybe(0.02):
            return Call(0, "tool", "taskgate", self.chance.choice(OWN_TOOLS), listed=True, from_script=self.maybe(0.3))
        kind = self.chance.choices(("tool", "resource", "prompt"), (7, 2, 1))[0]
        server = self.chance.choice(self.servers)
        offered = offers[server][kind]
        groups, sizes = NAMES[kind], [len(group) for group in NAMES[kind]]
        if not offered or self.maybe(0.3):
            name = self.chance.choice(self.chance.choices(groups, sizes)[0])
        else:
            name = self.chance.choice(offered)
            if self.maybe(0.35):
                name = self.chance.choice(next(group for group in groups if name in group))
        return Call(
            session=self.chance.randrange(sessions),
            kind=kind,
            server=server,
            name=name,
            listed=name in offered,
            quarantined=self.quarantined(kind, server, name),
            from_script=kind == "tool" and self.maybe(0.3),
        )

    def call_of_alike(self, sessions: int) -> Call:
        kind = self.chance.choices(("tool", "prompt"), (4, 1))[0]
        group = self.chance.choice([each for each in NAMES[kind] if len(each) > 1])
        name, *others = self.chance.sample(group, self.chance.randint(2, len(group)))
        server = self.chance.choice(self.servers)
        return Call(
            session=self.chance.randrange(sessions),
            kind=kind,
            server=server,
            name=name,
            listed=True,
            alike=tuple(others),
            quarantined=self.quarantined(kind, server, others[0]),
            from_script=kind == "tool" and self.maybe(0.3),
        )

    def quarantined(self, kind: str, server: str, name: str) -> tuple[tuple[str, str], ...]:
        """Usually nothing; else this definition, one that looks like it, or another one."""
        if not self.maybe(0.15):
            return ()
        group = next((each for each in NAMES[kind] if name in each), (name,))
        held = self.chance.choice((name, self.chance.choice(group), "list_things"))
        where = self.chance.choice((server, server, self.chance.choice(self.servers)))
        return ((where, f"resource:{held}" if kind == "resource" else held),)
