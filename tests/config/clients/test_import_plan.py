"""Importing servers into taskgate.yaml: comments stay, names are unique, secrets are not shown, and the result can be loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskgate.config import load_text
from taskgate.config.clients.found_servers import Found
from taskgate.config.clients.import_plan import CannotImport, plan_import


def _found(name: str, client: str = "cursor", **server: Any) -> Found:
    return Found(name, server or {"command": "c"}, client, Path("/x"))


GITHUB = _found("GitHub MCP", command="npx", args=["-y", "s: x"], env={"TOKEN": "hunter2", "A B": "#"}, enabled=False)


@pytest.mark.parametrize(
    "before",
    [
        "",
        "# only a comment\n",
        "schema: 1\n",
        "servers:\n",
        "servers:   # mine\n",
        "servers: {}\nprofile: production\n",
        "servers:\n  # my own\n  own: {command: x}\n\n# after\nprofile: production\n",
        "servers:\n    own:\n        command: x\n",
        "servers: {own: {command: x}}\n",
        "profile: production",
    ],
)
def test_servers_are_added_and_everything_else_stays(before: str) -> None:
    plan = plan_import([GITHUB], before)
    servers = load_text(plan.after, environment={}).root.servers
    assert servers["GitHub-MCP"].env == {"TOKEN": "hunter2", "A B": "#"}
    assert servers["GitHub-MCP"].args == ("-y", "s: x")
    assert not servers["GitHub-MCP"].enabled
    for line in before.splitlines():
        assert line.replace(" {}", "") in plan.after
    assert ("own" in servers) == ("own:" in before)


def test_a_plan_shows_its_diff_without_secrets() -> None:
    diff = plan_import([GITHUB], "servers:\n  own: {command: x}\n").diff("taskgate.yaml")
    assert "hunter2" not in diff
    assert "+  GitHub-MCP:  # from cursor" in diff
    assert '+    env: {TOKEN: "***", "A B": "***"}' in diff


def test_equal_servers_are_imported_once_and_different_ones_are_renamed() -> None:
    plan = plan_import(
        [_found("a"), _found("a", "vscode"), _found("A", "zed", command="d"), _found("a", "cline", command="e")], ""
    )
    assert {name: item.server["command"] for name, item in plan.added.items()} == {
        "a": "c",
        "A-zed": "d",
        "a-cline": "e",
    }
    assert [(item.client, why) for item, why in plan.passed_over] == [("vscode", 'already present as "a"')]


def test_importing_twice_changes_nothing() -> None:
    once = plan_import([GITHUB], "").after
    again = plan_import([GITHUB], once)
    assert (again.after, again.added) == (once, {})
    assert again.diff("x") == ""


@pytest.mark.parametrize(
    ("before", "words"),
    [
        ("{servers: {a: {command: x}}}\n", "the file is in flow style"),
        ("servers: {a: {command: x}}\nmcpServers: {b: {command: x}}\n", "`servers` is in flow style"),
        ("servers: [\n", "is invalid"),
    ],
)
def test_a_file_that_cannot_be_changed_safely_is_not_changed(before: str, words: str) -> None:
    with pytest.raises(CannotImport, match=words):
        plan_import([GITHUB], before)


TEXT = st.text(
    st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters="\u2028\u2029\ufeff\ufffe\uffff"), max_size=8
)


@given(TEXT, st.lists(TEXT, max_size=3), st.dictionaries(TEXT.filter(bool), TEXT, max_size=3))
def test_any_text_survives_the_round_trip(command: str, args: list[str], env: dict[str, str]) -> None:
    from taskgate.config.clients.found_servers import as_texts

    found = _found("s", command=f"c{command}", args=args, env=env)
    try:
        plan = plan_import([found], "")
    except CannotImport:
        return
    from taskgate.config.document import read_document
    from taskgate.config.tree import Mapping, plain

    servers = read_document(plan.after, "t").get("servers")
    assert isinstance(servers, Mapping)
    assert plain(servers)["s"] == as_texts(found.server)
