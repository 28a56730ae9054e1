"""The reference of errors lists each `error_type` of the gateway with the codes and the HTTP status that callers get."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.docs.blocks import ROOT

from taskgate.core.generations.error_codes import CODES, Code

CLASSES = ("TaskgateError", "CallerError", "UpstreamError", "GatewayFault")
ROW = re.compile(r"^\| `(\w+)` \| ([^|]+) \|", re.M)


def shown(code: Code) -> str:
    numbers = str(code.stateful) if code.stateful == code.stateless else f"{code.stateful} / {code.stateless}"
    return numbers if code.status == 200 else f"{numbers}, HTTP {code.status}"


def test_every_error_type_is_listed_once_with_its_codes() -> None:
    kinds = (ROOT / "docs" / "errors.md").read_text().partition("\n## Kinds of error\n")[2]
    assert sorted(ROW.findall(kinds)) == sorted((name, shown(code)) for name, code in CODES.items())


def raised_in(source: str) -> Iterator[str]:
    """Each error type that is written as a literal where an error of the gateway is created. Modules that name no class of errors
    are not parsed."""
    if not any(name in source for name in CLASSES):
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CLASSES and node.args:
            name = node.args[0]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield name.value


def test_every_error_type_that_is_raised_has_codes() -> None:
    """A missing one would be sent with the code of an internal error, and would not be in the reference."""
    found = {name for path in (ROOT / "src").rglob("*.py") for name in raised_in(path.read_text())}
    assert len(found) > 30
    assert found - set(CODES) == set()
