"""Who handles bytes that cannot be decoded handles all of them: the library also raises Python's errors."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.structure.source import nodes_of

import taskgate

SOURCE = Path(taskgate.__file__).parent
OWN = {"msgspec.MsgspecError", "msgspec.DecodeError", "msgspec.ValidationError"}


def names_of_msgspec(source: str) -> list[int]:
    """The lines of handlers that name the library's errors."""
    return [
        node.lineno
        for node in nodes_of(source)
        if isinstance(node, ast.ExceptHandler)
        and node.type is not None
        and any(ast.unparse(part) in OWN for part in ast.walk(node.type) if isinstance(part, ast.Attribute))
    ]


def test_handlers_name_undecodable_instead_of_the_errors_of_the_library() -> None:
    found = {path.name: lines for path in SOURCE.rglob("*.py") if (lines := names_of_msgspec(path.read_text()))}
    assert found == {}, "use taskgate.mcp.json_errors.UNDECODABLE"


def test_the_check_finds_a_handler() -> None:
    assert names_of_msgspec("try:\n    pass\nexcept (ValueError, msgspec.DecodeError):\n    pass\n") == [3]
