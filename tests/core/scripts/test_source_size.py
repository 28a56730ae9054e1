"""What it costs to parse a source is known before it is parsed: its tokens, also those in f-strings, and how deep they nest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from tests.harness.cpu_time import least_cpu

from taskgate.core.scripts.check_source import SourceFault, check_source, parse
from taskgate.core.scripts.names import PythonName, python_names
from taskgate.core.scripts.source_size import MAX_TOKENS, exceeding_line

PARSED_S = 0.1
"""CPU time of reading the tokens and of parsing, on an idle processor. The sources that led to the limits took 5 s and more."""
FIELDS = "{a}{b}{c}{d}{e}{f}{g}{h}"

SLOW = {
    "fields of one f-string": 'f"' + "{a}" * 66_000 + '"',
    "fields in a script of 4 KB, many times": "\n".join(f'f"{"{a}" * 1_300}"' for _ in range(48)),
    "fields of small f-strings": "\n".join(f'f"{FIELDS}"' for _ in range(4_900)),
    "fields of f-strings side by side": "x = " + f"f'{FIELDS}' " * 6_000,
    "fields of a raw f-string in three quotes": "rF'''" + "\\{a}\n" * 30_000 + "'''",
    "fields behind quotes that are text": 'f"' + "{a:'}{b}" * 24_000 + '"',
    "fields behind braces that are text": 'f"' + "{{{a}}}" * 28_000 + '"',
    "fields in formats": 'f"' + "{a:{b}}" * 28_000 + '"',
    "code in one field": "x = f'{(a" + ",a" * 90_000 + ")}'",
    "code behind nested quotes": 'x = f"{"\'"}";' + "a;" * 90_000,
    "fields of a template string": 't"' + "{a}" * 66_000 + '"',
    "texts that do not end": "\\'''\n" * 39_000,
    "texts that do not end, of two kinds": "\\'''\\\"\"\"\n" * 20_000,
    "names on lines of their own": "a\n" * 99_000,
    "lines that end with a carriage return": "# \ra;" * 40_000,
    "texts side by side": "x = " + "'' " * 65_000,
    "marks of one name": "a" + "\u0301\u0316" * 49_000,
    "marks of many names": ("a" + "\u0301\u0316" * 400 + "\n") * 120,
    "marks of a name that are none before it is normalized": "a" + "\u0f73" * 14_000,
    "other marks of a name between marks": "a" + "\u0301\uff9e" * 7_000,
    "targets of an assignment with an error": "(" + "a," * (MAX_TOKENS // 2 - 10) + "1)=1",
    "error at the end": "a;" * (MAX_TOKENS // 4 - 5) + "a b",
}


@pytest.mark.unmeasured
@pytest.mark.parametrize("code", SLOW.values(), ids=SLOW.keys())
def test_source_is_refused_or_parsed_within_a_limit_of_cpu_time(code: str) -> None:
    assert len(code) <= 200_000
    assert least_cpu(lambda: parse(code), PARSED_S) < PARSED_S


def test_line_of_many_marks_is_named() -> None:
    assert exceeding_line("x = 1\nna\u0308me = '" + "a\u0301" * 200 + "'") == 0
    assert exceeding_line("x = 1\ny = 2\na" + "\u0301" * 31) == 3
    assert exceeding_line("x = 1\nb" + "\u0301\u0316" * 20 + " = 2\ny = 3") == 2


def test_fields_of_f_strings_are_counted() -> None:
    fault = parse("x = 1\n" + SLOW["fields of one f-string"])
    assert isinstance(fault, SourceFault)
    assert (fault.line, fault.problem) == (2, "the script is nested too deeply or has too many parts")


def test_field_counts_as_several_names() -> None:
    """Its tokens alone are few: a name and a bracket."""
    assert exceeding_line('f"' + "{a}" * 1_450 + '"') == 0
    assert exceeding_line('f"' + "{a}" * 1_550 + '"') == 1


@pytest.mark.parametrize(
    "code",
    [
        'f"{a:\'}" + MANY + "\'}"',
        "f'{{' + MANY + '}}'",
        "f'}}' + MANY + '{{'",
        "f'{a!r:>{b}}' + MANY + ''",
        "f'''{a[1:2]:'}''' + MANY",
        "f'{(lambda: 1)()}' + MANY",
        "rf'\\{a}' + MANY + '}'",
        "f'\\'{a}\\\\' + MANY + '}'",
        "f'{a}' 'b' f'{c}' + MANY",
        "f'{\"}\"}' + MANY + '}'",
        "f'{{a}}{d[\"{\"]}' + MANY + ''",
        "'\\\\' + MANY + ''",
        "b'''' ''' + MANY + ''''''",
        "'#' + MANY",
        "f'{a:{b:{c}}}' + MANY",
        "x + \\\n MANY",
    ],
)
def test_code_behind_a_string_is_counted(code: str) -> None:
    many = "[" + "1," * MAX_TOKENS + "]"
    assert exceeding_line(code.replace("MANY", "a")) == 0
    assert exceeding_line(code.replace("MANY", many)) == code[: code.index("MANY")].count("\n") + 1


@pytest.mark.parametrize("code", ["'" + ",", "'''" + ",", "f'{a", "f'" + ",", "f'}' + ", "f'{a:'} + ", "f'{a:'"])
def test_what_is_behind_an_error_is_not_parsed(code: str) -> None:
    """The parser of Python ends at a string or a field that does not."""
    assert exceeding_line(code + "1," * MAX_TOKENS) in (0, 1)
    assert isinstance(parse(code), SourceFault)


ORDINARY = """
async def report(n, names):
    rows = [row for row in await files.read_file(path=f"/data/{n}.json") if row["size"] > 10 and row["name"] in names]
    total = sum(row["size"] * 2 + 1 for row in rows)  # in bytes: see "sizes"
    print(f"{n}: {len(rows)} of {total:,} ({total / max(1, n):.2f} %)")
    return {"rows": rows, "total": total}
"""
LARGE = {
    "many functions": ORDINARY * 90,
    "a long text": "text = '''" + 'It\'s a "text", with (brackets) {and} commas; 100 %.\n' * 3_500 + "'''\ntext",
    "a long f-string": "name = 'x'\ntext = f'''" + "Dear {name}, your order (no. 5) was sent.\n" * 1_000 + "'''\ntext",
    "a table": "rows = [\n" + "    {'id': 1, 'name': 'first', 'price': 2.5},\n" * 600 + "]\nrows",
    "comments": "# What follows is done (for each file), in order.\n" * 3_500 + "1",
    "assignments": "x = 1\n" * 2_400,
}


@pytest.mark.parametrize("code", LARGE.values(), ids=LARGE.keys())
def test_large_ordinary_script_is_accepted(code: str) -> None:
    assert check_source(parse(code), (PythonName("files", "read_file", "files__read_file"),)) == ()


def test_similar_names_are_searched_for_reported_faults_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server may have thousands of tools, and a script may call thousands of names that are almost right."""
    compared = 0

    def similar(name: str, known: Iterable[str], **_: Any) -> list[str]:
        nonlocal compared
        compared += len(list(known))
        return []

    monkeypatch.setattr("taskgate.core.scripts.check_source.similar_names", similar)
    names = python_names((f"s{n % 10}", f"tool_{n}", f"s{n % 10}__tool_{n}") for n in range(5_000))
    tree = parse("\n".join(f"tol_{n}()\nawait s0.tol_{n}()" for n in range(1_000)))
    assert len(check_source(tree, names)) == 20
    assert 0 < compared <= 20 * 200 + 20 * 10


def test_similar_name_is_found_among_many_tools() -> None:
    names = python_names(("s", f"{'abcdefgh'[n % 8]}_tool_{n}", f"s__{n}") for n in range(400))
    [fault] = check_source(parse("await s.a_tol_16()"), names)
    assert fault.instead == "await s.a_tool_16(...)"


@pytest.mark.unmeasured
def test_tools_with_colliding_names_are_named_in_linear_time() -> None:
    tools = [("s", "tool" + "-" * (n % 50) + "." * (n // 50) + "x", f"s__{n}") for n in range(5_000)]
    assert len({name.function for name in python_names(tools)}) == 5_000
    assert least_cpu(lambda: python_names(tools), 0.2, times=5) < 0.2
