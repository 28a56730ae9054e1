"""Patterns that match none of the listed names are named, with what was probably meant; nothing uncertain is."""

from __future__ import annotations

import pytest

from taskgate.core.governance.unmatched_patterns import (
    MAX_SCHEMAS,
    NameIndex,
    PatternUse,
    UnmatchedPattern,
    patterns_in,
)
from taskgate.core.patterns import PatternKind
from taskgate.core.settings.gateway_file import GatewayFile
from taskgate.core.settings.governance import Action, Governance, Rule
from taskgate.core.settings.scopes import ProfileOverrides, Scope, ScopeProfile
from taskgate.core.settings.servers import Expose, RecordApproval, Server

TOOL, PROMPT, RESOURCE = PatternKind.TOOL, PatternKind.PROMPT, PatternKind.RESOURCE
LISTED = {
    "files": {
        TOOL: ["delete_file", "delete_all", "read_file", "getUser", "API-post", "odd[1]*"],
        PROMPT: ["ask_me"],
        RESOURCE: ["file:///a", "http://HOST/x"],
    },
    "db": {TOOL: ["drop_table", "db.select"], PROMPT: [], RESOURCE: []},
}


def examined(text: str, server: str = "") -> UnmatchedPattern | None:
    return NameIndex(LISTED).unmatched(PatternUse("rules[0]", text, server))


@pytest.mark.parametrize(
    ("pattern", "instead"),
    [
        ("delete_.*", ("delete_*",)),
        ("delete.*", ("delete*",)),
        ("/delete/", ("*delete*",)),
        ("(delete|drop)_.*", ("delete_*", "drop_*")),
        # Of several patterns, only those that match something.
        ("(delete|wipe)_.*", ("delete_*",)),
        ("Delete_*", ("delete_*",)),
        ("d\u0435lete_*", ("delete_*",)),
        ("files:delete_fil", ("files:delete_file",)),
        ("delet_*", ("delete_*",)),
        ("*_fil", ("*_file",)),
        ("r[e]ed_file", ("read_file",)),
        ("drop-table", ("drop_table",)),
        ("api-*", ("API-*",)),
        ("GETUSER", ("getUser",)),
        ("odd1", ("odd[[]1][*]",)),
        # The right name on another server, or with the server in front.
        ("files:drop_table", ("db:drop_table",)),
        ("db:tool:read_file", ("files:tool:read_file",)),
        ("files.read_*", ("files:read_*",)),
        ("files__read_file", ("files:read_file",)),
        ("taskgate:run_scirpt", ("taskgate:run_script",)),
        ("prompt:ASK_ME", ("prompt:ask_me",)),
        ("resource:^file:///a", ("resource:file:///a*",)),
        # Nothing similar.
        ("nothing", ()),
        ("nothing*", ()),
        ("*nothing", ()),
        ("!read_file", ()),
        ("[a|b]_x", ()),
        ("files", ()),
        ("resource:file:///b", ()),
    ],
)
def test_unmatched_pattern_is_named_with_what_was_meant(pattern: str, instead: tuple[str, ...]) -> None:
    found = examined(pattern)
    assert found is not None
    assert found.instead == instead
    index = NameIndex(LISTED)
    assert all(index.unmatched(PatternUse("", each)) is None for each in instead)


@pytest.mark.parametrize(
    "pattern",
    [
        "delete_*",
        "*_file",
        "r?ad_file",
        "db:drop_table",
        "f*:delete_*",
        "run_script",
        "task*:run_script",
        "prompt:ask_*",
        "resource:http://host/*",
        # Of servers that are not known, or that offer nothing of the kind.
        "github:delete_.*",
        "db:prompt:x",
    ],
)
def test_pattern_that_matches_or_cannot_be_judged_is_not_named(pattern: str) -> None:
    assert examined(pattern) is None


def test_pattern_of_one_server_is_compared_with_its_names_only() -> None:
    found = examined("drop_table", "files")
    assert found is not None
    assert (found.names, found.instead) == (6, ())
    assert examined("drop_table", "db") is None
    misspelled = examined("files:delete_fil", "files")
    assert misspelled is not None
    assert misspelled.instead == ("files:delete_file",)


def test_server_without_known_list_prevents_a_false_alarm() -> None:
    index = NameIndex({**LISTED, "down": {}})
    assert index.unmatched(PatternUse("rules[0]", "delete_.*")) is None
    assert not index.is_known(PatternUse("rules[0]", "delete_.*"))
    assert index.unmatched(PatternUse("rules[0]", "files:delete_.*")) is not None
    assert index.unmatched(PatternUse("rules[0]", "d*:drop_.*")) is None
    no_resources = NameIndex({"files": {TOOL: ["a"], PROMPT: []}})
    assert no_resources.unmatched(PatternUse("rules[0]", "resource:x")) is None


def test_servers_without_any_tool_prove_nothing() -> None:
    assert NameIndex({"empty": {TOOL: []}}).unmatched(PatternUse("rules[0]", "delete_.*")) is None


def test_no_suggestion_without_being_asked() -> None:
    found = NameIndex(LISTED).unmatched(PatternUse("rules[0]", "delete_.*"), suggest=False)
    assert found is not None
    assert found.instead == ()


def test_message_names_place_pattern_count_and_correction() -> None:
    found = examined("delete_.*")
    assert str(found) == "rules[0] `delete_.*` matches none of 8 tools; did you mean `delete_*`"
    assert str(examined("prompt:x")) == "rules[0] `prompt:x` matches none of 1 prompt"


def test_every_pattern_of_a_configuration_has_a_place() -> None:
    server = Server(
        command="x",
        expose=Expose("blocklist", ("e1", "e2")),
        allowed_tools=("*", "a"),
        approval_policy=RecordApproval(tools={"p": "deny"}),
    )
    root = GatewayFile(
        servers={"files": server},
        governance=Governance(
            rules=(Rule("*", Action.FORWARD), Rule("r", Action.DENY, server="files")), force_required=("f",)
        ),
        profiles={"p": ScopeProfile(tool_allowlist=("pa",), tool_denylist=("pd",))},
        scopes={
            "s": Scope(
                tool_allowlist=("sa",),
                tool_denylist=("sd",),
                profile_overrides=ProfileOverrides(tool_allowlist=("oa",), tool_denylist=("od",)),
            )
        },
    )
    assert {(use.place, use.text, use.server) for use in patterns_in(root)} == {
        ("rules[1]", "r", "files"),
        ("governance.force_required[0]", "f", ""),
        ("servers.files.expose.tools[0]", "e1", "files"),
        ("servers.files.expose.tools[1]", "e2", "files"),
        ("servers.files.allowed_tools[1]", "a", "files"),
        ("servers.files.approval_policy.tools", "p", "files"),
        ("profiles.p.tool_allowlist[0]", "pa", ""),
        ("profiles.p.tool_denylist[0]", "pd", ""),
        ("scopes.s.tool_allowlist[0]", "sa", ""),
        ("scopes.s.tool_denylist[0]", "sd", ""),
        ("scopes.s.profile_overrides.tool_allowlist[0]", "oa", ""),
        ("scopes.s.profile_overrides.tool_denylist[0]", "od", ""),
    }


def test_own_tools_are_not_suggested_for_tools_of_servers() -> None:
    """`show_tasks` is a tool of the gateway."""
    found = examined("slow_*")
    assert found is not None
    assert found.instead == ()


SCHEMAS = {
    ("files", "delete_file"): {"properties": {"path": {}, "force": {}}},
    ("files", "delete_all"): {"properties": {"where": {"properties": {"path": {}}}}},
    ("files", "read_file"): {"properties": {}},
}


@pytest.mark.parametrize(
    ("pattern", "paths", "message"),
    [
        ("delete_*", [("path",)], None),
        ("delete_*", [("where", "path")], None),
        ("delete_*", [("pth",)], "depends on argument.pth, which none of 2 tools has; did you mean `argument.path`"),
        ("delete_*", [("path",), ("zzz",)], "depends on argument.zzz, which none of 2 tools has"),
        (
            "delete_file",
            [("forc",)],
            "depends on argument.forc, which the tool that it matches does not have; did you mean `argument.force`",
        ),
        ("read_file", [("anything",)], None),
        ("*_file", [("pth",)], None),
        ("prompt:ask_me", [("pth",)], None),
        ("nothing", [("pth",)], "matches none of 8 tools"),
    ],
)
def test_argument_that_no_matching_tool_has_is_named(
    pattern: str, paths: list[tuple[str, ...]], message: str | None
) -> None:
    index = NameIndex(LISTED, lambda server, tool: SCHEMAS.get((server, tool)))
    found = index.unmatched(PatternUse("rules[0]", pattern, "", tuple(paths)))
    assert (found.message if found is not None else None) == message
    assert NameIndex(LISTED).unmatched(PatternUse("rules[0]", "read_file", "", tuple(paths))) is None


def test_arguments_of_very_many_tools_are_not_compared() -> None:
    listed = {"s": {TOOL: [f"t{number}" for number in range(MAX_SCHEMAS + 1)]}}
    index = NameIndex(listed, lambda *_: {"properties": {"a": {}}})
    assert index.unmatched(PatternUse("rules[0]", "t*", "", (("b",),))) is None


def test_arguments_of_conditions_belong_to_their_rule() -> None:
    rules = (Rule("*", Action.DENY, when={"argument.a.b": "1", "role": "x"}), Rule("*", Action.DENY))
    root = GatewayFile(governance=Governance(rules=rules))
    assert patterns_in(root) == (PatternUse("rules[0]", "*", "", (("a", "b"),)),)
