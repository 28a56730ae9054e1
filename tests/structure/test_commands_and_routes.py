"""Commands and routes of the API agree: each command requests declared routes, and each route names an existing command."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from tests.console.console_setup import PAGES as SEEN_PAGES
from tests.console.test_console_numbers import PAGES as MEASURED_PAGES
from tests.virtual_time import Gateway, virtual_time

from taskgate.access.routes import RouteKind
from taskgate.cli.root import build_app

CLI = Path(__file__).parents[2] / "src" / "taskgate" / "cli"
METHODS = {"get": "GET", "post": "POST", "delete": "DELETE"}
VALUE = "\0"
"""Stands for an interpolated value in a path."""


def text_of(node: ast.AST) -> str | None:
    """A literal or formatted string with `VALUE` in place of each interpolation; None for any other expression."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) or VALUE for part in node.values)
    return None


def requests_in(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Method and path of every request: `api.get(PATH)`, and `to_thread(api.get, PATH)`."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        for function, path in (
            (node.func, node.args[:1]),
            *zip(node.args, ([arg] for arg in node.args[1:]), strict=False),
        ):
            if isinstance(function, ast.Attribute) and function.attr in METHODS and path:
                text = text_of(path[0])
                if text is not None and text.startswith("/api/"):
                    yield METHODS[function.attr], text.partition("?")[0]


def every_request() -> dict[tuple[str, str], str]:
    found: dict[tuple[str, str], str] = {}
    for file in sorted(CLI.glob("*.py")):
        tree = ast.parse(file.read_text())
        found |= dict.fromkeys(requests_in(tree), file.name)
        paths = [text_of(node) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr | ast.Constant)]
        found |= {
            ("", path.partition("?")[0]): file.name for path in paths if path is not None and path.startswith("/api/")
        }
    return found


def commands(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from commands(child, (*words, name))
    else:
        yield words, command


@virtual_time
async def test_every_request_of_a_command_names_a_declared_route() -> None:
    asked = every_request()
    assert len(asked) > 40
    async with Gateway({}, {}) as gate:
        declared = [route for route in gate.life.site.routes if route.kind is RouteKind.API]

        def is_served(method: str, path: str) -> bool:
            versioned = path if path.startswith("/api/v1/") else path.replace("/api/", "/api/v1/", 1)
            # A value may hold a query that the command has built (`/api/approvals{query}`), or one of several actions.
            parts = tuple(part for part in versioned.split("/") if part)
            for route in declared:
                pattern = [part if part.startswith("{") else re.escape(part) for part in route.parts]
                same = len(parts) == len(pattern) and all(
                    own.startswith("{") or VALUE in given or re.fullmatch(own, given)
                    for own, given in zip(pattern, parts, strict=True)
                )
                if same and method in ("", route.method):
                    return True
            return False

        unknown = {f"{method} {path}": file for (method, path), file in asked.items() if not is_served(method, path)}
        assert unknown == {}


@virtual_time
async def test_every_command_that_a_route_names_exists_with_its_options() -> None:
    known = dict(commands(build_app(), ("taskgate",)))
    async with Gateway({}, {}) as gate:
        named = {route.command: route for route in gate.life.site.routes if getattr(route, "command", "")}  # type: ignore[attr-defined]
        assert len(named) > 25
        for text, route in named.items():
            words = text.split()
            found = next((known[tuple(words[:n])] for n in (3, 2) if tuple(words[:n]) in known), None)
            assert found is not None, f"{route.method} {route.path}: there is no command {text!r}"
            options = {option for parameter in found.params for option in parameter.opts}
            given = {word for word in words if word.startswith("-")}
            assert given <= options, (text, given - options)
            assert set(re.findall(r"{(\w+)}", text)) <= set(route.places), (text, route.path)


@virtual_time
async def test_each_page_names_a_json_route_that_exists_and_the_menu_comes_from_the_routes() -> None:
    async with Gateway({}, {}) as gate:
        declared = {(route.kind, route.method, route.path) for route in gate.life.site.routes}
        pages = [route.page for route in gate.life.dashboard._pages.table.routes if route.page is not None]
        assert len(pages) > 10
        assert [page.json for page in pages if (RouteKind.API, "GET", page.json) not in declared] == []
        places = [page.menu for page in pages if page.menu is not None]
        assert len(places) == len(set(places)), "two pages have the same place in the menu"


@virtual_time
async def test_each_page_is_documented_and_in_the_tests_of_all_pages() -> None:
    async with Gateway({}, {}) as gate:
        routes = gate.life.dashboard._pages.table.routes
    pages = {route.path: route.page for route in routes if route.page is not None and not route.places}
    assert len(pages) > 10
    document = (TOP / "docs" / "console.md").read_text(encoding="utf-8")
    rows = "\n".join(line.split("|")[1] for line in document.splitlines() if line.startswith("| "))
    named = set(re.findall(r"[A-Z]\w+", rows))
    # The page Approvals is the list behind the inbox, and is described with it.
    undocumented = {page.title for page in pages.values()} - named - {"Approvals"}
    assert undocumented == set(), "add a row to docs/console.md"
    for listed, where in (
        (MEASURED_PAGES, "tests/console/test_console_numbers.py"),
        (SEEN_PAGES, "tests/console/console_setup.py"),
    ):
        missing = set(pages) - {path.partition("?")[0] for path in listed}
        assert missing == set(), f"add it to PAGES in {where}, so that its size and its markup are checked"


TOP = Path(__file__).parents[2]
NAMED_COMMAND = re.compile(r"(?:`|\$ )taskgate ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?")
"""A command as documentation and messages write it: after a backtick or a shell prompt."""


def named_commands() -> Iterator[tuple[str, str, str]]:
    """File, command and next word of every command that the documentation or a message of the program names."""
    pages = [*TOP.glob("*.md"), *(TOP / "docs").rglob("*.md")]
    sources = [file for ending in ("*.py", "*.html") for file in (TOP / "src").rglob(ending)]
    for file in sorted(pages + sources):
        for found in NAMED_COMMAND.finditer(file.read_text(encoding="utf-8")):
            yield str(file.relative_to(TOP)), found[1], found[2] or ""


def test_documentation_and_messages_name_public_commands() -> None:
    public: dict[str, set[str]] = {}
    for (_, name, *subcommand), _command in commands(build_app(), ("taskgate",)):
        public.setdefault(name, set()).update(subcommand)
    wrong = [
        f"{file}: taskgate {name} {word}"
        for file, name, word in named_commands()
        if name not in public or (public[name] and word and word not in public[name])
    ]
    assert wrong == [], "these commands do not exist or are hidden; `taskgate --help` lists the public ones"
