"""What the product does not use is not kept: code that only tests call looks as if it guarded or did something."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest
from tests.structure.source import parsed

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "taskgate"
CALLED_BY_LIBRARIES = {
    *("connection_lost", "pause_writing", "resume_writing"),
    *("on_header", "on_url", "on_body", "on_message_complete"),
    *("startup", "main_loop", "capture_signals", "message_event", "parse_args", "force_flush", "model_config"),
    *("dump", "oid", "throw", "cancelling"),
    *("resolve_command", "list_commands", "get_command", "format_options", "format_commands", "format_epilog"),
}
WRITTEN_OUT = {"open_questions"}
"""Fields that are read only by recipients of the JSON."""
SEEN_BY_TESTS = {"watcher_pid", "worker_pids", "idle_connections", "is_committing"}
"""Windows for tests on what cannot be seen from outside: a process, a connection, a thread at work."""
_PLAIN_DECORATORS = {"property", "cached_property", "classmethod", "staticmethod", "override", "dataclass", "cache"}
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

Definition = tuple[str, int, str]


def unused_in(files: Mapping[str, str], mentioned: Iterable[str] = ()) -> list[str]:
    """Functions, classes, constants and fields that are mentioned nowhere but within definitions of the same name.

    A port, its implementation and the operation behind it have one name, so that they do not keep one another in use.
    """
    defined: list[Definition] = []
    uses: dict[str, bool] = defaultdict(bool, dict.fromkeys(mentioned, True))
    for path, source in files.items():
        tree = parsed(source)
        defined += [(path, line, name) for line, name in _defined(tree)]
        _note_uses(tree, (), uses)
    known = CALLED_BY_LIBRARIES | SEEN_BY_TESTS | WRITTEN_OUT
    return [f"{path}:{line} {name}" for path, line, name in defined if name not in known and not uses[name]]


def _defined(tree: ast.Module) -> Iterator[tuple[int, str]]:
    owners: list[ast.Module | ast.ClassDef] = [tree]
    while owners:
        owner = owners.pop()
        for node in owner.body:
            if isinstance(node, ast.ClassDef) and not _is_enumeration(node):
                owners.append(node)
            for name in _names_of(node):
                if not name.startswith("__") and name != "_":
                    yield node.lineno, name


def _names_of(node: ast.stmt) -> list[str]:
    if isinstance(node, _DEFINITIONS):
        return [] if any(_word(each) not in _PLAIN_DECORATORS for each in node.decorator_list) else [node.name]
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return [target.id for target in targets if isinstance(target, ast.Name)]
    return []


def _word(decorator: ast.expr) -> str:
    """`dataclass` of `@dataclass(frozen=True)`; what registers (`@app.command`, a validator) has another name."""
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return ast.unparse(called).removeprefix("functools.")


def _is_enumeration(node: ast.ClassDef) -> bool:
    """Its members are also made from their values."""
    return any(ast.unparse(base).endswith(("Enum", "Flag")) for base in node.bases)


def _note_uses(node: ast.AST, within: tuple[str, ...], uses: dict[str, bool]) -> None:
    for child in ast.iter_child_nodes(node):
        for name in _mentioned(child):
            uses[name] = uses[name] or name not in within
        _note_uses(child, (*within, child.name) if isinstance(child, _DEFINITIONS) else within, uses)


def _mentioned(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        return [node.id]
    if isinstance(node, ast.Attribute):
        return [node.attr]
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"[\w.:]+", node.value):
        return re.split(r"[.:]", node.value)
    return []


def _mentioned_outside() -> set[str]:
    """By the handbook of the client library, by the commands that are installed, and by the pages of the console."""
    files = [ROOT / "docs" / "client.md", ROOT / "pyproject.toml", *SOURCE.rglob("*.html")]
    return {word for file in files for word in re.findall(r"\w+", file.read_text())}


def test_no_code_is_unused() -> None:
    files = {str(path.relative_to(SOURCE)): path.read_text() for path in sorted(SOURCE.rglob("*.py"))}
    # Settings are fields that are read by their keys; that each has an effect is shown in test_every_setting_has_effect.
    settings = {
        name
        for path, source in files.items()
        if path.startswith(("config/", "core/settings/", "replies/"))
        for name in _fields(source)
    }
    assert unused_in(files, _mentioned_outside() | settings) == []


def _fields(source: str) -> Iterator[str]:
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.ClassDef):
            yield from (name for line in node.body if isinstance(line, ast.AnnAssign) for name in _names_of(line))


@pytest.mark.parametrize(
    "source",
    [
        "def left() -> None: ...",
        "def left() -> None:\n    left()",
        "left = 1",
        "class Kept:\n    left: int\nKept()",
        "class Kept:\n    @property\n    def left(self) -> int: ...\nKept()",
        "class Port:\n    def left(self): ...\nclass Store:\n    def left(self):\n        self.inner.left()\nPort(), Store()",
    ],
)
def test_the_check_detects_unused_code(source: str) -> None:
    assert [found.split()[1] for found in unused_in({"x.py": source})] in (["left"], ["left", "left"])


@pytest.mark.parametrize(
    "source",
    [
        "def used() -> None: ...\nused()",
        "@app.command\ndef registered() -> None: ...",
        "class Kind(StrEnum):\n    MEMBER = 'member'\nKind('member')",
        "def named() -> None: ...\nstart('taskgate.x:named')",
    ],
)
def test_the_check_accepts_used_code(source: str) -> None:
    assert unused_in({"x.py": source}) == []
