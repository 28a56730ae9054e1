"""The reference of errors lists each `error_type` of the gateway with the codes and the HTTP status that callers get."""

from __future__ import annotations

import re

from tests.docs.blocks import ROOT

from taskgate.core.generations.error_codes import CODES, Code

ROW = re.compile(r"^\| `(\w+)` \| ([^|]+) \|", re.M)


def shown(code: Code) -> str:
    numbers = str(code.stateful) if code.stateful == code.stateless else f"{code.stateful} / {code.stateless}"
    return numbers if code.status == 200 else f"{numbers}, HTTP {code.status}"


def test_every_error_type_is_listed_once_with_its_codes() -> None:
    kinds = (ROOT / "docs" / "errors.md").read_text().partition("\n## Kinds of error\n")[2]
    assert sorted(ROW.findall(kinds)) == sorted((name, shown(code)) for name, code in CODES.items())
